"""Plans as JSON: one document with the graph in it, versioned, so that it can be judged again and shown alone."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from detrain.errors import GraphError
from detrain.plans.documents import DocumentKind
from detrain.remat import graphfile
from detrain.remat.graph import Graph
from detrain.remat.planners.plan import Plan
from detrain.remat.schedule import Action, Schedule, Step

DOCUMENT = DocumentKind("detrain rematerialization plan", 1, "a plan")


@dataclass(frozen=True)
class Planned:
    """What a file holds."""

    graph: Graph
    schedule: Schedule


def write(path: Path, graph: Graph, plan: Plan) -> None:
    """The plan of a graph, and the graph. Raises `OSError`."""
    document = {"steps": encode_steps(plan.schedule), "graph": graphfile.encode(graph)}
    DOCUMENT.write(path, {**summary(graph, plan), **document})


def encode_steps(schedule: Schedule) -> list[list[object]]:
    """As they stand in a document."""
    return [[step.action.name.lower(), step.target] for step in schedule.steps]


def summary(graph: Graph, plan: Plan) -> dict[str, object]:
    """The figures of a plan: times in ns, but `seconds` for the time of the planning itself; memory in bytes."""
    return {
        "planner": plan.schedule.planner, "budget_bytes": plan.schedule.budget_bytes, "overhead": plan.outcome.overhead,
        "clock_ns": plan.outcome.clock_ns, "baseline_ns": graph.cost_ns, "peak_bytes": plan.outcome.peak_bytes,
        "num_rematerialized": plan.outcome.num_again, "is_optimal": plan.is_optimal, "bound_ns": plan.bound_ns,
        "seconds": round(plan.seconds, 3),
    }  # fmt: skip


def read(path: Path) -> Planned:
    """Raises `GraphError` for what is no plan, or `OSError`."""
    return decode(DOCUMENT.read(path), path)


def decode(document: dict[str, object], path: Path) -> Planned:
    """The plan of a document that is one; `path` is what errors name. Raises `GraphError`."""
    graph = graphfile.decode(document.get("graph"), name=path.stem)
    steps = steps_of(document.get("steps"), graph, str(path))
    budget_bytes = document.get("budget_bytes")
    return Planned(
        graph, Schedule(steps, str(document.get("planner", "")), budget_bytes if type(budget_bytes) is int else None)
    )


def steps_of(steps: object, graph: Graph, where: str) -> tuple[Step, ...]:
    """The inverse of `encode_steps`; `where` is what errors name. Raises `GraphError`."""
    if type(steps) is not list:
        raise GraphError(f"{where}: steps is no list")
    return tuple(_step(where, place, fields, graph) for place, fields in enumerate(steps))


def _step(path: str, place: int, fields: object, graph: Graph) -> Step:
    kinds = {"compute": (Action.COMPUTE, len(graph.operators)), "free": (Action.FREE, len(graph.tensors))}
    if type(fields) is not list or len(fields) != 2 or fields[0] not in kinds or type(fields[1]) is not int:
        raise GraphError(f"{path}: step {place} is {str(fields)[:60]}, not [compute, operator] or [free, tensor]")
    action, end = kinds[fields[0]]
    if not 0 <= fields[1] < end:
        raise GraphError(f"{path}: step {place} is {fields}, and there are {end} of these")
    return Step(action, fields[1])

"""A schedule: which operator is done when, how often, and when which storage is thrown away."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import IntEnum

from detrain.remat.graph import Graph, Kind


class Action(IntEnum):
    """The target is an operator for COMPUTE, and for FREE the number of a storage's base."""

    COMPUTE = 0
    FREE = 1


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a schedule."""

    action: Action
    target: int


@dataclass(frozen=True)
class Schedule:
    """Steps, and who has planned them for what budget."""

    steps: tuple[Step, ...]
    planner: str = ""
    budget_bytes: int | None = None


def keep_all(graph: Graph) -> Schedule:
    """Every operator once; what nobody refers to any more is thrown away at once.

    The memory that this needs is the peak that budgets are shares of.
    """
    return Schedule(tuple(_as_the_program_does(graph)), "keep-all")


def _as_the_program_does(graph: Graph) -> Iterator[Step]:
    references = [0] * len(graph.tensors)
    kept = {graph.tensors[one].base for one in graph.outputs}
    for command in graph.program:
        if command.kind == Kind.COMPUTE:
            yield Step(Action.COMPUTE, command.target)
            for output in graph.operators[command.target].outputs:
                references[graph.tensors[output].base] += 1
        elif command.kind != Kind.PIN:
            base = graph.tensors[command.target].base
            references[base] += 1 if command.kind == Kind.GET else -1
            if not references[base] and base not in kept:
                yield Step(Action.FREE, base)


def from_trace(kinds: Iterable[int], targets: Iterable[int], planner: str, budget_bytes: int | None) -> Schedule:
    """What a runtime has done."""
    steps = tuple(Step(Action(kind), int(target)) for kind, target in zip(kinds, targets, strict=True))
    return Schedule(steps, planner, budget_bytes)

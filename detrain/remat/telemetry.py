"""What a schedule has done with each operator and each storage, as two tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from detrain.plans import tables
from detrain.remat.graph import Graph
from detrain.remat.schedule import Action, Schedule
from detrain.remat.simulator import Outcome


@dataclass(frozen=True)
class OperatorRow:
    """An operator, by its number in the graph."""

    operator: int
    name: str
    cost_ns: int
    num_runs: int
    total_ns: int


@dataclass(frozen=True)
class StorageRow:
    """A storage, by the number of its base, which gives it its name."""

    storage: int
    name: str
    size_bytes: int
    num_made: int
    #: Bytes x ns for which it was in memory.
    held_byte_ns: int


def operators(graph: Graph, outcome: Outcome) -> list[OperatorRow]:
    """All, in the order of the program."""
    return [
        OperatorRow(number, operator.name, operator.cost_ns, count, operator.cost_ns * count)
        for number, (operator, count) in enumerate(zip(graph.operators, outcome.counts, strict=True))
    ]


def storages(graph: Graph, schedule: Schedule, outcome: Outcome) -> list[StorageRow]:
    """All, in the order in which they are made first. Views have no memory, and no row, of their own."""
    made: Counter[int] = Counter()
    there: set[int] = set()
    for step in schedule.steps[: outcome.failed_at]:
        if step.action == Action.FREE:
            there.discard(step.target)
            continue
        new = {graph.tensors[output].base for output in graph.operators[step.target].outputs} - there
        made.update(new)
        there |= new
    return [
        StorageRow(number, tensor.name, tensor.size_bytes, made[number], outcome.held_byte_ns.get(number, 0))
        for number, tensor in enumerate(graph.tensors)
        if tensor.base == number
    ]


def write(folder: Path, graph: Graph, schedule: Schedule, outcome: Outcome) -> None:
    """`operators.csv` and `storages.csv`, in a folder that is made if need be. Raises `OSError`."""
    folder.mkdir(parents=True, exist_ok=True)
    tables.write(folder / "operators.csv", OperatorRow, operators(graph, outcome))
    tables.write(folder / "storages.csv", StorageRow, storages(graph, schedule, outcome))

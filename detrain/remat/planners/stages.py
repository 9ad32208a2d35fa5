"""The step as a linear program: in stage t operator t is done for the first time, and before it whichever of the earlier ones again.

After Jain et al., "Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization" (MLSys 2020), with three
differences: a tensor may be thrown away behind any step and not only behind its last use in a stage, which needs no
products of variables; the unit of memory is the storage, with its views; and a stage may go over the earlier operators
more than once, without which some schedules cannot be said (one that makes a tensor, uses it, needs its room for
another, and makes it again for the stage's operator).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from detrain.remat.graph import Graph, Kind

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Program:
    """Minimise `cost · x`, where `rows · x <= limits` and `least <= x <= 1`; the first `num_again` variables are 0 or 1.

    `again[t, s]` is the variable that says whether the operator of step s is done again in stage t; `alive[t, s, i]`
    the one that says whether tensor i is in memory behind step s of stage t.
    """

    #: By stage: the operator of each step. The last one's is done for the first time; but in the last stage outputs are only made again.
    stages: tuple[tuple[int, ...], ...]
    cost: Numbers
    rows: sparse.csr_array
    limits: Numbers
    least: Numbers
    num_again: int
    again: dict[tuple[int, int], int]
    alive: dict[tuple[int, int, int], int]


@dataclass(frozen=True)
class Turn:
    """Where a part of a step waits for the rest: behind this stage these tensors are there, and no more than this in all."""

    stage: int
    there: frozenset[int]
    most_bytes: int


def program_of(graph: Graph, budget_bytes: int, num_passes: int = 1, turn: Turn | None = None) -> Program:
    """The linear program of a step, with memory in shares of `budget_bytes`. A stage goes `num_passes` times over the earlier operators."""
    return _Builder(graph, budget_bytes, num_passes, turn).build()


def operators_of(program: Program, x: Numbers, begin: int = 0) -> list[int]:
    """What a solution does, in order, from a stage on. Where it is whole only in `again`, what is alive follows from that."""
    return [
        number
        for stage, operators in enumerate(program.stages)
        if stage >= begin
        for step, number in enumerate(operators)
        if (variable := program.again.get((stage, step))) is None or x[variable] > _HALF
    ]


_HALF = 0.5


class _Builder:
    """Collects the variables and constraints of the program."""

    def __init__(self, graph: Graph, budget_bytes: int, num_passes: int, turn: Turn | None) -> None:
        self._graph, self._budget, self._turn = graph, float(max(budget_bytes, 1)), turn
        order = [command.target for command in graph.program if command.kind == Kind.COMPUTE]
        again = [number for number in order if not graph.operators[number].is_constant]
        place = {number: count for count, number in enumerate(again)}
        first = ((*(again[: place[number]] * num_passes if number in place else ()), number) for number in order)
        self._stages = (*first, tuple(again * num_passes))
        self._made = [
            [output for number in order[: stage + 1] for output in graph.operators[number].outputs]
            for stage in range(len(order) + 1)
        ]
        self._again: dict[tuple[int, int], int] = {}
        self._alive: dict[tuple[int, int, int], int] = {}
        self._cost: list[float] = []
        self._entries: tuple[list[int], list[int], list[float]] = ([], [], [])
        self._limits: list[float] = []

    def build(self) -> Program:
        """The program."""
        for stage, operators in enumerate(self._stages):
            for step, number in enumerate(operators):
                if self._is_first(stage, step):
                    continue
                self._again[stage, step] = self._variable(self._graph.operators[number].cost_ns)
        num_again = len(self._cost)
        for stage, operators in enumerate(self._stages):
            for step in range(len(operators)):
                for tensor in self._there(stage, step):
                    self._alive[stage, step, tensor] = self._variable(0)
        for stage, operators in enumerate(self._stages):
            for step, number in enumerate(operators):
                self._add_step(stage, step, number)
        if self._turn is not None:
            self._add_turn(self._turn)
        shape = (len(self._limits), len(self._cost))
        rows, columns, values = self._entries
        return Program(
            self._stages, np.array(self._cost), sparse.csr_array((values, (rows, columns)), shape=shape), np.array(self._limits),
            self._least(), num_again, self._again, self._alive,
        )  # fmt: skip

    def _there(self, stage: int, step: int) -> list[int]:
        """Tensors that may be in memory behind a step."""
        return self._made[stage] if self._is_first(stage, step) else self._made[stage - 1]

    def _is_first(self, stage: int, step: int) -> bool:
        """True if a step's operator is done for the first time."""
        return stage < len(self._stages) - 1 and step == len(self._stages[stage]) - 1

    def _variable(self, cost: float) -> int:
        self._cost.append(cost)
        return len(self._cost) - 1

    def _least(self) -> Numbers:
        """Constants stay; outputs are there at the end."""
        least, end = np.zeros(len(self._cost)), len(self._stages) - 1
        for (stage, step, tensor), variable in self._alive.items():
            is_constant = self._graph.operators[self._graph.tensors[tensor].operator].is_constant
            is_end = stage == end and step == len(self._stages[end]) - 1
            is_turn = self._turn is not None and stage == self._turn.stage and step == len(self._stages[stage]) - 1
            is_there = is_turn and self._turn is not None and tensor in self._turn.there
            least[variable] = is_constant or is_there or (is_end and tensor in self._graph.outputs)
        return least

    def _row(self, entries: list[tuple[int, float]], limit: float) -> None:
        """The sum of these is at most the limit."""
        number = len(self._limits)
        for variable, factor in entries:
            self._entries[0].append(number)
            self._entries[1].append(variable)
            self._entries[2].append(factor)
        self._limits.append(limit)

    def _add_turn(self, turn: Turn) -> None:
        tensors, last = self._graph.tensors, len(self._stages[turn.stage]) - 1
        there = [
            (self._alive[turn.stage, last, tensor], tensors[tensor].size_bytes / self._budget)
            for tensor in self._made[turn.stage]
            if tensors[tensor].size_bytes
        ]
        self._row(there, turn.most_bytes / self._budget)

    def _before(self, stage: int, step: int, tensor: int) -> int | None:
        """Whether a tensor is in memory when a step begins; None if it cannot be."""
        place = (stage, step - 1) if step else (stage - 1, len(self._stages[stage - 1]) - 1)
        return self._alive.get((*place, tensor))

    def _add_step(self, stage: int, step: int, number: int) -> None:
        """`done`: the variable whether its operator is done, if that is not certain."""
        operator, tensors = self._graph.operators[number], self._graph.tensors
        variable = self._again.get((stage, step))
        done, is_certain = ([], 1.0) if variable is None else ([(variable, 1.0)], 0.0)
        for tensor in self._there(stage, step):
            alive, before = self._alive[stage, step, tensor], self._before(stage, step, tensor)
            is_made = tensor in operator.outputs
            stays = [] if before is None else [(before, -1.0)]
            made = [(index, -1.0) for index, _ in done] if is_made else []
            self._row([(alive, 1.0), *stays, *made], is_certain if is_made else 0.0)
            if tensors[tensor].base != tensor:
                self._row([(alive, 1.0), (self._alive[stage, step, tensors[tensor].base], -1.0)], 0.0)
        for source in dict.fromkeys(operator.inputs):
            before = self._before(stage, step, source)
            assert before is not None, "an input is made before its operator"
            self._row([*done, (before, -1.0)], -is_certain)
        # Room for what is there when the step begins, and for all of its outputs.
        total = sum(tensors[output].size_bytes for output in operator.outputs) / self._budget
        there = [
            (before, tensors[tensor].size_bytes / self._budget)
            for tensor in (self._made[stage - 1] if stage else [])
            if tensors[tensor].size_bytes and (before := self._before(stage, step, tensor)) is not None
        ]
        self._row([*((index, total) for index, _ in done), *there], 1.0 - total * is_certain)

"""A schedule of a recorded step as a running program can follow it: what is evicted and made again before each of its operators.

Operators are named by their places in the step, and memory by the operator that makes it and its place among what that makes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from detrain.errors import GraphError
from detrain.remat.graph import Graph, Kind
from detrain.remat.schedule import Action, Schedule, freeing_early


class Memory(NamedTuple):
    """One storage that the step makes."""

    operator: int
    place: int


class Act(NamedTuple):
    """Something that is done before an operator runs: memory is evicted, or what an operator has made is made again."""

    operator: int
    #: None: made again.
    evicted: Memory | None = None
    #: It is not asked for any more: who has held it lets go.
    is_last: bool = False


@dataclass(frozen=True)
class StepPlan:
    """For one path: a step whose operators are these, in this order."""

    #: What the operators are, as they are told from others.
    path: tuple[object, ...]
    #: By place of the operator before which they are done.
    acts: tuple[tuple[Act, ...], ...]
    #: Memory that is needed after the program has let go of it.
    held: frozenset[Memory]
    planner: str
    peak_bytes: int
    overhead: float


def plan_of(path: Sequence[object], graph: Graph, schedule: Schedule, peak_bytes: int, overhead: float) -> StepPlan:
    """`graph` is that of the step, `schedule` one of the graph's; what nothing asks for any more is evicted at once.

    Raises `GraphError` where operators run in another order than the program's.
    """
    operators = [step.target for step in schedule.steps if step.action == Action.COMPUTE]
    early = freeing_early(graph, operators, schedule.planner, schedule.budget_bytes)
    return _Reading(graph, early).plan(tuple(path), peak_bytes, overhead)


class _Reading:
    """Goes through a schedule, with the program beside it."""

    def __init__(self, graph: Graph, schedule: Schedule) -> None:
        self._graph, self._schedule = graph, schedule
        self._num_constants = sum(operator.is_constant for operator in graph.operators)
        self._memory = {
            output: Memory(number - self._num_constants, place)
            for number, operator in enumerate(graph.operators)
            if not operator.is_constant
            for place, output in enumerate(
                output for output in operator.outputs if graph.tensors[output].base == output
            )
        }

    def plan(self, path: tuple[object, ...], peak_bytes: int, overhead: float) -> StepPlan:
        """The plan."""
        acts: list[list[Act]] = [[] for _ in range(len(path) + 1)]
        #: By memory: the place and the number of the act that evicts it last.
        last: dict[Memory, tuple[int, int]] = {}
        now = 0
        for step in self._schedule.steps:
            if step.action == Action.FREE:
                memory = self._memory.get(step.target)
                if memory is not None:
                    last[memory] = now, len(acts[now])
                    acts[now].append(Act(-1, memory))
                continue
            operator = step.target - self._num_constants
            if operator > now:
                raise GraphError("the plan takes the step's operators in another order")
            if operator == now:
                now = operator + 1
            elif operator >= 0:
                acts[now].append(Act(operator))
        for place, number in last.values():
            acts[place][number] = acts[place][number]._replace(is_last=True)
        held = self._held(acts, last)
        return StepPlan(path, tuple(map(tuple, acts)), held, self._schedule.planner, peak_bytes, overhead)

    def _held(self, acts: Sequence[Sequence[Act]], last: dict[Memory, tuple[int, int]]) -> frozenset[Memory]:
        """What the program lets go of before the plan does, or where the plan still makes something of it at that place."""
        held = set()
        for memory, place in self._let_go().items():
            if memory in last:
                evicted_at, number = last[memory]
                is_used = any(act.evicted is None for act in acts[evicted_at][:number])
                if evicted_at > place or (evicted_at == place and is_used):
                    held.add(memory)
        return frozenset(held)

    def _let_go(self) -> dict[Memory, int]:
        """By memory: the place of the first operator that runs after the program has let go of it."""
        tensors = self._graph.tensors
        references = [0] * len(tensors)
        found: dict[Memory, int] = {}
        now = 0
        for command in self._graph.program:
            if command.kind == Kind.COMPUTE:
                now = command.target - self._num_constants + 1
                for output in self._graph.operators[command.target].outputs:
                    references[tensors[output].base] += 1
            elif command.kind != Kind.PIN:
                base = tensors[command.target].base
                references[base] += 1 if command.kind == Kind.GET else -1
                if not references[base] and base in self._memory:
                    found[self._memory[base]] = now
        return found

"""A schedule: the order in which operators are computed, some of them several times, and in which storages are freed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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
    kept = {graph.tensors[output].base for output in graph.outputs}
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
    """A schedule from the trace of a runtime."""
    steps = tuple(Step(Action(kind), int(target)) for kind, target in zip(kinds, targets, strict=True))
    return Schedule(steps, planner, budget_bytes)


def freeing_early(graph: Graph, operators: Sequence[int], planner: str, budget_bytes: int | None = None) -> Schedule:
    """Do these operators in this order, and throw each storage away as soon as nothing asks for it before it is made again.

    No other places to throw storages away need less memory. Constants stay as long as the program has them. What is there already is not
    done again.
    """
    return Schedule(tuple(_Freeing(graph, operators).steps()), planner, budget_bytes)


class _Freeing:
    """Knows for each tensor the next operator that reads or makes it."""

    def __init__(self, graph: Graph, operators: Sequence[int]) -> None:
        self._graph, self._operators = graph, operators
        self._views: dict[int, list[int]] = {}
        for number, tensor in enumerate(graph.tensors):
            self._views.setdefault(tensor.base, []).append(number)
        #: By operator: constants that the program gives back behind it.
        self._given_back = constants_given_back(graph)
        self._held = {base for bases in self._given_back.values() for base in bases}
        self._kept = kept_constants(graph)
        #: By tensor: places where it is asked for (True) or made, from the last to the first.
        self._coming: list[list[tuple[int, bool]]] = [[] for _ in graph.tensors]
        for output in graph.outputs:
            self._coming[output].append((len(operators), True))
        for place in reversed(range(len(operators))):
            operator = graph.operators[operators[place]]
            for output in operator.outputs:
                self._coming[output].append((place, False))
            for source in set(operator.inputs):
                self._coming[source].append((place, True))

    def steps(self) -> Iterator[Step]:
        """All steps."""
        defined: set[int] = set()
        for place, number in enumerate(self._operators):
            operator = self._graph.operators[number]
            if not defined.issuperset(operator.outputs):
                yield Step(Action.COMPUTE, number)
                defined.update(operator.outputs)
            given_back = self._given_back.pop(number, ())
            self._held.difference_update(given_back)
            touched = (self._graph.tensors[tensor].base for tensor in (*operator.inputs, *operator.outputs))
            for base in dict.fromkeys((*touched, *given_back)):
                if base in defined and not self._is_asked_for(base, place):
                    yield Step(Action.FREE, base)
                    defined.difference_update(self._views[base])

    def _is_asked_for(self, base: int, place: int) -> bool:
        if base in self._held or base in self._kept:
            return True
        is_asked_for = False
        for view in self._views[base]:
            coming = self._coming[view]
            while coming and coming[-1][0] <= place:
                coming.pop()
            # A view that an operator asks for and makes again is in the list as asked for first.
            is_asked_for |= bool(coming) and coming[-1][1]
        return is_asked_for


def kept_constants(graph: Graph) -> set[int]:
    """The constants, by their bases, that the program never gives back."""
    constants = {output for operator in graph.operators if operator.is_constant for output in operator.outputs}
    return constants.difference(*constants_given_back(graph).values())


def constants_given_back(graph: Graph) -> dict[int, list[int]]:
    """By operator: the constants, by their bases, that the program has no reference to behind it, and had before."""
    given_back: dict[int, list[int]] = {}
    references = [0] * len(graph.tensors)
    kept = {graph.tensors[output].base for output in graph.outputs}
    last = -1
    for command in graph.program:
        if command.kind == Kind.COMPUTE:
            operator = graph.operators[command.target]
            last = last if operator.is_constant else command.target
            for output in operator.outputs:
                references[graph.tensors[output].base] += 1
        elif command.kind != Kind.PIN:
            base = graph.tensors[command.target].base
            references[base] += 1 if command.kind == Kind.GET else -1
            is_constant = graph.operators[graph.tensors[base].operator].is_constant
            if not references[base] and is_constant and base not in kept and last >= 0:
                given_back.setdefault(last, []).append(base)
    return given_back

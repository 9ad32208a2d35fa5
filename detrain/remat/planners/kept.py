"""Schedules that keep some forward storages for the backward pass and compute all others again when they are read."""

from __future__ import annotations

from collections.abc import Iterator, Set

from detrain.remat.graph import Graph, Kind
from detrain.remat.planners.forward_end import first_backward_index
from detrain.remat.schedule import Action, Schedule, Step


def candidates(graph: Graph) -> list[int]:
    """Bases of the storages that the forward pass makes and the backward pass uses: only these can be dropped."""
    order = [command.target for command in graph.program if command.kind == Kind.COMPUTE]
    middle = first_backward_index(graph, order)
    used_back = {graph.tensors[tensor].base for number in order[middle:] for tensor in graph.operators[number].inputs}
    return [
        output
        for number in order[:middle]
        if not graph.operators[number].is_constant
        for output in graph.operators[number].outputs
        if graph.tensors[output].base == output and output in used_back
    ]


def schedule(graph: Graph, kept: Set[int], planner: str, budget_bytes: int | None = None) -> Schedule:
    """The schedule that keeps the storages with the bases `kept`. One that was computed again stays until its last use."""
    return Schedule(tuple(_Choice(graph, kept).steps()), planner, budget_bytes)


class _Choice:
    """Goes through the program's operators in their order."""

    def __init__(self, graph: Graph, kept: Set[int]) -> None:
        self._graph = graph
        self._order = [command.target for command in graph.program if command.kind == Kind.COMPUTE]
        self._kept = kept
        self._base = [tensor.base for tensor in graph.tensors]
        self._dropped = set(candidates(graph)) - kept
        self._views: dict[int, list[int]] = {}
        for number, base in enumerate(self._base):
            self._views.setdefault(base, []).append(number)
        self._last = self._last_uses()
        self._last_forward = self._last_forward_uses()
        self._defined: set[int] = set()

    def steps(self) -> Iterator[Step]:
        """All steps."""
        for place, operator in enumerate(self._order):
            made: list[int] = []
            yield from self._compute(operator, made)
            for number in made:
                yield from self._free(number, place)

    def _last_uses(self) -> dict[int, int]:
        """By base: the place of the last operator that asks for a storage, or for what is made of it again."""
        end = len(self._order)
        last = dict.fromkeys((self._base[output] for output in self._graph.outputs), end)
        for place in reversed(range(end)):
            operator = self._graph.operators[self._order[place]]
            wanted = [place] + [last.get(base, -1) for base in self._again(operator.outputs)]
            for tensor in operator.inputs:
                last[self._base[tensor]] = max(last.get(self._base[tensor], -1), *wanted)
        return last

    def _again(self, outputs: tuple[int, ...]) -> list[int]:
        """Of these, the storages that are made again; an alias of such a one is, too."""
        return [self._base[output] for output in outputs if self._base[output] in self._dropped]

    def _last_forward_uses(self) -> dict[int, int]:
        last: dict[int, int] = {}
        for place, number in enumerate(self._order[: first_backward_index(self._graph, self._order)]):
            operator = self._graph.operators[number]
            for tensor in (*operator.inputs, *operator.outputs):
                last[self._base[tensor]] = place
        return last

    def _compute(self, operator: int, made: list[int]) -> Iterator[Step]:
        """Does an operator, after those that its missing inputs need."""
        stack = [operator]
        while stack:
            inputs = self._graph.operators[stack[-1]].inputs
            missing = next((tensor for tensor in inputs if tensor not in self._defined), None)
            if missing is not None:
                stack.append(self._graph.tensors[missing].operator)
                continue
            number = stack.pop()
            yield Step(Action.COMPUTE, number)
            self._defined.update(self._graph.operators[number].outputs)
            made.append(number)

    def _free(self, number: int, place: int) -> Iterator[Step]:
        """Frees those inputs and outputs of an operator that have no further use or are not to be kept."""
        operator = self._graph.operators[number]
        for base in dict.fromkeys(self._base[tensor] for tensor in (*operator.inputs, *operator.outputs)):
            if self._is_there(base) and self._is_over(base, place):
                yield Step(Action.FREE, base)
                self._defined.difference_update(self._views[base])

    def _is_there(self, base: int) -> bool:
        return any(tensor in self._defined for tensor in self._views[base])

    def _is_over(self, base: int, place: int) -> bool:
        if self._graph.operators[self._graph.tensors[base].operator].is_constant:
            return False
        if self._last.get(base, -1) <= place:
            return True
        # Going forward, what is dropped goes with its last use there; made again, it stays until its last use.
        return base in self._dropped and place == self._last_forward.get(base)

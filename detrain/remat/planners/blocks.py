"""A step as a chain of blocks: stretches of the forward pass, each with the part of the backward pass that needs what it makes."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import cached_property

from detrain.remat.graph import Graph, Kind
from detrain.remat.planners.forward_end import first_backward_index

#: Storages below this share of the largest one that the forward pass makes do not say to which block a gradient belongs: labels are made by
#: the first block and read at the end of the forward pass. Nor do views of parameters.
_SMALL = 0.01


@dataclass(frozen=True)
class Block:
    """Operators of the program, in its order. `boundary` is all that the forward passes of later blocks use."""

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    #: Storages, by their bases, that are there behind its forward pass and are asked for by later blocks going forward.
    boundary: tuple[int, ...]


class Chain:
    """Cuts the step of a graph into at most `most_blocks` blocks."""

    def __init__(self, graph: Graph, most_blocks: int) -> None:
        self.graph = graph
        order = [command.target for command in graph.program if command.kind == Kind.COMPUTE]
        self.constants = tuple(operator for operator in order if graph.operators[operator].is_constant)
        rest = [operator for operator in order if not graph.operators[operator].is_constant]
        middle = first_backward_index(graph, rest)
        self._forward, self._backward = rest[:middle], rest[middle:]
        self._cuts = self._choose_cuts(most_blocks)
        self._block_of = {
            output: number
            for number, (begin, end) in enumerate(self._stretches())
            for operator in self._forward[begin:end]
            for output in graph.operators[operator].outputs
        }

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """All, in order."""
        backward = self._backward_parts()
        return tuple(
            Block(tuple(self._forward[begin:end]), tuple(backward[number]), self._live[end - 1])
            for number, (begin, end) in enumerate(self._stretches())
        )

    def _stretches(self) -> list[tuple[int, int]]:
        ends = [*self._cuts, len(self._forward)]
        return list(zip([0, *self._cuts], ends, strict=True))

    @cached_property
    def _live(self) -> list[tuple[int, ...]]:
        """By place: storages made up to there going forward that are asked for behind it going forward."""
        tensors, last = self.graph.tensors, {}
        made: dict[int, int] = {}
        for place, number in enumerate(self._forward):
            operator = self.graph.operators[number]
            for tensor in operator.inputs:
                last[tensors[tensor].base] = place
            for output in operator.outputs:
                made.setdefault(tensors[output].base, place)
        live: list[tuple[int, ...]] = []
        there: dict[int, None] = {}
        made_at: dict[int, list[int]] = {}
        for base, place in made.items():
            made_at.setdefault(place, []).append(base)
        for place in range(len(self._forward)):
            there.update(dict.fromkeys(tensor for tensor in made_at.get(place, []) if last.get(tensor, -1) > place))
            there = {tensor: None for tensor in there if last[tensor] > place}
            live.append(tuple(there))
        return live

    def _choose_cuts(self, most_blocks: int) -> list[int]:
        """Indices to cut behind: where the boundary is small, at about equal distances in time."""
        operators, tensors = self.graph.operators, self.graph.tensors
        sizes = [sum(tensors[tensor].size_bytes for tensor in live) for live in self._live]
        total_ns = sum(operators[operator].cost_ns for operator in self._forward)
        cuts: list[int] = []
        best: int | None = None
        spent_ns = stretch_ns = 0
        for place in range(len(self._forward) - 1):
            cost_ns = operators[self._forward[place]].cost_ns
            spent_ns += cost_ns
            stretch_ns += cost_ns
            if best is None or sizes[place] <= sizes[best]:
                best = place
            if spent_ns * most_blocks >= total_ns * (len(cuts) + 1) and len(cuts) < most_blocks - 1:
                cuts.append(best + 1)
                best = None
        return sorted(set(cuts))

    def _backward_parts(self) -> list[list[int]]:
        """Each gradient belongs to the block whose inner storages it asks for; one that asks for a boundary only to the block that runs."""
        parts: list[list[int]] = [[] for _ in self._stretches()]
        current = len(parts) - 1
        handed_on = {base for end in self._cuts for base in self._live[end - 1]}
        constant = {output for number in self.constants for output in self.graph.operators[number].outputs}
        large = {tensor for tensor in self._block_of if self.graph.tensors[tensor].base not in constant}
        least_bytes = _SMALL * max(map(self.graph.size_bytes, large), default=0)
        large = {tensor for tensor in large if self.graph.size_bytes(tensor) >= least_bytes}
        for number in self._backward:
            inner: list[int] = []
            outer: list[int] = []
            for tensor in self.graph.operators[number].inputs:
                if tensor in large:
                    (outer if self.graph.tensors[tensor].base in handed_on else inner).append(self._block_of[tensor])
            if inner:
                current = min(current, max(inner))
            elif outer and current > max(outer) + 1:
                current = max(outer) + 1
            parts[current].append(number)
        return parts


def needed_for(graph: Graph, operators: Sequence[int], wanted: Set[int], there: Set[int] = frozenset()) -> list[int]:
    """Of `operators`, in their order, those that must be done to have the tensors `wanted` when the tensors `there` are in memory."""
    needed: list[int] = []
    wanted = wanted - there
    for number in reversed(operators):
        operator = graph.operators[number]
        if not wanted.isdisjoint(operator.outputs):
            needed.append(number)
            wanted = (wanted - set(operator.outputs)) | (set(operator.inputs) - there)
    return needed[::-1]

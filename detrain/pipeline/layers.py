"""A profile: the layers of a model as they were measured on one device, and who takes whose output.

The words follow Narayanan et al., "PipeDream" (SOSP 2019). Times are of one mini-batch of the profile's batch size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from detrain.errors import GraphError

#: Of bytes, and of milliseconds: beyond it nothing is measured, and sums no longer count single bytes.
MOST = 1e15


@dataclass(frozen=True, slots=True)
class Layer:
    """One operator of the forward pass, with what its backward pass takes."""

    name: str
    description: str
    forward_ms: float
    backward_ms: float
    #: Bytes of each of its outputs, for one mini-batch.
    output_bytes: tuple[float, ...]
    parameter_bytes: float
    #: The stage that a planner has put it into.
    stage: int | None = None

    @property
    def activation_bytes(self) -> float:
        """Bytes of all outputs together."""
        return sum(self.output_bytes)

    @property
    def is_input(self) -> bool:
        """True if it stands for the data: it takes no time, and its place is where it is used first."""
        return self.description.startswith("Input")


@dataclass(frozen=True)
class Profile:
    """Layers and edges in the order of the file; that order decides ties. Raises `GraphError` for what cannot be."""

    layers: tuple[Layer, ...]
    #: From and to, as positions among the layers.
    edges: tuple[tuple[int, int], ...]
    name: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        seen: set[str] = set()
        for layer in self.layers:
            if layer.name in seen:
                raise GraphError(f"there are two layers {layer.name}")
            seen.add(layer.name)
            numbers = (layer.forward_ms, layer.backward_ms, layer.parameter_bytes, *layer.output_bytes)
            if not all(0 <= number <= MOST for number in numbers):
                raise GraphError(f"layer {layer.name} has a time or a size that is no number from 0 to {MOST:g}")
        for begin, end in self.edges:
            if not (0 <= begin < len(self.layers) and 0 <= end < len(self.layers)):
                raise GraphError(f"there is an edge {begin} to {end}, and {len(self.layers)} layers")
        if len(self.order) < len(self.layers):
            stuck = sorted(set(range(len(self.layers))) - set(self.order))
            raise GraphError(f"the edges form a cycle through layer {self.layers[self._in_circle(stuck)].name}")

    def _in_circle(self, stuck: Sequence[int]) -> int:
        """A layer of a cycle, for the layers `stuck` that wait for each other."""
        waiting, seen, at = set(stuck), set(), stuck[0]
        while at not in seen:
            seen.add(at)
            at = next(before for before in self.predecessors[at] if before in waiting)
        return at

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """By layer, in the order of the edges."""
        return self._ends(1, 0)

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """By layer, in the order of the edges."""
        return self._ends(0, 1)

    def _ends(self, of: int, other: int) -> tuple[tuple[int, ...], ...]:
        ends: list[list[int]] = [[] for _ in self.layers]
        for edge in self.edges:
            ends[edge[of]].append(edge[other])
        return tuple(map(tuple, ends))

    @cached_property
    def order(self) -> tuple[int, ...]:
        """A topological order, the earliest of the file first; shorter than the layers if there is a circle."""
        waiting = [len(before) for before in self.predecessors]
        ready = [number for number, count in enumerate(waiting) if not count]
        ordered: list[int] = []
        while ready:
            at = ready.pop(0)
            ordered.append(at)
            for after in self.successors[at]:
                waiting[after] -= 1
                if not waiting[after]:
                    ready.append(after)
        return tuple(ordered)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """By layer, the set of all layers before it, as bits."""
        ancestors = [0] * len(self.layers)
        for at in self.order:
            for before in self.predecessors[at]:
                ancestors[at] |= ancestors[before] | 1 << before
        return tuple(ancestors)

    @cached_property
    def compute_s(self) -> float:
        """Time of all layers, forward and backward, for one mini-batch."""
        return math.fsum(layer.forward_ms + layer.backward_ms for layer in self.layers) / 1000.0

    @cached_property
    def parameter_bytes(self) -> float:
        """Of all layers."""
        return math.fsum(layer.parameter_bytes for layer in self.layers)

    def without(self, gone: Iterable[int]) -> Profile:
        """The rest of the layers, and the edges among them."""
        lost = set(gone)
        left = [number for number in range(len(self.layers)) if number not in lost]
        place = {number: position for position, number in enumerate(left)}
        edges = tuple((place[begin], place[end]) for begin, end in self.edges if begin in place and end in place)
        return Profile(tuple(self.layers[number] for number in left), edges, self.name)

    def to_plan(self) -> Profile:
        """What a planner divides: without the sources that are only data, and without selections that nothing uses.

        As in PipeDream's optimizer. Raises `GraphError` if nothing is left.
        """
        rest = self.without(
            number for number, layer in enumerate(self.layers) if layer.is_input and not self.predecessors[number]
        )
        rest = rest.without(
            number
            for number, layer in enumerate(rest.layers)
            if layer.description.startswith("__getitem__") and not rest.successors[number]
        )
        if not rest.layers:
            raise GraphError(f"{self.name or 'the profile'} has no layers but inputs")
        return rest

    def in_stages(self, stage_of: dict[str, int]) -> Profile:
        """The same with a stage at each layer that is named."""
        return Profile(
            tuple(replace(layer, stage=stage_of.get(layer.name)) for layer in self.layers), self.edges, self.name
        )

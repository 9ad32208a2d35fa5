"""States of a profile: the places where it may be cut in two.

A state is a set of layers that has, with each layer, all that are before it. A stage is what one state has beyond another.
There is one state for each antichain, the layers of it that nothing of it comes behind; so PipeDream counts them, and in its
order (`published`), since its plans and DAPPLE's name states by their numbers. Others take `compression.states_of`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from detrain.errors import GraphError
from detrain.pipeline.layers import Profile

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class States:
    """In an order in which a state never comes before one that lies within it. All arrays are by state."""

    profile: Profile
    #: The layers of each, as bits.
    members: tuple[int, ...]
    #: Bytes that whoever has the rest of the layers needs of it.
    output_bytes: Floats = field(repr=False)

    @cached_property
    def forward_s(self) -> Floats:
        """Of all layers of the state, for one mini-batch."""
        return self._sums([layer.forward_ms / 1000.0 for layer in self.profile.layers])

    @cached_property
    def compute_s(self) -> Floats:
        """The same, with the backward pass."""
        return self._sums([(layer.forward_ms + layer.backward_ms) / 1000.0 for layer in self.profile.layers])

    @cached_property
    def activation_bytes(self) -> Floats:
        """Outputs of all layers of the state."""
        return self._sums([layer.activation_bytes for layer in self.profile.layers])

    @cached_property
    def parameter_bytes(self) -> Floats:
        """Of all layers of the state."""
        return self._sums([layer.parameter_bytes for layer in self.profile.layers])

    @cached_property
    def below(self) -> Bools:
        """[k, j]: state k lies within state j and is not the same."""
        num_words = (len(self.profile.layers) + 63) // 64
        raw = b"".join(bits.to_bytes(8 * num_words, "little") for bits in self.members)
        words = np.frombuffer(raw, np.uint64).reshape(len(self.members), num_words)
        is_below = np.empty((len(self.members),) * 2, np.bool_)
        for number, row in enumerate(words):
            is_below[number] = ((words & row) == row).all(axis=1)
        np.fill_diagonal(is_below, val=False)
        return is_below

    def layers_between(self, start: int, end: int) -> tuple[str, ...]:
        """Names of the layers of the stage that begins behind state `start` (-1: with the first) and ends with state `end`."""
        return self.names(self.members[end] & ~(self.members[start] if start >= 0 else 0))

    def names(self, bits: int) -> tuple[str, ...]:
        """Of a set of layers."""
        return tuple(self.profile.layers[number].name for number in numbers_of(bits))

    def _sums(self, values: Sequence[float]) -> Floats:
        # Exact sums: they are the same in whatever order, and equal stages are equal.
        return np.array([math.fsum(values[number] for number in numbers_of(bits)) for bits in self.members])


def numbers_of(bits: int) -> Iterator[int]:
    """The members of a set, the smallest first."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def published(profile: Profile, first_by: Callable[[int], str] = lambda _: "", limit: int = 4000) -> States | None:
    """States as PipeDream's optimizer finds and counts them, from the first source on; None if there are more than `limit`.

    A state's output has, as published, also layers that only reach the state's end by more than one way. `first_by` gives
    by layer what decides, before the order of finding does, which of two states without an order comes first; the state's
    layer is the first of its antichain. DAPPLE sorts by descriptions.
    """
    walk = _Walk(profile, limit)
    if len(walk.members) > limit:
        return None
    order = walk.order(first_by)
    if walk.members[order[-1]] != (1 << len(profile.layers)) - 1:
        missing = next(numbers_of(~walk.members[order[-1]] & ((1 << len(profile.layers)) - 1)))
        raise GraphError(
            f"{profile.name}: no path leads from the first layer to {profile.layers[missing].name}, directly or through a "
            "common successor; the published planners silently leave such layers out"
        )
    return States(
        profile,
        tuple(walk.members[number] for number in order),
        np.array([walk.output_bytes(number) for number in order]),
    )


class _Walk:
    """Antichains from the first source on, each once, and what comes next of each.

    What an antichain is *augmented* with are those before it from which something outside begins.
    """

    def __init__(self, profile: Profile, limit: int) -> None:
        self._profile = profile
        self._number_of: dict[int, int] = {}
        self.members: list[int] = []
        self._antichains: list[list[int]] = []
        self._augmented: list[list[int]] = []
        self._next: list[list[int]] = []
        source = next(number for number, before in enumerate(profile.predecessors) if not before)
        self._add([source])
        at = 0
        while at < len(self.members) <= limit:
            self._next[at] = [self._add(antichain) for antichain in self._following(at)]
            at += 1

    def _add(self, antichain: list[int]) -> int:
        bits = 0
        for layer in antichain:
            bits |= self._profile.ancestors[layer] | 1 << layer
        if bits not in self._number_of:
            self._number_of[bits] = len(self.members)
            self.members.append(bits)
            self._antichains.append(antichain)
            self._augmented.append(self._extras(antichain) + antichain)
            self._next.append([])
        return self._number_of[bits]

    def _extras(self, antichain: list[int]) -> list[int]:
        extras = 0
        for layer in antichain:
            before = self._profile.ancestors[layer]
            for earlier in numbers_of(before & ~extras):
                if any(not before >> out & 1 and out != layer for out in self._profile.successors[earlier]):
                    extras |= 1 << earlier
        return list(numbers_of(extras))

    def _following(self, at: int) -> Iterator[list[int]]:
        ancestors = self._profile.ancestors
        for old in self._augmented[at]:
            for new in self._profile.successors[old]:
                if not self.members[at] >> new & 1:
                    changed = [new if layer == old else layer for layer in self._augmented[at]]
                    within = 0
                    for layer in changed:
                        within |= ancestors[layer]
                    yield [layer for layer in dict.fromkeys(changed) if not within >> layer & 1]

    def output_bytes(self, state: int) -> float:
        """Of the augmented antichain."""
        return math.fsum(self._profile.layers[layer].activation_bytes for layer in self._augmented[state])

    def order(self, first_by: Callable[[int], str]) -> list[int]:
        """Depth-first, as published: what was finished last comes first."""
        names = [first_by(antichain[0]) for antichain in self._antichains]
        finished: list[int] = []
        seen = [False] * len(self.members)
        for root in sorted(range(len(names)), key=lambda state: names[state]):
            if seen[root]:
                continue
            seen[root] = True
            stack = [(root, iter(sorted(self._next[root], key=lambda state: names[state])))]
            while stack:
                state, rest = stack[-1]
                following = next((state for state in rest if not seen[state]), None)
                if following is None:
                    stack.pop()
                    finished.append(state)
                    continue
                seen[following] = True
                stack.append((following, iter(sorted(self._next[following], key=lambda state: names[state]))))
        return finished[::-1]


def of_members(profile: Profile, members: Iterable[int]) -> States:
    """States of these sets of layers; the set of all is added."""
    everything = (1 << len(profile.layers)) - 1
    ordered = tuple(sorted({*members, everything} - {0}, key=lambda bits: (bits.bit_count(), bits)))
    return States(profile, ordered, np.array([crossing_bytes(profile, bits) for bits in ordered]))


def crossing_bytes(profile: Profile, bits: int) -> float:
    """Bytes of a mini-batch that layers outside a set read from those inside it."""
    return math.fsum(
        profile.layers[number].activation_bytes
        for number in numbers_of(bits)
        if any(not bits >> after & 1 for after in profile.successors[number])
    )


def all_ideals(profile: Profile, limit: int) -> set[int] | None:
    """All sets of layers that are states, and the empty one; None if there are more than `limit` states."""
    before = [sum(1 << ancestor for ancestor in set(earlier)) for earlier in profile.predecessors]
    seen, queue = {0}, deque([0])
    while queue:
        bits = queue.popleft()
        for number, needed in enumerate(before):
            larger = bits | 1 << number
            if larger not in seen and needed & bits == needed:
                if len(seen) > limit:
                    return None
                seen.add(larger)
                queue.append(larger)
    return seen

"""Fewer states than there are, where branches side by side make too many.

Inception's modules of four branches have as many states as there are ways of being somewhere in each branch. Between two
*waists*, layers that all others come before or behind, lies a *region*, and the states of one region have nothing to do
with those of another. A region that has too many states keeps fewer:

* each unbranched chain of it is cut into at most so many pieces of like time, as many as there is room for;
* where that is too many still, only orders are left in which all its layers can be done one after the other: one in which
  as little crosses as may be, and two more if there is room.

One such order's states are always there. So where nothing but time counts, compression costs a stage no more than the time of
the slowest layer: end each stage at the last state of that order whose time is not above that of the best cut. A layer more would
be above it, so each cut is at most a layer's time before the best one, and none behind. Stages that are left without layers
are left out, or are parts of others. What compression can cost in transfers has no such bound: the cut that sends least may be
one that is left out. `tests/pipeline/test_states.py` has the first against all states on small graphs,
`benchmarks/results/pipeline.md` both on the larger profiles.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from detrain.pipeline.layers import Layer, Profile
from detrain.pipeline.states import States, all_ideals, numbers_of, of_members

#: Enough for every plan to take seconds.
LIMIT = 1200


def states_of(profile: Profile, limit: int = LIMIT) -> States:
    """All states if there are at most `limit`, else a selection of about `limit` states, or of a few for each layer."""
    ideals = all_ideals(profile, limit)
    return of_members(profile, _fewer(profile, limit) if ideals is None else ideals)


def _fewer(profile: Profile, limit: int) -> Iterator[int]:
    regions = list(_regions(profile))
    quota = max(1, limit // max(1, len(regions)))
    for before, layers in regions:
        yield before
        inner = profile.without(set(range(len(profile.layers))) - set(numbers_of(layers)))
        numbers = list(numbers_of(layers))
        if (inside := _of_region(inner, quota)) is None:
            orders = [inner.order, depth_first(inner)] if 3 * len(numbers) <= quota else []
            inside = {bits for order in orders for bits in _prefixes(order)}
            yield from (before | bits for bits in _prefixes(least_crossing(profile, before, layers)))
        for bits in inside:
            yield before | sum(1 << numbers[number] for number in numbers_of(bits))


def _regions(profile: Profile) -> Iterator[tuple[int, int]]:
    """What comes before each region, and its layers, as bits; a waist's own region is itself, without layers."""
    everything = (1 << len(profile.layers)) - 1
    descendants = [0] * len(profile.layers)
    for number, before in enumerate(profile.ancestors):
        for ancestor in numbers_of(before):
            descendants[ancestor] |= 1 << number
    waists = [
        number
        for number in profile.order
        if profile.ancestors[number] | descendants[number] | 1 << number == everything
    ]
    done = 0
    for waist in waists:
        if between := profile.ancestors[waist] & ~done:
            yield done, between
        done = profile.ancestors[waist] | 1 << waist
        yield done, 0
    if rest := everything & ~done:
        yield done, rest


def _of_region(region: Profile, quota: int) -> set[int] | None:
    """All states, or those between pieces of chains; None if there are too many of both."""
    if not region.layers:
        return set()
    ideals = all_ideals(region, quota)
    if ideals is not None:
        return ideals
    chains = list(_chains(region))
    for most in range(max(map(len, chains)), 0, -1):
        pieces = [piece for chain in chains for piece in _pieces(region, chain, most)]
        ideals = all_ideals(_merged(region, pieces), quota)
        if ideals is not None:
            whole = [sum(1 << number for number in piece) for piece in pieces]
            return {sum(whole[number] for number in numbers_of(bits)) for bits in ideals} | set(_prefixes(region.order))
    return None


def _chains(region: Profile) -> Iterator[list[int]]:
    """Maximal runs of layers each of which is the only one behind the one before it, and that the only one before it."""

    def is_link(begin: int, end: int) -> bool:
        return len(set(region.successors[begin])) == 1 and len(set(region.predecessors[end])) == 1

    for number in region.order:
        before = region.predecessors[number]
        if before and is_link(before[0], number):
            continue
        chain = [number]
        while region.successors[chain[-1]] and is_link(chain[-1], region.successors[chain[-1]][0]):
            chain.append(region.successors[chain[-1]][0])
        yield chain


def _pieces(region: Profile, chain: Sequence[int], most: int) -> list[list[int]]:
    """The chain in at most `most` pieces of about equal time."""
    if len(chain) <= most:
        return [[layer] for layer in chain]
    times = [region.layers[layer].forward_ms + region.layers[layer].backward_ms for layer in chain]
    share = sum(times) / most
    pieces: list[list[int]] = [[]]
    filled = 0.0
    for layer, taken in zip(chain, times, strict=True):
        if pieces[-1] and len(pieces) < most and filled + taken / 2 > share * len(pieces):
            pieces.append([])
        pieces[-1].append(layer)
        filled += taken
    return pieces


def _merged(region: Profile, pieces: Sequence[Sequence[int]]) -> Profile:
    piece_of = {layer: number for number, piece in enumerate(pieces) for layer in piece}
    edges = {(piece_of[begin], piece_of[end]) for begin, end in region.edges}
    layers = tuple(Layer(str(number), "", 0.0, 0.0, (0.0,), 0.0) for number in range(len(pieces)))
    return Profile(layers, tuple(sorted((begin, end) for begin, end in edges if begin != end)))


def _prefixes(order: Iterable[int]) -> Iterator[int]:
    bits = 0
    for layer in order:
        bits |= 1 << layer
        yield bits


def depth_first(profile: Profile) -> list[int]:
    """A topological order that ends a branch before it begins another."""
    waiting = [len(before) for before in profile.predecessors]
    stack = [number for number in reversed(range(len(waiting))) if not waiting[number]]
    order = []
    while stack:
        order.append(stack.pop())
        for after in reversed(profile.successors[order[-1]]):
            waiting[after] -= 1
            if not waiting[after]:
                stack.append(after)
    return order


def least_crossing(profile: Profile, done: int = 0, layers: int = -1) -> list[int]:
    """A topological order of `layers` (bits): next is always the layer after which least data crosses the cut; ties to the earliest.

    `done` is what comes before them; the rest of the profile comes behind them.
    """
    waiting = [sum(not done >> number & 1 for number in before) for before in profile.predecessors]
    unused = [sum(not done >> number & 1 for number in after) for after in profile.successors]
    ready = [number for number in range(len(waiting)) if not waiting[number] and (layers & ~done) >> number & 1]
    order = []

    def change(number: int) -> float:
        grown = profile.layers[number].activation_bytes if unused[number] else 0.0
        for before in set(profile.predecessors[number]):
            if unused[before] == profile.predecessors[number].count(before):
                grown -= profile.layers[before].activation_bytes
        return grown

    while ready:
        chosen = min(ready, key=lambda number: (change(number), number))
        ready.remove(chosen)
        order.append(chosen)
        for before in profile.predecessors[chosen]:
            unused[before] -= 1
        for after in profile.successors[chosen]:
            waiting[after] -= 1
            if not waiting[after] and layers >> after & 1:
                ready.append(after)
    return order

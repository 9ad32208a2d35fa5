"""The score of each storage; the one with the smallest score is evicted first.

A score is cost over (size x staleness), with each factor or without. The cost is that of a storage alone, with its
evicted neighbourhood, with the classes around it, or with what is evicted above it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from detrain.remat.online.regions import class_cost
from detrain.remat.online.state import CLOCK, DONE, DOWN, LOOKS, UP, Ints, Shape, State

#: What stands above the line: nothing, the storage's own cost, that of its evicted neighbourhood too, of the classes around it, of what is
#: evicted above it. Of the last two there is no score: the least recently used goes, or whichever.
ONE, LOCAL, NEIGHBOURHOOD, CLASSES, ABOVE, RECENCY, RANDOM = range(7)


class Heuristic(NamedTuple):
    """How a score is computed."""

    cost: int
    has_size: bool
    has_staleness: bool

    @property
    def has_regions(self) -> bool:
        """True if exact neighbourhoods are needed."""
        return self.cost in (NEIGHBOURHOOD, ABOVE)

    @property
    def has_classes(self) -> bool:
        """True if classes are needed."""
        return self.cost == CLASSES


#: The published ones, and the sixteen of the ablation: what above the line, `size` and `stale` below.
HEURISTICS = {
    "dtr": Heuristic(NEIGHBOURHOOD, True, True),
    "dtr-eq": Heuristic(CLASSES, True, True),
    "dtr-local": Heuristic(LOCAL, True, True),
    "msps": Heuristic(ABOVE, True, False),
    "lru": Heuristic(RECENCY, False, False),
    "size": Heuristic(ONE, True, False),
    "random": Heuristic(RANDOM, False, False),
}
_ABOVE_THE_LINE = {"e*": NEIGHBOURHOOD, "eq": CLASSES, "local": LOCAL, "none": ONE}
HEURISTICS |= {
    f"{name}{'-size' * has_size}{'-stale' * has_staleness}": (
        Heuristic(cost, has_size, has_staleness) if cost != ONE or has_size or has_staleness else HEURISTICS["random"]
    )
    for name, cost in _ABOVE_THE_LINE.items()
    for has_size in (True, False)
    for has_staleness in (True, False)
}  # fmt: skip


@njit(cache=True)
def divide(above: int, below: int) -> float:
    """The quotient as Python rounds it, also where `below` has more digits than a float.

    Two scores are equal when they round to the same float, and of equal ones the later in the pool goes: so the last
    bit decides. `above` has at most 53 bits. The remainder of a first quotient is computed exactly, with products
    split in halves (Dekker, 1971).
    """
    high = np.float64(below)
    low = np.float64(below - np.int64(high))
    first = np.float64(above) / high
    split = 134217729.0 * first
    first_high = split - (split - first)
    first_low = first - first_high
    split = 134217729.0 * high
    high_high = split - (split - high)
    high_low = high - high_high
    product = first * high
    error = ((first_high * high_high - product) + first_high * high_low + first_low * high_high) + first_low * high_low
    return first + ((np.float64(above) - product) - error - first * low) / high


@njit(cache=True)
def score(
    kind: int, has_size: bool, has_staleness: bool, above: int, size: int, accessed: int, clock: int
) -> float:  # fmt: skip
    """The score of a storage, of which `above` stands above the line."""
    if kind == RECENCY:
        return np.float64(accessed)
    below = size if has_size else 1
    if has_staleness:
        below *= clock - accessed
    return divide(above, below) if below > 0 else np.inf


@njit(cache=True)
def choose(shape: Shape, state: State, heuristic: Heuristic, scratch: Ints) -> int:
    """What is evicted next, or -1 if nothing can be: of the smallest scores the last in the pool; the first that is 0 at once.

    Arrays have names of their own here: numba hands a tuple of many over to a function slowly.
    """
    after, accessed, costs, inside_cost, sizes = (
        state.after,
        state.accessed,
        state.cost,
        state.inside_cost,
        shape.storage_size,
    )
    is_material, node, parent, value = state.is_material, state.node, state.parent, state.value
    kind, has_size, has_staleness = heuristic.cost, heuristic.has_size, heuristic.has_staleness
    end, clock, num_done = len(shape.root), state.counters[CLOCK], state.counters[DONE]
    best, best_score, looks = -1, np.inf, 0
    storage = after[end]
    if kind == RANDOM:
        return choose_any(after, storage, end)
    while storage != end:
        looks += 1
        above = 1 if kind == ONE else costs[storage]
        if kind == NEIGHBOURHOOD:
            above += inside_cost[DOWN, storage] + inside_cost[UP, storage]
        elif kind == ABOVE:
            above += inside_cost[UP, storage]
        elif kind == CLASSES:
            above += class_cost(
                shape.link_first,
                shape.links,
                shape.linked_by,
                is_material,
                node,
                parent,
                value,
                num_done,
                storage,
                scratch,
            )
        current = score(kind, has_size, has_staleness, above, sizes[storage], accessed[storage], clock)
        if current <= best_score:
            best, best_score = storage, current
        if current == 0:
            break
        storage = after[storage]
    state.counters[LOOKS] += looks
    return best


@njit(cache=True)
def begin_choosing() -> None:
    """The generator of `choose_any` begins anew, so that the same run comes out the same; it is numba's own and no script's."""
    np.random.seed(0)


@njit(cache=True)
def choose_any(after: Ints, first: int, end: int) -> int:
    """A random storage of the pool, by numba's generator; -1 if the pool is empty."""
    count, storage = 0, first
    while storage != end:
        count += 1
        storage = after[storage]
    storage = first
    for _ in range(np.random.randint(0, count) if count else 0):
        storage = after[storage]
    return storage if count else -1

"""Checkpoints of a chain of equal blocks where the binomial rule has them.

Griewank, Walther, "Algorithm 799: Revolve" (2000): with c checkpoints and no block done forward more than r times again,
a chain of binomial(c + r, c) blocks can be taken back. The rule counts blocks; what they cost it does not know.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Iterator

from detrain.remat.graph import Graph
from detrain.remat.planners.blocks import Chain
from detrain.remat.planners.options import Meter
from detrain.remat.planners.plan import Plan, best_of
from detrain.remat.planners.polish import polish
from detrain.remat.schedule import Schedule, freeing_early

_MOST_BLOCKS = 128


def plan(graph: Graph, budget_bytes: int, time_limit_s: float = 60.0) -> Plan:
    """The quickest that keeps to the budget, over numbers of checkpoints. Raises `NoPlanError`."""
    began_s = time.monotonic()
    return best_of(
        graph, _schedules(graph, budget_bytes), budget_bytes, until_s=began_s + time_limit_s, began_s=began_s
    )


def _schedules(graph: Graph, budget_bytes: int) -> Iterator[Schedule]:
    meter = Meter(Chain(graph, _MOST_BLOCKS))
    num_blocks, seen = len(meter.chain.blocks), set[tuple[int, ...]]()
    for num_checkpoints in range(num_blocks):
        order = tuple(_Walk(meter).order(num_checkpoints))
        if order not in seen:
            seen.add(order)
            yield polish(graph, freeing_early(graph, order, "griewank", budget_bytes), budget_bytes)[0]


@functools.cache
def _most_within(num_checkpoints: int, num_repeats: int) -> int:
    """The longest chain that can be reversed with so many checkpoints and forward repeats of a block."""
    return math.comb(num_checkpoints + num_repeats, num_checkpoints)


def _first_checkpoint(num_blocks: int, num_checkpoints: int) -> int:
    """Behind how many blocks: what is left behind it can be taken back with one checkpoint less and as many repeats."""
    num_repeats = next(count for count in range(num_blocks + 1) if _most_within(num_checkpoints, count) >= num_blocks)
    behind = min(_most_within(num_checkpoints - 1, num_repeats), num_blocks - 1)
    before = num_blocks - behind
    # Repeats are fewest where what is before it needs one repeat less.
    return min(max(before, 1), num_blocks - 1)


class _Walk:
    """Goes through the chain."""

    def __init__(self, meter: Meter) -> None:
        self._meter, self._blocks = meter, meter.chain.blocks
        self._visited: set[int] = set()
        self._light = [meter.light(number) for number in range(len(self._blocks))]
        self._ready = [
            meter.option(number, meter.asked_by_backward(number)).alone for number in range(len(self._blocks))
        ]

    def order(self, num_checkpoints: int) -> list[int]:
        """Everything, constants first."""
        return [*self._meter.chain.constants, *self._between(0, len(self._blocks), num_checkpoints)]

    def _between(self, first: int, end: int, num_checkpoints: int) -> Iterator[int]:
        if end - first == 1:
            yield from self._forward(first, self._ready[first])
            yield from self._blocks[first].backward
            return
        middle = first + _first_checkpoint(end - first, num_checkpoints) if num_checkpoints else end - 1
        for number in range(first, middle):
            yield from self._forward(number, self._light[number])
        yield from self._between(middle, end, max(num_checkpoints - 1, 0))
        yield from self._between(first, middle, num_checkpoints)

    def _forward(self, number: int, operators: tuple[int, ...]) -> tuple[int, ...]:
        if number in self._visited:
            return operators
        self._visited.add(number)
        return self._blocks[number].forward

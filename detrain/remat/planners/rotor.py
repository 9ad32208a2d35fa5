"""The best schedule of a chain of blocks, by dynamic programming over what is stored.

Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova, "Optimal checkpointing for heterogeneous chains" (2019), with more than one way to
save a block: for the backward pass of blocks a to b within m bytes, either the forward pass of block a saves what its backward pass
needs (one of its options), or the forward passes of blocks a to j - 1 save only the output of block j - 1 and are done again later.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from detrain.remat.graph import Graph
from detrain.remat.planners.blocks import Chain
from detrain.remat.planners.options import Measured, Meter
from detrain.remat.planners.plan import Plan, best_of
from detrain.remat.planners.polish import polish
from detrain.remat.schedule import Schedule, freeing_early, kept_constants
from detrain.remat.simulator import simulate

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

#: Memory is counted in so many pieces.
_SLOTS = 400
#: Chains that are tried: of so many blocks at most.
MOST_BLOCKS = (64, 24)
#: What the blocks need together is not just the sum of what they need; so schedules for more and for less memory are tried too.
_SHARES = tuple(round(1.6 - 0.04 * count, 2) for count in range(34))


def plan(graph: Graph, budget_bytes: int, time_limit_s: float = 60.0) -> Plan:
    """The best schedule within `budget_bytes`, over chains of at most `MOST_BLOCKS` blocks. Raises `NoPlanError` if none keeps to it."""

    def through_chains() -> Iterator[Schedule]:
        for most_blocks in MOST_BLOCKS:
            meter = Meter(Chain(graph, most_blocks))
            blocks = [
                meter.measured(number, [meter.option(number, meter.asked_by_backward(number))])
                for number in range(len(meter.chain.blocks))
            ]
            yield from schedules(meter, blocks, "rotor", budget_bytes)

    began_s = time.monotonic()
    return best_of(graph, through_chains(), budget_bytes, until_s=began_s + time_limit_s, began_s=began_s)


def schedules(meter: Meter, blocks: Sequence[Measured], planner: str, budget_bytes: int) -> Iterator[Schedule]:
    """Schedules of blocks with these options: those that keep to the budget, each polished. `planner` is the name that they get."""
    for order in orders(meter, blocks, budget_bytes):
        schedule = freeing_early(meter.graph, order, planner, budget_bytes)
        if not simulate(meter.graph, schedule, budget_bytes).failure:
            yield polish(meter.graph, schedule, budget_bytes)[0]


def orders(meter: Meter, blocks: Sequence[Measured], budget_bytes: int) -> Iterator[list[int]]:
    """Operators in the order in which they are done, for several amounts of memory."""
    # What the program gives back of constants it mostly gives back early; the simulator sees where it does not.
    room = budget_bytes - meter.bytes_of(kept_constants(meter.graph))
    if room <= 0:
        return
    table = _table_of(blocks, room * _SHARES[0])
    seen: set[tuple[int, ...]] = set()
    for share in _SHARES:
        slot = int(_SLOTS * share / _SHARES[0])
        if not np.isfinite(table.time_ns[0, len(blocks) - 1, slot]):
            break
        order = tuple(_Walk(meter, blocks, table).order(slot))
        if order not in seen:
            seen.add(order)
            yield list(order)


class _Table(NamedTuple):
    """Shape of `time_ns` and `choice`: first block, last block, memory in slots."""

    time_ns: Floats
    #: Below 0: the first block saves for its backward pass, by option -1 - choice. Above 0: the forward passes of all blocks before
    #: block `choice` are done for its input alone.
    choice: Ints
    boundary_slots: Ints
    saved_slots: Ints  # by block and option


def _table_of(blocks: Sequence[Measured], memory_bytes: float) -> _Table:
    slot_bytes = memory_bytes / _SLOTS
    most = max(len(block.options) for block in blocks)

    def of_options(field: str) -> Floats:
        return np.array(
            [
                [*(float(getattr(option, field)) for option in block.options), *[np.inf] * (most - len(block.options))]
                for block in blocks
            ]
        )

    boundary = np.array([block.boundary_bytes for block in blocks], np.float64)
    saved = of_options("saved_bytes")
    boundary_slots = np.ceil(boundary / slot_bytes).astype(np.int64)
    saved_slots = (
        np.where(np.isfinite(saved), np.ceil(saved / slot_bytes), _SLOTS + 1).clip(max=_SLOTS + 1).astype(np.int64)
    )
    light = np.array([[block.light_ns, block.light_peak_bytes] for block in blocks], np.float64)
    output = np.array([block.output_bytes for block in blocks], np.float64)
    gradient = np.array([block.gradient_bytes for block in blocks], np.float64)
    time_ns, choice = _solve(
        slot_bytes, boundary, boundary_slots, saved_slots, light, output, gradient, of_options("forward_ns") + of_options("backward_ns"),
        of_options("alone_ns") + of_options("backward_ns"), of_options("forward_peak_bytes"), of_options("backward_peak_bytes"),
    )  # fmt: skip
    return _Table(time_ns, choice, boundary_slots, saved_slots)


@njit(cache=True)
def _solve(
    slot_bytes: float, boundary: Floats, boundary_slots: Ints, saved_slots: Ints, light: Floats, output: Floats, gradient: Floats,
    times_ns: Floats, alone_ns: Floats, forward_peaks: Floats, backward_peaks: Floats,
) -> tuple[Floats, Ints]:  # fmt: skip
    num_blocks, num_options = times_ns.shape
    slots = _SLOTS + 1
    best = np.full((num_blocks, num_blocks, slots), np.inf)
    choice = np.zeros((num_blocks, num_blocks, slots), np.int64)
    for length in range(num_blocks):
        for first in range(num_blocks - length):
            last = first + length
            waiting = output[last] + gradient[last]
            for option in range(num_options):
                needed = max(forward_peaks[first, option] + waiting, backward_peaks[first, option] + output[first])
                for slot in range(slots):
                    if needed > slot * slot_bytes:
                        continue
                    time_ns = alone_ns[first, option]
                    if length:
                        left = slot - saved_slots[first, option]
                        time_ns = times_ns[first, option] + (best[first + 1, last, left] if left >= 0 else np.inf)
                    if time_ns < best[first, last, slot]:
                        best[first, last, slot], choice[first, last, slot] = time_ns, -1 - option
            again_ns, peak = 0.0, 0.0
            for middle in range(first + 1, last + 1):
                before = boundary[middle - 2] if middle - 1 > first else 0.0
                again_ns += light[middle - 1, 0]
                peak = max(peak, light[middle - 1, 1] + before + waiting)
                for slot in range(boundary_slots[middle - 1], slots):
                    if peak > slot * slot_bytes:
                        continue
                    time_ns = (
                        again_ns + best[middle, last, slot - boundary_slots[middle - 1]] + best[first, middle - 1, slot]
                    )
                    if time_ns < best[first, last, slot]:
                        best[first, last, slot], choice[first, last, slot] = time_ns, middle
    return best, choice


class _Walk:
    """Makes the order of operators from the table's choices."""

    def __init__(self, meter: Meter, blocks: Sequence[Measured], table: _Table) -> None:
        self._meter, self._blocks, self._table = meter, blocks, table
        self._visited: set[int] = set()

    def order(self, slot: int) -> list[int]:
        """All operators in order, constants first, for `slot` slots of memory."""
        return [*self._meter.chain.constants, *self._between(0, len(self._blocks) - 1, slot)]

    def _between(self, first: int, last: int, slot: int) -> Iterator[int]:
        choice = int(self._table.choice[first, last, slot])
        if choice > 0:
            for number in range(first, choice):
                yield from self._forward(number, self._blocks[number].light)
            yield from self._between(choice, last, slot - int(self._table.boundary_slots[choice - 1]))
            yield from self._between(first, choice - 1, slot)
            return
        option = self._blocks[first].options[-1 - choice]
        yield from self._forward(first, option.forward if first < last else option.alone)
        if first < last:
            yield from self._between(first + 1, last, slot - int(self._table.saved_slots[first, -1 - choice]))
        yield from option.backward

    def _forward(self, number: int, operators: Sequence[int]) -> Sequence[int]:
        """The first time all operators of a block are done, also those whose outputs nothing uses."""
        if number in self._visited:
            return operators
        self._visited.add(number)
        return self._blocks[number].block.forward

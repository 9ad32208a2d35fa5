"""Where the copies of a pipeline stand among the devices, and what each block of a copy's positions costs.

A copy of the pipeline has positions, and each of its stages a block of consecutive ones. Either the copies stand side by
side, so that what goes from stage to stage stays near, or the positions do, so that replicas of a stage are near. Where
devices differ, they stand in several orders: a stage that does little may want a slow one, and some are best left over.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from detrain.pipeline.pricing import Pricing
from detrain.pipeline.states import Floats
from detrain.pipeline.topology import Topology

#: Of so many, also fewer copies than there is room for are tried.
_FEW_DEVICES = 8
#: Of so many that differ all orders are tried.
_ORDERED_DEVICES = 4
#: Blocks begin and end at no more than this many places.
_MOST_ENDS = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """`num_positions` for each of `replication` copies."""

    replication: int
    num_positions: int
    #: Position p of copy c is the device at place p * replication + c; else at c * num_positions + p.
    has_stages_together: bool
    #: By place the device; none if they stand as they are numbered.
    order: tuple[int, ...] = ()

    def devices(self, begin: int, end: int) -> tuple[int, ...]:
        """Of a block, copy after copy."""
        return tuple(device for copy in range(self.replication) for device in self.copy_devices(begin, end, copy))

    def copy_devices(self, begin: int, end: int, copy: int) -> tuple[int, ...]:
        """Of a block in one copy."""
        if self.has_stages_together:
            places = range(begin * self.replication + copy, end * self.replication + copy, self.replication)
        else:
            places = range(copy * self.num_positions + begin, copy * self.num_positions + end)
        return tuple(self.order[place] for place in places) if self.order else tuple(places)

    def ends(self) -> tuple[int, ...]:
        """Where blocks may begin and end: everywhere, or evenly spread."""
        step = -(-self.num_positions // _MOST_ENDS)
        return (*range(0, self.num_positions, step), self.num_positions)


def layouts(topology: Topology) -> list[Layout]:
    """Ways to have copies, which may leave devices over, in each order of the devices; the copies side by side first.

    Of many devices, for each length of a copy there are the most copies.
    """
    num_devices = topology.num_devices
    candidates: list[Layout] = []
    for order in dict.fromkeys(_orders(topology)):
        order = () if order == tuple(range(num_devices)) else order
        for replication in range(1, num_devices + 1):
            positions = num_devices // replication
            if num_devices > _FEW_DEVICES and replication < num_devices // positions:
                continue
            candidates.append(Layout(replication, positions, has_stages_together=False, order=order))
            if replication > 1 and positions > 1:
                candidates.append(Layout(replication, positions, has_stages_together=True, order=order))
    return candidates


def _orders(topology: Topology) -> Iterator[tuple[int, ...]]:
    """As numbered first; of few devices, all orders of those that are not alike."""
    alike, devices = topology.alike, range(topology.num_devices)
    yield tuple(devices)
    if len(set(alike)) == 1:
        return
    if len(devices) <= _ORDERED_DEVICES:
        of_kinds: dict[tuple[int, ...], tuple[int, ...]] = {}
        for order in permutations(devices):
            of_kinds.setdefault(tuple(alike[device] for device in order), order)
        yield from of_kinds.values()
        return
    for sign in (-1, 1):
        by_speed = sorted(devices, key=lambda device: (sign * topology.devices[device].speed, device))
        yield tuple(by_speed)
        if topology.bandwidths:
            yield _chain(topology, by_speed[0])
        else:
            outermost_first = topology.levels[::-1]
            yield tuple(sorted(by_speed, key=lambda device: tuple(level.groups[device] for level in outermost_first)))


def _chain(topology: Topology, first: int) -> tuple[int, ...]:
    """From this device always on to the one that is reached the quickest."""
    chain, left = [first], set(range(topology.num_devices)) - {first}
    while left:
        from_here = topology.bandwidths[chain[-1]]
        chain.append(min(left, key=lambda machine: (-from_here[machine], machine)))
        left.remove(chain[-1])
    return tuple(chain)


@dataclass(frozen=True, eq=False)
class Blocks:
    """[a, b] of the block from the a-th end to the b-th; infinite where b <= a."""

    layout: Layout
    ends: tuple[int, ...]
    #: Samples of the last replica to end, over its speed; and the most samples on one.
    samples: Floats
    most: Floats
    memory_bytes: Floats
    #: An all-reduce takes `lag + rate x bytes`.
    all_reduce_rate: Floats
    all_reduce_lag_s: Floats
    #: [a, b, c]: from block a, b to block b, c; of one micro-batch's bytes.
    transfer_rate: Floats
    transfer_lag_s: Floats


def blocks(pricing: Pricing, layout: Layout) -> Blocks:
    """Of the pricing's workload."""
    ends = layout.ends()
    count = len(ends)
    square, cube = (count, count), (count, count, count)
    filled = Blocks(
        layout, ends, *(np.full(square, np.inf) for _ in range(5)), *(np.full(cube, np.inf) for _ in range(2))
    )
    for a in range(count):
        for b in range(a + 1, count):
            _fill_block(filled, pricing, a, b)
            for c in range(b + 1, count):
                pairs = tuple(
                    (layout.copy_devices(ends[a], ends[b], copy), layout.copy_devices(ends[b], ends[c], copy))
                    for copy in range(layout.replication)
                )
                of_one, two = (pricing.topology.transfer_s(pairs, size) for size in (1e9, 2e9))
                filled.transfer_rate[a, b, c], filled.transfer_lag_s[a, b, c] = (two - of_one) / 1e9, 2 * of_one - two
    return filled


def _fill_block(blocks: Blocks, pricing: Pricing, a: int, b: int) -> None:
    layout, topology = blocks.layout, pricing.topology
    begin, end = blocks.ends[a], blocks.ends[b]
    shares = [
        pricing.samples(layout.copy_devices(begin, end, copy), pricing.workload.portions(layout.replication)[1])
        for copy in range(layout.replication)
    ]
    devices = tuple(sorted(layout.devices(begin, end)))
    blocks.samples[a, b], blocks.most[a, b] = max(share[0] for share in shares), max(share[1] for share in shares)
    blocks.memory_bytes[a, b] = min(topology.devices[device].memory_bytes for device in devices)
    of_one, two = (topology.all_reduce_s(devices, size) for size in (1e9, 2e9))
    blocks.all_reduce_rate[a, b], blocks.all_reduce_lag_s[a, b] = (two - of_one) / 1e9, 2 * of_one - two

"""Where the copies of a pipeline stand among the devices, and what each block of a copy's positions costs.

A copy of the pipeline has positions, and each of its stages a block of consecutive ones. Either the copies stand side by
side, so that what goes from stage to stage stays near, or the positions do, so that replicas of a stage are near.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from detrain.pipeline.pricing import Pricing
from detrain.pipeline.states import Floats

#: Of so many, also fewer copies than there is room for are tried.
_FEW_DEVICES = 8
#: Blocks begin and end at no more than this many places.
_MOST_ENDS = 16


@dataclass(frozen=True, slots=True)
class Layout:
    """`num_positions` for each of `replication` copies."""

    replication: int
    num_positions: int
    #: Position p of copy c is device p * replication + c; else c * num_positions + p.
    has_stages_together: bool

    def devices(self, begin: int, end: int) -> tuple[int, ...]:
        """Of a block, copy after copy."""
        return tuple(one for copy in range(self.replication) for one in self.copy_devices(begin, end, copy))

    def copy_devices(self, begin: int, end: int, copy: int) -> tuple[int, ...]:
        """Of a block in one copy."""
        if self.has_stages_together:
            return tuple(position * self.replication + copy for position in range(begin, end))
        return tuple(range(copy * self.num_positions + begin, copy * self.num_positions + end))

    def ends(self) -> tuple[int, ...]:
        """Where blocks may begin and end: everywhere, or evenly spread."""
        step = -(-self.num_positions // _MOST_ENDS)
        return (*range(0, self.num_positions, step), self.num_positions)


def layouts(num_devices: int) -> list[Layout]:
    """Ways to have copies, which may leave devices over; of many devices, for each length of a copy the most copies."""
    found: list[Layout] = []
    for replication in range(1, num_devices + 1):
        positions = num_devices // replication
        if num_devices > _FEW_DEVICES and replication < num_devices // positions:
            continue
        found.append(Layout(replication, positions, has_stages_together=False))
        if replication > 1 and positions > 1:
            found.append(Layout(replication, positions, has_stages_together=True))
    return found


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
    found = Blocks(
        layout, ends, *(np.full(square, np.inf) for _ in range(5)), *(np.full(cube, np.inf) for _ in range(2))
    )
    for a in range(count):
        for b in range(a + 1, count):
            _fill_block(found, pricing, a, b)
            for c in range(b + 1, count):
                pairs = tuple(
                    (layout.copy_devices(ends[a], ends[b], copy), layout.copy_devices(ends[b], ends[c], copy))
                    for copy in range(layout.replication)
                )
                one, two = (pricing.topology.transfer_s(pairs, size) for size in (1e9, 2e9))
                found.transfer_rate[a, b, c], found.transfer_lag_s[a, b, c] = (two - one) / 1e9, 2 * one - two
    return found


def _fill_block(found: Blocks, pricing: Pricing, a: int, b: int) -> None:
    layout, topology = found.layout, pricing.topology
    begin, end = found.ends[a], found.ends[b]
    shares = [
        pricing.samples(layout.copy_devices(begin, end, copy), pricing.workload.portions(layout.replication)[1])
        for copy in range(layout.replication)
    ]
    devices = tuple(sorted(layout.devices(begin, end)))
    found.samples[a, b], found.most[a, b] = max(one[0] for one in shares), max(one[1] for one in shares)
    found.memory_bytes[a, b] = min(topology.devices[one].memory_bytes for one in devices)
    one, two = (topology.all_reduce_s(devices, size) for size in (1e9, 2e9))
    found.all_reduce_rate[a, b], found.all_reduce_lag_s[a, b] = (two - one) / 1e9, 2 * one - two

"""Which devices a stage gets, of machines that are filled one device after the other.

Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models" (PPoPP 2021), section 4.2. Each way takes
a machine's devices in their order, so what is in use of a machine are always its first ones, and a number for each machine
says it all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from detrain.pipeline.topology import Topology
from detrain.plans.errors import NoPlanError

#: By machine, how many of its devices are in use.
Used = tuple[int, ...]
#: Device numbers, rising.
Devices = tuple[int, ...]


@dataclass(frozen=True)
class Cluster:
    """Machines of alike devices, which are counted through. Bandwidths are in bytes a second."""

    #: Each machine ends before this device.
    ends: tuple[int, ...]
    inside: float
    across: float
    #: Of an all-reduce, and of what goes to several machines at once.
    inside_collective: float
    across_collective: float
    memory_bytes: float

    @cached_property
    def num_devices(self) -> int:
        """Of all machines."""
        return self.ends[-1]

    @cached_property
    def starts(self) -> tuple[int, ...]:
        """The first device of each machine."""
        return (0, *self.ends[:-1])

    @cached_property
    def machine_of(self) -> tuple[int, ...]:
        """By device."""
        return tuple(
            number
            for number, (start, end) in enumerate(zip(self.starts, self.ends, strict=True))
            for _ in range(start, end)
        )

    def is_one_machine(self, devices: Sequence[int]) -> bool:
        """True if all of these are in the same."""
        return len({self.machine_of[device] for device in devices}) == 1

    def devices_between(self, before: Used, after: Used) -> Devices:
        """What is in use after and was not before."""
        return tuple(
            start + offset for start, old, new in zip(self.starts, before, after, strict=True) for offset in range(old, new)
        )


def cluster_of(topology: Topology) -> Cluster:
    """The machines of a topology of one or two levels; raises `NoPlanError` for others. DAPPLE does not know of latencies."""
    levels = topology.levels
    if not 1 <= len(levels) <= 2:
        raise NoPlanError(
            "DAPPLE plans for devices in machines, which are one or two levels, not "
            + (f"for {len(levels)}" if levels else "for a matrix of bandwidths")
        )
    if len({device.speed for device in topology.devices}) > 1:
        raise NoPlanError("DAPPLE plans for devices of the same speed, and those of the topology differ")
    groups = levels[0].groups
    ends = tuple(device + 1 for device in range(len(groups)) if device + 1 == len(groups) or groups[device + 1] != groups[device])
    if len(ends) != len(set(groups)):
        raise NoPlanError("DAPPLE counts the devices machine by machine, and those of the topology are mixed")
    inner, outer = levels[0], levels[-1]
    return Cluster(
        ends, inner.bandwidth, outer.bandwidth, inner.collective_bandwidth or inner.bandwidth,
        outer.collective_bandwidth or outer.bandwidth, min(device.memory_bytes for device in topology.devices),
    )  # fmt: skip


def fresh_first(cluster: Cluster, used: Used, count: int) -> Used | None:
    """Devices of machines of which none is in use; None if there are too few."""
    return _filled(cluster, used, count, [number for number, taken in enumerate(used) if not taken])


def append_first(cluster: Cluster, used: Used, count: int) -> Used | None:
    """Devices of machines of which some are in use; None if there are too few."""
    return _filled(cluster, used, count, [number for number, taken in enumerate(used) if taken])


def _filled(cluster: Cluster, used: Used, count: int, machines: Sequence[int]) -> Used | None:
    after = list(used)
    for number in machines:
        taken = min(count, cluster.ends[number] - cluster.starts[number] - used[number])
        after[number] += taken
        count -= taken
    return None if count else tuple(after)


def scatter_first(cluster: Cluster, used: Used, count: int) -> Used | None:
    """One device of each machine that has one left, and again; None if there are too few."""
    room = [end - start - taken for start, end, taken in zip(cluster.starts, cluster.ends, used, strict=True)]
    if sum(room) < count:
        return None
    after = list(used)
    while count:
        for number in range(len(room)):
            if count and room[number]:
                after[number] += 1
                room[number] -= 1
                count -= 1
    return tuple(after)


#: In the order in which they are tried.
STRATEGIES = (fresh_first, append_first, scatter_first)


def placements(cluster: Cluster, used: Used, count: int) -> Iterator[Used]:
    """What is in use after `count` devices more, by each strategy that can; each result once."""
    yield from dict.fromkeys(after for strategy in STRATEGIES if (after := strategy(cluster, used, count)) is not None)


def placements_of_copies(cluster: Cluster, used: Used, count: int, copies: int) -> tuple[Used, ...]:
    """The same for `count` devices in each of several copies, placed one copy after the other."""
    placed: tuple[Used, ...] = (used,)
    for _ in range(copies):
        # Which devices a stage has is what is in use after it without what was before: the way there is of no matter.
        placed = tuple(dict.fromkeys(after for before in placed for after in placements(cluster, before, count)))
    return placed

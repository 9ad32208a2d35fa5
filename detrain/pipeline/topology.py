"""Devices, and what lies between them: nested levels of groups, or a matrix of links.

A level is a way of dividing the devices into groups, the innermost first: those of one machine, say, then those of one
rack. Two devices talk at the first level that has them in one group. A group's uplink is shared by its devices, and each
device's own link is that of the innermost level.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

from detrain.errors import GraphError

#: Of the device that a profile was measured on, at least this share of the speed, and at most so many times it.
_SLOWEST = 1e-6


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator."""

    memory_bytes: float
    #: Of the device that the profile was measured on; 0.5 takes twice as long.
    speed: float = 1.0


@dataclass(frozen=True, slots=True)
class Level:
    """How the devices within one group of this level reach each other."""

    #: Bytes a second each way: of each device at the innermost level, of each inner group's uplink at the others.
    bandwidth: float
    #: By device the number of its group. At the outermost level there is one group.
    groups: tuple[int, ...]
    #: Bytes a second of an all-reduce, where it differs.
    collective_bandwidth: float | None = None
    latency_s: float = 0.0


@dataclass(frozen=True)
class Topology:
    """Raises `GraphError` for what cannot be. `bandwidths` is a matrix of bytes a second, in the place of `levels`."""

    devices: tuple[Device, ...]
    levels: tuple[Level, ...] = ()
    bandwidths: tuple[tuple[float, ...], ...] = ()
    latencies_s: tuple[tuple[float, ...], ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        if not self.devices:
            raise GraphError("a topology has at least one device")
        for number, device in enumerate(self.devices):
            if not device.memory_bytes > 0 or not _SLOWEST <= device.speed <= 1 / _SLOWEST:
                raise GraphError(f"device {number} has {device.memory_bytes:g} bytes and speed {device.speed:g}")
        if bool(self.levels) == bool(self.bandwidths):
            raise GraphError("a topology has either levels or a matrix of bandwidths")
        if self.levels and self.latencies_s:
            raise GraphError("a matrix of latencies goes with a matrix of bandwidths; a level has a latency of its own")
        for number, level in enumerate(self.levels):
            self._check(number, level)
        for inner, outer in pairwise(self.levels):
            if len(set(zip(inner.groups, outer.groups, strict=True))) != len(set(inner.groups)):
                raise GraphError("a group of a level lies in more than one group of the level around it")
        if self.levels and len(set(self.levels[-1].groups)) > 1:
            raise GraphError("the outermost level has more than one group: no link connects them")
        self._check_matrix("bandwidth", self.bandwidths, lowest=0.0, is_open=True)
        self._check_matrix("latency", self.latencies_s, lowest=0.0, is_open=False)

    def _check(self, number: int, level: Level) -> None:
        if not level.bandwidth > 0 or not (level.collective_bandwidth is None or level.collective_bandwidth > 0):
            raise GraphError(f"level {number + 1} has a bandwidth that is not above zero")
        if not level.latency_s >= 0:
            raise GraphError(f"level {number + 1} has a latency below zero")
        if len(level.groups) != len(self.devices):
            raise GraphError(
                f"level {number + 1} has groups of {len(level.groups)} devices, not of {len(self.devices)}"
            )

    def _check_matrix(self, what: str, rows: Sequence[Sequence[float]], *, lowest: float, is_open: bool) -> None:
        if rows and (len(rows) != len(self.devices) or any(len(row) != len(self.devices) for row in rows)):
            raise GraphError(f"the matrix of {what} is not {len(self.devices)} by {len(self.devices)}")
        for begin, row in enumerate(rows):
            for end, value in enumerate(row):
                if begin != end and not (value > lowest or (not is_open and value == lowest)):
                    raise GraphError(f"the {what} from device {begin} to device {end} is {value:g}")

    def with_memory(self, memory_bytes: float) -> Topology:
        """The same with devices of so many bytes."""
        return replace(self, devices=tuple(replace(device, memory_bytes=memory_bytes) for device in self.devices))

    @cached_property
    def num_devices(self) -> int:
        """All of them."""
        return len(self.devices)

    @cached_property
    def alike(self) -> tuple[int, ...]:
        """By device the first one that is like it in speed, memory and place."""
        if self.bandwidths:
            return tuple(range(self.num_devices))
        first: dict[object, int] = {}
        kinds = (
            (device, tuple(level.groups[number] for level in self.levels)) for number, device in enumerate(self.devices)
        )
        return tuple(first.setdefault(kind, number) for number, kind in enumerate(kinds))

    def level_between(self, device: int, other: int) -> int:
        """The innermost level that has both in one group."""
        return next(number for number, level in enumerate(self.levels) if level.groups[device] == level.groups[other])

    def uplinks(self, devices: Iterable[int]) -> tuple[int, ...]:
        """Numbers of the uplinks, of whatever level, that an all-reduce over these devices goes through."""
        uplinks: list[int] = []
        members = set(devices)
        for number in range(1, len(self.levels)):
            inner, outer = self.levels[number - 1].groups, self.levels[number].groups
            for group in sorted({outer[device] for device in members}):
                within = {inner[device] for device in members if outer[device] == group}
                if len(within) > 1:
                    uplinks += (device * len(self.levels) + number for device in sorted(within))
        return tuple(uplinks)

    def all_reduce_s(self, devices: Iterable[int], size_bytes: float) -> float:
        """A ring over these devices: each link carries 2 (g - 1) / g of the bytes; the slowest one decides."""
        ring = sorted(set(devices))
        if len(ring) < 2:
            return 0.0
        carried = 2 * (len(ring) - 1) / len(ring) * size_bytes
        if self.bandwidths:
            links = list(zip(ring, ring[1:] + ring[:1], strict=True))
            slowest = min(self.bandwidths[begin][end] for begin, end in links)
            latency_s = max(self.latencies_s[begin][end] for begin, end in links) if self.latencies_s else 0.0
        else:
            outermost = max(self.level_between(ring[0], device) for device in ring[1:])
            used = self.levels[: outermost + 1]
            slowest = min(level.collective_bandwidth or level.bandwidth for level in used)
            latency_s = used[-1].latency_s
        return carried / slowest + 2 * (len(ring) - 1) * latency_s

    def transfer_s(self, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], size_bytes: float) -> float:
        """From each pair's senders, who have `size_bytes` in equal parts, to its receivers, who want them so; all at once.

        What stays on a device costs nothing. At each level a link or uplink carries what leaves and what enters it; the
        one with most to carry decides.
        """
        if self.bandwidths:
            return self._matrix_transfer_s(pairs, size_bytes)
        carried: dict[tuple[bool, int, int], float] = {}
        latency_s = 0.0
        for senders, receivers in pairs:
            for number, level in enumerate(self.levels):
                inner: Sequence[int] = self.levels[number - 1].groups if number else range(self.num_devices)
                sending, receiving = (Counter(inner[device] for device in ends) for ends in (senders, receivers))
                if len(sending.keys() | receiving.keys()) > 1:
                    latency_s = max(latency_s, level.latency_s)
                for link in sending.keys() | receiving.keys():
                    from_share, to_share = sending[link] / len(senders), receiving[link] / len(receivers)
                    for is_leaving, share in (
                        (True, from_share * (1 - to_share)),
                        (False, to_share * (1 - from_share)),
                    ):
                        key = is_leaving, number, link
                        carried[key] = carried.get(key, 0.0) + share * size_bytes
        busiest = (size / self.levels[number].bandwidth for (_, number, _), size in carried.items())
        return max(busiest, default=0.0) + latency_s

    def _matrix_transfer_s(self, pairs: Iterable[tuple[Sequence[int], Sequence[int]]], size_bytes: float) -> float:
        carried: dict[tuple[int, int], float] = {}
        for senders, receivers in pairs:
            for begin in senders:
                for end in receivers:
                    if begin != end:
                        part = size_bytes / (len(senders) * len(receivers))
                        carried[begin, end] = carried.get((begin, end), 0.0) + part
        out: dict[int, float] = {}
        into: dict[int, float] = {}
        for (begin, end), size in carried.items():
            seconds = size / self.bandwidths[begin][end]
            out[begin] = out.get(begin, 0.0) + seconds
            into[end] = into.get(end, 0.0) + seconds
        latency_s = (
            max((self.latencies_s[begin][end] for begin, end in carried), default=0.0) if self.latencies_s else 0.0
        )
        return max([*out.values(), *into.values()], default=0.0) + latency_s


def nested(
    sizes: Sequence[int], bandwidths: Sequence[float], memory_bytes: float, *, collective_bandwidths: Sequence[float | None] | None = None,
    latencies_s: Sequence[float] | None = None,
) -> Topology:  # fmt: skip
    """Equal groups, the innermost first: 4, 4 are four machines of four devices each."""
    if len(sizes) != len(bandwidths) or not sizes:
        raise GraphError(f"there are {len(sizes)} levels of machines and {len(bandwidths)} bandwidths")
    if any(size < 1 for size in sizes):
        raise GraphError(f"a level has at least one machine, not {min(sizes)}")
    total = 1
    for size in sizes:
        total *= size
    levels, within = [], 1
    for number, size in enumerate(sizes):
        within *= size
        levels.append(
            Level(
                bandwidths[number], tuple(device // within for device in range(total)),
                None if collective_bandwidths is None else collective_bandwidths[number],
                0.0 if latencies_s is None else latencies_s[number],
            )
        )  # fmt: skip
    return Topology((Device(memory_bytes),) * total, tuple(levels))


def machines(
    ends: Sequence[int], inside: float, across: float, memory_bytes: float, *, across_collective: float | None = None
) -> Topology:
    """Machines that end before these devices: 8, 16 are two of eight; DAPPLE's separators."""
    if not ends or any(later <= earlier for earlier, later in pairwise((0, *ends))):
        raise GraphError(f"separators rise from above zero: {','.join(map(str, ends))} do not")
    groups = tuple(next(number for number, end in enumerate(ends) if device < end) for device in range(ends[-1]))
    levels = [Level(inside, groups)]
    if len(ends) > 1:
        levels.append(Level(across, (0,) * ends[-1], across_collective))
    return Topology((Device(memory_bytes),) * ends[-1], tuple(levels))

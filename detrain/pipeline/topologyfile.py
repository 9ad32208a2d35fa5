"""Topologies as TOML, and the short ways to write one on a command line; `docs/pipeline.md` has the format.

A file without `size` and `ends` says what devices and links are like, not how many there are: a `Preset`. The short ways bring
the numbers.
"""

from __future__ import annotations

import math
import re
import tomllib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path

from detrain.errors import GraphError
from detrain.pipeline.topology import Device, Level, Topology, machines, nested
from detrain.plans.documents import Fields, errors_naming, number, parsed
from detrain.plans.units import parse_bytes, parse_rate

#: More are a slip of the pen.
MOST_DEVICES = 1 << 16
_TOP = ("name", "device", "devices", "level", "matrix")
_LINK = ("bandwidth", "collective_bandwidth", "latency_s")


@dataclass(frozen=True, slots=True)
class Link:
    """The links of one level: bytes a second, and seconds."""

    bandwidth: float
    collective_bandwidth: float | None = None
    latency_s: float = 0.0


@dataclass(frozen=True)
class Preset:
    """The properties of devices and links, without their numbers."""

    device: Device
    #: The innermost first. Levels beyond these are like the outermost.
    links: tuple[Link, ...]
    name: str = ""

    def link(self, level: int) -> Link:
        """Of a level, counted from 0 at the innermost."""
        return self.links[min(level, len(self.links) - 1)]


def preset(name: str) -> Preset:
    """A preset that comes with detrain. Raises `GraphError` naming all of them if there is none called `name`."""
    folder = resources.files("detrain.pipeline") / "presets"
    names = sorted(file.name.removesuffix(".toml") for file in folder.iterdir() if file.name.endswith(".toml"))
    if name not in names:
        raise GraphError(f"there is no preset {name}: it is one of {', '.join(names)}")
    return _preset(tomllib.loads((folder / f"{name}.toml").read_text(encoding="utf-8")), f"preset {name}", name)


def read_preset(path: Path) -> Preset:
    """Raises `GraphError` naming file and key, or `OSError`."""
    return _preset(parsed(path, "TOML", tomllib.loads), str(path), path.stem)


def _preset(document: object, place: str, name: str) -> Preset:
    fields = Fields(document, place, ("name", "device", "level"))
    levels = fields.tables("level", _LINK)
    if not levels:
        raise GraphError(f"{place} has no level")
    return Preset(_device(fields.table("device", ("memory", "speed"))), tuple(map(_link, levels)), name)


def read(path: Path) -> Topology:
    """Raises `GraphError` naming file and key, or `OSError`."""
    fields = Fields(parsed(path, "TOML", tomllib.loads), str(path), _TOP)
    with errors_naming(path):
        return _topology(fields, path.stem)


def _topology(fields: Fields, stem: str) -> Topology:
    name = fields.text("name") if fields.has("name") else stem
    device = _device(fields.table("device", ("memory", "speed")))
    if fields.has("matrix") == fields.has("level"):
        raise GraphError(f"{fields.place}: there is either level or matrix, and not both")
    if fields.has("matrix"):
        matrix = fields.table("matrix", ("bandwidth", "latency_s"))
        bandwidths = _matrix(matrix, "bandwidth")
        latencies_s = _matrix(matrix, "latency_s") if matrix.has("latency_s") else ()
        return Topology(_devices(fields, device, len(bandwidths)), (), bandwidths, latencies_s, name)
    levels = fields.tables("level", ("size", "ends", *_LINK))
    num_devices = _num_devices(levels)
    devices = _devices(fields, device, num_devices)
    return Topology(devices, tuple(_levels(levels, num_devices)), name=name)


def _num_devices(levels: Sequence[Fields]) -> int:
    """What the ends of a level say, or else all sizes together."""
    last_end, total = 0, 1
    for level in levels:
        if level.has("size") == level.has("ends"):
            raise GraphError(f"{level.place}: there is either size or ends, and not both")
        if level.has("size"):
            total *= level.whole("size", 1)
            continue
        ends = level.wholes("ends", 1)
        if not ends or any(later <= earlier for earlier, later in pairwise(ends)):
            level.wrong("ends", "not numbers that rise")
        if last_end not in (0, ends[-1]):
            level.wrong("ends", f"and another level has {last_end} devices")
        last_end = ends[-1]
    if not levels:
        raise GraphError("there are no levels")
    _check_number(last_end or total)
    return last_end or total


def _levels(levels: Sequence[Fields], num_devices: int) -> list[Level]:
    made: list[Level] = []
    groups: tuple[int, ...] = tuple(range(num_devices))
    for level in levels:
        if level.has("size"):
            size, inner = level.whole("size", 1), max(groups) + 1
            if inner % size:
                level.wrong("size", f"and there are {inner} groups within it, no multiple of that")
            groups = tuple(group // size for group in groups)
        else:
            ends = level.wholes("ends", 1)
            if any(groups[end - 1] == groups[end] for end in ends[:-1]):
                level.wrong("ends", "and one of them lies within a group of the level before it")
            groups = tuple(bisect_right(ends, device) for device in range(num_devices))
        link = _link(level)
        made.append(Level(link.bandwidth, groups, link.collective_bandwidth, link.latency_s))
    return made


def _link(level: Fields) -> Link:
    collective = _rate(level, "collective_bandwidth") if level.has("collective_bandwidth") else None
    return Link(
        _rate(level, "bandwidth"), collective, level.number("latency_s") if level.has("latency_s") else 0.0
    )  # fmt: skip


def _rate(fields: Fields, name: str) -> float:
    if fields.is_text(name):
        return _rate_of(fields.text(name), f"{fields.place}: {name}")
    return fields.number(name, is_above_zero=True)


def _rate_of(value: object, place: str) -> float:
    if type(value) is str:
        try:
            value = parse_rate(value)
        except ValueError as error:
            raise GraphError(f"{place}: {error}") from None
    return number(value, place, is_above_zero=True)


def _device(fields: Fields) -> Device:
    return Device(_memory(fields), fields.number("speed", is_above_zero=True) if fields.has("speed") else 1.0)


def _memory(fields: Fields) -> float:
    if not fields.is_text("memory"):
        return fields.number("memory", is_above_zero=True)
    return memory_of(fields.text("memory"), f"{fields.place}: memory")


def memory_of(text: str, place: str = "memory") -> float:
    """Bytes of a text such as `16GiB`, above zero. Raises `GraphError`."""
    try:
        return number(parse_bytes(text)[0], place, is_above_zero=True)
    except ValueError as error:
        raise GraphError(f"{place}: {error}") from None


def _devices(fields: Fields, device: Device, num_devices: int) -> tuple[Device, ...]:
    devices = [device] * num_devices
    ranges = fields.tables("devices", ("first", "last", "memory", "speed")) if fields.has("devices") else ()
    for some in ranges:
        first, last = some.whole("first"), some.whole("last")
        if not first <= last < num_devices:
            raise GraphError(f"{some.place}: there are no devices {first} to {last}; the last is {num_devices - 1}")
        for at in range(first, last + 1):
            if some.has("memory"):
                devices[at] = replace(devices[at], memory_bytes=_memory(some))
            if some.has("speed"):
                devices[at] = replace(devices[at], speed=some.number("speed", is_above_zero=True))
    return tuple(devices)


def _matrix(fields: Fields, name: str) -> tuple[tuple[float, ...], ...]:
    rows = fields.list(name)
    place = f"{fields.place}: {name}"
    square = [row for row in rows if type(row) is list and len(row) == len(rows)]
    if not rows or len(rows) > MOST_DEVICES or len(square) < len(rows):
        raise GraphError(f"{place} is not square: as many rows as each has numbers, one at least")
    return tuple(
        tuple(
            0.0 if begin == end else _rate_of(value, f"{place}[{begin}][{end}]") if name == "bandwidth"
            else number(value, f"{place}[{begin}][{end}]")
            for end, value in enumerate(row)
        )
        for begin, row in enumerate(square)
    )  # fmt: skip


def of_machines(text: str, links: Preset, bandwidths: Sequence[float] | None = None) -> Topology:
    """`8,16`: the first machine ends before device 8, the second before 16; DAPPLE's separators. Raises `GraphError`."""
    if not re.fullmatch(r"\s*\d+\s*(,\s*\d+\s*)*", text, re.ASCII):
        raise GraphError(f"machines are where they end, as in 8,16, not {text}")
    ends = [int(end) for end in text.split(",")]
    _check_number(max(ends))
    topology = machines(ends, 1.0, 1.0, 1.0)
    return _linked(topology, _with_bandwidths(links, bandwidths, len(topology.levels)))


def of_levels(sizes: Sequence[int], bandwidths: Sequence[float] | None = None, links: Preset | None = None) -> Topology:
    """4, 4: four machines of four devices; PipeDream's numbers of machines, the innermost first, and bytes a second for each.

    Without bandwidths, and for all else, as `links` have it, or else as PipeDream does. Raises `GraphError`.
    """
    links = _with_bandwidths(links or preset("pipedream"), bandwidths, len(sizes))
    _check_number(math.prod(sizes))
    return _linked(nested(sizes, (1.0,) * len(sizes), 1.0), links)


def of_shape(text: str, bandwidths: Sequence[float] | None = None, links: Preset | None = None) -> Topology:
    """`2x8`: two machines of eight devices, as the papers write it. Bandwidths begin at the innermost level, as everywhere.

    A single machine needs none to others: `1x4` takes one bandwidth.
    """
    if not re.fullmatch(r"\s*\d+(x\d+)*\s*", text, re.ASCII):
        raise GraphError(f"a shape is machines by devices, as in 2x8, not {text}")
    sizes = [int(size) for size in reversed(text.split("x"))]
    while bandwidths is not None and len(sizes) > len(bandwidths) and sizes[-1] == 1:
        sizes.pop()
    return of_levels(sizes, bandwidths, links)


def _with_bandwidths(links: Preset, bandwidths: Sequence[float] | None, num_levels: int) -> Preset:
    if bandwidths is None:
        return links
    if len(bandwidths) != num_levels:
        raise GraphError(f"there are {num_levels} levels of machines and {len(bandwidths)} bandwidths")
    return replace(links, links=tuple(map(Link, bandwidths)))


def _check_number(num_devices: int) -> None:
    if num_devices > MOST_DEVICES:
        raise GraphError(f"there are {num_devices} devices; {MOST_DEVICES} is the most")


def _linked(topology: Topology, links: Preset) -> Topology:
    """The same groups with these devices and links."""
    levels = []
    for at, level in enumerate(topology.levels):
        link = links.link(at)
        levels.append(Level(link.bandwidth, level.groups, link.collective_bandwidth, link.latency_s))
    return Topology((links.device,) * topology.num_devices, tuple(levels), name=links.name)

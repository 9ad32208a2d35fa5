"""Small changes to a draft of a plan, kept as long as the simulator says that they help."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, product
from typing import TypeVar

import numpy as np

from detrain.errors import GraphError
from detrain.pipeline.judge import Judge, Score
from detrain.pipeline.planners.layouts import Layout
from detrain.pipeline.pricing import Arrangement
from detrain.pipeline.states import States
from detrain.pipeline.topology import Topology

Item = TypeVar("Item")
#: How far cuts move at once, in states of those that may be cut at, from far to near.
_STRIDES = (32, 8, 4, 2, 1)


@dataclass(frozen=True)
class Draft:
    """Stages on devices. Without a layout, devices stay where they are."""

    arranged: Arrangement
    layout: Layout | None


def refine(
    judge: Judge, states: States, draft: Draft, limit_s: float, *, is_recomputing: bool = True
) -> tuple[Score, Draft]:
    """The draft after all steps that help, each the first found; whoever has more time goes further."""
    until_s = time.perf_counter() + max(limit_s, 0.0)
    moves = _Moves(states, judge.pricing.topology, is_recomputing=is_recomputing)
    best = judge.score(draft.arranged)
    is_better = True
    while is_better:
        is_better = False
        for arranged in moves.of(draft):
            if time.perf_counter() > until_s:
                return best, draft
            try:
                score = judge.score(arranged)
            except GraphError:
                continue  # too few samples for this many stages
            if score < best:
                best, draft, is_better = score, replace(draft, arranged=arranged), True
                break
    return best, draft


class _Moves:
    """What can be changed at once."""

    def __init__(self, states: States, topology: Topology, *, is_recomputing: bool) -> None:
        self._states, self._is_recomputing = states, is_recomputing
        self._alike = topology.alike
        self._by_time = np.argsort(states.compute_s, kind="stable")

    def of(self, draft: Draft) -> Iterator[Arrangement]:
        """All arrangements one step away."""
        for stage in range(len(draft.arranged.done)):
            yield from self._cuts(draft.arranged, stage)
            yield from self._shifted(draft.arranged, stage)
            if self._is_recomputing:
                yield from self._recomputations(draft.arranged, stage)
            if draft.layout is not None:
                yield from self._devices(draft.arranged, draft.layout, stage)
                yield from self._joined(draft.arranged, draft.layout, stage)
                yield from self._divided(draft.arranged, draft.layout, stage)
        yield from self._swapped(draft.arranged)

    def _swapped(self, arranged: Arrangement) -> Iterator[Arrangement]:
        """Devices that are not alike in each other's places; of alike ones in one place, the first."""
        places: dict[tuple[int, int], dict[int, int]] = {}
        idle = set(range(len(self._alike)))
        for stage, devices in enumerate(arranged.devices):
            idle -= set(devices)
            for copy in range(arranged.replication):
                for device in arranged.of_copy(stage, copy):
                    places.setdefault((stage, copy), {}).setdefault(self._alike[device], device)
        places[-1, 0] = {self._alike[device]: device for device in sorted(idle, reverse=True)}
        if arranged.replication == 1:
            yield from self._freed(arranged, places)
        for first, other in combinations(places, 2):
            for (kind, device), (other_kind, other_device) in product(places[first].items(), places[other].items()):
                if kind != other_kind:
                    swap = {device: other_device, other_device: device}
                    swapped = tuple(tuple(swap.get(each, each) for each in row) for row in arranged.devices)
                    yield replace(arranged, devices=swapped)

    def _freed(self, arranged: Arrangement, places: dict[tuple[int, int], dict[int, int]]) -> Iterator[Arrangement]:
        """One device less for a stage, or an idle one more."""
        for stage, devices in enumerate(arranged.devices):
            for gone in places[stage, 0].values() if len(devices) > 1 else ():
                fewer = tuple(device for device in devices if device != gone)
                yield replace(arranged, devices=_with(arranged.devices, stage, fewer))
            for idle in places[-1, 0].values():
                yield replace(arranged, devices=_with(arranged.devices, stage, (*devices, idle)))

    def _between(self, before: int, after: int) -> list[int]:
        """States strictly between two, by time."""
        return [
            bits
            for bits in (self._states.members[state] for state in self._by_time)
            if bits not in (before, after) and before & ~bits == 0 and bits & ~after == 0
        ]

    def _cuts(self, arranged: Arrangement, stage: int) -> Iterator[Arrangement]:
        if stage == len(arranged.done) - 1:
            return
        before = arranged.done[stage - 1] if stage else 0
        room = self._between(before, arranged.done[stage + 1])
        here = arranged.done[stage]
        at = room.index(here) if here in room else len(room) // 2
        for stride in _STRIDES:
            for place in (at - stride, at + stride):
                if 0 <= place < len(room):
                    yield replace(arranged, done=_with(arranged.done, stage, room[place]))

    def _shifted(self, arranged: Arrangement, stage: int) -> Iterator[Arrangement]:
        """The stage one state earlier or later as a whole."""
        if not 0 < stage < len(arranged.done) - 1:
            return
        begins = self._between(arranged.done[stage - 2] if stage > 1 else 0, arranged.done[stage])
        ends = self._between(arranged.done[stage - 1], arranged.done[stage + 1])
        if arranged.done[stage - 1] not in begins or arranged.done[stage] not in ends:
            return
        begin, end = begins.index(arranged.done[stage - 1]), ends.index(arranged.done[stage])
        for step in (1, -1):
            if 0 <= begin + step < len(begins) and 0 <= end + step < len(ends) and begins[begin + step] != ends[end]:
                done = _with(_with(arranged.done, stage - 1, begins[begin + step]), stage, ends[end + step])
                if done[stage - 1] & ~done[stage] == 0:
                    yield replace(arranged, done=done)

    def _recomputations(self, arranged: Arrangement, stage: int) -> Iterator[Arrangement]:
        for how in ("", "all"):
            if how != arranged.recompute[stage]:
                yield replace(arranged, recompute=_with(arranged.recompute, stage, how))

    def _devices(self, arranged: Arrangement, layout: Layout, stage: int) -> Iterator[Arrangement]:
        """Some devices more for this stage and fewer for the next, and the other way round."""
        sizes = tuple(len(devices) // layout.replication for devices in arranged.devices)
        if stage == len(sizes) - 1:
            if sum(sizes) < layout.num_positions:
                yield self._placed(arranged, layout, _with(sizes, stage, sizes[stage] + 1))
            if sizes[stage] > 1:
                yield self._placed(arranged, layout, _with(sizes, stage, sizes[stage] - 1))
            return
        for moved in (1, -1, 2, -2, 4, -4):
            changed = _with(_with(sizes, stage, sizes[stage] + moved), stage + 1, sizes[stage + 1] - moved)
            if min(changed) > 0:
                yield self._placed(arranged, layout, changed)

    def _joined(self, arranged: Arrangement, layout: Layout, stage: int) -> Iterator[Arrangement]:
        if stage == len(arranged.done) - 1:
            return
        sizes = tuple(len(devices) // layout.replication for devices in arranged.devices)
        joined = (*sizes[:stage], sizes[stage] + sizes[stage + 1], *sizes[stage + 2 :])
        recompute = (*arranged.recompute[:stage], arranged.recompute[stage], *arranged.recompute[stage + 2 :])
        done = (*arranged.done[:stage], *arranged.done[stage + 1 :])
        yield self._placed(replace(arranged, done=done, recompute=recompute), layout, joined)

    def _divided(self, arranged: Arrangement, layout: Layout, stage: int) -> Iterator[Arrangement]:
        sizes = tuple(len(devices) // layout.replication for devices in arranged.devices)
        if sizes[stage] < 2:
            return
        before = arranged.done[stage - 1] if stage else 0
        room = self._between(before, arranged.done[stage])
        for first in sorted({1, sizes[stage] // 2, sizes[stage] - 1}):
            if room:
                place = min(len(room) - 1, len(room) * first // sizes[stage])
                parts = (*sizes[:stage], first, sizes[stage] - first, *sizes[stage + 1 :])
                changed = replace(
                    arranged, done=(*arranged.done[:stage], room[place], *arranged.done[stage:]),
                    recompute=(*arranged.recompute[:stage], arranged.recompute[stage], *arranged.recompute[stage:]),
                )  # fmt: skip
                yield self._placed(changed, layout, parts)

    def _placed(self, arranged: Arrangement, layout: Layout, sizes: tuple[int, ...]) -> Arrangement:
        """Stages on blocks of these sizes, one after the other."""
        devices, begin = [], 0
        for size in sizes:
            devices.append(layout.devices(begin, begin + size))
            begin += size
        return replace(arranged, devices=tuple(devices))


def _with(row: tuple[Item, ...], place: int, value: Item) -> tuple[Item, ...]:
    return (*row[:place], value, *row[place + 1 :])

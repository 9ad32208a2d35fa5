"""The straight pipeline whose slowest stage or transfer is quickest: each stage has one device in each copy.

DAPPLE's dynamic programming goes over states, stages, and which devices are in use. How devices come into use does not depend
on states, so it is written down first (`Layout`); what is left is done for all pairs of states at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from detrain.pipeline.planners.estimates import split_concat_terms
from detrain.pipeline.planners.placement import Cluster, Devices, Used, fresh_first, placements_of_copies
from detrain.pipeline.states import Floats, States

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Straight:
    """Behind which state each stage but the last ends, the devices of each, and the time of the slowest for a whole step."""

    cuts: tuple[int, ...]
    devices: tuple[Devices, ...]
    bottleneck_s: float


@dataclass(frozen=True, slots=True)
class _Step:
    """The devices of one more stage, and what was in use before."""

    before: int
    devices: Devices


class Layout:
    """What can be in use after 1, 2, … stages of one device in each copy, counted through, and the steps to it.

    The first stage takes fresh machines. Steps to the same are in the order of the devices in use before, compared as lists of
    what is in use; so the published planner goes through them.
    """

    def __init__(self, cluster: Cluster, num_stages: int, copies: int) -> None:
        nothing: Used = (0,) * len(cluster.ends)
        first = fresh_first(cluster, nothing, copies)
        assert first is not None, "there are devices for all stages"
        self.steps: list[_Step] = [_Step(-1, cluster.devices_between(nothing, first))]
        #: By what is in use, its first step; the last entry is the number of steps.
        self.firsts: list[int] = [0]
        level: list[tuple[Used, int]] = [(first, 0)]
        for _ in range(num_stages - 1):
            into: dict[Used, list[tuple[Used, int]]] = {}
            for used, number in sorted(level, key=lambda pair: _as_list(cluster, pair[0])):
                for after in placements_of_copies(cluster, used, 1, copies):
                    into.setdefault(after, []).append((used, number))
            level = []
            for after, befores in into.items():
                level.append((after, len(self.firsts)))
                self.firsts.append(len(self.steps))
                self.steps += [_Step(number, cluster.devices_between(used, after)) for used, number in befores]
        self.firsts.append(len(self.steps))
        self._cluster = cluster

    def terms(self) -> tuple[Ints, Floats]:
        """By step the first row, and rows of terms of `split_concat_terms`, one for each step to what was in use before."""
        firsts: list[int] = []
        rows: list[tuple[float, float, float]] = []
        for step in self.steps:
            firsts.append(len(rows))
            if step.before < 0:
                continue
            for earlier in self.steps[self.firsts[step.before] : self.firsts[step.before + 1]]:
                rows.append(split_concat_terms(self._cluster, earlier.devices, step.devices))
        return np.array(firsts, np.int64), np.array(rows, np.float64).reshape(-1, 3)


def _as_list(cluster: Cluster, used: Used) -> list[bool]:
    return [
        device < start + count
        for start, end, count in zip(cluster.starts, cluster.ends, used, strict=True)
        for device in range(start, end)
    ]


def solve(states: States, scale: float, layout: Layout, copies: int) -> Straight | None:
    """For a step of `scale` times the batch of the profile. None if there are not as many states one within the other.

    Ties go to the earliest cut, then to the first step of the layout. The published planner takes cuts in the order of a set of
    objects, so its ties differ from run to run.
    """
    count = len(states.members)
    # [j, k]: the last stage has what state j has beyond state k.
    last_s = (states.compute_s[:, None] - states.compute_s) * scale / copies
    last_s[~states.below.T] = np.inf
    sent_bytes = 2.0 * (states.output_bytes * scale)
    first_terms, terms = layout.terms()
    times = np.full((len(layout.firsts) - 1, count), np.inf)
    times[0] = states.compute_s * scale / copies
    cuts, chosen = np.full(times.shape, -1), np.zeros(times.shape, np.int64)
    tried_s = np.empty_like(last_s)
    for used in range(1, len(times)):
        for number in range(layout.firsts[used], layout.firsts[used + 1]):
            before = layout.steps[number].before
            senders, crossing, bandwidth = terms[first_terms[number] + chosen[before] - layout.firsts[before]].T
            np.maximum(last_s, np.maximum(times[before], sent_bytes / senders * crossing / bandwidth), out=tried_s)
            cut = tried_s.argmin(axis=1)
            best_s = tried_s[np.arange(count), cut]
            is_tie = (best_s == times[used]) & (cut < cuts[used])
            is_better = np.isfinite(best_s) & ((best_s < times[used]) | is_tie)
            times[used, is_better] = best_s[is_better]
            cuts[used, is_better] = cut[is_better]
            chosen[used, is_better] = number
    if not np.isfinite(times[-1, -1]):
        return None
    return _read(layout.steps, float(times[-1, -1]), cuts, chosen)


def _read(steps: Sequence[_Step], bottleneck_s: float, cuts: Ints, chosen: Ints) -> Straight:
    state, used = cuts.shape[1] - 1, cuts.shape[0] - 1
    places: list[int] = []
    devices: list[Devices] = []
    while True:
        step = steps[chosen[used, state]]
        devices.append(step.devices)
        if step.before < 0:
            return Straight(tuple(reversed(places)), tuple(reversed(devices)), bottleneck_s)
        state, used = int(cuts[used, state]), step.before
        places.append(state)

"""DAPPLE's planner: the split, the copies and the devices with the shortest synchronous step, in its own closed form.

Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models" (PPoPP 2021). Three kinds of plan compete
by `estimates.pipeline_s`: one stage in so many copies, straight pipelines, and two stages with every share of the devices.

The published planner's dynamic programming goes over stages of any number of devices as well, and always ends with one stage:
it asks for the least time of the slowest stage, without all-reduces, and m devices in one stage have the mean of the work
each. If it is divided in another way some device has no less than the mean. (Where all have the same to the last bit, the
rounding of sums may make it take more stages, as quick as one.) So here one stage is taken at once, and the dynamic
programming is left to straight pipelines.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from detrain.pipeline.compression import states_of
from detrain.pipeline.layers import Profile
from detrain.pipeline.plan import Plan, Stage, Workload
from detrain.pipeline.planners.baselines import no_overlap
from detrain.pipeline.planners.estimates import (
    Amount,
    Copies,
    Share,
    pipeline_s,
    recursive_s,
    split_concat_s,
    through_s,
)
from detrain.pipeline.planners.placement import Cluster, Devices, cluster_of, placements
from detrain.pipeline.planners.straight import Ints, Layout, solve
from detrain.pipeline.states import Floats, States, published
from detrain.pipeline.topology import Topology
from detrain.plans.errors import NoPlanError

#: The published planner gives up where the slowest stage of a plan takes less for a whole step.
_SHORTEST_S = 0.001
#: Sums in another order differ in the last digits; who is no better than that is no better.
_MARGIN = 1e-12


@dataclass(frozen=True)
class Candidate:
    """A candidate plan."""

    #: States behind which a stage ends and another begins.
    cuts: tuple[int, ...]
    #: By stage: devices in each copy, and those of all copies.
    replicas: tuple[int, ...]
    devices: tuple[Devices, ...]
    replication: int
    #: Of the slowest stage or transfer, for a whole step; over one device.
    bottleneck_s: float
    speedup: float


def plan(profile: Profile, topology: Topology, workload: Workload, *, is_compat: bool = False) -> Plan:
    """The best plan. Raises `NoPlanError`, with `is_compat` also where the published planner has no result.

    With `is_compat` the plan and the speed-up are the published ones, errors included:

    - the layers behind a cut count for the stage before it too, in its all-reduce;
    - what a micro-batch takes through the stages is reckoned as if no stage had replicas;
    - elsewhere replicas share out a micro-batch evenly, in parts of samples if there are more replicas than samples;
    - a transfer between two stages of any shares counts one way only where the slowest is looked for;
    - data parallelism, one stage of one device in each copy, is not tried, and straight pipelines only of two stages and of
      all devices.
    """
    began_s = time.perf_counter()
    states = numbered(profile, is_compat=is_compat)
    cluster = cluster_of(topology)
    problem = Problem(states, cluster, workload, is_compat)
    best = _best(candidates(problem), is_compat=is_compat)
    return Plan(
        "dapple", tuple(_stages(states, best)), best.replication, best.bottleneck_s, best.speedup,
        no_overlap(states, workload, cluster), time.perf_counter() - began_s, workload,
    )  # fmt: skip


def numbered(profile: Profile, *, is_compat: bool) -> States:
    """The states that plans are made of. As published, what has no order goes by the descriptions of layers."""
    rest = profile.to_plan()
    if not is_compat:
        return states_of(rest)
    if (states := published(rest, lambda layer: rest.layers[layer].description)) is None:
        raise NoPlanError(f"{profile.name or 'the profile'} has too many states for the published planner")
    return states


def in_published_order(profile: Profile) -> States:
    """States in the published order, which the published baselines treat as layers; if those are too many, a selection of states."""
    try:
        return numbered(profile, is_compat=True)
    except NoPlanError:
        return states_of(profile.to_plan())


@dataclass(frozen=True)
class Problem:
    """What is planned, and the amounts of a whole step by state."""

    states: States
    cluster: Cluster
    workload: Workload
    is_compat: bool

    @property
    def scale(self) -> float:
        """Batches of the profile in a step."""
        return self.workload.batch / self.workload.profile_batch

    @property
    def total_s(self) -> float:
        """Of all layers on one device."""
        return float(self.states.compute_s[-1]) * self.scale

    @cached_property
    def output_bytes(self) -> Floats:
        """Over a cut behind the state, forward."""
        return self.states.output_bytes * self.scale

    @property
    def last(self) -> int:
        """The state of all layers."""
        return len(self.states.members) - 1

    def share(self, starts: Ints, ends: Ints, replicas: int, devices: Devices) -> Share:
        """Of stages of what states `ends` have beyond states `starts` (-1: of all). As published, the next state's layers too."""
        compute_s = _beyond(self.states.compute_s, starts, ends) * self.scale
        counted = np.minimum(ends + 1, self.last) if self.is_compat else ends
        parameter_bytes = _beyond(self.states.parameter_bytes, starts, counted)
        return Share(compute_s, parameter_bytes, self.output_bytes[ends], self.working(replicas), devices)

    def working(self, replicas: int) -> float:
        """By how much replicas shorten a stage. They share out a micro-batch in whole samples; as published, also in parts of them."""
        if self.is_compat:
            return float(replicas)
        return self.workload.micro_batch / math.ceil(self.workload.micro_batch / replicas)

    def speedups(self, shares: Sequence[Share], replication: int, bottleneck_s: Amount) -> Floats:
        """Speed-ups by the closed form; 0 where there are not enough samples for a micro-batch in each copy."""
        num_micro_batches = self.workload.num_micro_batches(replication)
        speedups = np.zeros(np.shape(shares[0].compute_s))
        if num_micro_batches:
            copies = Copies(replication, num_micro_batches)
            through = self.total_s / replication / num_micro_batches if self.is_compat else through_s(shares, copies)
            step_s = pipeline_s(self.cluster, shares, copies, bottleneck_s / num_micro_batches, through)
            # Layers that take no time are as quick on one device.
            speedups[:] = np.divide(self.total_s, step_s, out=np.ones_like(speedups), where=np.asarray(step_s > 0))
        return speedups


def _beyond(cumulative: Floats, starts: Ints, ends: Ints) -> Floats:
    padded: Floats = np.append(cumulative, 0.0)
    beyond: Floats = padded[ends] - padded[starts]
    return beyond


def candidates(problem: Problem) -> Iterator[Candidate]:
    """One stage, straight, two stages: the best of each kind and size, in this order.

    Raises `NoPlanError` where it is the published planner's answers that are wanted, and it has none.
    """
    if problem.is_compat:
        _refuse(problem)
    num_devices = problem.cluster.num_devices
    for depth in range(2 if problem.is_compat else 1, num_devices + 1):
        yield _single(problem, depth)
    for depth in _depths(num_devices, is_compat=problem.is_compat):
        if (candidate := _straight(problem, depth)) is not None:
            yield candidate
    if num_devices > 1 and problem.last > 0:
        yield _bipartition(problem)


def _refuse(problem: Problem) -> None:
    num_devices, total_s = problem.cluster.num_devices, problem.total_s
    if num_devices == 1 or problem.last == 0:
        raise NoPlanError(
            "the published planner has no result here: it looks for two stages, and there is "
            + ("one device" if num_devices == 1 else "nowhere to cut")
        )
    slowest_s = min(total_s / depth / (num_devices // depth) for depth in range(2, num_devices + 1))
    if slowest_s < _SHORTEST_S:
        raise NoPlanError(
            f"the published planner has no result here: it treats a stage of {slowest_s * 1000:.3g} ms as an error, because it "
            f"is below {_SHORTEST_S * 1000:g} ms"
        )


def _depths(num_devices: int, *, is_compat: bool) -> list[int]:
    if not is_compat:
        return [depth for depth in range(2, num_devices + 1) if num_devices % depth == 0]
    return [2, num_devices] if num_devices > 2 and num_devices % 2 == 0 else [num_devices]


def _single(problem: Problem, replicas: int) -> Candidate:
    replication = problem.cluster.num_devices // replicas
    devices = tuple(range(replicas * replication))
    bottleneck_s = problem.total_s / problem.working(replicas) / replication
    return _candidate(problem, (), (replicas,), (devices,), replication, bottleneck_s)


def _straight(problem: Problem, depth: int) -> Candidate | None:
    """None: there are not as many stages to be had."""
    replication = problem.cluster.num_devices // depth
    layout = Layout(problem.cluster, depth, replication)
    solution = solve(problem.states, problem.scale, layout, replication)
    if solution is None and problem.is_compat:
        raise NoPlanError(
            f"the published planner has no result here: it needs {depth} successive stages, and the profile has "
            f"{len(problem.states.members)} states, not so many of them each within the next"
        )
    if solution is None:
        return None
    return _candidate(problem, solution.cuts, (1,) * depth, solution.devices, replication, solution.bottleneck_s)


def _candidate(
    problem: Problem, cuts: tuple[int, ...], replicas: tuple[int, ...], devices: tuple[Devices, ...], replication: int,
    bottleneck_s: float,
) -> Candidate:  # fmt: skip
    shares = [
        problem.share(np.array([start]), np.array([end]), replicas[number], devices[number])
        for number, (start, end) in enumerate(pairwise((-1, *cuts, problem.last)))
    ]
    (speedup,) = problem.speedups(shares, replication, bottleneck_s).tolist()
    return Candidate(cuts, replicas, devices, replication, bottleneck_s, speedup)


def recursive_speedup(problem: Problem, candidate: Candidate) -> float:
    """The speed-up of the same plan by `estimates.recursive_s`, which the published planner contains and does not use.

    As published, what comes behind a cut takes its time in the stage before it too. 0 without a micro-batch for each copy.
    """
    num_micro_batches = problem.workload.num_micro_batches(candidate.replication)
    if not num_micro_batches:
        return 0.0
    shares = []
    for number, (start, end) in enumerate(pairwise((-1, *candidate.cuts, problem.last))):
        starts, ends = np.array([start]), np.array([end])
        share = problem.share(starts, ends, candidate.replicas[number], candidate.devices[number])
        counted = np.minimum(ends + 1, problem.last) if problem.is_compat else ends
        shares.append(replace(share, compute_s=_beyond(problem.states.compute_s, starts, counted) * problem.scale))
    step_s = recursive_s(problem.cluster, shares, Copies(candidate.replication, num_micro_batches))
    return problem.total_s / step_s if step_s else 1.0


def _bipartition(problem: Problem) -> Candidate:
    """Two stages in one copy, behind every state, with every share of the devices in every way that they are placed."""
    cluster = problem.cluster
    nothing = (0,) * len(cluster.ends)
    everything = tuple(end - start for start, end in zip(cluster.starts, cluster.ends, strict=True))
    # Of equals the last wins as published, the first otherwise; so those that leave machines fresh win in both.
    ways = [
        (cluster.devices_between(nothing, used), cluster.devices_between(used, everything))
        for count in range(1, cluster.num_devices)
        for used in tuple(placements(cluster, nothing, count))[:: -1 if problem.is_compat else 1]
    ]
    tried = [_divided(problem, first, second) for first, second in ways]
    speedups = np.stack([speedup for speedup, _ in tried], axis=1)
    if problem.is_compat:
        place = speedups.size - 1 - int(np.argmax(speedups.ravel()[::-1]))
    else:
        place = int(np.argmax(speedups.ravel() >= speedups.max() * (1 - _MARGIN)))
    cut, way = divmod(place, len(ways))
    return Candidate(
        (cut,), (len(ways[way][0]), len(ways[way][1])), ways[way], 1, float(tried[way][1][cut]), float(speedups[cut, way])
    )  # fmt: skip


def _divided(problem: Problem, first: Devices, second: Devices) -> tuple[Floats, Floats]:
    """By cut, the speed-up and the time of the slowest."""
    cuts = np.arange(problem.last)
    ends = np.full_like(cuts, problem.last)
    shares = (
        problem.share(np.full_like(cuts, -1), cuts, len(first), first),
        problem.share(cuts, ends, len(second), second),
    )
    sent_bytes = problem.output_bytes[cuts] * (1.0 if problem.is_compat else 2.0)
    bottleneck_s = np.maximum(
        np.maximum(shares[0].compute_s / shares[0].replicas, shares[1].compute_s / shares[1].replicas),
        split_concat_s(problem.cluster, first, second, sent_bytes),
    )
    return problem.speedups(shares, 1, bottleneck_s), bottleneck_s


def _best(candidates: Iterator[Candidate], *, is_compat: bool) -> Candidate:
    """The candidate with the largest speed-up; of equal ones the last, as published, if `is_compat`, else the first."""
    best: Candidate | None = None
    for candidate in candidates:
        if best is None or (
            candidate.speedup >= best.speedup if is_compat else candidate.speedup > best.speedup * (1 + _MARGIN)
        ):
            best = candidate
    assert best is not None, "there is always one stage to be had"
    return best


def _stages(states: States, chosen: Candidate) -> Iterator[Stage]:
    last = len(states.members) - 1
    for number, (start, cut) in enumerate(pairwise((-1, *chosen.cuts, last))):
        yield Stage(
            start + 1, min(cut + 1, last), states.layers_between(start, cut), chosen.replicas[number], chosen.devices[number]
        )  # fmt: skip

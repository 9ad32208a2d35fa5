"""Judges plans by the simulator."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from detrain.errors import GraphError
from detrain.pipeline import simulator
from detrain.pipeline.interleave import interleaved
from detrain.pipeline.layers import Profile
from detrain.pipeline.plan import Plan, Workload
from detrain.pipeline.planfile import Planned
from detrain.pipeline.pricing import Arrangement, Pricing
from detrain.pipeline.schedules import Schedule, num_mini_batches
from detrain.pipeline.timeline import Timeline
from detrain.pipeline.topology import Topology

#: What plans are for unless something else is said: PipeDream's stages are kept, its asynchrony is not.
SYNCHRONOUS = Schedule("1f1b")
#: PipeDream's runtime: the next forward of a stage waits for its all-reduce.
PIPEDREAM = Schedule("1f1b-async", update_delay=0)
#: Forwards of a step, at all stages. The simulator takes about a kilobyte for each; more are a slip of the pen.
MOST_FORWARDS = 1 << 20


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """The quality of a plan; less is better: first the missing memory, then the time."""

    #: Sum over the stages of what is missing, over what there is.
    missing_share: float
    sample_s: float


class Judge:
    """Judges plans for one profile, topology and schedule, with micro-batches of one size."""

    def __init__(self, profile: Profile, topology: Topology, workload: Workload, kind: Schedule = SYNCHRONOUS) -> None:
        self.pricing = Pricing(profile, topology, workload)
        self.workload, self._kind = workload, kind
        self._scores: dict[Arrangement, Score] = {}

    def schedule(self, arranged: Arrangement) -> Schedule:
        """The kind of schedule with the micro-batches of these stages.

        Raises `GraphError` if there are not enough samples, or far too many, or if the stages are not where interleaved ones are.
        """
        count, size = self.pricing.portions(arranged, self._kind.name)
        schedule = replace(self._kind, num_micro_batches=count)
        if schedule.name == "interleaved":
            _check_chunks(arranged.devices, schedule.chunks)
        rounds = num_mini_batches(schedule, [len(devices) for devices in arranged.devices])
        if count * rounds * len(arranged.done) > MOST_FORWARDS:
            raise GraphError(
                f"{count:,} micro-batches of {size} through {len(arranged.done)} stages are too many to simulate; a "
                "smaller batch shows the same"
            )
        return schedule

    @property
    def samples(self) -> int:
        """Samples in what the simulator calls a step."""
        return self.workload.micro_batch if self._kind.name == "1f1b-async" else self.workload.batch

    @property
    def alone_s(self) -> float:
        """Time of a sample on the quickest device alone, whether it fits or not."""
        quickest = max(device.speed for device in self.pricing.topology.devices)
        return self.pricing.profile.compute_s / self.workload.profile_batch / quickest

    def score(self, arranged: Arrangement) -> Score:
        """Seconds a sample, and the share of memory that is missing. Raises `GraphError` for stages that cannot be simulated."""
        if arranged not in self._scores:
            schedule = self.schedule(arranged)
            loads = self.pricing.loads(arranged, self._kind.name)
            structure = simulator.structure_of(schedule, loads)
            step_s = simulator.step_s(structure, simulator.table(schedule, loads))
            peaks = simulator.peak_bytes(structure, simulator.sizes(loads))
            missing = sum(
                max(0.0, float(peak) / load.memory_bytes - 1) for peak, load in zip(peaks, loads, strict=True)
            )
            self._scores[arranged] = Score(missing, step_s / self.samples)
        return self._scores[arranged]

    def timeline(self, arranged: Arrangement) -> Timeline:
        """The timeline of a step with these stages. Raises `GraphError`."""
        return simulator.simulate(self.schedule(arranged), self.pricing.loads(arranged, self._kind.name))


def _check_chunks(devices: Sequence[tuple[int, ...]], chunks: int) -> None:
    """Interleaved, the simulator takes it that of p devices each has every p-th stage."""
    period = len(devices) // chunks
    if len(devices) % chunks:
        return  # the schedule says so
    for stage, own in enumerate(devices):
        first = devices.index(own)
        if first != stage % period:
            wanted = f"on those of stage {stage % period}" if stage >= period else "on devices of its own"
            raise GraphError(
                f"interleaved, with {chunks} chunks a device: of {len(devices)} stages stage {stage} is {wanted}, "
                f"and here it is {'not' if first == stage else f'on those of stage {first}'}"
            )


@dataclass(frozen=True)
class Judgement:
    """One plan under one schedule."""

    timeline: Timeline
    #: Time of a sample on one device, over that of this plan.
    speedup: float
    samples_per_s: float
    #: Of all stages, the largest share of a device's memory that is used.
    memory_share: float

    @property
    def fits(self) -> bool:
        """True if no device runs out of memory."""
        return not self.timeline.over_memory


def judge(
    plan: Plan, profile: Profile, topology: Topology, workload: Workload, kind: Schedule = SYNCHRONOUS
) -> Judgement:
    """Simulates a plan for `workload`, not for its own. `profile` is what was planned: `Profile.to_plan()`. Raises `GraphError`."""
    judging = Judge(profile, topology, workload, kind)
    arranged = judging.pricing.arrangement(plan)
    timeline = judging.timeline(arranged)
    loads = judging.pricing.loads(arranged, kind.name)
    share = max(peak / load.memory_bytes for peak, load in zip(timeline.peak_bytes, loads, strict=True))
    sample_s = timeline.step_s / judging.samples
    return Judgement(
        timeline, judging.alone_s / sample_s if sample_s else 1.0, 1 / sample_s if sample_s else 0.0, share
    )


@dataclass(frozen=True)
class DataParallel:
    """One stage on all devices, under the simulator."""

    #: Time of a sample on the quickest device alone, over that of this.
    speedup: float
    #: False if a device runs out of memory.
    fits: bool


def data_parallel(judging: Judge) -> DataParallel | None:
    """Data parallelism under the schedule, batch and micro-batch of `judging`: each device a copy, or all replicas of one copy.

    The better of the two; what fits is better than what does not. None where neither can be simulated.
    """
    devices = tuple(range(judging.pricing.topology.num_devices))
    everything = (1 << len(judging.pricing.profile.layers)) - 1
    scores: list[Score] = []
    for replication in (len(devices), 1):
        try:
            scores.append(judging.score(Arrangement((everything,), (devices,), replication, ("",))))
        except GraphError:
            continue
    if not scores:
        return None
    best = min(scores)
    return DataParallel(judging.alone_s / best.sample_s if best.sample_s else 1.0, best.missing_share == 0)


def kind_of(name: str, *, warmup: str = "pa", vertical_sync: bool = False, chunks: int = 2) -> Schedule:
    """The schedule `name` with its options, without micro-batches yet. Raises `GraphError` for an option that it lacks."""
    if name == "1f1b-async":
        return replace(PIPEDREAM, vertical_sync=vertical_sync)
    return Schedule(name, chunks=chunks if name == "interleaved" else 1, warmup=warmup, vertical_sync=vertical_sync)


def prepared(
    planned: Planned, kind: Schedule, *, profile_batch: int | None = None, batch: int | None = None, micro_batch: int | None = None,
    state_factor: float | None = None,
) -> tuple[Planned, Workload]:  # fmt: skip
    """A plan as this schedule takes it, and what a step is: the plan's own workload, but for the fields of it that are given.

    Of a plan that knows no batches, the profile's mini-batch is a micro-batch, and divides evenly over all replicas; a step
    has four for each stage.
    """
    plan = planned.plan
    if kind.name == "interleaved" and len({stage.devices for stage in plan.stages}) == len(plan.stages):
        plan = interleaved(plan, planned.profile.to_plan(), kind.chunks)
    workload = plan.workload
    if workload is None:
        even = math.lcm(*(stage.replicas for stage in plan.stages)) if profile_batch is None else profile_batch
        size = even if micro_batch is None else micro_batch
        workload = Workload(even, size * plan.replication * 4 * len(plan.stages) if batch is None else batch, size)
    workload = Workload(
        workload.profile_batch if profile_batch is None else profile_batch, workload.batch if batch is None else batch,
        workload.micro_batch if micro_batch is None else micro_batch,
        workload.state_factor if state_factor is None else state_factor,
    )  # fmt: skip
    return replace(planned, plan=plan), workload

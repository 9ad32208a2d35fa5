"""Judges plans: by the simulator, and by nothing else."""

from __future__ import annotations

from dataclasses import dataclass, replace

from detrain.errors import GraphError
from detrain.pipeline import simulator
from detrain.pipeline.plan import Plan, Workload
from detrain.pipeline.pricing import ASYNCHRONOUS, Arrangement, Pricing
from detrain.pipeline.profile import Profile
from detrain.pipeline.schedules import Schedule
from detrain.pipeline.timeline import Timeline
from detrain.pipeline.topology import Topology


@dataclass(frozen=True, slots=True, order=True)
class Score:
    """Less is better: first what does not fit, then time."""

    #: Sum over the stages of what is missing, over what there is.
    missing_share: float
    sample_s: float


class Judge:
    """Of plans for one profile, topology and schedule, with micro-batches of one size."""

    def __init__(self, profile: Profile, topology: Topology, workload: Workload, schedule: str = "1f1b") -> None:
        self.pricing = Pricing(profile, topology, workload)
        self.workload, self._schedule = workload, schedule
        self._scores: dict[Arrangement, Score] = {}

    def schedule(self, arranged: Arrangement) -> Schedule:
        """For these stages. Raises `GraphError` if there are not enough samples."""
        if self._schedule == "1f1b-async":
            return Schedule("1f1b-async")
        workload = self.workload
        copies = 1 if self._schedule in ASYNCHRONOUS else arranged.replication
        count = workload.num_micro_batches(copies)
        if count < 1:
            raise GraphError(
                f"a batch of {workload.batch} has no micro-batch of {workload.micro_batch} for each of {copies} copies"
            )
        chunks = 1
        if self._schedule == "interleaved":
            # Stages on the same devices are chunks of one device's layers.
            chunks = max(1, len(arranged.devices) // len(set(arranged.devices)))
        return Schedule(self._schedule, count, chunks)

    def samples(self, schedule: Schedule, arranged: Arrangement) -> int:
        """Of what the simulator calls a step."""
        copies = 1 if schedule.is_asynchronous else arranged.replication
        return schedule.num_micro_batches * self.workload.micro_batch * copies

    def score(self, arranged: Arrangement) -> Score:
        """The time of a sample, and what is missing of the memory. Raises `GraphError` for what cannot be simulated."""
        if arranged not in self._scores:
            schedule = self.schedule(arranged)
            loads = self.pricing.loads(arranged, self._schedule)
            structure = simulator.structure_of(schedule, loads)
            step_s = simulator.step_s(structure, simulator.table(schedule, loads))
            peaks = simulator.peak_bytes(structure, simulator.sizes(loads))
            missing = sum(
                max(0.0, float(peak) / load.memory_bytes - 1) for peak, load in zip(peaks, loads, strict=True)
            )
            self._scores[arranged] = Score(missing, step_s / self.samples(schedule, arranged))
        return self._scores[arranged]

    def timeline(self, arranged: Arrangement) -> Timeline:
        """All that happens."""
        return simulator.simulate(self.schedule(arranged), self.pricing.loads(arranged, self._schedule))


@dataclass(frozen=True)
class Judgement:
    """Of one plan under one schedule."""

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


def judge(plan: Plan, profile: Profile, topology: Topology, workload: Workload, schedule: str = "1f1b") -> Judgement:
    """Simulates a plan. `profile` is what was planned, `Profile.to_plan()`; a plan's own workload is not looked at."""
    judging = Judge(profile, topology, workload, schedule)
    arranged = judging.pricing.arrangement(plan)
    timeline = judging.timeline(arranged)
    samples = judging.samples(timeline.schedule, arranged)
    loads = judging.pricing.loads(arranged, schedule)
    alone_s = profile.compute_s / workload.profile_batch / max(one.speed for one in topology.devices)
    share = max(peak / load.memory_bytes for peak, load in zip(timeline.peak_bytes, loads, strict=True))
    sample_s = timeline.step_s / samples
    return Judgement(timeline, alone_s / sample_s if sample_s else 1.0, 1 / sample_s if sample_s else 0.0, share)


def with_micro_batch(workload: Workload, micro_batch: int) -> Workload:
    """The same in other portions."""
    return replace(workload, micro_batch=micro_batch)

"""A plan: the layers of each stage, the devices that run it, and the speed that the planner expects."""

from __future__ import annotations

from dataclasses import dataclass

from detrain.errors import GraphError


@dataclass(frozen=True)
class Workload:
    """The batch sizes of a training step, in samples."""

    #: Mini-batch that the profile was measured with; times and activations are taken in proportion to it.
    profile_batch: int
    #: Samples of one step, over all devices.
    batch: int
    #: Samples that one copy of the pipeline takes at a time.
    micro_batch: int
    #: Bytes that stay on a device for each byte of parameters: 4 are the weights, gradients and Adam's two moments.
    state_factor: float = 4.0

    def __post_init__(self) -> None:
        if min(self.profile_batch, self.batch, self.micro_batch) < 1:
            raise GraphError(
                f"batches are of one sample at least: profile {self.profile_batch}, batch {self.batch}, micro-batch {self.micro_batch}"
            )
        if self.micro_batch > self.batch:
            raise GraphError(f"a micro-batch of {self.micro_batch} is more than the batch of {self.batch}")

    def portions(self, copies: int, group: int = 1) -> tuple[int, int]:
        """Micro-batches of a copy of the pipeline in a step, and samples of the largest; they are as equal as whole samples are.

        There is a multiple of `group` of them. Raises `GraphError` if there are fewer samples than copies.
        """
        if self.batch < copies:
            raise GraphError(f"a batch of {self.batch} has no sample for each of {copies} copies")
        share = -(-self.batch // copies)
        count = -(-share // (self.micro_batch * group)) * group
        return count, -(-share // count)

    def num_micro_batches(self, replication: int) -> int:
        """Micro-batches of one copy of the pipeline in a step; 0 if there are not enough samples for all copies."""
        return self.batch // replication // self.micro_batch


@dataclass(frozen=True)
class Stage:
    """Consecutive layers, done by the same devices."""

    #: States of the profile, as the planner counts them; the last one's `end` is that of the profile.
    start: int
    end: int
    layers: tuple[str, ...]
    #: Devices in each copy of the pipeline.
    replicas: int
    #: Of the topology: those of the first copy, then those of the second.
    devices: tuple[int, ...]
    #: What of its activations is thrown away and made again in the backward pass: nothing (""), all but what enters it ("all"),
    #: or what a planner of `detrain.remat` says within a share of what the stage takes beyond its weights ("rotor@0.5").
    recompute: str = ""


@dataclass(frozen=True)
class Plan:
    """Stages from the first layers to the last."""

    planner: str
    stages: tuple[Stage, ...]
    #: Copies of the whole pipeline.
    replication: int
    #: As the planner reckons: time between two mini-batches at the slowest stage.
    bottleneck_s: float
    #: As the planner reckons: over one device, and that of data parallelism alone.
    speedup: float
    data_parallel_speedup: float
    #: Time that the planning took.
    seconds: float = 0.0
    #: What it was planned for; None where the planner knows of no batches.
    workload: Workload | None = None
    #: What the planner has to say of its choice, such as that micro-batches are smaller than asked for, and why; "" for nothing.
    note: str = ""

    @property
    def num_devices(self) -> int:
        """Of all stages and copies."""
        return sum(len(set(stage.devices)) for stage in self.stages)

    @property
    def num_workers(self) -> int:
        """Devices that work; stages that are chunks of one device share it."""
        return len({device for stage in self.stages for device in stage.devices})

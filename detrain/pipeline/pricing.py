"""Time and memory of the stages of a plan: from a profile, a topology and a workload to the simulator's loads.

Nothing here estimates a step; it says what each stage does for one micro-batch, and the simulator does the rest.

* Times and activations are in proportion to samples. The replicas of a stage share out a micro-batch in whole samples, in
  proportion to their speeds as nearly as whole samples allow; the last one to end decides.
* Between stages goes whatever of the layers so far any later layer needs, also past the next stage.
* Of a stage's backward pass, half makes gradients of the weights, where its layers have any; profiles do not tell the two apart.
* The all-reduce of a layer's gradients may begin when the backward pass of the last micro-batch is through with that layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from detrain.errors import GraphError
from detrain.pipeline.layers import Profile
from detrain.pipeline.plan import Plan, Workload
from detrain.pipeline.recomputation import Kept, recompute
from detrain.pipeline.simulator import StageLoad
from detrain.pipeline.states import Floats, crossing_bytes
from detrain.pipeline.topology import Topology

#: Schedules that deal whole mini-batches to the replicas of a stage in turn; the others split each micro-batch.
ASYNCHRONOUS = ("1f1b-async", "2bw")
#: Rounds of mini-batches over which a link between replicated stages is looked at are no longer than this.
_LONGEST_ROUND = 64


@dataclass(frozen=True, slots=True)
class Work:
    """Layers of a stage, for one sample."""

    forward_s: float
    backward_s: float
    #: Of the backward pass, what makes gradients of weights.
    weight_s: float
    activation_bytes: float
    parameter_bytes: float
    #: By layer, in the order of the backward pass: when it is through, as a share of the backward pass, and the share of the
    #: parameters of it and of all layers that follow.
    ready: Floats
    still: Floats

    def all_reduce_lead_s(self, backward_s: float, all_reduce_s: float) -> float:
        """How long before the end of the last backward pass the all-reduce may begin, if it is to go on without a pause."""
        if not all_reduce_s or not len(self.ready):
            return 0.0
        end_s = float((self.ready * backward_s + self.still * all_reduce_s).max())
        return min(max(all_reduce_s - (end_s - backward_s), 0.0), all_reduce_s, backward_s)


@dataclass(frozen=True, slots=True)
class Arrangement:
    """The parts of a plan that determine its time and memory."""

    #: By stage the layers of it and of those before, as bits; the last has all.
    done: tuple[int, ...]
    #: By stage the devices, those of the first copy first.
    devices: tuple[tuple[int, ...], ...]
    replication: int
    #: By stage, as in `Stage.recompute`.
    recompute: tuple[str, ...]

    def of_copy(self, stage: int, copy: int) -> tuple[int, ...]:
        """Devices of a stage in one copy."""
        replicas = len(self.devices[stage]) // self.replication
        return self.devices[stage][copy * replicas : (copy + 1) * replicas]


class Pricing:
    """Of one profile on one topology; keeps what it has worked out. Layers are sets of bits over the profile's."""

    def __init__(self, profile: Profile, topology: Topology, workload: Workload) -> None:
        self.profile, self.topology, self.workload = profile, topology, workload
        self._number_of = {layer.name: number for number, layer in enumerate(profile.layers)}
        self.work = lru_cache(maxsize=None)(self._work)
        self.crossing_bytes = lru_cache(maxsize=None)(self._crossing_bytes)
        self.samples = lru_cache(maxsize=None)(self._samples)
        self.transfer_s = lru_cache(maxsize=None)(self._transfer_s)
        self.all_reduce_s = lru_cache(maxsize=None)(self._all_reduce_s)
        self.fabrics = lru_cache(maxsize=None)(self._fabrics)
        self.kept = lru_cache(maxsize=None)(self._kept)
        self.memory_bytes = lru_cache(maxsize=None)(self._memory_bytes)

    def arrangement(self, plan: Plan) -> Arrangement:
        """Of a plan. Raises `GraphError` for a layer that the profile lacks."""
        ends, done = [], 0
        for stage in plan.stages:
            for name in stage.layers:
                if name not in self._number_of:
                    raise GraphError(f"the plan has a layer {name}, and the profile has none of that name")
                done |= 1 << self._number_of[name]
            ends.append(done)
        devices = tuple(stage.devices for stage in plan.stages)
        return Arrangement(tuple(ends), devices, plan.replication, tuple(stage.recompute for stage in plan.stages))

    def portions(self, arranged: Arrangement, schedule: str) -> tuple[int, int]:
        """Micro-batches of a step, as in `Workload.portions`; PipeDream's mini-batches are micro-batches of their own."""
        if schedule == "1f1b-async":
            return 1, self.workload.micro_batch
        copies = 1 if schedule in ASYNCHRONOUS else arranged.replication
        # Interleaved, micro-batches go round in groups of as many as there are devices.
        group = len(set(arranged.devices)) if schedule == "interleaved" else 1
        return self.workload.portions(copies, group)

    def loads(self, arranged: Arrangement, schedule: str = "1f1b") -> list[StageLoad]:
        """What each stage does for one micro-batch, or, where the schedule is asynchronous, one mini-batch."""
        is_dealt = schedule in ASYNCHRONOUS
        size = self.portions(arranged, schedule)[1]
        sends = [
            self._boundary_s(arranged, number, size, is_dealt=is_dealt) for number in range(len(arranged.done) - 1)
        ]
        return [
            self._load(arranged, number, size, (into, out), is_dealt=is_dealt)
            for number, (into, out) in enumerate(zip([0.0, *sends], [*sends, 0.0], strict=True))
        ]

    def _load(
        self, arranged: Arrangement, number: int, size: int, boundary: tuple[float, float], *, is_dealt: bool
    ) -> StageLoad:
        before = arranged.done[number - 1] if number else 0
        layers, devices = arranged.done[number] & ~before, arranged.devices[number]
        work, kept = self.work(layers), self.kept(layers, arranged.recompute[number])
        if is_dealt:
            slowest = min(self.topology.devices[device].speed for device in devices)
            times, most = size / slowest, size
        else:
            shares = [self.samples(arranged.of_copy(number, copy), size) for copy in range(arranged.replication)]
            times, most = max(share[0] for share in shares), max(share[1] for share in shares)
        all_reduce_s = self.all_reduce_s(devices, work.parameter_bytes)
        return StageLoad(
            forward_s=work.forward_s * times, backward_s=(work.backward_s + kept.again_s) * times, weight_s=work.weight_s * times,
            send_s=boundary[1], send_back_s=boundary[0], all_reduce_s=all_reduce_s,
            all_reduce_lead_s=work.all_reduce_lead_s(work.backward_s * times, all_reduce_s), weight_bytes=work.parameter_bytes,
            state_bytes=work.parameter_bytes * self.workload.state_factor,
            activation_bytes=(kept.bytes + self.crossing_bytes(before)) * most, working_bytes=kept.working_bytes * most,
            replicas=len(devices) if is_dealt else 1, memory_bytes=self.memory_bytes(devices),
            fabrics=self.fabrics(devices) if all_reduce_s else (),
        )  # fmt: skip

    def _boundary_s(self, arranged: Arrangement, number: int, samples: int, *, is_dealt: bool) -> float:
        """Of one micro-batch from this stage to the next; the gradients of it take the same back."""
        size = self.crossing_bytes(arranged.done[number]) * samples
        senders, receivers = arranged.devices[number : number + 2]
        if not is_dealt:
            pairs = tuple(
                (arranged.of_copy(number, copy), arranged.of_copy(number + 1, copy))
                for copy in range(arranged.replication)
            )
            return self.transfer_s(pairs, size)
        length = min(math.lcm(len(senders), len(receivers)), _LONGEST_ROUND)
        pairs = tuple(
            ((senders[number % len(senders)],), (receivers[number % len(receivers)],)) for number in range(length)
        )
        # As many transfers go on at once as the side with fewer devices has; each of them waits for the latency.
        together = min(len(senders), len(receivers)) / length
        latency_s = self.topology.transfer_s(pairs, 0.0) if size else 0.0
        return (self.transfer_s(pairs, size) - latency_s) * together + latency_s

    def _work(self, layers: int) -> Work:
        inside = [number for number in self.profile.order if layers >> number & 1]
        inner = [self.profile.layers[number] for number in inside]
        backward = np.array([layer.backward_ms for layer in reversed(inner)])
        parameters = np.array([layer.parameter_bytes for layer in reversed(inner)])
        per_sample = 1.0 / 1000.0 / self.workload.profile_batch
        with_weights = math.fsum(layer.backward_ms for layer in inner if layer.parameter_bytes)
        total = float(parameters.sum())
        still = parameters[::-1].cumsum()[::-1] / total if total else np.zeros(len(inner))
        return Work(
            math.fsum(layer.forward_ms for layer in inner) * per_sample, math.fsum(backward) * per_sample,
            with_weights / 2 * per_sample, math.fsum(layer.activation_bytes for layer in inner) / self.workload.profile_batch,
            math.fsum(parameters), backward.cumsum() / (float(backward.sum()) or 1.0), still,
        )  # fmt: skip

    def _crossing_bytes(self, done: int) -> float:
        """Of one sample."""
        return crossing_bytes(self.profile, done) / self.workload.profile_batch

    def _samples(self, devices: tuple[int, ...], micro_batch: int) -> tuple[float, int]:
        """A micro-batch shared out in whole samples: samples of the last to end over its speed, and the most on one device."""
        speeds = [self.topology.devices[device].speed for device in devices]
        if len(set(speeds)) == 1:
            most = math.ceil(micro_batch / len(devices))
            return most / speeds[0], most
        given = [int(micro_batch * speed / sum(speeds)) for speed in speeds]
        while sum(given) < micro_batch:
            # The next sample goes to whoever would be done with it first; of those to who has fewest, who has room.
            at = min(
                range(len(speeds)), key=lambda device: ((given[device] + 1) / speeds[device], given[device], device)
            )
            given[at] += 1
        return max(count / speed for count, speed in zip(given, speeds, strict=True)), max(given)

    def _transfer_s(self, pairs: tuple[tuple[tuple[int, ...], tuple[int, ...]], ...], size_bytes: float) -> float:
        return self.topology.transfer_s(pairs, size_bytes) if size_bytes else 0.0

    def _all_reduce_s(self, devices: tuple[int, ...], size_bytes: float) -> float:
        return self.topology.all_reduce_s(devices, size_bytes) if size_bytes else 0.0

    def _fabrics(self, devices: tuple[int, ...]) -> tuple[int, ...]:
        return self.topology.uplinks(devices)

    def _memory_bytes(self, devices: tuple[int, ...]) -> float:
        return min(self.topology.devices[device].memory_bytes for device in devices)

    def _kept(self, layers: int, how: str) -> Kept:
        return recompute(self.profile, layers, how, self.workload.profile_batch)

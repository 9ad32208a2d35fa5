"""DAPPLE's Python interface (HPGO), in our words: a profile, batch sizes and machines in, a plan with its figures out.

`detrain.pipeline` exports these names. Where HPGO has an attribute or a constant of its source, here is an argument; `docs/hpgo.md` says
which.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detrain.errors import GraphError
from detrain.pipeline import conversion, topologyfile
from detrain.pipeline.judge import SYNCHRONOUS, Judge, data_parallel
from detrain.pipeline.layers import Profile
from detrain.pipeline.plan import Plan, Workload
from detrain.pipeline.planfile import Planned
from detrain.pipeline.planners import registry
from detrain.pipeline.planners.baselines import Baselines, baselines
from detrain.pipeline.planners.dapple import in_published_order
from detrain.pipeline.planners.placement import cluster_of
from detrain.pipeline.schedules import Schedule
from detrain.pipeline.topology import Topology
from detrain.pipeline.verdict import Verdict, verdict

#: A stage as HPGO gives it: first state, end, devices in each copy, and the devices of all copies.
PublishedStage = tuple[int, int, int, list[int]]


@dataclass(frozen=True)
class Orchestrated:
    """A plan, with what its planner reckons and what the simulator says of it."""

    planned: Planned
    verdict: Verdict

    @property
    def plan(self) -> Plan:
        """Stages, devices, copies of the pipeline; `planned` has the profile and the topology as well, as a plan's file does."""
        return self.planned.plan

    @property
    def speedup(self) -> float | None:
        """Over one device, under the simulator; None for a plan that cannot be simulated, and `verdict.why` says why."""
        return self.verdict.speedup

    @property
    def closed_form_speedup(self) -> float:
        """Over one device, as the planner reckons; for `detrain` that is the simulator's figure."""
        return self.plan.speedup

    @property
    def fits(self) -> bool:
        """True if no device runs out of memory under the simulator."""
        return self.verdict.memory_share is not None and self.verdict.memory_share <= 1

    @property
    def stages(self) -> list[PublishedStage]:
        """As HPGO gives them."""
        return [(stage.start, stage.end, stage.replicas, sorted(stage.devices)) for stage in self.plan.stages]


@dataclass(frozen=True)
class Conductor:
    """One model on one set of devices, for one workload: what plans are made for."""

    profile: Profile
    topology: Topology
    workload: Workload
    #: Bytes that a sample's activations take at their peak, for the closed forms of data parallelism; None: the outputs of all layers.
    peak_activation_bytes: float | None = None

    def orchestrate(
        self, planner: str = "detrain", *, is_compat: bool = False, schedule: Schedule = SYNCHRONOUS, time_limit_s: float = 25.0
    ) -> Orchestrated:  # fmt: skip
        """The plan of a planner (`detrain`, `dapple`, `pipedream`), judged by the simulator under `schedule`.

        With `is_compat`, `dapple` and `pipedream` do as their published versions. `time_limit_s` is for `detrain`. Raises
        `NoPlanError`, `GraphError` for an impossible request, or `UsageError` for an unknown planner.
        """
        request = registry.Request(
            self.profile,
            self.topology,
            self.workload,
            is_compat=is_compat,
            schedule=schedule,
            time_limit_s=time_limit_s,
        )
        plan = registry.plan(planner, request)
        planned = Planned(plan, self.profile, self.topology)
        return Orchestrated(planned, verdict(planned, schedule))

    def py_orchestrate(self) -> tuple[float, list[PublishedStage]]:
        """What HPGO's method of this name gives: the speed-up in closed form, and stages, as published. Raises `NoPlanError`."""
        found = self.orchestrate("dapple", is_compat=True)
        return found.closed_form_speedup, found.stages

    def data_parallel_closed_forms(self) -> Baselines:
        """Speed-ups of data parallelism as HPGO reckons them. Raises `NoPlanError` if it does not fit."""
        return baselines(
            in_published_order(self.profile), self.workload, cluster_of(self.topology), self.peak_activation_bytes
        )

    def data_parallel_speedup(self, schedule: Schedule = SYNCHRONOUS) -> float | None:
        """Of data parallelism under the simulator, whether it fits or not; None where it cannot be simulated."""
        found = data_parallel(Judge(self.profile.to_plan(), self.topology, self.workload, schedule))
        return found.speedup if found else None


def model_from_torch_graph(
    profile: str | os.PathLike[str], pbs: int, gbs: int, *, micro_batch: int | None = None, state_factor: float = 4.0
) -> tuple[Profile, Workload]:
    """A profile in any of our formats, measured with mini-batches of `pbs` samples, and a step of `gbs` samples.

    `micro_batch` is in samples (HPGO's `min_micro_batch_size`; default: `pbs`), `state_factor` in bytes on a device for each byte of
    parameters (`optimizer_memory_scaling`). Raises `GraphError` naming the place, or `OSError`.
    """
    return conversion.read_profile(Path(profile)), Workload(pbs, gbs, micro_batch or min(pbs, gbs), state_factor)


def devices_from_seps(seps: Sequence[int], *, memory_bytes: float | None = None) -> Topology:
    """The devices before which machines end, as in `[8, 16]`, with the links that are constants in HPGO. Raises `GraphError`."""
    if not seps or sorted(set(seps)) != list(seps) or seps[0] < 1:
        raise GraphError(f"separators are rising numbers above zero, as in [8, 16], not {list(seps)}")
    topology = topologyfile.of_machines(",".join(map(str, seps)), topologyfile.preset("dapple"))
    return topology if memory_bytes is None else topology.with_memory(memory_bytes)


def conductor_from_torch_graph_and_seps(
    profile: str | os.PathLike[str], pbs: int, gbs: int, seps: Sequence[int], *, micro_batch: int | None = None,
    state_factor: float = 4.0, peak_activation_bytes: float | None = None, memory_bytes: float | None = None,
) -> Conductor:  # fmt: skip
    """Arguments as in `model_from_torch_graph`, `devices_from_seps` and `Conductor`. Raises `GraphError`, or `OSError`."""
    read, workload = model_from_torch_graph(profile, pbs, gbs, micro_batch=micro_batch, state_factor=state_factor)
    return Conductor(read, devices_from_seps(seps, memory_bytes=memory_bytes), workload, peak_activation_bytes)

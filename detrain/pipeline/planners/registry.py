"""The planners by name, each a function of one request."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from detrain.errors import UsageError
from detrain.pipeline.judge import SYNCHRONOUS
from detrain.pipeline.layers import Profile
from detrain.pipeline.plan import Plan, Workload
from detrain.pipeline.planners import dapple, detrain, pipedream
from detrain.pipeline.schedules import Schedule
from detrain.pipeline.topology import Topology
from detrain.plans.errors import NoPlanError


@dataclass(frozen=True)
class Request:
    """The input of all planners."""

    profile: Profile
    topology: Topology
    #: PipeDream's planner takes none.
    workload: Workload | None = None
    #: PipeDream's; its levels and memory come from the topology, unless they are given.
    options: pipedream.Options | None = None
    is_compat: bool = False
    #: What our own plans for.
    schedule: Schedule = SYNCHRONOUS
    #: Sizes of micro-batches that our own may choose from.
    micro_batches: tuple[int, ...] = ()
    is_recomputing: bool = True
    time_limit_s: float = 25.0
    #: Bytes that a sample's activations take at their peak, for closed forms of data parallelism; None: the outputs of all layers.
    peak_activation_bytes: float | None = None


def plan(name: str, request: Request) -> Plan:
    """The plan of the planner `name`. Raises `NoPlanError`, `GraphError` for an impossible request, `UsageError` for an unknown name."""
    if name not in PLANNERS:
        raise UsageError(f"there is no planner {name}: it is one of {', '.join(PLANNERS)}")
    if not request.is_compat:
        # The published planners ask nothing of memory, or nothing of the last stages.
        factor = request.workload.state_factor if request.workload else 1.0
        detrain.check_layers(request.profile.to_plan(), request.topology, factor)
    return PLANNERS[name](request)


def _pipedream(request: Request) -> Plan:
    options = request.options or options_of(request.topology)
    return pipedream.plan(request.profile, replace(options, is_compat=request.is_compat))


def options_of(topology: Topology) -> pipedream.Options:
    """PipeDream's, of a topology whose levels have groups of equal sizes. Raises `NoPlanError` for another."""
    if topology.bandwidths:
        raise NoPlanError("PipeDream's planner knows levels of machines, not a matrix of bandwidths")
    sizes, within = [], 1
    for level in topology.levels:
        counts = {level.groups.count(group) for group in set(level.groups)}
        if len(counts) > 1:
            raise NoPlanError("PipeDream's planner knows levels of equal groups only")
        size = counts.pop()
        sizes.append(size // within)
        within = size
    if len({device.speed for device in topology.devices}) > 1:
        raise NoPlanError("PipeDream's planner knows devices of the same speed only")
    bandwidths = tuple(level.bandwidth for level in topology.levels)
    memory_bytes = min(device.memory_bytes for device in topology.devices)
    return pipedream.Options(tuple(sizes), bandwidths, memory_bytes, compression_ratio=1.0)


def _dapple(request: Request) -> Plan:
    return dapple.plan(request.profile, request.topology, _workload(request, "dapple"), is_compat=request.is_compat)


#: That is left to our own planner, however long the others took.
_LEAST_S = 1.0


def _detrain(request: Request) -> Plan:
    workload, began_s = _workload(request, "detrain"), time.perf_counter()
    others = tuple(rivals(request))
    # They are quick, but for networks with many branches on many levels of machines.
    left_s = max(request.time_limit_s - (time.perf_counter() - began_s), _LEAST_S)
    return detrain.plan(
        detrain.Question(
            request.profile, request.topology, workload, request.schedule, request.micro_batches,
            request.is_recomputing, others, left_s,
        )
    )  # fmt: skip


def rivals(request: Request) -> list[Plan]:
    """The plans of PipeDream's and DAPPLE's planners, where they find one."""
    plans = []
    for other in (_pipedream, _dapple):
        try:
            plans.append(other(replace(request, is_compat=False, options=None)))
        except NoPlanError:
            continue
    return plans


def _workload(request: Request, name: str) -> Workload:
    if request.workload is None:
        raise UsageError(f"{name} plans for a batch: give --batch, --micro-batch and --profile-batch")
    return request.workload


PLANNERS: dict[str, Callable[[Request], Plan]] = {"pipedream": _pipedream, "dapple": _dapple, "detrain": _detrain}

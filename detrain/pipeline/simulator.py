"""Executes a schedule event by event: its times and memory. All plans are judged by this, none by its planner's own estimate.

What is counted in memory at a worker: what is always there; one version of the weights more for each that micro-batches under way
still need, or that an all-reduce under way is making; the activations of each micro-batch from the beginning of its forward to the
end of its backward (in zb-h1 to the end of its W, which still needs them); what the task under way takes itself. What has arrived
and is not yet begun is not counted.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np

from detrain.errors import GraphError
from detrain.pipeline.paths import Floats, Ints, fill_times, fill_usage, last_end_s, steady_s
from detrain.pipeline.schedules import Kind, Schedule
from detrain.pipeline.structure import Structure, structure
from detrain.pipeline.timeline import Timeline


@dataclass(frozen=True, slots=True)
class StageLoad:
    """One stage as one of its replicas sees it. Times are of one micro-batch."""

    forward_s: float
    #: All of it: what is computed again, the gradients of the inputs, those of the weights.
    backward_s: float
    #: The part of it that only makes gradients of the weights; zb-h1 puts it off.
    weight_s: float = 0.0
    #: Activations to the next stage.
    send_s: float = 0.0
    #: Gradients to the stage before.
    send_back_s: float = 0.0
    #: Of the gradients over all replicas; 0 for one.
    all_reduce_s: float = 0.0
    #: Before the end of the last backward, when it may begin.
    all_reduce_lead_s: float = 0.0
    #: One version.
    weight_bytes: float = 0.0
    #: Weights, gradients and optimizer state: what is always there.
    state_bytes: float = 0.0
    #: Kept for each micro-batch in flight.
    activation_bytes: float = 0.0
    #: Beyond that, while a micro-batch is worked on.
    working_bytes: float = 0.0
    #: Asynchronous schedules deal mini-batches to them in turn; synchronous ones split each micro-batch over them.
    replicas: int = 1
    #: Of the smallest device.
    memory_bytes: float = math.inf
    #: Numbers of the shared uplinks that its all-reduce goes over.
    fabrics: tuple[int, ...] = ()


def structure_of(schedule: Schedule, loads: Sequence[StageLoad]) -> Structure:
    """The tasks of a step. Loads with the same replicas and fabrics share one. Raises `GraphError` if the schedule is impossible."""
    users = Counter(fabric for load in loads for fabric in set(load.fabrics))
    numbers = {fabric: number for number, fabric in enumerate(fabric for fabric, count in users.items() if count > 1)}
    fabrics = tuple(
        tuple(sorted(numbers[fabric] for fabric in set(load.fabrics) if fabric in numbers)) for load in loads
    )
    replicas = tuple(load.replicas for load in loads)
    schedule.check(replicas)
    return structure(schedule, replicas if schedule.is_asynchronous else (1,) * len(loads), fabrics)


def table(schedule: Schedule, loads: Sequence[StageLoad]) -> Floats:
    """Seconds by kind of task and stage, and in the last row the leads of the all-reduces: shape (7, stages). Raises `GraphError`."""
    _check(schedule, loads)
    split = schedule.splits_backward
    return np.array(
        [
            (
                load.forward_s, load.backward_s - load.weight_s if split else load.backward_s, load.weight_s if split else 0.0,
                load.send_s, load.send_back_s, load.all_reduce_s, load.all_reduce_lead_s,
            )
            for load in loads
        ]
    ).T.copy()  # fmt: skip


def sizes(loads: Sequence[StageLoad]) -> Floats:
    """Bytes by stage; rows: a version of the weights, permanent state, a micro-batch's activations, working memory. Shape (4, stages)."""
    return np.array(
        [(load.weight_bytes, load.state_bytes, load.activation_bytes, load.working_bytes) for load in loads]
    ).T.copy()


def step_s(structure: Structure, table: Floats) -> float:
    """`Timeline.step_s` alone, for planners that need it often. `table` is as `table` gives it, and is not checked."""
    if structure.num_steps:
        return float(
            steady_s(
                structure.dep_first, structure.deps, structure.slots, table, structure.first_mark, structure.last_mark,
                structure.num_steps,
            )
        )  # fmt: skip
    return float(last_end_s(structure.dep_first, structure.deps, structure.slots, table))


def peak_bytes(structure: Structure, sizes: Floats) -> Floats:
    """`Timeline.peak_bytes` alone; it does not depend on times. `sizes` is as `sizes` gives it. Shape: (stages,)."""
    return _peaks(structure, _usage(structure, sizes)[0])


def simulate(schedule: Schedule, loads: Sequence[StageLoad]) -> Timeline:
    """Of a step of a synchronous schedule, or of some mini-batches of an asynchronous one; `loads` by stage. Raises `GraphError`."""
    whole, times = structure_of(schedule, loads), table(schedule, loads)
    starts, ends = np.empty(len(whole.slots)), np.empty(len(whole.slots))
    fill_times(whole.dep_first, whole.deps, whole.slots, times, starts, ends)
    usage, held = _usage(whole, sizes(loads))
    peaks = _peaks(whole, usage)
    used_bytes = np.full(len(starts), np.nan)
    used_bytes[whole.sequence] = usage
    length_s = (
        float(ends[whole.last_mark] - ends[whole.first_mark]) / whole.num_steps
        if whole.num_steps
        else float(ends.max())
    )
    exposed_s, overlap = _all_reduces(whole, times, starts, ends, length_s)
    share = schedule.num_micro_batches / np.array(whole.replicas)
    order = np.lexsort((whole.resources, starts))
    return Timeline(
        schedule, whole.worker_stages, kinds=whole.kinds[order], stages=whole.stages[order],
        micro_batches=whole.micro_batches[order], workers=whole.workers[order], resources=whole.resources[order],
        starts_s=starts[order], ends_s=ends[order], used_bytes=used_bytes[order],
        step_s=length_s, makespan_s=float(ends.max()), busy_s=tuple((times[: Kind.SEND].sum(axis=0) * share).tolist()),
        peak_bytes=tuple(peaks.tolist()), in_flight=tuple(held.tolist()), versions=_versions(whole),
        over_memory=_over(whole, peaks, loads), all_reduce_exposed_s=exposed_s, all_reduce_overlap=overlap,
    )  # fmt: skip


def _check(schedule: Schedule, loads: Sequence[StageLoad]) -> None:
    for stage, load in enumerate(loads):
        for field in fields(load):
            value = getattr(load, field.name)
            if field.name.endswith(("_s", "_bytes")) and not (
                0 <= value < math.inf or (field.name == "memory_bytes" and value > 0)
            ):
                raise GraphError(f"stage {stage} has {field.name} = {value}, no number of zero or more")
        if load.weight_s > load.backward_s:
            raise GraphError(
                f"stage {stage} has weight_s = {load.weight_s}, more than its backward_s of {load.backward_s}"
            )
        if load.all_reduce_lead_s > load.all_reduce_s:
            raise GraphError(
                f"stage {stage} has all_reduce_lead_s = {load.all_reduce_lead_s}, more than its all_reduce_s of {load.all_reduce_s}"
            )
        if schedule.is_asynchronous and load.replicas == 1 and load.all_reduce_s:
            raise GraphError(
                f"stage {stage} has one replica, and all_reduce_s = {load.all_reduce_s}: {schedule.name} has nothing to reduce"
            )


def _usage(whole: Structure, sizes: Floats) -> tuple[Floats, Ints]:
    """Bytes in use for each task of `sequence`, and by stage the most micro-batches whose activations are kept."""
    usage, held = np.empty(len(whole.sequence)), np.zeros(len(whole.replicas), np.int32)
    releasing = Kind.WEIGHT if whole.schedule.splits_backward else Kind.BACKWARD
    fill_usage(
        whole.sequence, whole.slots, whole.versions, sizes, len(whole.worker_stages), int(releasing), usage, held
    )
    return usage, held


def _peaks(whole: Structure, usage: Floats) -> Floats:
    """By stage."""
    by_worker = np.zeros(len(whole.worker_stages))
    np.maximum.at(by_worker, whole.workers[whole.sequence], usage)
    peaks = np.zeros(len(whole.replicas))
    for worker, stages in enumerate(whole.worker_stages):
        for stage in stages:
            peaks[stage] = max(peaks[stage], by_worker[worker])
    return peaks


def _versions(whole: Structure) -> tuple[int, ...]:
    most = np.zeros(len(whole.replicas), np.int64)
    np.maximum.at(most, whole.stages[whole.sequence], whole.versions)
    return tuple(most.tolist())


def _over(whole: Structure, peaks: Floats, loads: Sequence[StageLoad]) -> tuple[int, ...]:
    room = {
        stage: min(loads[chunk].memory_bytes for chunk in stages) for stages in whole.worker_stages for stage in stages
    }
    return tuple(stage for stage in sorted(room) if peaks[stage] > room[stage])


def _all_reduces(whole: Structure, times: Floats, starts: Floats, ends: Floats, length_s: float) -> tuple[float, float]:
    """Exposed seconds of the all-reduces, and the share of their time that is not exposed."""
    reduced = whole.kinds == Kind.ALL_REDUCE
    if whole.num_steps:
        without = times.copy()
        without[Kind.ALL_REDUCE :] = 0.0
        exposed_s = max(0.0, length_s - step_s(whole, without))
        rounds = np.array(whole.replicas if whole.schedule.name == "1f1b-async" else [1] * len(whole.replicas))
        total_s = float((times[Kind.ALL_REDUCE] / rounds).sum())
        return exposed_s, max(0.0, 1.0 - exposed_s / total_s) if total_s else 1.0
    done_s = float(ends[whole.sequence].max())
    late_s = float((ends[reduced] - np.clip(starts[reduced], done_s, ends[reduced])).clip(0.0).sum())
    total_s = float((ends[reduced] - starts[reduced]).sum())
    return max(0.0, length_s - done_s), 1.0 - late_s / total_s if total_s else 1.0

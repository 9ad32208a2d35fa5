"""What the workers of a pipeline have measured, as one timeline; and the simulator's of the same times."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

import numpy as np

from detrain.errors import GraphError
from detrain.pipeline import simulator
from detrain.pipeline.measured import Done, WorkerSteps
from detrain.pipeline.schedules import Kind
from detrain.pipeline.simulator import StageLoad
from detrain.pipeline.timeline import Timeline


def together(steps: Sequence[WorkerSteps]) -> Timeline:
    """The timeline of all workers, from when the first of them began. Raises `GraphError` if some are missing or at other steps."""
    first = steps[0]
    missing = sorted({worker for own in first.workers for worker in own} - {one.worker for one in steps})
    if missing:
        raise GraphError(f"of workers {', '.join(map(str, missing))} nothing is known here")
    if len({(one.schedule, one.workers, one.step) for one in steps}) > 1:
        raise GraphError(f"workers have measured other steps: {', '.join(str(one.step) for one in steps)}")
    if not all(one.tasks for one in steps):
        raise GraphError("a worker has measured no task")
    # Each remembers as many tasks of an asynchronous schedule; what is shown is the time that all remember.
    began_s = max(one.tasks[0].start_s for one in steps) if first.schedule.is_asynchronous else 0.0
    rows = sorted((task.start_s, one.worker, task) for one in steps for task in one.tasks if task.start_s >= began_s)
    tasks, numbers = [task for *_, task in rows], [worker for _, worker, _ in rows]
    starts = np.array([task.start_s for task in tasks])
    ends = np.array([task.end_s for task in tasks])
    makespan_s = float(ends.max() - starts.min())
    batches = max(1, len(_batches_done(first, tasks))) if first.schedule.is_asynchronous else 1
    worker_stages = tuple(
        tuple(stage for stage, own in enumerate(first.workers) if one.worker in own)
        for one in sorted(steps, key=lambda one: one.worker)
    )
    num_stages = len(first.workers)
    busy = [
        sum(task.end_s - task.start_s for task in tasks if task.stage == stage and task.kind <= Kind.WEIGHT) / len(own)
        for stage, own in enumerate(first.workers)
    ]
    return Timeline(
        first.schedule, worker_stages,
        np.array([task.kind for task in tasks], np.int32), np.array([task.stage for task in tasks], np.int32),
        np.array([task.micro_batch for task in tasks], np.int32), np.array(numbers, np.int32),
        np.where([task.kind == Kind.ALL_REDUCE for task in tasks], len(worker_stages), 0).astype(np.int32) + np.array(numbers, np.int32),
        starts - starts.min(), ends - starts.min(), np.full(len(tasks), np.nan),
        step_s=_step_s(first, tasks, makespan_s), makespan_s=makespan_s,
        busy_s=tuple(one / batches for one in busy), peak_bytes=(0.0,) * num_stages,
        in_flight=(0,) * num_stages, versions=(0,) * num_stages, over_memory=(), all_reduce_exposed_s=0.0, all_reduce_overlap=1.0,
    )  # fmt: skip


def _batches_done(steps: WorkerSteps, tasks: Iterable[Done]) -> list[float]:
    """Of an asynchronous schedule: when the first stage was through with each mini-batch, in seconds."""
    ends = sorted(task.end_s for task in tasks if task.kind == Kind.BACKWARD and task.stage == 0)
    return ends[:: steps.schedule.num_micro_batches]


def _step_s(steps: WorkerSteps, tasks: Sequence[Done], makespan_s: float) -> float:
    """Of an asynchronous schedule the median time between two mini-batches: there are cuts between some of them."""
    if not steps.schedule.is_asynchronous:
        return makespan_s
    done, count = _batches_done(steps, tasks), len(steps.workers[0])
    gaps = [(later - earlier) / count for earlier, later in zip(done, done[count:], strict=False)]
    return median(gaps) if gaps else makespan_s


def simulated(steps: Sequence[WorkerSteps]) -> Timeline:
    """The simulator's, of stages that take as long as the workers have measured (medians), over links that take no time.

    Raises `GraphError` if a stage has not gone forward and back.
    """
    first = steps[0]
    times: dict[tuple[int, Kind], list[float]] = {}
    for one in steps:
        for task in one.tasks:
            times.setdefault((task.stage, task.kind), []).append(task.end_s - task.start_s)
    loads = []
    for stage, own in enumerate(first.workers):
        forward, backward, weight, reduced = (
            median(times.get((stage, kind), [0.0]))
            for kind in (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT, Kind.ALL_REDUCE)
        )
        if not forward or not backward:
            raise GraphError(f"stage {stage} has not gone forward and back in the steps that were measured")
        loads.append(StageLoad(forward, backward + weight, weight, all_reduce_s=reduced, replicas=len(own)))
    return simulator.simulate(first.schedule, loads)

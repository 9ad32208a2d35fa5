"""The timeline of a simulated step: tasks, times and memory; also as a trace for viewers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detrain.pipeline.schedules import Kind, Schedule

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]

_LETTERS = {
    Kind.FORWARD: "F",
    Kind.BACKWARD: "B",
    Kind.WEIGHT: "W",
    Kind.SEND: "→",
    Kind.SEND_BACK: "←",
    Kind.ALL_REDUCE: "AR",
}
_THREADS = {Kind.SEND: "send", Kind.SEND_BACK: "send back", Kind.ALL_REDUCE: "all-reduce"}


class Task(NamedTuple):
    """One task of a simulated step."""

    kind: Kind
    stage: int
    #: Of the stages of its device; 0 but for interleaved.
    chunk: int
    #: From 0; in an asynchronous schedule over all mini-batches. An all-reduce has the number of its round.
    micro_batch: int
    #: That does it, or sends it; of an all-reduce the first one of the stage.
    worker: int
    start_s: float
    end_s: float

    @property
    def name(self) -> str:
        """A letter and the micro-batch."""
        return f"{_LETTERS[self.kind]} {self.micro_batch}"


@dataclass(frozen=True, eq=False)
class Timeline:
    """Tasks as arrays, by when they begin; figures by stage, from the first."""

    schedule: Schedule
    #: By worker the stages that it runs.
    worker_stages: tuple[tuple[int, ...], ...]
    kinds: Ints
    stages: Ints
    micro_batches: Ints
    workers: Ints
    #: By task what it occupies: a worker, a link or what all-reduces go over.
    resources: Ints
    starts_s: Floats
    ends_s: Floats
    #: By task, what its worker holds while it is done; not a number for what is sent or reduced.
    used_bytes: Floats
    #: Of a synchronous schedule: until all is done. Of an asynchronous one: between two mini-batches, in the second half of the run.
    step_s: float
    #: Until all is done.
    makespan_s: float
    #: By stage, the time that a worker computes for it in a step.
    busy_s: tuple[float, ...]
    #: By stage, of a worker of it: all that its device holds.
    peak_bytes: tuple[float, ...]
    #: By stage, the most micro-batches whose activations a worker keeps.
    in_flight: tuple[int, ...]
    #: By stage, the most versions of its weights that a worker keeps.
    versions: tuple[int, ...]
    #: Stages whose device has not the memory.
    over_memory: tuple[int, ...]
    #: How much longer a step is for its all-reduces. Synchronous: what comes after all work of the pipeline.
    all_reduce_exposed_s: float
    #: Part of the time of all-reduces that is not exposed; 1 if there are none.
    all_reduce_overlap: float

    @property
    def num_workers(self) -> int:
        """Of all stages."""
        return len(self.worker_stages)

    @property
    def chunks(self) -> Ints:
        """By task."""
        return self.stages // (len(self.busy_s) // self.schedule.chunks)

    @property
    def bubble_share(self) -> float:
        """Part of a step in which a worker does not compute, in the mean of all workers."""
        if not self.step_s > 0:
            return 0.0
        busy_s = sum(self.busy_s[stage] for stages in self.worker_stages for stage in stages)
        return max(0.0, 1.0 - busy_s / (self.step_s * self.num_workers))

    def tasks(self) -> Iterator[Task]:
        """One by one, by when they begin."""
        columns = (self.kinds, self.stages, self.chunks, self.micro_batches, self.workers, self.starts_s, self.ends_s)
        for kind, *rest in zip(*(column.tolist() for column in columns), strict=True):
            yield Task(Kind(kind), *rest)

    def doers(self, task: Task) -> list[int]:
        """The workers that do a task: one, or all of the stage for an all-reduce."""
        if task.kind != Kind.ALL_REDUCE:
            return [task.worker]
        return [worker for worker, stages in enumerate(self.worker_stages) if task.stage in stages]

    def worker_name(self, worker: int) -> str:
        """Such as `stage 2`, `device 0: stages 0, 4`, `stage 0, replica 1`."""
        stages = self.worker_stages[worker]
        if len(stages) > 1:
            return f"device {worker}: stages {', '.join(map(str, stages))}"
        replicas = [number for number, theirs in enumerate(self.worker_stages) if theirs == stages]
        return f"stage {stages[0]}" + (f", replica {worker - replicas[0]}" if len(replicas) > 1 else "")


def chrome_trace(timeline: Timeline) -> dict[str, object]:
    """The timeline as JSON for Perfetto or chrome://tracing, in microseconds: a process for each worker, a thread for each resource.

    What takes no time is left out. An all-reduce stands at each worker of its stage. The counter is what the worker holds.
    """
    names: dict[tuple[int, int], str] = {}  # by process and thread
    events: list[dict[str, object]] = []
    columns = timeline.tasks(), timeline.resources.tolist(), timeline.used_bytes.tolist()
    for task, resource, used_bytes in zip(*columns, strict=True):
        start_us, length_us = task.start_s * 1e6, (task.end_s - task.start_s) * 1e6
        if task.kind <= Kind.WEIGHT:
            events.append(
                {"name": "bytes", "ph": "C", "pid": task.worker, "ts": start_us, "args": {"held": used_bytes}}
            )
        if not length_us > 0:
            continue
        thread = resource if task.kind in _THREADS else 0
        for worker in timeline.doers(task):
            names[worker, thread] = _THREADS.get(task.kind, "compute")
            event: dict[str, object] = {
                "name": task.name, "cat": task.kind.name.lower(), "ph": "X", "pid": worker, "tid": thread, "ts": start_us, "dur": length_us,
                "args": {"stage": task.stage, "chunk": task.chunk, "micro_batch": task.micro_batch},
            }  # fmt: skip
            events.append(event)
    return {
        "traceEvents": [*_names(timeline, names), *events],
        "displayTimeUnit": "ms",
        "otherData": _figures(timeline),
    }


def _names(timeline: Timeline, threads: dict[tuple[int, int], str]) -> Iterator[dict[str, object]]:
    for worker in range(timeline.num_workers):
        yield {"name": "process_name", "ph": "M", "pid": worker, "args": {"name": timeline.worker_name(worker)}}
        yield {"name": "process_sort_index", "ph": "M", "pid": worker, "args": {"sort_index": worker}}
    for (worker, thread), name in sorted(threads.items()):
        yield {"name": "thread_name", "ph": "M", "pid": worker, "tid": thread, "args": {"name": name}}


def _figures(timeline: Timeline) -> dict[str, object]:
    return {
        "schedule": timeline.schedule.name,
        "step_s": timeline.step_s,
        "bubble_share": timeline.bubble_share,
        "peak_bytes": list(timeline.peak_bytes),
    }

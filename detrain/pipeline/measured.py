"""What the workers of a pipeline did when, as they measured it: each writes its own down."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from detrain.errors import GraphError
from detrain.pipeline.schedules import Kind, Schedule
from detrain.plans.documents import DocumentKind, Fields

DOCUMENT = DocumentKind("detrain pipeline steps", 1, "what a pipeline's worker has measured")
_OPTIONS = ("name", "num_micro_batches", "chunks", "warmup", "vertical_sync", "depths", "update_delay")
_TIMES = ("starts_s", "ends_s")


class Done(NamedTuple):
    """A task that a worker has done. An all-reduce is the sum of the gradients over the replicas, with what is waited for."""

    kind: Kind
    stage: int
    #: As in `timeline.Task`.
    micro_batch: int
    #: By a clock that the processes of a host share: when all was there that the task takes, and when what it makes was on its way.
    start_s: float
    end_s: float


@dataclass(frozen=True)
class WorkerSteps:
    """What one worker did in its latest step; of an asynchronous schedule, in the latest mini-batches."""

    schedule: Schedule
    #: By stage its replicas, as numbers of workers.
    workers: tuple[tuple[int, ...], ...]
    worker: int
    #: How many steps there were.
    step: int
    tasks: tuple[Done, ...]

    def encode(self) -> str:
        """As JSON; `read` gives the same again."""
        columns = {
            name: [task[place] for task in self.tasks]
            for place, name in enumerate(("kinds", "stages", "micro_batches", *_TIMES))
        }
        fields = {
            "schedule": {name: getattr(self.schedule, name) for name in _OPTIONS}, "workers": self.workers, "worker": self.worker,
            "step": self.step, **columns,
        }  # fmt: skip
        return json.dumps({**DOCUMENT.header(), **fields}) + "\n"


def read(path: Path) -> WorkerSteps:
    """Raises `GraphError` naming file and field, or `OSError`."""
    fields = Fields(DOCUMENT.read(path), str(path))
    options = fields.table("schedule", _OPTIONS)
    schedule = Schedule(
        options.text("name"), options.whole("num_micro_batches", 1), options.whole("chunks", 1), options.text("warmup"),
        vertical_sync=options.flag("vertical_sync"), depths=options.wholes("depths"), update_delay=options.whole("update_delay"),
    )  # fmt: skip
    workers = tuple(
        Fields({"workers": own}, f"{path}: workers[{stage}]").wholes("workers")
        for stage, own in enumerate(fields.list("workers"))
    )
    starts_s, ends_s = (_seconds(fields, name) for name in _TIMES)
    columns = (
        map(Kind, fields.wholes("kinds")),
        fields.wholes("stages"),
        fields.wholes("micro_batches"),
        starts_s,
        ends_s,
    )
    tasks = tuple(Done(*row) for row in zip(*columns, strict=True))
    return WorkerSteps(schedule, workers, fields.whole("worker"), fields.whole("step"), tasks)


def _seconds(fields: Fields, name: str) -> list[float]:
    values = fields.list(name)
    for value in values:
        if not isinstance(value, float):
            raise GraphError(f"{fields.place}: {name} is {value!r}, which is no time")
    return [value for value in values if isinstance(value, float)]

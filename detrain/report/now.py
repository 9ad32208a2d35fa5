"""Where a run is just now, by what it has left on disk: for `detrain top`, and for a page that is looked at while the run goes on."""

from __future__ import annotations

import json
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detrain.store import ledger
from detrain.store.directory import RunDirectory
from detrain.store.job import JobDirectory
from detrain.store.ledger import Batch, Tail

#: The pace is that of so many last seconds, so that a slow start or an evaluation before does not count for ever.
WINDOW_S = 60.0


COLUMNS = ("epoch", "batch", "batches/s", "loss", "checkpoint", "wait", "left")
#: What matters first: a narrow terminal has no room for the rest.
BY_WEIGHT = ("epoch", "batch", "left", "loss", "batches/s", "checkpoint", "wait")


@dataclass(frozen=True)
class Now:
    """Of one run, or of one job by its first rank."""

    path: str
    #: running, finished or stopped.
    state: str
    attempt: int
    #: False while an attempt runs that has not come to the training yet: the position is that of the attempt before.
    has_begun: bool
    #: That runs, and the batch in it, from 0; epochs and batches of an epoch where they are known, else 0.
    epoch: int
    num_epochs: int
    batch: int
    num_batches: int
    #: Batches of the run that have ended, and those a second lately; 0 where that is not known.
    batches: int
    batches_per_s: float
    #: The last loss that is on record, None if there is none.
    loss: float | None
    #: The last checkpoint and seconds since it was taken; "" and 0 if there is none.
    checkpoint: str
    checkpoint_age_s: float
    #: Share of the training's time in this attempt that it has waited for checkpoints.
    checkpoint_share: float
    #: Seconds to the end, 0 where it is not known.
    left_s: float

    def cells(self) -> dict[str, str]:
        """Column to text; under "" the state, and which attempt it is."""
        if not self.has_begun:
            return {"": self.state, **dict.fromkeys(COLUMNS, "")}
        state = self.state if self.attempt < 2 else f"{self.state} ({self.attempt})"
        epochs, batches = (f"/{count}" if count else "" for count in (self.num_epochs, self.num_batches))
        age = f", {duration_text(self.checkpoint_age_s)} ago" if self.checkpoint and self.state == "running" else ""
        return {
            "": state,
            "epoch": f"{self.epoch}{epochs}",
            "batch": f"{self.batch}{batches}",
            "batches/s": f"{self.batches_per_s:.3g}" if self.batches_per_s else "",
            "loss": "" if self.loss is None else f"{self.loss:.4g}",
            "checkpoint": f"{self.checkpoint.removeprefix('checkpoint_').removesuffix('.h5')}{age}",
            "wait": f"{self.checkpoint_share:.1%}" if self.checkpoint else "",
            "left": duration_text(self.left_s) if self.left_s else "",
        }

    def text(self) -> str:
        """On one line."""
        return ", ".join(f"{name} {value}" if name else value for name, value in self.cells().items() if value)


class Watched:
    """A run that is looked at again and again; each look reads what is new."""

    def __init__(self, path: Path) -> None:
        """`path`: the directory of a run, or of a job of several ranks."""
        job = JobDirectory(path)
        self._holders: JobDirectory | RunDirectory = job if job.is_there else RunDirectory(path)
        rank = next(iter(job.ranks_here()), 0)
        self.path = path
        self._run = job.rank(rank) if job.is_there else RunDirectory(path)
        self._tail = Tail(self._run.path / "ledger")
        self._attempt: dict[str, Any] = {}
        self._saved: dict[str, Any] = {}
        self._stalled_s = 0.0
        self._last: Batch | None = None
        #: Epochs begun, and batches that had ended when the last of them began, by the last record within an epoch.
        self._epoch_began: tuple[int, int] | None = None
        self._epoch_batches = 0
        self._loss: float | None = None
        #: Seconds since 1970, batches ended.
        self._times: deque[tuple[float, int]] = deque()

    def look(self, now_s: float | None = None) -> Now:
        """`now_s`: seconds since 1970; those of the clock if None. Raises `OSError`."""
        now_s = time.time() if now_s is None else now_s
        for kind, body in self._tail.read():
            self._take(kind, body)
        finished = bool(self._holders.finished_at())
        is_running = self._holders.holder() is not None
        if is_running and self._last is not None and (not self._times or self._times[-1][1] < self._last.batches):
            self._add_time(
                now_s, self._last.batches
            )  # of a training whose losses nobody reads only what is seen here tells the pace
        last = self._last
        batches = last.batches if last is not None else int(self._attempt.get("batches", 0))
        num_epochs, num_batches = self._lengths()
        batches_per_s = self._pace() if is_running else 0.0
        seconds = float(self._saved.get("seconds", 0.0))
        return Now(
            path=str(self.path),
            state="finished" if finished else "running" if is_running else "stopped",
            attempt=int(self._attempt.get("attempt", 0)),
            has_begun=not is_running or self._has_begun(),
            epoch=0 if last is None else last.epochs if finished else max(last.epochs - 1, 0),
            num_epochs=num_epochs,
            batch=self._batch(last) if last is not None else 0,
            num_batches=num_batches,
            batches=batches,
            batches_per_s=batches_per_s,
            loss=self._loss,
            checkpoint=str(self._saved.get("name", "")),
            checkpoint_age_s=max(now_s - self._saved["at"], 0.0) if self._saved.get("at") else 0.0,
            checkpoint_share=self._stalled_s / seconds if seconds else 0.0,
            left_s=self._left_s(num_epochs, num_batches, batches_per_s),
        )

    def _has_begun(self) -> bool:
        """Whether the attempt that holds the directory is the last on record, which it is from its first batch on."""
        return "at" in self._attempt and self._attempt["at"] >= self._run.held_since()

    def _take(self, kind: bytes, body: bytes) -> None:
        if kind == b"A":
            self._attempt = json.loads(body)
            self._stalled_s, self._last, self._loss, self._epoch_began = 0.0, None, None, None
            self._times = deque([(self._attempt["at"], self._attempt["batches"])]) if "at" in self._attempt else deque()
        elif kind == b"B":
            self._last = Batch.decode(body)
            self._learn(self._last)
        elif kind == b"V":
            at_s, losses = ledger.decode_losses(body)
            if losses:
                self._loss = losses[-1][2]
                self._add_time(at_s, losses[-1][0])
        elif kind == b"S":
            self._saved = json.loads(body)
            self._stalled_s += self._saved["stall_s"]
            if "at" in self._saved:
                self._add_time(self._saved["at"], self._saved["batches"])

    def _learn(self, last: Batch) -> None:
        """How long an epoch is: by where two began, as a record may be of any batch in them; behind an epoch it counts none."""
        if not last.batch_in_epoch:
            return
        began = last.epochs, last.batches - last.batch_in_epoch
        if self._epoch_began is not None and began[0] > self._epoch_began[0]:
            self._epoch_batches = (began[1] - self._epoch_began[1]) // (began[0] - self._epoch_began[0])
        self._epoch_began = began

    def _batch(self, last: Batch) -> int:
        """Of the epoch that runs or has just ended."""
        if not last.batch_in_epoch and self._epoch_began is not None and self._epoch_began[0] == last.epochs:
            return last.batches - self._epoch_began[1]
        return last.batch_in_epoch

    def _add_time(self, at_s: float, batches: int) -> None:
        if self._times and batches <= self._times[-1][1]:
            return  # of a checkpoint that was taken a while before it is durable
        self._times.append((at_s, batches))
        while len(self._times) > 2 and self._times[-1][0] - self._times[1][0] > WINDOW_S:
            self._times.popleft()

    def _pace(self) -> float:
        if len(self._times) < 2:
            return 0.0
        (began_s, first), (until_s, last) = self._times[0], self._times[-1]
        return (last - first) / (until_s - began_s) if until_s > began_s and last > first else 0.0

    def _lengths(self) -> tuple[int, int]:
        """Epochs, and batches of an epoch; 0 for what is not known. An epoch that has run says it where the loop has not."""
        said = {part: length for part, length in self._attempt.get("lengths", ()) if length > 0}
        is_nested = "outer" in dict(self._attempt.get("lengths", ()))
        return (0 if is_nested else said.get("epoch", 0)), said.get("batch", 0) or self._epoch_batches

    def _left_s(self, num_epochs: int, num_batches: int, batches_per_s: float) -> float:
        last = self._last
        parts = dict(self._attempt.get("lengths", ()))
        if last is None or not batches_per_s or not num_batches or "outer" in parts:
            return 0.0
        if "epoch" not in parts:
            return max(num_batches - last.batches, 0) / batches_per_s
        if not num_epochs:
            return 0.0
        return max(num_epochs * num_batches - last.batches, 0) / batches_per_s


def duration_text(seconds: float) -> str:
    """A time as a person says it: `42 s`, `3 min 20 s`, `5 h 12 min`, `2 d 3 h`."""
    whole = round(seconds)
    for unit, size, below, size_below in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= size:
            return f"{whole // size} {unit} {whole % size // size_below} {below}"
    return f"{whole} s"

"""What happened to a run, from its directory: attempts, kills, checkpoints, losses, what the ledger holds."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from detrain.errors import CheckpointError, UsageError
from detrain.report import logged, metrics
from detrain.report.metrics import Series
from detrain.store import ledger as ledger_file
from detrain.store import listing
from detrain.store.directory import RunDirectory
from detrain.store.job import JobDirectory, read_lost
from detrain.store.ledger import Ledger
from detrain.store.record import RunRecord
from detrain.world import output_log


@dataclass
class Attempt:
    """One process life, as the ledger saw it."""

    number: int
    begin: int  # batches that had ended when its training began
    points: list[tuple[float, int]]  # seconds since 1970, batches ended

    @property
    def end(self) -> int:
        """Batches at its last record."""
        return self.points[-1][1]


@dataclass
class History:
    """Everything that the page shows."""

    path: Path
    run: dict[str, Any]  # as `detrain ls` has it
    record: RunRecord
    facts: dict[str, Any]  # what the bits depend on, of the latest checkpoint
    ledger: Ledger
    attempts: list[Attempt]
    printed: list[Series]
    logged: list[Series]
    verified: dict[str, Any] | None
    damage: str  # of the ledger
    #: Of a job, of which `path` and `run` are: the histories of its ranks; what else is here is the first one's.
    ranks: dict[int, History] = field(default_factory=dict)
    #: What the job had lost when an attempt ended, as its ranks saw it: `rank`, `attempt`, `at`, `why`; the first of each attempt first.
    lost: list[dict[str, Any]] = field(default_factory=list)

    @property
    def batches(self) -> int:
        """As far as the run came."""
        return max([one.end for one in self.attempts] + [batches for batches, _ in self.ledger.batches], default=0)

    @property
    def absent(self) -> list[int]:
        """Numbers of the attempts that the ledger does not know: they ended, or were refused, before they came to the training."""
        known = {one.number for one in self.attempts}
        # A run is finished by an attempt that has trained, also where it could write no ledger.
        last = self.run["attempts"] - bool(self.run["is_finished"])
        return [] if self.damage else [number for number in range(1, last + 1) if number not in known]

    @property
    def is_last_alive(self) -> bool:
        """True if the last attempt in the ledger has finished the run, or holds it."""
        is_over = bool(self.run["is_finished"] or self.run["held_by"])
        return is_over and bool(self.attempts) and self.attempts[-1].number == self.run["attempts"]

    @property
    def is_verification_old(self) -> bool:
        """True if the run has gone on since it was verified."""
        now = {"attempts": self.run["attempts"], "is_finished": self.run["is_finished"]}
        return self.verified is not None and any(self.verified.get(name) != value for name, value in now.items())

    @property
    def num_replayed(self) -> int:
        """Batches that were done more than once, because an attempt was killed after its last checkpoint."""
        return sum(max(0, one.end - other.begin) for one, other in pairwise(self.attempts))


def read(path: Path) -> History:
    """The history of a run, or of a job. Raises `UsageError` if this is no directory of either."""
    return _read_job(path) if listing.is_job(path) else _read_run(path)


def _read_job(path: Path) -> History:
    job = JobDirectory(path)
    ranks = {number: _read_run(job.rank(number).path) for number in job.ranks_here()}
    if not ranks:
        raise UsageError(f"{path} holds no directory of a rank")
    lost = [{"rank": number, **one} for number in ranks for one in read_lost(job.rank(number).path)]
    first = next(iter(ranks.values()))
    return replace(
        first,
        path=path,
        run=listing.describe_job(path),
        # Losses are known where gradients are computed of them: of a pipeline at the last stage.
        ledger=next((one.ledger for one in ranks.values() if one.ledger.losses), first.ledger),
        verified=_read_verified(path),
        damage="; ".join(f"rank {number}: {one.damage}" for number, one in ranks.items() if one.damage),
        ranks=ranks,
        lost=sorted(lost, key=lambda one: one["at"]),
    )


def _read_verified(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads((path / "verified.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return found


def _read_run(path: Path) -> History:
    directory = RunDirectory(path)
    record = directory.read_record()
    if record is None:
        raise UsageError(f"{path} is no run directory")
    try:
        ledger, damage = ledger_file.read(path / "ledger"), ""
    except CheckpointError as error:
        ledger, damage = Ledger({}, {}, [], []), str(error)
    checkpoints, _ = directory.read_checkpoints()
    return History(
        path=path,
        run=listing.describe_run(path),
        record=record,
        facts=checkpoints[0].meta.facts if checkpoints else {},
        ledger=ledger,
        attempts=_attempts(ledger),
        printed=metrics.series_of(output_log.read(path / output_log.NAME)),
        logged=logged.series_of(path),
        verified=_read_verified(path),
        damage=damage,
    )


def _attempts(ledger: Ledger) -> list[Attempt]:
    found = [
        Attempt(one["attempt"], one["batches"], [(one["at"], one["batches"])]) for one in ledger.attempts if "at" in one
    ]
    if not found:
        return []
    ends = [one.points[0][0] for one in found[1:]] + [float("inf")]
    for one, end in zip(found, ends, strict=True):
        begin = one.points[0][0]
        one.points += [(at_s, batches) for at_s, batches in ledger.times if begin <= at_s < end]
    return found

"""What is published: the run directory of one process, or the directory of a job with those of its ranks.

A job is published from the host that has all of its ranks. What can be resumed from is a cut there: its manifest, `cuts/NAME.json`, is to
the store what a checkpoint is of one process, and needs the parts of all ranks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from detrain.store.directory import RunDirectory
from detrain.store.job import CUTS, JobDirectory
from detrain.store.record import RunRecord

#: Files by whose change there is something new to publish; logs alone are not.
_TELLING = ("run.json", "finished", "inst.info", "verified.json", "lost.log", "pipeline.json")


class Published(Protocol):
    """A directory that is published."""

    def record(self) -> RunRecord | None:
        """How the run was started; None if it has not been. Raises `CheckpointError` for a record that is damaged."""

    def resumable(self) -> dict[str, Path]:
        """The files that stand for what can be resumed from, by their names in a manifest."""

    def sequences(self) -> dict[str, int]:
        """The numbers of those that can be read."""

    def finished_at(self) -> str:
        """When the run came to its end; "" if it has not."""

    def holder(self) -> str | None:
        """Which process holds the directory; None if none does."""

    def telling(self) -> list[Path]:
        """Files by whose change there is something new to publish."""

    def parts(self) -> list[Path]:
        """The run directories of processes."""


class OfProcess:
    """The run directory of one process."""

    def __init__(self, path: Path) -> None:
        self._directory = RunDirectory(path)

    def record(self) -> RunRecord | None:
        """See `Published`."""
        return self._directory.read_record() if self._directory.path.is_dir() else None

    def resumable(self) -> dict[str, Path]:
        """See `Published`: checkpoints."""
        return {path.name: path for path in self._directory.checkpoint_paths()}

    def sequences(self) -> dict[str, int]:
        """See `Published`."""
        good, _ = self._directory.read_checkpoints()
        return {found.name: found.sequence for found in good}

    def finished_at(self) -> str:
        """See `Published`."""
        return self._directory.finished_at()

    def holder(self) -> str | None:
        """See `Published`."""
        return self._directory.holder()

    def telling(self) -> list[Path]:
        """See `Published`."""
        return [*self.resumable().values(), *(self._directory.path / name for name in _TELLING)]

    def parts(self) -> list[Path]:
        """See `Published`."""
        return [self._directory.path]


class OfJob:
    """The directory of a job, all of whose ranks are on this host."""

    def __init__(self, path: Path) -> None:
        self._job = JobDirectory(path)

    def record(self) -> RunRecord | None:
        """See `Published`: that of rank 0."""
        first = self._job.rank(0)
        return first.read_record() if first.path.is_dir() else None

    def resumable(self) -> dict[str, Path]:
        """See `Published`: cuts."""
        folder = self._job.manifests.path
        return {cut_name(name): folder / f"{name}.json" for name in self._job.manifests.names()}

    def sequences(self) -> dict[str, int]:
        """See `Published`."""
        return {cut_name(found.name): found.sequence for found in self._job.manifests.read(lambda _: None)}

    def finished_at(self) -> str:
        """See `Published`."""
        return self._job.finished_at()

    def holder(self) -> str | None:
        """See `Published`."""
        return self._job.holder()

    def telling(self) -> list[Path]:
        """See `Published`."""
        ranks = [folder / name for folder in self.parts() for name in _TELLING]
        return [*self.resumable().values(), self._job.path / "finished", *ranks]

    def parts(self) -> list[Path]:
        """See `Published`."""
        return [self._job.rank(number).path for number in self._job.ranks_here()]


def cut_name(name: str) -> str:
    """The manifest of a cut, as a file of its job's directory."""
    return f"{CUTS}/{name}.json"


def published(path: Path) -> Published:
    """The directory's kind; one that is empty or not there yet has nothing either way."""
    return OfJob(path) if JobDirectory(path).is_there else OfProcess(path)

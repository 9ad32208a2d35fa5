"""A job's directory: what its ranks have in common. Manifests and `finished` are on the host of rank 0.

job.json            how many ranks there are, on every host
cuts/NAME.json      manifests of the cuts: checkpoints of all ranks at one header
finished            when all ranks had come to their end; there is none before that
rank_0, rank_1, …   a run directory for each rank (`detrain.store.directory`); on disks that hosts do not share, those of this host
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from detrain.errors import CheckpointError
from detrain.store.directory import JOB_RECORD, RunDirectory, sync_folder, write_atomically

CUTS = "cuts"
#: In a rank's run directory: what its job had lost when an attempt ended, as this rank saw it.
LOST = "lost.log"
_FORMAT = 1
_RANK = re.compile(r"rank_(\d+)$")


@dataclass(frozen=True)
class Held:
    """Where a rank's part of a cut is."""

    rank: int
    host: str
    directory: str
    digest: str


@dataclass(frozen=True)
class Manifest:
    """A cut that is whole."""

    name: str
    sequence: int
    epoch: int
    batch: int
    batches: int
    #: Names of the cuts that a resume passes through, in order.
    chain: tuple[str, ...]
    parts: tuple[Held, ...] = field(default=())

    def dumps(self) -> str:
        """The text of its file."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def loads(cls, text: str) -> Manifest:
        """The inverse of `dumps`. Raises `ValueError`."""
        document: dict[str, Any] = json.loads(text)
        try:
            if document.pop("format") != _FORMAT:
                raise ValueError("it is of another format")
            parts = tuple(Held(**part) for part in document.pop("parts"))
            return cls(**{**document, "chain": tuple(document["chain"]), "parts": parts})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"it is no manifest: {error!r}") from None


def read_manifest(path: Path) -> Manifest:
    """One manifest. Raises `CheckpointError` for what is none."""
    try:
        return Manifest.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise CheckpointError(f"the manifest {path} cannot be used: {error}") from None


class Manifests:
    """The manifests on rank 0's disk."""

    def __init__(self, job: Path) -> None:
        """`job`: the job's directory."""
        self.path = job / CUTS

    def read(self, on_bad: Callable[[CheckpointError], None] | None = None) -> list[Manifest]:
        """All, the newest first. One that cannot be read is told to `on_bad`; without that it raises `CheckpointError`."""
        found = []
        for path in self.path.glob("*.json"):
            try:
                found.append(read_manifest(path))
            except CheckpointError as error:
                if on_bad is None:
                    raise
                on_bad(error)
        return sorted(found, key=lambda one: one.sequence, reverse=True)

    def names(self) -> tuple[str, ...]:
        """Names of the cuts that have a manifest, readable or not."""
        return tuple(sorted(path.stem for path in self.path.glob("*.json")))

    def write(self, manifest: Manifest) -> None:
        """Make the cut exist. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / f"{manifest.name}.json", manifest.dumps())
        sync_folder(self.path)

    def set_aside(self, sequence: int) -> None:
        """Move those with a higher number into the folder `aside`; one that cannot be read stays. Raises OSError."""
        for manifest in self.read(lambda _: None):
            if manifest.sequence > sequence:
                (self.path / "aside").mkdir(exist_ok=True)
                name = f"{manifest.name}.json"
                (self.path / name).rename(self.path / "aside" / name)

    def remove(self, names: Iterable[str]) -> None:
        """Cuts that are not resumed from any more; their parts may be deleted then. Raises OSError."""
        removed = [self.path / f"{name}.json" for name in names]
        for path in removed:
            path.unlink(missing_ok=True)
        if removed:
            sync_folder(self.path)


class JobDirectory:
    """One job's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.manifests = Manifests(path)

    @property
    def is_there(self) -> bool:
        """True if a job has begun here; every host notes it."""
        return RunDirectory(self.path).is_of_job()

    def part(self, manifest: Manifest, rank: int) -> Path:
        """The file of a rank that belongs to a cut. Raises `CheckpointError` if it is not there, or is another."""
        from detrain.store.checkpoint import fingerprint  # loads h5py

        path = self.rank(rank).path / manifest.name
        digest = next((part.digest for part in manifest.parts if part.rank == rank), "")
        try:
            found = fingerprint(path)
        except FileNotFoundError:
            raise CheckpointError(f"{path}, rank {rank}'s part of the cut, is not there") from None
        if found != digest:
            raise CheckpointError(f"{path} is not the file that was part of the cut")
        return path

    def rank(self, number: int) -> RunDirectory:
        """The run directory of one rank; it may be on another host."""
        return RunDirectory(self.path / f"rank_{number}")

    def ranks_here(self) -> list[int]:
        """Numbers of the ranks whose run directories are on this host."""
        found = (_RANK.match(entry.name) for entry in self.path.iterdir()) if self.is_there else ()
        return sorted(int(named[1]) for named in found if named is not None)

    def size(self) -> int:
        """Number of ranks; 0 if no job has begun here. Raises `CheckpointError` for a record that is damaged."""
        path = self.path / JOB_RECORD
        try:
            return int(json.loads(path.read_text(encoding="utf-8"))["size"])
        except FileNotFoundError:
            return 0
        except (ValueError, TypeError, KeyError) as error:
            raise CheckpointError(f"{path} is damaged: {error!r}. Start over with --fresh") from None

    def begin(self, size: int, *, is_of_first: bool = True) -> None:
        """Note how many ranks there are. `is_of_first`: this is the host of rank 0, where manifests belong. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        if is_of_first:
            self.manifests.path.mkdir(exist_ok=True)
        write_atomically(self.path / JOB_RECORD, json.dumps({"format": _FORMAT, "size": size}) + "\n")

    def finished_at(self) -> str:
        """When all ranks had come to their end; "" if they have not."""
        return RunDirectory(self.path).finished_at()

    def holder(self) -> str | None:
        """Which process of which rank on this host holds its directory; None if none does."""
        for number in self.ranks_here():
            holder = self.rank(number).holder()
            if holder is not None:
                return f"rank {number}, {holder}"
        return None


def note_lost(directory: Path, attempt: int, why: str) -> None:
    """Add to a rank's record what its job has lost; a disk that is full does not keep the rank from ending."""
    line = json.dumps({"at": time.time(), "attempt": attempt, "why": why}) + "\n"
    with contextlib.suppress(OSError), open(directory / LOST, "a", encoding="utf-8") as file:
        file.write(line)


def read_lost(directory: Path) -> list[dict[str, Any]]:
    """What `note_lost` has written; a torn last line is left out."""
    try:
        lines = (directory / LOST).read_text(encoding="utf-8").splitlines(keepends=True)
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in lines if line.endswith("\n")]


def first_lost(path: Path, since_s: float) -> str:
    """What the job in `path` has lost first since then, as its ranks on this host saw it; "" if nothing. `since_s`: seconds since 1970."""
    job = JobDirectory(path)
    found = [one for number in job.ranks_here() for one in read_lost(job.rank(number).path) if one["at"] >= since_s]
    return str(min(found, key=lambda one: one["at"])["why"]) if found else ""

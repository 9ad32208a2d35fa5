"""Which of the two goes on, the run directory here or the run in the store: the one that has everything that the other has."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from detrain.errors import CheckpointError, ResumeRefused
from detrain.remote.manifest import Identity, Manifest
from detrain.remote.runs import published


@dataclass(frozen=True)
class Local:
    """A run here. `checkpoints`: their names in a manifest, with their sequence numbers."""

    run: Identity | None
    attempts: int
    checkpoints: dict[str, int]
    is_finished: bool

    @classmethod
    def read(cls, directory: Path) -> Local:
        """Raises `CheckpointError` for a record that is damaged."""
        run = published(directory)
        record = run.record()
        if record is None:
            return cls(None, 0, {}, is_finished=False)
        return cls(Identity.of(record), record.attempts, run.sequences(), bool(run.finished_at()))

    @property
    def has_something(self) -> bool:
        """False where nothing would be lost with it."""
        return self.run is not None and bool(self.checkpoints or self.is_finished)

    @property
    def sequence(self) -> int:
        """Of the newest checkpoint; 0 where there is none."""
        return max(self.checkpoints.values(), default=0)


@dataclass(frozen=True)
class Base:
    """The manifest that directory and store had in common last."""

    number: int
    digest: str
    checkpoints: dict[str, int]
    is_finished: bool

    @classmethod
    def of(cls, manifest: Manifest) -> Base:
        """The part that is kept on this machine."""
        sequences = {name: saved.sequence for name, saved in manifest.checkpoints.items()}
        return cls(manifest.number, manifest.digest, sequences, manifest.is_finished)

    def encode(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)

    @classmethod
    def decode(cls, document: dict[str, Any] | None) -> Base | None:
        """The inverse of `encode`; None for what is nothing, or of another version."""
        try:
            return cls(**document) if document is not None else None
        except TypeError:
            return None


def is_to_fetch(local: Local, base: Base | None, remote: Manifest | None, owner: str, where: Path, url: str) -> bool:
    """True where the run in the store goes on, False where the one here does.

    `where` and `url` are for the message. Raises `ResumeRefused` where both have gone on, or are two runs.
    """
    if remote is None:
        return False
    if not local.has_something:
        return True
    if base is not None and base.digest == remote.digest:
        return False
    is_same_run = local.run == remote.run
    is_ours = remote.owner == owner  # published from here, and the process was ended before it had noted that
    if is_same_run and is_ours and (local.attempts, local.sequence) >= (remote.attempts, remote.sequence):
        return False
    if is_same_run and base is not None and _has_nothing_since(local, base) and remote.number > base.number:
        return True
    here = f"{where} (attempt {local.attempts}, checkpoint {local.sequence})"
    there = (
        f"{url} (attempt {remote.attempts}, checkpoint {remote.sequence}, published from {remote.where} at {remote.at})"
    )
    ways = (
        f"Go on with the one in the store by moving {where} away; with the one here by giving another URL; or start over with "
        "--fresh (both are kept)"
    )
    if not is_same_run:
        raise ResumeRefused(f"{here} and {there} are two runs: {local.run}, and {remote.run}. {ways}")
    raise ResumeRefused(f"{here} and {there} are one run, and both have gone on since they had the same state. {ways}")


def check_command(remote: Manifest, script: str, arguments: tuple[str, ...], url: str) -> None:
    """Raises `ResumeRefused` where the run in the store is one of another command, before it is fetched."""
    run = remote.run
    if run.arguments == arguments and run.script != script and Path(run.script).name == Path(script).name:
        raise ResumeRefused(
            f"{url} holds the run of {run.script}; this script is {script}: a run goes on only where its script lies at the same path. Put "
            "it there, give another URL, or start over with --fresh (the run there is kept)"
        )
    if (run.script, run.arguments) != (script, arguments):
        raise ResumeRefused(
            f"{url} holds a run of another command: {run.command}; this is {' '.join((script, *arguments))}. Give each command a "
            "URL of its own ({name} in it stands for the run directory's name), go on with that run with --trust-changes, or start over "
            "with --fresh (the run there is kept)"
        )


def _has_nothing_since(local: Local, base: Base) -> bool:
    return local.checkpoints.items() <= base.checkpoints.items() and (base.is_finished or not local.is_finished)


def read_local(directory: Path) -> Local:
    """Like `Local.read`. Raises `ResumeRefused` for a directory that cannot be compared with the store's run."""
    try:
        return Local.read(directory)
    except CheckpointError as error:
        raise ResumeRefused(str(error)) from None

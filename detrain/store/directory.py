"""The run directory: what is in it, who holds it, which checkpoints stay.

run.json            how the run was started
finished            when it came to its end; there is none before that
inst.info           the loops
ledger              what each batch has done, in digests (`detrain.store.ledger`)
checkpoint_*.h5     checkpoints
files.log, kept/    what the script's own files were before it changed them (`detrain.outputs.journal`)
rewinding           there while a resumed attempt has not come to its checkpoint (`detrain.outputs.following`)
printed.log         what the script has printed, and when (`detrain.world.output_log`)
sources.log         texts of the source files (`detrain.store.sources`)
answers.log         what set-up code was told by the clock (`detrain.world.setup_clock`)
clock.log           what the training loop was told by the clocks (`detrain.world.loop_clock_log`)
verified.json       what `detrain verify` found last
pipeline.json       what this rank of a pipeline did when, in a step before the latest cut
lost.log            which rank or launcher a job had lost, as this rank saw it (`detrain.store.job`)
trace-1.log, …      what the script printed while it was traced, and what was seen of it (`detrain.launch.rounds`)
cache/              instrumented code
aside/              checkpoints that were passed over
lock                held, by a POSIX record lock, while an attempt lives; who holds it is in it
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import struct
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from detrain.errors import CheckpointError, ResumeRefused
from detrain.store.record import RunRecord

if TYPE_CHECKING:
    from detrain.store.checkpoint import Checkpoint

#: `struct flock` of 64-bit Linux: type, whence, start, length, process.
_FLOCK = struct.Struct("hhqqi4x")
_NAME = re.compile(r"checkpoint_(\d+)_(\d+)\.h5$")
_TRACES = frozenset(f"trace-{number}.{what}" for number in (1, 2) for what in ("log", "err", "json", "tmp"))
PIPELINE_STEPS = "pipeline.json"
#: Names that are written to, beside those of checkpoints.
OWN_NAMES = _TRACES | {
    PIPELINE_STEPS,
    "run.json", "finished", "inst.info", "ledger", "files.log", "kept", "rewinding", "printed.log", "answers.log", "clock.log",
    "verified.json", "cache", "aside", "lock", "lost.log", "sources.log",
}  # fmt: skip
_LOCKED = re.compile(rb"process \d+ on ")
#: In the lock file, behind "since": when it was taken.
_SINCE = "%Y-%m-%d %H:%M:%S %z"
#: A file that is being written: `.NAME.PROCESS.tmp`; or a file of the script's that is being put back.
_TEMPORARY = re.compile(r"\.(?:detrain-[0-9a-f]+|(?P<name>.+?)(\.\d+)?)\.tmp$")


#: In the directory of a job of several ranks, which is no run's (`detrain.store.job`).
JOB_RECORD = "job.json"


class RunDirectory:
    """One run's directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock: Any = None

    def lock(self) -> None:
        """Hold the directory for this attempt. Raises `ResumeRefused` if another attempt does, saying which, or if it is somebody else's.

        A record lock belongs to the process: it ends with it however it ends, and forked loader workers do not inherit it.
        """
        self._check_own()
        self.path.mkdir(parents=True, exist_ok=True)
        self._lock = open(self.path / "lock", "a+", encoding="utf-8")  # noqa: SIM115 - held until the process ends
        try:
            fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            holder = self._in_the_way()
            self.unlock()
            raise ResumeRefused(
                f"the run directory {self.path} is held by {holder}. Wait for it, stop it, or choose another with --ckpt-dir"
            ) from None
        self._lock.seek(0)
        self._lock.truncate()
        since = time.strftime(_SINCE)
        self._lock.write(f"process {os.getpid()} on {os.uname().nodename} since {since}\n")
        self._lock.flush()

    def _check_own(self) -> None:
        """Raises `ResumeRefused` if files of somebody else's lie there under names that would be written to.

        An inst.info alone may be written by hand.
        """
        if not self.path.is_dir() or self._is_own():
            return
        foreign = sorted(entry.name for entry in self.path.iterdir() if entry.name in OWN_NAMES - {"inst.info"})
        if foreign == ["lock"] and (self.path / "lock").stat().st_size == 0:
            return  # left by an attempt that was killed just then
        if foreign:
            one = "a file" if len(foreign) == 1 else "files"
            raise ResumeRefused(
                f"{self.path} is not a run directory of detrain, and contains {one} that detrain would overwrite: {', '.join(foreign)}. "
                "Nothing was touched; choose another directory with --ckpt-dir"
            )

    def _is_own(self) -> bool:
        """True if an attempt has been here, or a trace: its record is there (or one that cannot be read), or its lock; or a job."""
        if self.is_of_job():
            return True
        with contextlib.suppress(OSError):
            if _LOCKED.match((self.path / "lock").read_bytes()):
                return True
        try:
            document = self._read_document()
        except CheckpointError:
            return True  # damaged, which whoever reads it says
        except OSError:
            return False
        return isinstance(document, dict) and {"attempts", "script"} <= document.keys()

    @contextlib.contextmanager
    def shared(self) -> Iterator[None]:
        """Keep attempts from beginning while the directory is read, as others may at the same time.

        Raises `ResumeRefused` if an attempt holds it. Where nobody can write it, none can begin, and nothing needs to be kept.
        """
        holder = self.holder()
        if holder is not None:
            raise ResumeRefused(f"the run in {self.path} is going on; it is held by {holder}")
        with contextlib.ExitStack() as stack:
            try:
                lock = stack.enter_context((self.path / "lock").open("a+", encoding="utf-8"))
                fcntl.lockf(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                holder = self.holder()
                if holder is not None:
                    raise ResumeRefused(f"the run in {self.path} has just begun again: {holder}") from None
            except OSError:
                pass
            yield

    def holder(self) -> str | None:
        """What the attempt that holds the directory wrote into its lock file; None if nobody does. Takes no lock."""
        try:
            with (self.path / "lock").open("rb") as lock:
                return None if _lock_on(lock, fcntl.F_RDLCK) is None else lock.read().decode(errors="replace").strip()
        except OSError:
            return None

    def held_since(self) -> float:
        """When the last attempt took the directory, by its host's clock, in whole seconds since 1970; 0 where that is not known."""
        try:
            text = (self.path / "lock").read_text(encoding="utf-8", errors="replace")
            return datetime.strptime(text.rpartition(" since ")[2].strip(), _SINCE).timestamp()
        except (OSError, ValueError):
            return 0.0

    def _in_the_way(self) -> str:
        """Who has the lock that could not be had."""
        found = _lock_on(self._lock, fcntl.F_WRLCK)
        if found is not None and found[0] == fcntl.F_RDLCK:
            return f"process {found[4]}, which does the run again to prove it"
        self._lock.seek(0)
        return self._lock.read().strip() or "another process"

    def is_of_job(self) -> bool:
        """True if this is the directory of a job of several ranks, each of which has one of its own within it."""
        return (self.path / JOB_RECORD).is_file()

    def unlock(self) -> None:
        """Let go of the directory."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def read_record(self) -> RunRecord | None:
        """How the run was started; None if it has not been. Raises `CheckpointError` for a file that is damaged."""
        document = self._read_document()
        if document is None:
            return None
        if not isinstance(document, dict):
            raise CheckpointError(f"{self.path / 'run.json'} holds no record of a run. Start over with --fresh")
        return RunRecord.decode(document)

    def _read_document(self) -> object:
        try:
            return json.loads((self.path / "run.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise CheckpointError(
                f"{self.path / 'run.json'} is not readable JSON: {error}. Start over with --fresh"
            ) from None

    def finished_at(self) -> str:
        """When the run came to its end; "" if it has not."""
        try:
            return (self.path / "finished").read_text(encoding="utf-8").strip()
        except FileNotFoundError:
            return ""

    def prepare_end(self, when: str) -> tuple[Path, Path]:
        """Write the note that the run has come to its end, under a temporary name; returns that and the name it is to get."""
        prepared, final = self.path / ".finished.tmp", self.path / "finished"
        write_atomically(prepared, when + "\n")
        return prepared, final

    def write_record(self, record: RunRecord) -> None:
        """Replace the record, atomically."""
        write_atomically(self.path / "run.json", record.dumps())

    def checkpoint_paths(self) -> list[Path]:
        """Committed checkpoint files, by name."""
        return sorted(entry for entry in self.path.iterdir() if _NAME.match(entry.name)) if self.path.is_dir() else []

    def checkpoint_path(self, epoch: int, batch: int) -> Path:
        """Where the checkpoint of a position goes."""
        return self.path / f"checkpoint_{epoch}_{batch}.h5"

    def read_checkpoints(self) -> tuple[list[Checkpoint], list[CheckpointError]]:
        """Readable checkpoints, latest first and without their tables of arrays, and what is wrong with the others."""
        paths = self.checkpoint_paths()
        if not paths:
            return [], []  # without loading h5py
        from detrain.store import checkpoint as checkpoint_file

        good, bad = [], []
        for path in paths:
            try:
                good.append(checkpoint_file.read_outline(path))
            except CheckpointError as error:
                bad.append(error)
        return sorted(good, key=lambda found: found.sequence, reverse=True), bad

    def remove_temporaries(self) -> None:
        """Clean up what a killed attempt has left half written."""
        for entry in self.path.glob(".*.tmp"):
            named = _TEMPORARY.match(entry.name)
            if named is not None and (named["name"] is None or _is_own_name(named["name"])):
                entry.unlink(missing_ok=True)

    def retain(self, keep: int, checkpoints: list[Checkpoint], needed: set[str]) -> list[Checkpoint]:
        """Delete all but the newest `keep` checkpoints and what those (or `needed`) cannot do without; returns what stays."""
        if len(checkpoints) <= keep:
            return checkpoints
        newest = sorted(checkpoints, key=lambda found: found.sequence, reverse=True)
        wanted = {found.name for found in newest[:keep]} | needed
        by_name = {found.name: found for found in newest}
        pending = list(wanted)
        while pending:
            found = by_name.get(pending.pop())
            for name in found.needs if found else ():
                if name not in wanted:
                    wanted.add(name)
                    pending.append(name)
        for found in newest:
            if found.name not in wanted:
                found.path.unlink(missing_ok=True)
        return [found for found in newest if found.name in wanted]

    def set_aside(self, paths: list[Path]) -> None:
        """Move checkpoints that the run goes on without (damaged, or of an abandoned future) into the folder `aside`."""
        for path in paths:
            folder = self.path / "aside"
            folder.mkdir(exist_ok=True)
            path.rename(folder / path.name)

    def move_aside(self) -> Path | None:
        """Rename the directory to the first free `<name>.old<N>`; returns the new path, None if there was nothing to move.

        The folder that this process works in, or one around it, stays: only what is detrain's is moved out of it.
        """
        if not self.path.exists() or not any(entry.name != "lock" for entry in self.path.iterdir()):
            return None
        aside = free_name_beside(self.path)
        if not Path.cwd().is_relative_to(self.path.resolve()):
            self.path.rename(aside)
            return aside
        own = [entry for entry in self.path.iterdir() if _is_own_name(entry.name) and entry.name != "lock"]
        if not own:
            return None
        aside.mkdir()
        for entry in own:
            entry.rename(aside / entry.name)
        return aside


def _is_own_name(name: str) -> bool:
    return name in OWN_NAMES or _NAME.match(name) is not None


def free_name_beside(path: Path) -> Path:
    """The first free `<name>.old<N>` beside a directory."""
    number = 1
    while (aside := path.with_name(f"{path.name}.old{number}")).exists():
        number += 1
    return aside


def sync_folder(path: Path) -> None:
    """What has been renamed or removed in a folder is so after a power failure, too. Raises OSError."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file under a temporary name, sync it and rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def _lock_on(file: IO[Any], kind: int) -> tuple[int, ...] | None:
    """A record lock of another process that keeps this one from having one of this kind."""
    asked = _FLOCK.pack(kind, 0, 0, 0, 0)
    answer = _FLOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))
    return None if answer[0] == fcntl.F_UNLCK else answer

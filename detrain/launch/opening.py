"""Opening the run directory for an attempt: who may go on with the run that is there, and what its record says from then on."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from detrain.errors import AlreadyFinished, ResumeRefused, UsageError
from detrain.launch import environment
from detrain.launch.request import Request
from detrain.loops import instfile
from detrain.messages import say
from detrain.outputs.following import OutputFiles
from detrain.store.directory import RunDirectory
from detrain.store.record import Command, RunRecord
from detrain.world import preload


class OpenRun:
    """The run directory, held by this attempt, and the run's record. Raises `DetrainError` where the attempt may not go on."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self.directory = RunDirectory(Path(os.path.abspath(request.ckpt_dir)))
        #: As the last attempt has left it; None for a run that begins, and once this attempt has resumed.
        self._before: RunRecord | None = None
        self._lock()
        self.record = self._open()

    @property
    def is_other_invocation(self) -> bool:
        """True if the arguments or the seed are others than the last attempt's."""
        return self._before is not None and self._before.invocation != self.record.invocation

    def write(self) -> None:
        """Write the record: once nothing more can refuse the attempt.

        Until an attempt with other arguments has resumed, the run is one of the old arguments.
        """
        record = self.record
        if self._before is not None and self.directory.checkpoint_paths():
            record = record.with_invocation(self._before.invocation)
        self.directory.write_record(record)

    def on_resumed(self) -> None:
        """The attempt goes on from its checkpoint: from now on the run is one of its arguments."""
        if self.is_other_invocation:
            (self.directory.path / "finished").unlink(missing_ok=True)
        self._before = None
        if self._request.changes is not None:
            self.record.changes = self._request.changes
        self.directory.write_record(self.record)

    def _lock(self) -> None:
        if self.directory.is_of_job():
            self._check_job()
        try:
            self.directory.lock()
        except OSError as error:
            raise UsageError(
                f"the run directory {self.directory.path} cannot be written: {error}. Nothing was started; choose another "
                "with --ckpt-dir"
            ) from None

    def _check_job(self) -> None:
        """Raises `ResumeRefused` where a job of several ranks is there, unless it is to be moved aside and none of its ranks lives."""
        from detrain.store.job import JobDirectory

        holder = JobDirectory(self.directory.path).holder()
        if holder is not None:
            raise ResumeRefused(
                f"{self.directory.path} holds a job of several ranks that is going on ({holder}). Choose another directory with --ckpt-dir"
            )
        if not self._request.fresh:
            raise ResumeRefused(
                f"{self.directory.path} holds a job of several ranks, and this process trains alone. Start its ranks, start over with "
                "--fresh (the job is kept), or choose another directory with --ckpt-dir"
            )

    def _open(self) -> RunRecord:
        request = self._request
        # Not read where the run is to start over: that is also the way out of a record that cannot be read.
        before = None if request.fresh else self.directory.read_record()
        if request.fresh:
            self._move_aside(self._undo() if request.restarts else "")
        record = _new_record(request)
        self._take_traced()
        if before is None:
            self.directory.write_record(record)
            return record
        self.directory.remove_temporaries()
        self._check_command(before, record)
        if self.directory.finished_at() and not (request.trust_changes and before.invocation != request.invocation):
            self._end_at_once(Path(before.script).parent)
        goes_on = bool(self.directory.checkpoint_paths()) or request.goal is not None
        if not goes_on and before.entropy != record.entropy:
            # Another program: it draws other numbers, and what the first one did is nothing to be compared with.
            (self.directory.path / "ledger").unlink(missing_ok=True)
        record = replace(
            record, attempts=before.attempts + 1, began=before.began, only_known=before.only_known,
            found_after=before.found_after, changes=before.changes, sources_changed_at=before.sources_changed_at,
            process=before.process if before.process is not None else record.process,
        )  # fmt: skip
        if goes_on and not request.trusts and before.machine is not None:
            record.machine = before.machine
        self._before = before
        return record

    def _check_command(self, before: RunRecord, record: RunRecord) -> None:
        """Raises `ResumeRefused` where a run of another command is there, with something to lose."""
        changed = [
            f"{name} was {old!r}, is {new!r}"
            for name, old, new in (
                ("script", before.script, record.script),
                ("arguments", before.arguments, record.arguments),
                ("folder", before.folder, record.folder),
                ("seed", before.seed, record.seed),
            )
            if old != new
        ]
        was, now = before.command or Command(), record.command or Command()
        # Else gradients are added in another way, and dropout is drawn in another.
        if bool(was.pipeline) != bool(now.pipeline):
            changed.append(f"--pipeline was {'not given, is now' if now.pipeline else 'given, is not now'}")
        elif was.micro_batches != now.micro_batches:
            changed.append(f"--micro-batches was {was.micro_batches}, is {now.micro_batches}")
        leaves_files = self._request.leave_files
        if (before.command or Command()).leave_files != leaves_files:
            # What the one kind of attempt has not recorded the other cannot undo.
            changed.append(f"--leave-files was {'not given, is now' if leaves_files else 'given, is not now'}")
        has_something = bool(self.directory.finished_at() or self.directory.checkpoint_paths())
        if changed and not self._request.trust_changes and has_something:
            raise ResumeRefused(
                f"{self.directory.path} holds a run of another command: {'; '.join(changed)}. Start over with "
                "--fresh (the old run is kept), resume anyway with --trust-changes, or choose another directory with --ckpt-dir"
            )

    def _undo(self) -> str:
        """Give the script the files that the first attempt found; says what is lost by that."""
        OutputFiles(self.directory.path).rewind(is_resuming=False)
        checkpoints, _ = self.directory.read_checkpoints()
        if not checkpoints:
            return "There is no checkpoint that could be used"
        latest = max(checkpoints, key=lambda one: one.meta.batches)
        return f"The {latest.meta.batches} batches up to {latest.name} are run again"

    def _move_aside(self, cost: str) -> None:
        self.directory.unlock()
        aside = self.directory.move_aside()
        self.directory.lock()
        if aside is None:
            return
        instfile.hand_on(aside / "inst.info", self.directory.path / "inst.info")
        if cost:
            why = self._request.restarts
            say(f"starting over, as --on-inexact restart says: {why}. {cost}; the earlier run is kept in {aside}")
        else:
            say(f"starting over; the earlier run is kept in {aside} (--fresh)")

    def _take_traced(self) -> None:
        """A run's own directory begins with the loops that were traced in the script's, whatever arguments it was traced with."""
        if not self._request.traced_in or self.directory.checkpoint_paths() or self.directory.finished_at():
            return
        traced, own = Path(self._request.traced_in) / "inst.info", self.directory.path / "inst.info"
        if traced.exists() and (not own.exists() or traced.stat().st_mtime_ns > own.stat().st_mtime_ns):
            instfile.hand_on(traced, own)

    def _end_at_once(self, folder: Path) -> NoReturn:
        """The run is finished. Raises `AlreadyFinished`, or `ResumeRefused` if the script has changed since."""
        path = self.directory.path / "inst.info"
        info = instfile.read(path, folder) if path.exists() else instfile.InstInfo()
        changed = instfile.changed_sources(info.sources)
        ended = f"the run in {self.directory.path} came to its end at {self.directory.finished_at()}"
        if changed:
            raise ResumeRefused(
                f"{ended}, and the source has changed since ({', '.join(changed)}). Train again with --fresh (the old run is kept), or "
                "choose another directory with --ckpt-dir"
            )
        raise AlreadyFinished(
            f"{ended}: there is nothing left to do. Train again with --fresh, which keeps the old run"
        )


def _new_record(request: Request) -> RunRecord:
    command = Command(
        request.script, request.module, request.nondeterministic, request.leave_files,
        tuple(environment.interpreter_flags(sys.orig_argv[1:])), os.path.abspath(request.pipeline) if request.pipeline else "",
        request.micro_batches,
    )  # fmt: skip
    return RunRecord(
        script=os.path.abspath(request.script) if request.script else request.module,
        name=request.name,
        command=command,
        arguments=request.arguments,
        folder=os.getcwd(),
        seed=request.seed,
        entropy=request.entropy,
        every=request.every,
        began=time.strftime("%Y-%m-%d %H:%M:%S %z"),
        process=os.getpid(),
        machine=request.machine,
        is_address_space_fixed=request.is_address_space_fixed,
        is_preloaded=preload.is_loaded(),
    )

"""How an attempt ends: whether the run is finished, and the last line that is printed."""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from detrain.messages import counted, say
from detrain.session import memory

if TYPE_CHECKING:
    from detrain.session.session import Session

#: Signals that end a training early, even if the script handles them and exits with status 0.
_ENDING = frozenset({signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGXCPU})


class Arrivals:
    """Signals that have arrived since the training began, read from the interpreter's wake-up descriptor (`signal.set_wakeup_fd`)."""

    def __init__(self) -> None:
        self._reader = self._writer = -1
        self._last = ""

    def begin(self) -> None:
        """Listen, unless the script uses the wake-up descriptor itself (asyncio does so while it runs)."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._reader, self._writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        if before != -1:
            signal.set_wakeup_fd(before)
        os.register_at_fork(after_in_child=self._stop)

    def _stop(self) -> None:
        """A child's signals are not this process's."""
        if threading.current_thread() is threading.main_thread() and signal.set_wakeup_fd(-1) != self._writer:
            return
        os.close(self._writer)

    def ending(self) -> str:
        """The name of the last signal that asks for an end; "" if none has come."""
        if self._reader < 0:
            return ""
        with contextlib.suppress(BlockingIOError):
            found = [number for number in os.read(self._reader, 65536) if number in _ENDING]
            self._last = signal.Signals(found[-1]).name if found else self._last
        return self._last


def is_finished(session: Session, status: object, signal_name: str) -> bool:
    """True if the run is finished: it has trained, and no signal has ended its loops early."""
    if status != 0 or not session.has_trained:
        return False
    return not signal_name or session.is_nest_exhausted


def say_last(session: Session, status: object, signal_name: str, *, is_interrupted: bool) -> None:
    """Say how far the run is and what the same command will do; behind a traceback, where there is one."""
    if session.memory is not None:
        say(memory.told(session.memory.use()))
    if is_finished(session, status, signal_name):
        position = session.context.position
        epochs = f" ({counted(position.epochs, 'epoch')})" if position.epochs else ""
        settings, command = session.context.settings, f"`detrain verify {session.context.named_directory}`"
        proof = (
            f"{command} proves it"
            if settings.is_of_one_source
            else f"{command} proves what was trained since the run was changed"
        )
        attempts = counted(settings.attempt, "attempt")
        _flush()
        say(f"finished after {counted(position.batches, 'batch', 'batches')}{epochs}, in {attempts}; {proof}")
        return
    if is_interrupted:
        what = "interrupted"
    elif signal_name and status == 0:
        what = f"ended early, after {signal_name},"
    else:
        what = "the script ended with an error" if status == 1 else f"the script ended with status {status}"
    text = f"{what} {where(session)}; {what_next(session)}"
    atexit.register(say, text)


def _flush() -> None:
    """In a log file, what the script has printed stands before what is said of the run."""
    # Of a reader that has left python speaks itself when it ends; of a stream that the script has closed nobody does.
    with contextlib.suppress(OSError, ValueError):
        if sys.__stdout__ is not None:
            sys.__stdout__.flush()


def where(session: Session) -> str:
    """The batch that runs."""
    if session.resume.is_pending:
        assert session.resume.target is not None
        return f"while resuming from {session.resume.target.name}"
    if not session.has_trained:
        return "before its training began"
    if session.is_behind:
        return "behind its training loop"
    return f"at epoch {session.context.position.epoch}, batch {session.context.position.batch}"


def what_next(session: Session) -> str:
    """What the same command will do."""
    checkpoint = session.resume.target or session.last_checkpoint
    if checkpoint is None:
        return "there is no checkpoint yet, so the same command starts again from the beginning"
    meta = checkpoint.meta
    return f"the same command resumes from {checkpoint.name} (epoch {meta.epoch}, batch {meta.batch})"

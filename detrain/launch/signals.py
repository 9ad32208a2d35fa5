"""SIGTERM and SIGUSR2: a checkpoint at the next batch to which a resume comes, then what the script would have got.

With `--requeue`, SIGTERM and SIGUSR1 end the training behind the checkpoint, and the scheduler starts it again.

The script sees its own dispositions: what it sets with `signal.signal` is remembered and called, `signal.getsignal` returns it.
"""

from __future__ import annotations

import os
import signal
import types
from time import monotonic
from typing import Any

from detrain.launch.departing import Departure
from detrain.messages import say
from detrain.session.ending import where
from detrain.session.session import Session

_ASKING = (signal.SIGTERM, signal.SIGUSR2)
#: Who signals a process and then its group (`timeout` does) means one signal. Seconds.
_ONCE_S = 1.0
_signal, _getsignal = signal.signal, signal.getsignal  # as they are before anybody patches them


class Signals:
    """The script's dispositions of the signals that detrain listens to."""

    def __init__(self, session: Session, departure: Departure) -> None:
        """`departure`: how the process leaves a training that is to go on later."""
        self._session, self._departure = session, departure
        self._numbers = (*_ASKING, *(Departure.SIGNALS if departure.is_requeued else ()))
        self._theirs: dict[int, Any] = {}
        self._pending: int | None = None
        self._asked_s = 0.0

    def listen(self) -> None:
        """Install the handlers; signals that the caller had ignored stay ignored.

        Called when the training loop has been found or reached: before, there is nothing to checkpoint, and the script's
        dispositions are simply in force.
        """
        if self._theirs:
            return
        for number in self._numbers:
            self._theirs[number] = _getsignal(number)
            if self._theirs[number] is not signal.SIG_IGN:
                _signal(number, self._on_signal)
        _patch_signal_signal(self)
        _patch_signal_getsignal(self)
        self._session.on_saved = self._after_save
        self._session.on_out_of_step = self._give_up_waiting
        os.register_at_fork(after_in_child=self._stop_in_child)

    def _on_signal(self, number: int, frame: types.FrameType | None) -> None:
        session = self._session
        if self._departure.is_requeued and number in Departure.SIGNALS:
            self._on_last_signal(number)
        elif number == signal.SIGTERM and self._pending == number:
            if monotonic() - self._asked_s > _ONCE_S:
                self._deliver(number, frame)  # a second one does not wait
        elif session.has_active_batch_loop and not session.resume.is_pending and not self._is_broken():
            session.request_checkpoint()
            if number == signal.SIGTERM:
                self._pending, self._asked_s = number, monotonic()
                say("SIGTERM: writing a checkpoint")
            elif callable(self._theirs[number]):
                self._deliver(number, frame)
        elif number == signal.SIGTERM or callable(self._theirs[number]):
            self._deliver(number, frame)

    def _on_last_signal(self, number: int) -> None:
        """The scheduler takes the machine away."""
        session, name = self._session, signal.Signals(number).name
        is_again = self._asked_s and monotonic() - self._asked_s > _ONCE_S
        if session.has_active_batch_loop and not session.resume.is_pending and not self._is_broken() and not is_again:
            if not self._asked_s:
                self._asked_s = monotonic()
                say(f"{name}: writing a checkpoint, then this attempt ends (--requeue)")
            session.request_checkpoint(is_last=True)
        else:
            say(
                f"{name}: {'not waiting for the checkpoint' if is_again else where(session)}; this attempt ends (--requeue)"
            )
            self._departure.leave()

    def _is_broken(self) -> bool:
        """True for one rank of several that can come to no agreement: it would never get to a cut."""
        member = self._session.context.member
        return member is not None and (member.is_broken or member.agreement.is_out)

    def _give_up_waiting(self) -> None:
        """No checkpoint will be taken any more: what waits for one is delivered."""
        if self._pending is not None:
            number, self._pending = self._pending, None
            self._deliver(number, None)

    def _after_save(self) -> None:
        is_last = self._session.context.agreement.is_last
        if self._pending is None and not is_last:
            return
        self._session.finish_write()
        saved, member = self._session.last_part, self._session.context.member
        if saved is not None and (member is None or member.wait_for(saved.name)):
            why = "the time limit is reached; " if is_last and not self._asked_s else ""
            say(f"{why}{saved.name} is on disk; the same command resumes from it")
        if is_last:
            self._departure.leave()
        if self._pending is not None:
            number, self._pending = self._pending, None
            self._deliver(number, None)

    def _deliver(self, number: int, frame: types.FrameType | None) -> None:
        theirs = self._theirs[number]
        if callable(theirs):
            theirs(number, frame)
        elif theirs is signal.SIG_DFL:
            _signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def _stop_in_child(self) -> None:
        for number in self._numbers:
            if _getsignal(number) == self._on_signal:
                _signal(number, self._theirs[number] or signal.SIG_DFL)

    def set_theirs(self, number: int, handler: Any) -> Any:
        """What `signal.signal` does for a signal of ours: remember, return what was set before."""
        if not callable(handler) and handler not in (signal.SIG_DFL, signal.SIG_IGN):
            return _signal(number, handler)  # raises as it should
        before = self._theirs[number]
        _signal(number, self._on_signal)
        self._theirs[number] = handler
        return before

    def is_ours(self, number: int) -> bool:
        """True while our handler stands for the signal."""
        return number in self._theirs and _getsignal(number) == self._on_signal

    def theirs(self, number: int) -> Any:
        """What the script has set."""
        return self._theirs[number]


def _patch_signal_signal(signals: Signals) -> None:
    def patched(signalnum: int, handler: Any) -> Any:
        return signals.set_theirs(signalnum, handler) if signals.is_ours(signalnum) else _signal(signalnum, handler)

    _disguise(patched, _signal)
    signal.signal = patched


def _patch_signal_getsignal(signals: Signals) -> None:
    def patched(signalnum: int) -> Any:
        return signals.theirs(signalnum) if signals.is_ours(signalnum) else _getsignal(signalnum)

    _disguise(patched, _getsignal)
    signal.getsignal = patched


def _disguise(patched: Any, plain: Any) -> None:
    patched.__name__, patched.__qualname__, patched.__doc__ = plain.__name__, plain.__qualname__, plain.__doc__
    patched.__module__ = plain.__module__
    patched.__wrapped__ = plain

"""Work in a background thread that the script does not see."""

from __future__ import annotations

import _thread
import os
import sys
from collections.abc import Callable

from detrain.store.threads import awaited


class Background:
    """One piece of work at a time.

    `threading` would count the thread, and name the script's next one by another number. A fork goes on beside it, as beside the threads
    that a framework starts: what the thread works on is nothing of the child's. From Python 3.12 on, a process that forks with more than
    one thread is warned; so it does not, where this thread is the only other one.
    """

    def __init__(self) -> None:
        self._done = _thread.allocate_lock()  # held while the work goes on
        self._error: BaseException | None = None
        self._result: object = None
        os.register_at_fork(before=self._before_fork, after_in_child=self._forget)

    @property
    def is_busy(self) -> bool:
        """True until the work has ended."""
        return self._done.locked()

    def begin(self, work: Callable[[], object]) -> None:
        """Start `work` in the background. Call `wait` for earlier work first."""
        self._done.acquire()
        self._result = self._error = None
        _thread.start_new_thread(self._run, (work, self._done))

    def wait(self) -> object:
        """What the work has returned, once; None if there is none. Raises what it has raised."""
        with awaited(), self._done:
            result, error, self._result, self._error = self._result, self._error, None, None
        if error is not None:
            raise error
        return result

    def _run(self, work: Callable[[], object], done: _thread.LockType) -> None:
        try:
            self._result = work()
        except BaseException as error:  # noqa: BLE001 - raised by `wait`
            self._error = error
        finally:
            done.release()

    def _before_fork(self) -> None:
        if self.is_busy and sys.version_info >= (3, 12) and len(os.listdir("/proc/self/task")) <= 2:
            with self._done:
                pass

    def _forget(self) -> None:
        self._done, self._result, self._error = _thread.allocate_lock(), None, None

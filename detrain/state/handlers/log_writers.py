"""Handlers for what libraries write to files on threads of their own: it is in the files when a checkpoint has been taken."""

from __future__ import annotations

import time
from typing import Any

from detrain.errors import CaptureError
from detrain.state.handler import Capturing, keep
from detrain.state.handlers.objects import OWNS_THREAD, KeptHandler
from detrain.state.registry import register_name
from detrain.state.tree import Node

#: Between the two steps in which a taker says that it has an item and lets go of the lock, it looks idle: so one looks twice.
_LOOKS = 2
_PAUSE_S, _LONGEST_S = 0.001, 10.0


class LogThreadHandler(KeptHandler):
    """Stays what the set-up code has made, with a log of its own in each attempt; what waits to be written is written out first.

    The file alone does not know of it: it waits in the thread's queue, and an attempt that was resumed has another file in the place
    where the library keeps its own.
    """

    kind = "log thread"

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if not obj._closed:
            obj.flush()
        keep(node, OWNS_THREAD, is_loud=False)


class LogQueueHandler(LogThreadHandler):
    """The same behind a `multiprocessing.Queue`, which tells nobody when what it has given has been dealt with."""

    kind = "log queue"

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if not obj._closed:
            for _ in range(_LOOKS):
                _wait_until_idle(obj._event_queue)
        super().capture(obj, node, walk)


def _wait_until_idle(queue: Any) -> None:
    """Until the one who takes from it has dealt with everything, and waits for more with the lock of all takers."""
    until_s = time.monotonic() + _LONGEST_S
    while queue.qsize() or _take(queue._rlock):
        if time.monotonic() > until_s:
            raise CaptureError("what its thread has yet to write is not written")
        time.sleep(_PAUSE_S)
    time.sleep(_PAUSE_S)


def _take(lock: Any) -> bool:
    """True if nobody has the lock; it is given back."""
    is_free = bool(lock.acquire(block=False))
    if is_free:
        lock.release()
    return is_free


register_name(LogThreadHandler(), "tensorboard.summary.writer.event_file_writer:_AsyncWriter")
register_name(LogQueueHandler(), "tensorboardX.event_file_writer:EventFileWriter")

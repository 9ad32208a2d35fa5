"""Handlers for log writers with threads of their own: what waits in their queues is flushed to the files before a checkpoint is taken."""

from __future__ import annotations

import time
from typing import Any

from detrain.errors import CaptureError
from detrain.state.handler import Capturing, mark_not_saved
from detrain.state.handlers.objects import OWNS_THREAD, KeptHandler
from detrain.state.registry import register_name
from detrain.state.tree import Node

#: A consumer looks idle between taking an item and releasing the lock, so it is checked twice.
_CHECKS = 2
_PAUSE_S, _LONGEST_S = 0.001, 10.0


class LogThreadHandler(KeptHandler):
    """Kept as the set-up code makes it, with a log file of its own in each attempt.

    Its queue is flushed first: what waits in it is in no file yet, and the writer of a resumed attempt has another file.
    """

    kind = "log thread"
    is_dropped_silently = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if not obj._closed:
            obj.flush()
        mark_not_saved(node, OWNS_THREAD, warns=False)


class LogQueueHandler(LogThreadHandler):
    """The same behind a `multiprocessing.Queue`, which cannot be waited for until its items have been processed."""

    kind = "log queue"
    is_dropped_silently = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if not obj._closed:
            for _ in range(_CHECKS):
                _wait_until_idle(obj._event_queue)
        super().capture(obj, node, walk)


def _wait_until_idle(queue: Any) -> None:
    """Wait until the consumer has processed every item and waits for more, holding the lock of the consumers."""
    until_s = time.monotonic() + _LONGEST_S
    while queue.qsize() or _is_free(queue._rlock):
        if time.monotonic() > until_s:
            raise CaptureError("what its thread has yet to write is not written")
        time.sleep(_PAUSE_S)
    time.sleep(_PAUSE_S)


def _is_free(lock: Any) -> bool:
    """True if nobody holds the lock; it is released again."""
    is_free = bool(lock.acquire(block=False))
    if is_free:
        lock.release()
    return is_free


register_name(LogThreadHandler(), "tensorboard.summary.writer.event_file_writer:_AsyncWriter")
register_name(LogQueueHandler(), "tensorboardX.event_file_writer:EventFileWriter")

"""Handlers for what libraries write to files on threads of their own: it is in the files when a checkpoint has been taken."""

from __future__ import annotations

from typing import Any

from detrain.state.objects import OWNS_THREAD, KeptHandler
from detrain.state.registry import register_name
from detrain.state.tree import Node
from detrain.state.walk import Walk, keep


class LogThreadHandler(KeptHandler):
    """Stays what the set-up code has made, with a log of its own in each attempt; what waits to be written is written out first.

    The file alone does not know of it: it waits in the thread's queue, and an attempt that was resumed has another file in the place
    where the library keeps its own.
    """

    kind = "log thread"

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        if not obj._closed:
            obj.flush()
        keep(node, OWNS_THREAD, is_loud=False)


register_name(LogThreadHandler(), "tensorboard.summary.writer.event_file_writer:_AsyncWriter")

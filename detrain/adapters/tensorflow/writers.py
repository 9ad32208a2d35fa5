"""Writers of summaries and of records.

TensorFlow opens an event file of a new name for each summary writer of each process. A killed attempt's event file is cut back to the
checkpoint like any file that is appended to; the next attempt's own file, which TensorBoard reads after it, goes on from there. TensorFlow
opens event files where Python does not see it, so each is opened once more here, for the session to follow it among the script's files.
"""

from __future__ import annotations

import fcntl
import os
import struct
import weakref
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.ops import summary_ops_v2

from detrain.errors import CaptureError
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import Capturing, Handler, Restoring, mark_not_saved
from detrain.state.tree import Node

SummaryWriter = summary_ops_v2._ResourceSummaryWriter
_MADE_OF = ("logdir", "max_queue", "flush_millis", "filename_suffix")
#: Bytes of a TFRecord around its content: the length and two checksums.
_FRAME = 16


class _Made(NamedTuple):
    """The arguments of a writer, and its event file."""

    arguments: dict[str, Any]
    log: Path


_made: weakref.WeakKeyDictionary[Any, _Made] = weakref.WeakKeyDictionary()


def patch() -> None:
    """Patch the making of writers."""
    plain = SummaryWriter.__init__

    @wraps(plain)
    def init(writer: Any, create_fn: Any, init_op_fn: Any, *args: Any, **kwargs: Any) -> None:
        given = getattr(init_op_fn, "keywords", {})
        if not context.executing_eagerly() or not all(name in given for name in _MADE_OF):
            plain(writer, create_fn, init_op_fn, *args, **kwargs)
            return
        arguments = {name: tf.convert_to_tensor(given[name]).numpy() for name in _MADE_OF}
        folder = Path(os.fsdecode(arguments["logdir"]))
        before = set(folder.glob("*.tfevents.*"))
        plain(writer, create_fn, init_op_fn, *args, **kwargs)
        new = set(folder.glob("*.tfevents.*")) - before
        if len(new) == 1:
            _made[writer] = _Made(arguments, new.pop())
            _show(_made[writer].log)

    SummaryWriter.__init__ = init


def _show(log: Path) -> None:
    """Open an event file that TensorFlow has just made, so that the session follows it from its first byte on."""
    aside = log.with_name(f".{log.name}.aside")
    log.rename(aside)
    with open(log, "ab"):
        pass
    aside.rename(log)
    for number in os.listdir("/proc/self/fd"):
        try:
            is_log = os.path.samefile(f"/proc/self/fd/{number}", log)
        except OSError:
            continue  # closed meanwhile: by the listing itself
        if is_log:
            fcntl.fcntl(int(number), fcntl.F_SETFL, fcntl.fcntl(int(number), fcntl.F_GETFL) | os.O_APPEND)


class SummaryWriterHandler(Handler):
    """What it was made of, and whether it is closed. Its events are in its log."""

    kind = "tensorflow.summary writer"
    fields: ClassVar = {**plain_fields("closed"), "data": Holds.NAMED}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["closed"] = obj._closed
        made = _made.get(obj)
        if made is None:
            raise CaptureError("its log was not seen when it was opened, and cannot be cut back")
        node["data"] = [[name, walk.child(_plain(value), f".{name}")] for name, value in made.arguments.items()]
        if not obj._closed:
            obj.flush()

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and live in _made

    def build(self, node: Node, restore: Restoring) -> Any:
        arguments = {name: restore.value(ref) for name, ref in node["data"]}
        return tf.summary.create_file_writer(**arguments)

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if not obj._closed:
            obj.flush()
            _keep_header(_made[obj].log)  # what the set-up code has written is in the log that the checkpoint knows
        if node["closed"] and not obj._closed:
            obj.close()


def _plain(value: Any) -> Any:
    return os.fsdecode(value) if isinstance(value, bytes) else int(value)


def _keep_header(log: Path) -> None:
    """Cut an event file down to its first record, which holds its version."""
    with open(log, "r+b") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        file.truncate(length + _FRAME)


class RecordWriterHandler(Handler):
    """A `TFRecordWriter` that has been closed; one that is open cannot be taken back."""

    kind = "tensorflow.record writer"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        try:
            obj.flush()
        except tf.errors.FailedPreconditionError:
            mark_not_saved(node, "closed", warns=False)
        else:
            raise CaptureError("a file of records that is being written cannot be cut back to what it was")

"""Files of `tf.io.gfile`: name, mode and place. What is in them is the session's business, as for those of `open`."""

from __future__ import annotations

from typing import Any, ClassVar

from tensorflow.python.lib.io import _pywrap_file_io

from detrain.state.fields import plain_fields
from detrain.state.handler import Capturing, Handler, Restoring
from detrain.state.tree import Node


class FileIOHandler(Handler):
    """Pending writes are flushed first. One that was written to goes on at the end of the file, which is given back by then."""

    kind = "tensorflow.FileIO"
    fields: ClassVar = plain_fields("name", "mode", "encoding", "is_writing", "position")
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["name"], node["mode"], node["encoding"] = str(obj.name), obj.mode, obj._FileIO__encoding
        node["is_writing"] = obj._writable_file is not None
        if node["is_writing"]:
            obj.flush()
        elif obj._read_buf is not None:
            node["position"] = obj.tell()

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and (str(live.name), live.mode) == (node["name"], node["mode"])

    def build(self, node: Node, restore: Restoring) -> Any:
        return restore.find_type(node)(node["name"], node["mode"])

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        obj._FileIO__encoding = node["encoding"]
        if obj._writable_file is not None:
            obj._writable_file.close()  # it was flushed before the file was given back
        obj._writable_file = obj._read_buf = None
        if node["is_writing"]:
            obj._writable_file = _pywrap_file_io.WritableFile(node["name"].encode(), b"ab")
        elif "position" in node:
            obj.seek(node["position"])

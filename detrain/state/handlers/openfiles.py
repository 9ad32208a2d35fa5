"""Handlers for file objects: their positions. The contents of the files are put back by the session (`detrain.outputs.following`)."""

from __future__ import annotations

import bz2
import gc
import gzip
import io
import lzma
import os
import sys
from typing import Any, ClassVar

import numpy as np

from detrain.errors import CaptureError, RestoreError
from detrain.state.fields import plain_fields
from detrain.state.handler import Capturing, Handler, Restoring, mark_not_saved
from detrain.state.handlers import positions
from detrain.state.registry import register
from detrain.state.tree import Node

_LINE_ENDS = ("", "\n", "\r", "\r\n")
_STANDARD = ("stdin", "stdout", "stderr", "__stdin__", "__stdout__", "__stderr__")


class FileHandler(Handler):
    """A file object of `open`: name, mode and position. Pending writes are flushed first, so that the position holds."""

    kind = "file"
    fields: ClassVar = plain_fields("closed", "standard", "position", "name", "compressed", "mode", "text")
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if obj.closed:
            node["closed"] = True
            return
        try:
            number = obj.fileno()
        except (OSError, AttributeError):
            raise CaptureError("a stream without a file") from None
        standard = [name for name in _STANDARD if obj is getattr(sys, name)]
        if standard:
            node["standard"] = standard[0]
            return
        if number <= 2:
            mark_not_saved(node, "a standard stream under another name", warns=False)
            return
        if not obj.seekable():
            raise CaptureError("a pipe or socket has no position to come back to")
        if _is_compressed(obj) and obj.writable():
            raise CaptureError("a compressed file cannot be cut back to what it was")
        try:
            if obj.writable():
                obj.flush()
            node["position"] = positions.tell(obj) if isinstance(obj, io.TextIOWrapper) else obj.tell()
        except OSError as error:
            raise CaptureError(f"its position cannot be told ({error})") from None
        node["name"] = _name(obj)
        if _is_compressed(obj):
            node["compressed"] = type(getattr(obj, "buffer", obj)).__module__
        else:
            node["mode"] = _raw_mode(obj)
        if isinstance(obj, io.TextIOWrapper):
            node["text"] = [obj.encoding, obj.errors, _line_end(obj)]

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        if "kept" in node or "closed" in node:
            return True
        if "standard" in node:
            return live is getattr(sys, node["standard"])
        return "name" in node and not live.closed and _name(live) == node["name"]

    def build(self, node: Node, restore: Restoring) -> Any:
        if "standard" in node:
            return getattr(sys, node["standard"])
        if "closed" in node:
            return open(os.devnull)
        name, mode = node["name"], node.get("mode", "rb")
        if not isinstance(name, str) or not os.path.exists(name):
            raise RestoreError(f"{restore.path_of(node)}: the file {name} that the script had open is gone")
        # "w" and "x" would empty the file or refuse; what they leave behind is a file open for writing.
        mode = "r+b" if mode[0] in "wx" else mode
        opened = open if "compressed" not in node else vars(_COMPRESSED[node["compressed"]])["open"]
        if "text" in node:
            encoding, errors, line_end = node["text"]
            mode = mode.replace("b", "") if opened is open else "rt"
            return opened(name, mode, encoding=encoding, errors=errors, newline=line_end)
        if opened is open and issubclass(restore.find_type(node), io.FileIO):
            return open(name, mode, buffering=0)
        return opened(name, mode)

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "standard" in node:
            return
        if "closed" in node:
            obj.close()
            return
        if obj.writable():
            obj.flush()
        restore.afterwards(lambda: obj.seek(node["position"]) and None)


#: Modules with an `open` of their own; such files can be read anywhere, by reading them again up to there.
_COMPRESSED = {"gzip": gzip, "bz2": bz2, "lzma": lzma}


def _is_compressed(obj: Any) -> bool:
    return isinstance(getattr(obj, "buffer", obj), (gzip.GzipFile, bz2.BZ2File, lzma.LZMAFile))


def _name(obj: Any) -> Any:
    inner = getattr(obj, "buffer", obj)
    named: Any = vars(inner)["_fp"] if isinstance(inner, (bz2.BZ2File, lzma.LZMAFile)) else inner
    name = named.name
    return os.path.abspath(os.fsdecode(name)) if isinstance(name, (str, bytes)) else name


def _line_end(file: io.TextIOWrapper) -> str | None:
    """The `newline` that a text file was opened with, which it says nowhere.

    The texts that it refers to are, in this order, its encoding, its line end unless that is None, what it has decoded ahead if there is
    any of that, and how it meets errors.
    """
    texts = [part for part in gc.get_referents(file) if type(part) is str][1:-1]
    if len(texts) == 1 and texts[0] in _LINE_ENDS:
        file.seek(file.tell())  # drops what was decoded ahead
        texts = [part for part in gc.get_referents(file) if type(part) is str][1:-1]
    return texts[0] if texts and texts[0] in _LINE_ENDS else None


def _raw_mode(obj: Any) -> str:
    raw = getattr(getattr(obj, "buffer", obj), "raw", obj)
    return {"ab+": "a+b", "xb+": "w+b", "rb+": "r+b"}.get(raw.mode, str(raw.mode))


class MemoryFileHandler(Handler):
    """`io.StringIO` and `io.BytesIO`: content and position."""

    kind = "memory file"
    fields: ClassVar = plain_fields("closed", "position", "v", "newline")

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if obj.closed:
            node["closed"] = True
            return
        node["position"] = obj.tell()
        content = obj.getvalue()
        if isinstance(content, str):
            node["v"] = content
            state: Any = io.StringIO.__getstate__(obj)
            newline = state[1]
            if newline != "\n":
                node["newline"] = newline
        else:
            walk.array(node, np.frombuffer(content, dtype=np.uint8))

    def build(self, node: Node, restore: Restoring) -> Any:
        made = super().build(node, restore)
        plain: Any = io.StringIO if isinstance(made, io.StringIO) else io.BytesIO
        plain.__init__(made)  # or it could not be closed
        return made

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "closed" in node:
            obj.close()
            return
        if "v" in node:
            # A new one is not ready to be written to, and writing would translate line ends once more.
            plain: Any = io.StringIO
            plain.__setstate__(obj, (node["v"], node.get("newline", "\n"), node["position"], None))
            return
        obj.seek(0)
        obj.truncate()
        obj.write(restore.data(node).tobytes())
        obj.seek(node["position"])


register(
    FileHandler(),
    io.TextIOWrapper, io.BufferedWriter, io.BufferedReader, io.BufferedRandom, io.FileIO, gzip.GzipFile, bz2.BZ2File, lzma.LZMAFile,
)  # fmt: skip
register(MemoryFileHandler(), io.StringIO, io.BytesIO)

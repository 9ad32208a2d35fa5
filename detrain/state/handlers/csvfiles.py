"""Handlers for `csv.reader` and `csv.writer`: what they read from or write to, how, and how many lines have been read."""

from __future__ import annotations

import csv
import ctypes
import functools
import gc
import io
from typing import Any, ClassVar

from detrain.errors import CaptureError, RestoreError
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import Capturing, Handler, Restoring
from detrain.state.registry import register
from detrain.state.tree import Node

READER = type(csv.reader(()))
_WRITER = type(csv.writer(io.StringIO()))
_DIALECT = (
    "delimiter",
    "doublequote",
    "escapechar",
    "lineterminator",
    "quotechar",
    "quoting",
    "skipinitialspace",
    "strict",
)


class CsvReaderHandler(Handler):
    """A reader between two rows holds nothing but its source, its dialect and its number of lines."""

    kind = "csv reader"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("line"), "data": Holds.NAMED, "parts": Holds.LIST}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if _place_of_line_num() is None:
            raise CaptureError("its number of lines cannot be set in this version of Python")
        node["data"] = [[name, walk.child(value, f".{name}")] for name, value in _dialect(obj).items()]
        node["line"] = obj.line_num
        node["parts"] = [walk.child(_source(obj), ".<source>")]

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and _dialect(live) == _saved_dialect(node, restore)

    def build(self, node: Node, restore: Restoring) -> Any:
        return csv.reader(iter(()), **_saved_dialect(node, restore))

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        place = _place_of_line_num()
        if place is None:
            raise RestoreError(f"{restore.path_of(node)}: its number of lines cannot be set in this version of Python")
        ctypes.c_ulong.from_address(id(obj) + place).value = node["line"]
        old = _source(obj)
        _exchange(obj, old, restore.value(node["parts"][0], old))


class CsvWriterHandler(Handler):
    """A writer holds nothing but its dialect and the method that writes."""

    kind = "csv writer"
    fields: ClassVar = {**plain_fields("is_method"), "data": Holds.NAMED, "parts": Holds.LIST}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["data"] = [[name, walk.child(value, f".{name}")] for name, value in _dialect(obj).items()]
        write = _write(obj)
        node["is_method"] = _is_method(write)
        node["parts"] = [walk.child(write.__self__ if node["is_method"] else write, ".<file>")]

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return (
            super().matches(live, node, restore)
            and _dialect(live) == _saved_dialect(node, restore)
            and _is_method(_write(live)) == node["is_method"]
        )

    def build(self, node: Node, restore: Restoring) -> Any:
        return csv.writer(io.StringIO(), **_saved_dialect(node, restore))

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        old = _write(obj)
        if not node["is_method"]:
            _exchange(obj, old, restore.value(node["parts"][0], old))
            return
        file = restore.value(node["parts"][0], old.__self__)
        if file is not old.__self__:
            _exchange(obj, old, file.write)


def _saved_dialect(node: Node, restore: Restoring) -> dict[str, Any]:
    return {name: restore.value(ref) for name, ref in node["data"]}


def _dialect(obj: Any) -> dict[str, Any]:
    return {name: getattr(obj.dialect, name) for name in _DIALECT}


def _write(writer: Any) -> Any:
    """What a writer calls: beside that it refers to its types, its dialect and, on some versions, the row that it is at."""
    callables = [part for part in gc.get_referents(writer) if callable(part) and not isinstance(part, type)]
    if len(callables) != 1:
        raise CaptureError("what it writes to cannot be told")
    return callables[0]


def _is_method(write: Any) -> bool:
    return getattr(write, "__name__", "") == "write" and getattr(write, "__self__", None) is not None


def _source(reader: Any) -> Any:
    """The iterator that a reader takes its lines from: beside that it refers to its type, its dialect and the row that it is at."""
    (source,) = (part for part in gc.get_referents(reader) if type(part) not in (type(reader.dialect), list, type))
    return source


def _exchange(obj: Any, old: Any, new: Any) -> None:
    """Put another object in the place of one that a reader or writer holds. Making one of a file that has been closed would fail."""
    if new is old:
        return
    words = (ctypes.c_void_p * (type(obj).__basicsize__ // ctypes.sizeof(ctypes.c_void_p))).from_address(id(obj))
    place = list(words).index(id(old))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(new))
    words[place] = id(new)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(old))


@functools.cache
def _place_of_line_num() -> int | None:
    """Where in a reader its number of lines lies, in bytes from its beginning: the only place that holds it in each of several readers."""
    places = None
    for count in (771, 1542, 1543):
        probe = csv.reader(iter(["x"] * count))
        for _ in probe:
            pass
        held = {
            place
            for place in range(object.__basicsize__, READER.__basicsize__, ctypes.sizeof(ctypes.c_ulong))
            if ctypes.c_ulong.from_address(id(probe) + place).value == count
        }
        places = held if places is None else places & held
    return places.pop() if places and len(places) == 1 else None


register(CsvReaderHandler(), READER)
register(CsvWriterHandler(), _WRITER)

"""Handler for `csv.reader`: what it reads from, how it reads, and how many lines it has read."""

from __future__ import annotations

import csv
import ctypes
import functools
import gc
from typing import Any

from detrain.errors import CaptureError, RestoreError
from detrain.state.registry import Handler, register
from detrain.state.restore import Restore
from detrain.state.tree import Node
from detrain.state.walk import Walk

READER = type(csv.reader(()))
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
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        if _place_of_line_num() is None:
            raise CaptureError("its number of lines cannot be set in this version of Python")
        node["data"] = [[name, walk.child(value, f".{name}")] for name, value in _dialect(obj).items()]
        node["line"] = obj.line_num
        node["parts"] = [walk.child(_source(obj), ".<source>")]

    def is_twin(self, live: Any, node: Node, restore: Restore) -> bool:
        return super().is_twin(live, node, restore) and _dialect(live) == self._saved_dialect(node, restore)

    def build(self, node: Node, restore: Restore) -> Any:
        return csv.reader(iter(()), **self._saved_dialect(node, restore))

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        place = _place_of_line_num()
        if place is None:
            raise RestoreError(f"{restore.path_of(node)}: its number of lines cannot be set in this version of Python")
        ctypes.c_ulong.from_address(id(obj) + place).value = node["line"]
        _set_source(obj, restore.value(node["parts"][0], _source(obj)))

    @staticmethod
    def _saved_dialect(node: Node, restore: Restore) -> dict[str, Any]:
        return {name: restore.value(ref) for name, ref in node["data"]}


def _dialect(reader: Any) -> dict[str, Any]:
    return {name: getattr(reader.dialect, name) for name in _DIALECT}


def _source(reader: Any) -> Any:
    """The iterator that a reader takes its lines from: beside that it refers to its type, its dialect and the row that it is at."""
    (source,) = (one for one in gc.get_referents(reader) if type(one) not in (type(reader.dialect), list, type))
    return source


def _set_source(reader: Any, source: Any) -> None:
    """Let a reader take its lines from elsewhere. Making one of a file that has been closed would fail."""
    old = _source(reader)
    if source is old:
        return
    words = (ctypes.c_void_p * (READER.__basicsize__ // ctypes.sizeof(ctypes.c_void_p))).from_address(id(reader))
    place = list(words).index(id(old))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(source))
    words[place] = id(source)
    ctypes.pythonapi.Py_DecRef(ctypes.py_object(old))


@functools.cache
def _place_of_line_num() -> int | None:
    """Where in a reader its number of lines lies, in bytes from its beginning: the only place that holds it in each of several readers."""
    found = None
    for count in (771, 1542, 1543):
        probe = csv.reader(iter(["x"] * count))
        for _ in probe:
            pass
        held = {
            place
            for place in range(object.__basicsize__, READER.__basicsize__, ctypes.sizeof(ctypes.c_ulong))
            if ctypes.c_ulong.from_address(id(probe) + place).value == count
        }
        found = held if found is None else found & held
    return found.pop() if found and len(found) == 1 else None


register(CsvReaderHandler(), READER)

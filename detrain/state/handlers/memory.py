"""Handlers for plain memory: ctypes and memory maps, shared with other processes or not."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any, ClassVar

import numpy as np

from detrain.errors import CaptureError, RestoreError
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import CannotBuild, Capturing, Handler, Restoring, mark_not_saved
from detrain.state.registry import register
from detrain.state.tree import Node


class CDataHandler(Handler):
    """Numbers, arrays and structures of ctypes, also in shared memory: their bytes."""

    kind = "ctypes"
    fields: ClassVar = {**plain_fields("shape"), "of": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if _has_addresses(type(obj)):
            raise CaptureError("it holds an address")
        walk.array(node, np.frombuffer(memoryview(obj).cast("B"), dtype=np.uint8))
        element, shape = _elements_of(type(obj))
        if shape and _array_type(element, shape) is type(obj):  # no name leads to it
            node["of"], node["shape"] = walk.child(element, ""), shape

    def build(self, node: Node, restore: Restoring) -> Any:
        if "shape" in node:
            return _array_type(restore.value(node["of"]), node["shape"])()
        return restore.find_type(node)()

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        content = restore.data(node).tobytes()
        if len(content) != ctypes.sizeof(obj):
            raise RestoreError(f"{restore.path_of(node)} has {ctypes.sizeof(obj)} bytes and had {len(content)}")
        ctypes.memmove(ctypes.addressof(obj), content, len(content))


def _elements_of(cls: Any) -> tuple[Any, list[int]]:
    """The type of an array's elements, and how many there are in each dimension."""
    shape = []
    while issubclass(cls, ctypes.Array):
        shape.append(cls._length_)
        cls = cls._type_
    return cls, shape


def _array_type(element: Any, shape: list[int]) -> Any:
    for length in reversed(shape):
        element = element * length
    return element


def _has_addresses(cls: Any) -> bool:
    """True for types whose bytes mean something in one process only."""
    if issubclass(cls, ctypes.Array):
        return _has_addresses(cls._type_)
    if issubclass(cls, (ctypes.Structure, ctypes.Union)):
        return any(_has_addresses(field[1]) for field in getattr(cls, "_fields_", ()))
    return getattr(cls, "_type_", "P") in ("P", "z", "Z", "O")


class MemoryMapHandler(Handler):
    """A memory map that can be written: its bytes. Those under a `numpy.memmap` are the array's."""

    kind = "memory map"
    has_attributes = False
    looks_above = True

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if obj.closed:
            mark_not_saved(node, "closed", warns=False)
            return
        content = np.frombuffer(obj, dtype=np.uint8)
        holder = walk.node(node["p"])["t"] if node["p"] is not None else ""
        if not content.flags.writeable or holder.startswith("numpy:"):
            mark_not_saved(node, "shows a file or an array", warns=False)
        else:
            walk.array(node, content.copy())  # a view would keep the script from closing the map

    def build(self, node: Node, restore: Restoring) -> Any:
        raise CannotBuild("a memory map is made by the script")

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        content = restore.data(node).tobytes()
        if len(content) != len(obj):
            raise RestoreError(f"{restore.path_of(node)} has {len(obj)} bytes and had {len(content)}")
        obj[:] = content


class ViewHandler(Handler):
    """A memoryview: the object that it is a view of, format, shape and strides."""

    kind = "memoryview"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("look"), "of": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        try:
            node["of"] = walk.child(obj.obj, "")
        except ValueError:
            mark_not_saved(node, "released", warns=False)
            return
        node["look"] = _layout(obj)

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        return _layout(live) == node["look"] and restore.value(node["of"], live.obj) is live.obj

    def build(self, node: Node, restore: Restoring) -> Any:
        restore.fill_now(node["of"])  # while somebody looks at it, nobody can give it another size
        whole = memoryview(restore.value(node["of"]))
        format_, shape, strides = node["look"]
        if _layout(whole) != node["look"]:
            try:
                whole = whole.cast("B").cast(format_, shape)
            except TypeError as error:
                raise CannotBuild(f"a view of a part of something: {error}") from None
        if _layout(whole) != [format_, shape, strides]:
            raise CannotBuild("a view of a part of something")
        return whole


def _layout(view: memoryview) -> list[Any]:
    return [view.format, list(view.shape or ()), list(view.strides or ())]


register(ViewHandler(), memoryview)
register(CDataHandler(), ctypes._SimpleCData, ctypes.Array, ctypes.Structure, ctypes.Union)
register(MemoryMapHandler(), mmap.mmap)

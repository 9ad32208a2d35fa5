"""Handlers for objects whose state only their own pickling tells: of types written in C, and of classes that hold such parts.

Where the script holds elsewhere as well what is inside, the parts that `__reduce_ex__` gives are captured as the state of any other
object, so that they are shared again after a restore. Else the state is one pickle.
"""

from __future__ import annotations

import copyreg
import ctypes
import functools
import io
import pickle
import types
from collections import ChainMap
from collections.abc import Callable, Collection
from typing import Any, ClassVar

import numpy as np
import xxhash

from detrain.errors import CaptureError, RestoreError, ResumeRefused
from detrain.state import registry
from detrain.state.attributes import instance_dict
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import KEY, Capturing, Handler, Restoring, mark_not_saved
from detrain.state.handlers.objects import OWNS_THREAD, ObjectHandler, is_bound_elsewhere
from detrain.state.tree import ATOMS, Node, is_node
from detrain.state.user_code import is_user_module

#: Kinds of nodes of what cannot be shared so that it matters: it never changes, or is found by its name.
_PLAIN = frozenset({"class", "enum", "function", "method", "module", "numpy.generic", "value"})
_POINTERS = (ctypes.c_void_p, ctypes._Pointer)
_VALUES = ATOMS | {tuple}
#: Characters of a text that holds the state of something.
_LONG = 64


#: By type, as in `copyreg.dispatch_table`: for objects whose own pickling tells where they lie in memory, so that no two were alike.
reducers: dict[type, Callable[[Any], Any]] = {}


class Reduced:
    """An object by what its `__reduce_ex__` gives: a function, its arguments, a state, elements and items."""

    fields: ClassVar = {
        **plain_fields("same"), "function": Holds.ONE, "args": Holds.ONE, "state": Holds.ONE, "setter": Holds.ONE,
        "parts": Holds.LIST, "items": Holds.ITEMS,
    }  # fmt: skip

    @staticmethod
    def capture(obj: Any, node: Node, walk: Capturing, content: bytes) -> None:
        """Store the parts. `content`: the object's pickle."""
        function, args, *rest = reduction(obj)
        state, elements, items, setter = (*rest, None, None, None, None)[:4]
        node["same"] = xxhash.xxh3_128_hexdigest(content)
        node["function"], node["args"] = walk.child(function, ".<function>"), walk.child(args, ".<args>")
        if state is not None:
            node["state"] = walk.child(state, ".<state>")
        if setter is not None:
            node["setter"] = walk.child(setter, ".<setter>")
        if elements is not None:
            node["parts"] = walk.children(elements)
        if items is not None:
            node["items"] = [[walk.child(key, KEY), walk.child(value, "[…]")] for key, value in items]

    @staticmethod
    def is_same(live: Any, node: Node) -> bool:
        """True if a live object has the state of the node."""
        try:
            return bool(xxhash.xxh3_128_hexdigest(pickled(live)[0]) == node["same"])
        except CaptureError:
            return False

    @staticmethod
    def build(node: Node, restore: Restoring) -> Any:
        """Make the object; its state is still to be set."""
        if not restore.allows_pickle:
            raise ResumeRefused(f"{restore.path_of(node)} ({node['t']}) is a pickled leaf, which --no-pickle refuses")
        function, args = restore.value(node["function"]), restore.value(node["args"])
        restore.fill_pending()
        return function(*args)

    @staticmethod
    def fill(obj: Any, node: Node, restore: Restoring) -> None:
        """Set the state of an object that `build` has made, as `pickle` and `copy` do."""
        state = restore.value(node.get("state"))
        parts = restore.values(node.get("parts", []))
        items = [(restore.value(key), restore.value(value)) for key, value in node.get("items", [])]
        restore.fill_pending()
        if "setter" in node:
            restore.value(node["setter"])(obj, state)
        elif "state" in node:
            _set_state(obj, state)
        for part in parts:
            obj.append(part)
        for key, value in items:
            obj[key] = value


def _set_state(obj: Any, state: Any) -> None:
    if hasattr(obj, "__setstate__"):
        obj.__setstate__(state)
        return
    named, slots = state if isinstance(state, tuple) and len(state) == 2 else (state, None)
    if named:
        obj.__dict__.update(named)
    for name, value in (slots or {}).items():
        setattr(obj, name, value)


class OpaqueHandler(Handler):
    """An object of a type written in C that no handler knows: its state is what its pickling gives.

    A live object with the same pickle is left alone, so that restoring runs no code of the file for what the loop did not change.
    """

    kind = "opaque"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("name", "pickle", "shares"), **Reduced.fields}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        name = _member_name(obj)
        if name is not None:
            node["name"] = name
            return
        content, parts = pickled(obj)
        held = [
            part for part in parts if type(part) not in _VALUES and registry.handler_for(type(part)).kind not in _PLAIN
        ]
        is_of_script = any(isinstance(part, type) and is_user_module(part.__module__) for part in parts)
        walk.at_end(functools.partial(self._store, obj, node, walk, content, held, is_of_script))

    def _store(
        self, obj: Any, node: Node, walk: Capturing, content: bytes, held: list[Any], is_of_script: bool
    ) -> None:
        """`held`: what is inside, and would not be shared any more with whoever else holds it.

        `is_of_script`: classes of the script are, which a later attempt may have to make.
        """
        if is_of_script or any(map(walk.has_reached, held)):
            Reduced.capture(obj, node, walk, content)
        else:
            walk.array(node, np.frombuffer(content, dtype=np.uint8))
            node["pickle"] = True

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        if "kept" in node:
            return True
        if "name" in node:
            return bool(_member_name(live) == node["name"])
        if "same" in node:
            return Reduced.is_same(live, node)
        try:
            return pickled(live)[0] == restore.data(node).tobytes()
        except CaptureError:
            return False

    def build(self, node: Node, restore: Restoring) -> Any:
        if "name" in node:
            return restore.find_type(node).__members__[node["name"]]
        if "same" in node:
            return Reduced.build(node, restore)
        if "shares" in node:  # of a checkpoint that an earlier version has written
            raise RestoreError(
                f"{restore.path_of(node)} ({node['t']}) differs from what the set-up code makes, and its pickle contains a copy of "
                f"{node['shares']}, with which it would no longer share memory"
            )
        if not restore.allows_pickle:
            raise ResumeRefused(f"{restore.path_of(node)} ({node['t']}) is a pickled leaf, which --no-pickle refuses")
        return pickle.loads(restore.data(node).tobytes())

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if is_new and "same" in node:
            Reduced.fill(obj, node, restore)


def _member_name(obj: Any) -> str | None:
    """Of a member of an enumeration that C++ has made (pybind11), its name."""
    members = getattr(type(obj), "__members__", None)
    name = getattr(obj, "name", None) if isinstance(members, dict) else None
    return name if isinstance(name, str) and isinstance(members, dict) and name in members else None


class FutureHandler(OpaqueHandler):
    """A future or a task of asyncio. Where its loop is run by another thread, so is what becomes of it."""

    kind = "asyncio future"
    is_dropped_silently = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if is_bound_elsewhere(obj):
            mark_not_saved(node, OWNS_THREAD, warns=False)
        else:
            super().capture(obj, node, walk)


class HolderHandler(ObjectHandler):
    """An instance of a class written in Python: its attributes, and its own pickling for those of them that say nothing of their state.

    Only where that pickling has data that is in no attribute, or where the part's memory can be read and written: else it makes the object
    anew, and the state of its parts is lost.
    """

    fields: ClassVar = {**ObjectHandler.fields, **plain_fields("inner", "memory"), **Reduced.fields}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        super().capture(obj, node, walk)
        attributes = instance_dict(obj)
        if "kept" in node or not attributes or not has_own_pickling(type(obj)):
            return
        inner = [name for name, value in attributes.items() if says_nothing(type(value))]
        if not inner:
            return
        try:
            content, parts = pickled(obj)
        except CaptureError:
            return  # the attributes are named one by one
        held = {id(value) for value in attributes.values()}
        memory = _memory_of(attributes[inner[0]]) if len(inner) == 1 else None
        if memory is not None or any(id(part) not in held and _is_data(part) for part in parts):
            own = [attributes[name] for name in inner]
            node["inner"] = [name for name, value in attributes.items() if name in inner or _is_bound_to(value, own)]
            Reduced.capture(obj, node, walk, content)
        if memory is not None:
            node["memory"] = inner[0]
            walk.array(node, memory.copy(), is_copy=True)

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and ("same" not in node or Reduced.is_same(live, node))

    def build(self, node: Node, restore: Restoring) -> Any:
        return Reduced.build(node, restore) if "same" in node else super().build(node, restore)

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        super().fill(obj, node, restore, is_new)
        if is_new and "same" in node:
            Reduced.fill(obj, node, restore)
        if "memory" in node:
            memory, data = _memory_of((instance_dict(obj) or {}).get(node["memory"])), restore.data(node)
            if memory is None or memory.size != data.size:
                raise RestoreError(f"{restore.path_of(node)}.{node['memory']} has other memory than at the checkpoint")
            memory[...] = data

    def attributes_left(self, obj: Any, node: Node, is_new: bool) -> Collection[str]:
        inner = node.get("inner", ())
        made = instance_dict(obj) if is_new and inner else None
        # Objects that its own pickling has made belong together with what C has made there: an image's palette, say.
        return [*inner, *(name for name, ref in node.get("attrs", ()) if is_node(ref) and name in (made or ()))]


def _memory_of(part: Any) -> Any:
    """The bytes of an object that lets itself be read and written, as an array over them; None if it does not.

    Not those of a pointer, which are an address.
    """
    if isinstance(part, _POINTERS):
        return None
    try:
        view = memoryview(part)
    except TypeError:
        return None
    if view.readonly or not view.c_contiguous or not view.nbytes:
        return None
    return np.frombuffer(view.cast("B"), dtype=np.uint8)


def _is_bound_to(value: Any, parts: list[Any]) -> bool:
    """True for a method of one of these objects."""
    return isinstance(value, (types.BuiltinMethodType, types.MethodType)) and any(
        value.__self__ is part for part in parts
    )


def _is_data(part: Any) -> bool:
    return (isinstance(part, (bytes, bytearray, np.ndarray)) and len(part) > 0) or (
        type(part) is str and len(part) >= _LONG
    )


def has_own_pickling(cls: type) -> bool:
    """True if a class, and not only `object`, says how it is pickled."""
    return cls in copyreg.dispatch_table or any(
        getattr(cls, name) is not getattr(object, name) for name in ("__reduce_ex__", "__reduce__", "__getstate__")
    )


def says_nothing(cls: type) -> bool:
    """True if instances hold memory that nobody can look into: of a type written in C without pickling, or a pointer."""
    if cls in ATOMS:
        return False
    return issubclass(cls, _POINTERS) or (registry.handler_for(cls).kind == "opaque" and not has_own_pickling(cls))


def reduction(obj: Any) -> tuple[Any, ...]:
    """What `pickle` would be given: function, arguments, and more."""
    own = copyreg.dispatch_table.get(type(obj))
    return tuple(own(obj) if own is not None else obj.__reduce_ex__(4))


class _Recording(pickle.Pickler):
    """Records what a pickle takes in."""

    dispatch_table: Any = ChainMap(reducers, copyreg.dispatch_table)

    def __init__(self, file: Any) -> None:
        super().__init__(file, protocol=4)
        self.parts: list[Any] = []

    def persistent_id(self, obj: Any) -> None:
        if type(obj) not in ATOMS or type(obj) in (bytes, str):
            self.parts.append(obj)


def pickled(obj: Any) -> tuple[bytes, list[Any]]:
    """The pickle of an object, and the objects, texts and bytes that are inside it."""
    if not has_own_pickling(type(obj)):
        # The default may yield an empty object and call it done.
        raise CaptureError("its type is written in C and says nothing of its state")
    try:
        content = io.BytesIO()
        pickler = _Recording(content)
        pickler.dump(obj)
        return content.getvalue(), pickler.parts[1:]
    except (TypeError, AttributeError, pickle.PicklingError, ValueError, NotImplementedError, RuntimeError) as error:
        raise CaptureError(f"it cannot be pickled: {error}") from None


registry.register(OpaqueHandler())
registry.register(HolderHandler())
registry.register_name(FutureHandler(), "_asyncio:Future", "_asyncio:Task")

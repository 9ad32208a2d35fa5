"""Handlers for the containers of Python: list, tuple, dict, set, deque and what is derived from them."""

from __future__ import annotations

import array
import collections
import functools
import itertools
import sys
import types
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from detrain.errors import CaptureError, RestoreError
from detrain.state.addresses import is_address
from detrain.state.classes import type_name
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import MISSING, CannotBuild, Capturing, Glance, Handler, Restoring
from detrain.state.handlers import hashtables
from detrain.state.registry import register
from detrain.state.tree import ATOMS, Node, decode_value, is_node, is_same_value, is_value
from detrain.state.user_code import is_user_module

#: Lists of this many whole numbers or floats are stored as one array.
_BULK = 1024
#: Types whose methods nobody has overridden.
_PLAIN_DICTS = (dict, collections.OrderedDict, collections.defaultdict)


class ListHandler(Handler):
    """Lists; long ones of numbers as one array."""

    kind = "list"
    is_dropped_silently = True
    fields: ClassVar = {"seq": Holds.LIST}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if len(obj) >= _BULK and (bulk := _as_array(obj)) is not None:
            walk.array(node, bulk)
        else:
            node["seq"] = walk.children(list.__iter__(obj))

    def glance(self, objs: Sequence[Any], cls: type) -> Glance | None:
        return _elements(objs) if cls is list and all(len(obj) < _BULK for obj in objs) else None

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "array" in node:
            list.__setitem__(obj, slice(None), restore.data(node).tolist())
        else:
            list.__setitem__(obj, slice(None), restore.values(node["seq"], list(list.__iter__(obj))))


def _elements(objs: Sequence[Any]) -> Glance:
    return Glance([], list(map(len, objs)), list(itertools.chain.from_iterable(objs)))


def _as_array(values: list[Any]) -> np.ndarray[Any, Any] | None:
    """The list as int64 or float64 if every element comes back with its type and bits."""
    kinds = set(map(type, values))
    if kinds == {float}:
        return np.array(values, dtype=np.float64)
    if kinds == {int}:
        try:
            return np.array(values, dtype=np.int64)
        except OverflowError:
            return None
    return None


class TupleHandler(Handler):
    """Tuples cannot be changed in place: an equal one is kept, any other is built from its restored elements."""

    kind = "tuple"
    is_dropped_silently = True
    fields: ClassVar = {"seq": Holds.LIST}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["seq"] = walk.children(tuple.__iter__(obj))

    def glance(self, objs: Sequence[Any], cls: type) -> Glance | None:
        return _elements(objs) if cls is tuple else None

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore) or len(live) != len(node["seq"]):
            return False
        elements = restore.values(node["seq"], tuple(tuple.__iter__(live)))
        return all(new is old or _same_value(new, old) for new, old in zip(elements, tuple.__iter__(live), strict=True))

    def build(self, node: Node, restore: Restoring) -> Any:
        cls = restore.find_type(node)
        return tuple.__new__(cls, restore.values(node["seq"]))


def _same_value(new: Any, old: Any) -> bool:
    """Equal in type and bits; only for atoms, anything with an identity must be the same object."""
    return type(new) in (int, str, bytes, bool, float) and is_same_value(new, old)


class DictHandler(Handler):
    """Dicts in their order; keys may be objects.

    The names of a library's module (`globals()` there, or what `__builtins__` stands for) are not walked, as the module itself is not.
    """

    kind = "dict"
    is_dropped_silently = True
    fields: ClassVar = {"items": Holds.ITEMS, "factory": Holds.ONE, **plain_fields("names_of")}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        library = _library_with(obj)
        if library is not None:
            node["names_of"] = library
            return
        node["items"] = walk.items(_Items(obj))
        if isinstance(obj, collections.defaultdict):
            node["factory"] = walk.child(obj.default_factory, ".default_factory")

    def glance(self, objs: Sequence[Any], cls: type) -> Glance | None:
        """Of those that can be no module's names."""
        if cls not in _PLAIN_DICTS or any("__name__" in obj for obj in objs):
            return None
        if cls is collections.defaultdict:
            parts = [
                part for obj in objs for part in (*itertools.chain.from_iterable(obj.items()), obj.default_factory)
            ]
            return Glance([], [2 * len(obj) + 1 for obj in objs], parts)
        pairs = itertools.chain.from_iterable(map(cls.items, objs))
        return Glance([], [2 * len(obj) for obj in objs], list(itertools.chain.from_iterable(pairs)))

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and _library_with(live) == node.get("names_of")

    def build(self, node: Node, restore: Restoring) -> Any:
        if "names_of" not in node:
            return super().build(node, restore)
        module = sys.modules.get(node["names_of"])
        if module is None:
            raise CannotBuild(f"module {node['names_of']} is not loaded")
        return vars(module)

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "names_of" in node:
            return
        live = dict(dict.items(obj))
        if "factory" in node:
            obj.default_factory = restore.value(node["factory"], obj.default_factory)
        by_position = list(live)
        own_keys = {key: key for key in live if type(key) in ATOMS or type(key) is tuple}
        by_identity = {id(key): value for key, value in live.items()}
        pairs = []
        is_hash_ready = True
        for position, (key_ref, value_ref) in enumerate(node["items"]):
            if is_node(key_ref):
                live_key = by_position[position] if position < len(by_position) else MISSING
                key = restore.value(key_ref, live_key)
                is_hash_ready = is_hash_ready and hashes_by_address(key)
                live_value = by_identity.get(id(key), MISSING)
            else:
                key = decode_value(key_ref)
                live_value = live.get(key, MISSING)
                key = restore.value(key_ref, own_keys.get(key, MISSING))
            pairs.append((key, restore.value(value_ref, live_value)))
        if is_hash_ready:
            _refill(obj, pairs)
        else:  # a key's `__hash__` may read attributes that are restored later
            restore.afterwards(lambda: _refill(obj, pairs))


def _library_with(obj: dict[Any, Any]) -> str | None:
    """The library's module whose names a dict holds; None if it is an ordinary dict, or has the names of a module of the user's."""
    name = dict.get(obj, "__name__")
    if type(name) is not str or is_user_module(name):
        return None
    module = sys.modules.get(name)
    return name if isinstance(module, types.ModuleType) and vars(module) is obj else None


def _refill(obj: Any, pairs: list[tuple[Any, Any]]) -> None:
    cls = collections.OrderedDict if isinstance(obj, collections.OrderedDict) else dict
    cls.clear(obj)
    for key, value in pairs:
        cls.__setitem__(obj, key, value)


class _Items:
    """The items of a dict in its order, without calling what a derived class overrides."""

    def __init__(self, obj: Any) -> None:
        self._items = (
            collections.OrderedDict.items(obj) if isinstance(obj, collections.OrderedDict) else dict.items(obj)
        )

    def items(self) -> Any:
        return self._items


class SetHandler(Handler):
    """Sets, with the hash table that they had; where that cannot be written, filled in their order, and it is checked that they keep it."""

    kind = "set"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("table"), "seq": Holds.LIST}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        _capture_set(obj, node, walk)

    def glance(self, objs: Sequence[Any], cls: type) -> Glance | None:
        """Of small ones."""
        looks = hashtables.looks(objs) if cls is set else None
        return None if looks is None else _elements(objs)._replace(facts=[looks])

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        elements = restore.values(node["seq"])
        restore.afterwards(lambda: _refill_set(obj, elements, node, restore))


def _capture_set(obj: Any, node: Node, walk: Capturing) -> None:
    node["seq"] = walk.children(hashtables.elements(obj))
    if (table := hashtables.read(obj)) is not None:
        node["table"] = table


def _refill_set(obj: Any, elements: list[Any], node: Node, restore: Restoring) -> None:
    live, table = list(set.__iter__(obj)), node.get("table")
    stands = len(live) == len(elements) and all(map(functools.partial(_stands_for, obj), live, elements))
    if stands and (table is None or table == hashtables.read(obj)):
        return  # already so, in this order
    if table is not None and hashtables.write(obj, elements, table):
        return
    set.clear(obj)
    for element in elements:
        set.add(obj, element)
    if list(map(id, set.__iter__(obj))) == list(map(id, elements)):
        return
    nodes = restore.tree.nodes
    if all(
        hashes_by_address(element) or is_address(ref, nodes) for element, ref in zip(elements, node["seq"], strict=True)
    ):
        restore.remark(f"{restore.path_of(node)}: this set of objects has another order than before")
    else:
        raise RestoreError(
            f"{restore.path_of(node)}: the set's iteration order depends on its history and cannot be reproduced; "
            "iterate over sorted(...) or use a dict"
        )


def _stands_for(holder: Any, old: Any, new: Any) -> bool:
    """True if a set's element is the saved one and lies where its hash says: the set keeps the one that it had when it was added."""
    if is_value(new):
        return old is new or is_same_value(old, new)
    return old is new and (hashes_by_address(new) or set.__contains__(holder, new))


def hashes_by_address(obj: Any) -> bool:
    """True for objects whose hash is their address: it is ready before they are filled, and no order by it can be relied on."""
    hash_function: Any = type(obj).__hash__
    return hash_function is object.__hash__


class FrozenSetHandler(Handler):
    """Frozen sets are built anew unless an equal one stands there."""

    kind = "frozenset"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("table"), "seq": Holds.LIST}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        _capture_set(obj, node, walk)

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore) or any(map(is_node, node["seq"])):
            return False
        if node.get("table") != hashtables.read(live):
            return False
        return list(map(repr, frozenset.__iter__(live))) == [repr(decode_value(ref)) for ref in node["seq"]]

    def build(self, node: Node, restore: Restoring) -> Any:
        elements = restore.values(node["seq"])
        are_ready = all(is_value(element) or hashes_by_address(element) for element in elements)
        if not are_ready:
            restore.fill_pending()  # an element's `__hash__` may read attributes that are restored later
        made = _make_frozen(restore.find_type(node), elements, node)
        if are_ready:
            return made
        # Last of all: what an element's hash is made of may itself be filled afterwards.
        restore.afterwards(lambda: restore.afterwards(lambda: _check_hashes(made, elements, node, restore)))
        return made


def _make_frozen(cls: type, elements: list[Any], node: Node) -> Any:
    made = hashtables.make_frozen(cls, elements, node["table"]) if "table" in node else None
    return frozenset.__new__(cls, elements) if made is None else made


def _check_hashes(made: Any, elements: list[Any], node: Node, restore: Restoring) -> None:
    if len(made) != len(elements) or not all(frozenset.__contains__(made, element) for element in elements):
        raise RestoreError(
            f"{restore.path_of(node)}: the hashes of this frozen set's members depend on the set itself; it cannot be rebuilt"
        )


class DequeHandler(Handler):
    """`collections.deque` with its bound."""

    kind = "deque"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("maxlen"), "seq": Holds.LIST}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["seq"] = walk.children(collections.deque.__iter__(obj))
        node["maxlen"] = obj.maxlen

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and live.maxlen == node["maxlen"]

    def build(self, node: Node, restore: Restoring) -> Any:
        cls = restore.find_type(node)
        made = cls.__new__(cls)
        collections.deque.__init__(made, (), node["maxlen"])
        return made

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        live = list(collections.deque.__iter__(obj))
        elements = restore.values(node["seq"], live)
        if len(elements) == len(live) and all(new is old for new, old in zip(elements, live, strict=True)):
            return  # filled again, it would end the iterators that run over it
        collections.deque.clear(obj)
        collections.deque.extend(obj, elements)


class BufferHandler(Handler):
    """`bytearray` and `array.array`: bytes that are changed in place."""

    kind = "buffer"
    is_dropped_silently = True
    fields: ClassVar = plain_fields("typecode")

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if isinstance(obj, array.array):
            node["typecode"] = obj.typecode
        walk.array(node, np.frombuffer(bytes(obj), dtype=np.uint8))

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and getattr(live, "typecode", None) == node.get("typecode")

    def build(self, node: Node, restore: Restoring) -> Any:
        cls = restore.find_type(node)
        return cls.__new__(cls, node["typecode"]) if "typecode" in node else cls.__new__(cls)

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        content = restore.data(node).tobytes()
        if isinstance(obj, array.array) and len(content) != len(obj) * obj.itemsize:
            del obj[:]
            obj.frombytes(content)
        elif isinstance(obj, array.array):
            memoryview(obj).cast("B")[:] = content  # in its size, while others look at it
        else:
            obj[:] = content


class SubclassedAtomHandler(Handler):
    """Numbers and strings of a derived class, `class Step(int)`: content and attributes."""

    kind = "atom"
    is_dropped_silently = True
    fields: ClassVar = {"v": Holds.ONE}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        value = _base_value(obj)
        if value is obj:
            raise CaptureError(f"{type_name(type(obj))} is not an atom")
        node["v"] = walk.child(value, "")

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and repr(_base_value(live)) == repr(decode_value(node["v"]))

    def build(self, node: Node, restore: Restoring) -> Any:
        cls = restore.find_type(node)
        value = decode_value(node["v"])
        return type(value).__new__(cls, value)


def _base_value(obj: Any) -> Any:
    """The plain number or text inside an object of a derived class, whatever that class overrides."""
    plain: dict[type, Any] = {
        int: int.__int__, float: float.__float__, complex: complex.__complex__, str: str.__str__, bytes: bytes.__bytes__,
    }  # fmt: skip
    for base, convert in plain.items():
        if isinstance(obj, base):
            return convert(obj)
    return obj


register(ListHandler(), list)
register(TupleHandler(), tuple)
register(DictHandler(), dict, collections.OrderedDict, collections.defaultdict)
register(SetHandler(), set)
register(FrozenSetHandler(), frozenset)
register(DequeHandler(), collections.deque)
register(BufferHandler(), bytearray, array.array)
register(SubclassedAtomHandler(), int, float, complex, str, bytes)

"""Handlers for objects that only refer to others: weak references, read-only views, context variables."""

from __future__ import annotations

import collections
import contextvars
import ctypes
import functools
import gc
import inspect
import types
import weakref
from typing import Any, ClassVar

from detrain.state.classes import type_name
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import KEY, MISSING, Capturing, Handler, Restoring, mark_not_saved
from detrain.state.registry import register
from detrain.state.tree import Node

_PROXIES = {type_name(cls): cls for cls in (weakref.ProxyType, weakref.CallableProxyType)}
_find_referent = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object)(("PyWeakref_GetObject", ctypes.pythonapi))


def referent(obj: Any) -> Any:
    """What a weak reference or a proxy refers to; None if that is gone. Any use of a proxy itself would run code of the script."""
    return ctypes.cast(_find_referent(ctypes.py_object(obj)), ctypes.py_object).value


class WeakReferenceHandler(Handler):
    """A weak reference or a proxy: its callback, and what it refers to if that is reachable otherwise."""

    kind = "weakref"
    is_dropped_silently = True
    fields: ClassVar = {"callback": Holds.ONE, "to": Holds.ONE}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        callback = _callback(obj)
        if callback is not None:
            node["callback"] = walk.child(callback, ".<callback>")
        # The walk goes breadth first: what lies deep has not been met yet.
        target = referent(obj)
        walk.at_end(functools.partial(self._name_target, target, node, walk), target)

    def _name_target(self, target: Any, node: Node, walk: Capturing) -> None:
        if target is None or walk.has_reached(target):
            node["to"] = walk.child(target, "()")
        else:
            # Walking on from here would keep alive, after a restore, what the script lets die.
            mark_not_saved(node, "a weak reference to an object that nothing else reaches", warns=False)

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        # The saved target has a place of its own, where it is matched; what the live one refers to is no candidate.
        if not super().matches(live, node, restore) or referent(live) is not restore.value(node["to"]):
            return False
        callback = _callback(live)
        return restore.value(node.get("callback"), callback) is callback

    def build(self, node: Node, restore: Restoring) -> Any:
        target = restore.value(node["to"])
        if target is None:
            target, callback = (_GoneCallable if node["t"] == type_name(weakref.CallableProxyType) else _Gone)(), None
        else:
            callback = restore.value(node.get("callback"))
        if node["t"] in _PROXIES:
            return weakref.proxy(target, callback)
        return weakref.ref.__new__(restore.find_type(node), target, callback)


def _callback(obj: Any) -> Any:
    if type(obj) in _PROXIES.values():
        return next(iter(gc.get_referents(obj)), None)  # its attributes are those of what it stands for
    return obj.__callback__


class WeakMethodHandler(Handler):
    """A `weakref.WeakMethod`: the object, the name of its method, and the callback."""

    kind = "weak method"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("method"), "callback": Holds.ONE, "to": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        callback = self._callback(obj)
        if callback is not None:
            node["callback"] = walk.child(callback, ".<callback>")
        target, function = self._parts(obj)
        walk.at_end(functools.partial(self._name_target, target, function, node, walk), target)

    def _name_target(self, target: Any, function: Any, node: Node, walk: Capturing) -> None:
        if target is None:
            node["to"] = None
        elif not walk.has_reached(target):
            mark_not_saved(node, "a weak reference to an object that nothing else reaches", warns=False)
        elif inspect.getattr_static(type(target), function.__name__, None) is not function:
            mark_not_saved(node, "a weak reference to a method that is not the class's own", warns=True)
        else:
            node["to"], node["method"] = walk.child(target, "()"), function.__name__

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        target, function = self._parts(live)
        if not super().matches(live, node, restore) or target is not restore.value(node["to"]):
            return False
        callback = self._callback(live)
        if restore.value(node.get("callback"), callback) is not callback:
            return False
        return target is None or function.__name__ == node["method"]

    def build(self, node: Node, restore: Restoring) -> Any:
        target = restore.value(node["to"])
        if target is None:
            return weakref.WeakMethod(_GoneCallable().__call__)
        return weakref.WeakMethod(getattr(target, node["method"]), restore.value(node.get("callback")))

    @staticmethod
    def _parts(obj: Any) -> tuple[Any, Any]:
        """Object and function; (None, None) once one of them is gone."""
        target, function = referent(obj), obj._func_ref()
        return (None, None) if target is None or function is None else (target, function)

    @staticmethod
    def _callback(obj: Any) -> Any:
        inner = obj.__callback__  # the class's own, which calls the script's
        return None if inner is None else inspect.getclosurevars(inner).nonlocals["callback"]


class _Gone:
    """What a dead reference has referred to."""


class _GoneCallable(_Gone):
    def __call__(self) -> None:
        """A proxy of what can be called is of another type."""


class WeakContainerHandler(Handler):
    """Weak dicts and sets: what is in them is theirs to forget; the members that are still reachable are put back."""

    kind = "weak container"
    fields: ClassVar = {"seq": Holds.LIST, "items": Holds.ITEMS}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if isinstance(obj, weakref.WeakSet):
            node["seq"] = walk.children(list(obj))
        else:
            node["items"] = [[walk.child(k, KEY), walk.child(v, "[…]")] for k, v in list(obj.items())]

    def build(self, node: Node, restore: Restoring) -> Any:
        return restore.find_type(node)()

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "seq" in node:
            members = restore.values(node["seq"])
            restore.afterwards(lambda: _refill(obj, members))
        else:
            live = dict(obj.items())
            pairs = [(restore.value(k), v) for k, v in node["items"]]
            filled = [(k, restore.value(v, live.get(k, MISSING))) for k, v in pairs]
            restore.afterwards(lambda: _refill(obj, filled))


def _refill(obj: Any, members: list[Any]) -> None:
    obj.clear()
    obj.update(members)


class ContextVariableHandler(Handler):
    """A context variable: its value in the context that the loop runs in."""

    kind = "context variable"
    fields: ClassVar = {**plain_fields("name"), "value": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["name"] = obj.name
        try:
            node["value"] = walk.child(obj.get(), ".<value>")
        except LookupError:
            return

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and live.name == node["name"]

    def build(self, node: Node, restore: Restoring) -> Any:
        return contextvars.ContextVar(node["name"])

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "value" in node:
            unset = object()
            live = obj.get(unset)
            value = restore.value(node["value"], *(() if live is unset else (live,)))
            if value is not live:
                obj.set(value)


class ProxyHandler(Handler):
    """A read-only view of a mapping; what it shows may change."""

    kind = "mapping proxy"
    is_dropped_silently = True
    fields: ClassVar = {"of": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["of"] = walk.child(gc.get_referents(obj)[0], "")

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        of = gc.get_referents(live)[0]
        return restore.value(node["of"], of) is of

    def build(self, node: Node, restore: Restoring) -> Any:
        return types.MappingProxyType(restore.value(node["of"]))


class ViewHandler(Handler):
    """`keys()`, `values()` or `items()` of a dict."""

    kind = "dict view"
    is_dropped_silently = True
    fields: ClassVar = {"of": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["of"] = walk.child(gc.get_referents(obj.mapping)[0], "")

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        of = gc.get_referents(live.mapping)[0]
        return restore.value(node["of"], of) is of

    def build(self, node: Node, restore: Restoring) -> Any:
        of = restore.value(node["of"])
        return getattr(of, node["t"].rpartition("_")[2])()


_MADE: tuple[Any, ...] = ({}, collections.OrderedDict())
register(ViewHandler(), *(type(getattr(made, name)()) for made in _MADE for name in ("keys", "values", "items")))
register(WeakReferenceHandler(), weakref.ref, *_PROXIES.values())
register(WeakMethodHandler(), weakref.WeakMethod)
register(WeakContainerHandler(), weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
register(ContextVariableHandler(), contextvars.ContextVar)
register(ProxyHandler(), types.MappingProxyType)

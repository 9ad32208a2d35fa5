"""Handlers for objects that only refer to others: weak references, read-only views, context variables."""

from __future__ import annotations

import collections
import contextvars
import gc
import types
import weakref
from typing import Any

from detrain.state.registry import Handler, register
from detrain.state.restore import MISSING, Restore
from detrain.state.tree import Node
from detrain.state.walk import KEY, Walk, keep


class WeakReferenceHandler(Handler):
    """A weak reference to something that is reachable otherwise."""

    kind = "weakref"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        target = obj()
        if target is not None and walk.numbers.get(id(target)) is None:
            # Walking on from here would keep alive, after a restore, what the script lets die.
            keep(node, "a weak reference to an object that nothing else reaches", is_loud=False)
            return
        node["to"] = walk.child(target, "()")

    def is_twin(self, live: Any, node: Node, restore: Restore) -> bool:
        if "kept" in node:
            return isinstance(live, weakref.ref)
        return super().is_twin(live, node, restore) and live() is restore.value(node["to"], live())

    def build(self, node: Node, restore: Restore) -> Any:
        target = restore.value(node["to"])
        return weakref.ref(target) if target is not None else _dead_reference()


def _dead_reference() -> Any:
    class _Gone:
        pass

    return weakref.ref(_Gone())


class WeakContainerHandler(Handler):
    """Weak dicts and sets: what is in them is theirs to forget; the members that are still reachable are put back."""

    kind = "weak container"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        if isinstance(obj, weakref.WeakSet):
            node["seq"] = walk.children(list(obj))
        else:
            node["items"] = [[walk.child(k, KEY), walk.child(v, "[…]")] for k, v in list(obj.items())]

    def build(self, node: Node, restore: Restore) -> Any:
        return restore.find_type(node)()

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
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
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        node["name"] = obj.name
        try:
            node["value"] = walk.child(obj.get(), ".<value>")
        except LookupError:
            return

    def is_twin(self, live: Any, node: Node, restore: Restore) -> bool:
        return super().is_twin(live, node, restore) and live.name == node["name"]

    def build(self, node: Node, restore: Restore) -> Any:
        return contextvars.ContextVar(node["name"])

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        if "value" in node:
            unset = object()
            live = obj.get(unset)
            value = restore.value(node["value"], *(() if live is unset else (live,)))
            if value is not live:
                obj.set(value)


class ProxyHandler(Handler):
    """A read-only view of a mapping; what it shows may change."""

    kind = "mapping proxy"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        node["of"] = walk.child(gc.get_referents(obj)[0], "")

    def is_twin(self, live: Any, node: Node, restore: Restore) -> bool:
        if not super().is_twin(live, node, restore):
            return False
        of = gc.get_referents(live)[0]
        return restore.value(node["of"], of) is of

    def build(self, node: Node, restore: Restore) -> Any:
        return types.MappingProxyType(restore.value(node["of"]))


class ViewHandler(Handler):
    """`keys()`, `values()` or `items()` of a dict."""

    kind = "dict view"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        node["of"] = walk.child(gc.get_referents(obj.mapping)[0], "")

    def is_twin(self, live: Any, node: Node, restore: Restore) -> bool:
        if not super().is_twin(live, node, restore):
            return False
        of = gc.get_referents(live.mapping)[0]
        return restore.value(node["of"], of) is of

    def build(self, node: Node, restore: Restore) -> Any:
        of = restore.value(node["of"])
        return getattr(of, node["t"].rpartition("_")[2])()


_MADE: tuple[Any, ...] = ({}, collections.OrderedDict())
register(ViewHandler(), *(type(getattr(made, name)()) for made in _MADE for name in ("keys", "values", "items")))
register(WeakReferenceHandler(), weakref.ref)
register(WeakContainerHandler(), weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
register(ContextVariableHandler(), contextvars.ContextVar)
register(ProxyHandler(), types.MappingProxyType)

"""Which live object each saved node is brought back in: saved tree and live objects are walked together by path.

Found before anything is changed, so that an object that is reached by a new path first (a parameter as a key of an optimizer's
state, say) is still recognised by its old one.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Mapping
from typing import Any

from detrain.state.captured import Captured
from detrain.state.fields import FIELDS, Holds
from detrain.state.tree import Node, Ref, Tree, is_node
from detrain.state.walk import Walk

#: Fields through which no object is matched, because what they refer to has a place of its own: the target of a weak reference, the
#: owner of memory that a view is of, and what handlers find in the live object by name when they fill it.
_NOT_MATCHED_THROUGH = frozenset({"to", "within", "made", "loggers", "bound"})


def _fields(wanted: Holds) -> tuple[str, ...]:
    """The fields that hold refs like this, in the order of the table, and through which objects are matched."""
    return tuple(name for name, held in FIELDS.items() if held is wanted and name not in _NOT_MATCHED_THROUGH)


_MANY = tuple((name, held) for held in (Holds.NAMED, Holds.LIST, Holds.ITEMS) for name in _fields(held))
_ONE = frozenset(_fields(Holds.ONE))
#: Kinds of what always refers to the same objects.
_FIXED = ("sequence iterator", "composed iterator", "tuple")


def _order(names: tuple[str, ...]) -> tuple[tuple[str, Holds], ...]:
    many = [(name, held) for name, held in _MANY if name in names]
    return (*many, *((name, Holds.ONE) for name in names if name in _ONE))


class Matching:
    """Saved node number to live object, and back: no live object is matched twice."""

    def __init__(
        self, saved: Tree, live: Captured, old_objects: Mapping[str, Any], old_paths: Mapping[int, str]
    ) -> None:
        """`old_objects` by path, `old_paths` by `id`: the objects that stood somewhere when the loops were entered."""
        self._saved = saved
        self._old_paths = old_paths
        self.by_number: dict[int, Any] = {}
        #: `id` of every live object that is taken, also of those that a restore has built.
        self.claimed: set[int] = set()
        #: By the names of a node's fields: those through which objects are matched, in the order in which they are gone through.
        self._in_order: dict[tuple[str, ...], tuple[tuple[str, Holds], ...]] = {}
        self._keyed: list[tuple[Node, Node, Captured]] = []
        self._queue: deque[tuple[int, int, Captured]] = deque()
        self._seen_again: set[int] | None = None  # while what is below known matches may have come about just now
        for number, node in enumerate(saved.nodes):
            origin = node.get("from")
            if origin and origin in old_objects:
                self._take(number, old_objects[origin], live)
        for name, ref in saved.roots.items():
            self._pair(ref, live.tree.roots.get(name), live)
        self._run()

    def add(self, number: int, obj: Any) -> None:
        """Match a node with `obj`, which has just been run on, and what is below the node with what is below `obj`.

        Also below objects that had been matched there may be new ones.
        """
        live = _captured(obj)
        self.by_number.setdefault(number, obj)
        self.claimed.add(id(obj))
        self._seen_again = {number}
        self._queue.append((number, 0, live))
        self._run()
        self._seen_again = None

    def add_stack(self, number: int, obj: Any) -> None:
        """Match what a suspended generator's loops run over with what `obj`'s loops run over: no other can be put there.

        A variable of the script may have been left with another element of an earlier pass, and is reached first.
        """
        stack = self._saved.nodes[number].get("stack", ())
        if not stack:
            return
        live = _captured(obj)
        for ref, live_ref in zip(stack, live.tree.nodes[0]["stack"], strict=False):
            self._pair_fixed(ref, live_ref, live)
        self._run()

    def _pair_fixed(self, ref: Ref, live_ref: Ref, live: Captured) -> None:
        if not is_node(ref) or not is_node(live_ref):
            return
        number, live_number = ref[1], live_ref[1]
        node, live_node = self._saved.nodes[number], live.tree.nodes[live_number]
        if (node["k"], node["t"]) != (live_node["k"], live_node["t"]):
            return
        if node.get("from") and self._is_taken(live.objects[live_number], number):
            return
        self.by_number[number] = live.objects[live_number]
        self.claimed.add(id(live.objects[live_number]))
        self._queue.append((number, live_number, live))
        if node["k"] in _FIXED:
            self._pair_fixed(node.get("over"), live_node.get("over"), live)
            for field in ("seq", "parts"):
                for inner, live_inner in zip(node.get(field, ()), live_node.get(field, ()), strict=False):
                    self._pair_fixed(inner, live_inner, live)

    def _is_taken(self, obj: Any, number: int) -> bool:
        """True if a live object is matched with another node than this one.

        A node's `from` was found by its object's address, which may have been another object's when the loops were entered: what the
        generator runs over goes before it, unless that is wanted elsewhere.
        """
        return any(taken is obj and other != number for other, taken in self.by_number.items())

    def replace(self, number: int, obj: Any) -> None:
        """Match a node with `obj`, which has the saved state already, in place of what was found."""
        self.by_number[number] = obj
        self.claimed.add(id(obj))

    def _run(self) -> None:
        while self._queue or self._keyed:
            while self._queue:
                number, live_number, live = self._queue.popleft()
                self._pair_children(self._saved.nodes[number], live.tree.nodes[live_number], live)
            keyed, self._keyed = self._keyed, []
            for node, live_node, live in keyed:
                self._pair_keyed(node, live_node, live)

    def _pair(self, ref: Ref, live_ref: Ref, live: Captured) -> None:
        if not is_node(ref) or not is_node(live_ref):
            return
        number, live_number = ref[1], live_ref[1]
        node, live_node = self._saved.nodes[number], live.tree.nodes[live_number]
        obj = live.objects[live_number]
        if number in self.by_number:
            if self._seen_again is not None and number not in self._seen_again and self.by_number[number] is obj:
                self._seen_again.add(number)
                self._queue.append((number, live_number, live))
            return
        kind = node["k"]
        if kind != live_node["k"] or node["t"] != live_node["t"] or (kind == "generator" and _is_over(node, live_node)):
            return
        if node.get("from") == "" and id(obj) in self._old_paths and "kept" not in node:
            return  # what stood here had been replaced; this object has a place of its own, or none
        self._take(number, obj, live)

    def _take(self, number: int, obj: Any, live: Captured) -> None:
        address = id(obj)
        if address in self.claimed:
            return
        self.by_number[number] = obj
        self.claimed.add(address)
        live_number = live.numbers.get(address)
        if live_number is not None:
            self._queue.append((number, live_number, live))

    def _pair_children(self, node: Node, live_node: Node, live: Captured) -> None:
        names = tuple(node)
        fields = self._in_order.get(names)
        if fields is None:
            fields = self._in_order[names] = _order(names)
        pair = self._pair
        for field, held in fields:
            here = live_node.get(field)
            if here is None:
                continue
            if held is Holds.NAMED:
                by_name = dict(here)
                for name, ref in node[field]:
                    if type(ref) is list:
                        pair(ref, by_name.get(name), live)
            elif held is Holds.LIST:
                for ref, live_ref in zip(node[field], here, strict=False):
                    if type(ref) is list:
                        pair(ref, live_ref, live)
            elif held is Holds.ITEMS:
                self._pair_items(field, node, live_node, live)
            else:
                pair(node[field], here, live)

    def _pair_items(self, field: str, node: Node, live_node: Node, live: Captured) -> None:
        here = {_text_of(key): value for key, value in live_node[field] if not is_node(key)}
        for key, ref in node[field]:
            if type(ref) is list and not is_node(key):
                self._pair(ref, here.get(_text_of(key)), live)
        if any(is_node(key) for key, _ in node[field]):
            self._keyed.append((node, live_node, live))

    def _pair_keyed(self, node: Node, live_node: Node, live: Captured) -> None:
        """Items whose keys are objects, once the keys have been found by other paths; keys left over go by their order."""
        here = {key[1]: value for key, value in live_node["items"] if is_node(key)}
        free = [number for number in here if id(live.objects[number]) not in self.claimed]
        for key, ref in node["items"]:
            if not is_node(key):
                continue
            if key[1] not in self.by_number and free:
                self._pair(key, ["@", free.pop(0)], live)
            obj = self.by_number.get(key[1])
            live_number = live.numbers.get(id(obj)) if obj is not None else None
            if live_number in here:
                self._pair(ref, here[live_number], live)


def _text_of(key: Ref) -> object:
    """The same for the same key, and for no other: a number that is equal to another may be one of another type."""
    return key if type(key) is str else (json.dumps(key),)


def _captured(obj: Any) -> Captured:
    """`obj` as the first node of a walk of its own."""
    walk = Walk()
    walk.root("", obj)
    return walk.run()


def _is_over(node: Node, live_node: Node) -> bool:
    """True of a generator that can never come to the saved place: it is of other code, or has ended."""
    return "at" in node and ("at" not in live_node or node["code"] != live_node["code"])

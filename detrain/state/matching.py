"""Which live object each saved node is to be brought back in: saved tree and live tree are walked together by path.

Found before anything is changed, so that an object that is reached by a new path first (a parameter as a key of an optimizer's
state, say) is still recognised by its old one.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any

from detrain.state.tree import Node, Ref, Tree, is_node
from detrain.state.walk import Walk

#: Fields of a node that hold [name, ref] pairs; that hold a list of refs; all others may hold one ref.
_NAMED = ("attrs", "slots", "cells", "data", "locals")
_LISTED = ("seq", "parts", "stack", "flying", "coo")
_NEVER = (
    "k",
    "t",
    "p",
    "s",
    "items",
    "code",
    "shape",
    "strides",
    "array",
    "range",
    "as",
    "text",
    "position",
    "name",
    "within",  # as has whose memory is looked into
    "to",  # what is referred to weakly has a place of its own
    *_NAMED,
    *_LISTED,
)
#: Kinds of what always refers to the same objects.
_FIXED = ("sequence iterator", "composed iterator", "tuple")


class Twins:
    """Saved node number to live object. `old` tells the objects that stood somewhere when the loops were entered."""

    def __init__(self, saved: Tree, live: Walk, old_objects: dict[str, Any], old_paths: dict[int, str]) -> None:
        self._saved = saved
        self._old_paths = old_paths
        self.by_number: dict[int, Any] = {}
        self.claimed: set[int] = set()
        self._keyed: list[tuple[Node, Node, Walk]] = []
        self._queue: deque[tuple[int, int, Walk]] = deque()
        self._seen_again: set[int] | None = None  # while what is below known twins may have come about just now
        for number, node in enumerate(saved.nodes):
            origin = node.get("from")
            if origin and origin in old_objects:
                self._take(number, old_objects[origin], live)
        for name, ref in saved.roots.items():
            self._pair(ref, live.tree.roots.get(name), live)
        self._run()

    def add(self, number: int, obj: Any) -> None:
        """Let a live object be the twin of a node, and what is below it of what is below the node.

        It has done something: also below objects that had their twins there may be new ones.
        """
        walk = Walk()
        walk.root("", obj)
        walk.run()
        self.by_number.setdefault(number, obj)
        self.claimed.add(id(obj))
        self._seen_again = {number}
        self._queue.append((number, 0, walk))
        self._run()
        self._seen_again = None

    def hold(self, number: int, obj: Any) -> None:
        """Let what a suspended generator's loops run over stay what it is, whatever else leads to it: no other can be put there.

        A variable of the script may have been left with another element of an earlier pass, and is reached first.
        """
        stack = self._saved.nodes[number].get("stack", ())
        if not stack:
            return
        walk = Walk()
        walk.root("", obj)
        walk.run()
        for ref, live_ref in zip(stack, walk.tree.nodes[0]["stack"], strict=False):
            self._hold(ref, live_ref, walk)
        self._run()

    def _hold(self, ref: Ref, live_ref: Ref, live: Walk) -> None:
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
            self._hold(node.get("over"), live_node.get("over"), live)
            for field in ("seq", "parts"):
                for inner, live_inner in zip(node.get(field, ()), live_node.get(field, ()), strict=False):
                    self._hold(inner, live_inner, live)

    def _is_taken(self, obj: Any, number: int) -> bool:
        """True if a live object is the twin of another node than this one.

        Where the node's object stood when the loops were entered is told by its address, which may have been another's then: what the
        generator runs over goes before that, unless it is wanted elsewhere.
        """
        return any(one is obj and other != number for other, one in self.by_number.items())

    def replace(self, number: int, obj: Any) -> None:
        """Let a live object be the twin of a node in place of what was found; it has been brought to the saved state already."""
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

    def _pair(self, ref: Ref, live_ref: Ref, live: Walk) -> None:
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
        if (node["k"], node["t"]) != (live_node["k"], live_node["t"]) or _is_over(node, live_node):
            return
        if node.get("from") == "" and id(obj) in self._old_paths and "kept" not in node:
            return  # what stood here had been replaced; this object has a place of its own, or none
        self._take(number, obj, live)

    def _take(self, number: int, obj: Any, live: Walk) -> None:
        if id(obj) in self.claimed:
            return
        self.by_number[number] = obj
        self.claimed.add(id(obj))
        live_number = live.numbers.get(id(obj))
        if live_number is not None:
            self._queue.append((number, live_number, live))

    def _pair_children(self, node: Node, live_node: Node, live: Walk) -> None:
        for field in _NAMED:
            here = dict(live_node.get(field, ()))
            for name, ref in node.get(field, ()):
                self._pair(ref, here.get(name), live)
        for field in _LISTED:
            for ref, live_ref in zip(node.get(field, ()), live_node.get(field, ()), strict=False):
                self._pair(ref, live_ref, live)
        if "items" in node and "items" in live_node:
            here = {json.dumps(key): value for key, value in live_node["items"] if not is_node(key)}
            for key, ref in node["items"]:
                if not is_node(key):
                    self._pair(ref, here.get(json.dumps(key)), live)
            if any(is_node(key) for key, _ in node["items"]):
                self._keyed.append((node, live_node, live))
        for field, ref in node.items():
            if field not in _NEVER and is_node(ref):
                self._pair(ref, live_node.get(field), live)

    def _pair_keyed(self, node: Node, live_node: Node, live: Walk) -> None:
        """Items whose keys are objects, once the keys have been found by other paths; keys left over go by their order."""
        here = {key[1]: value for key, value in live_node["items"] if is_node(key)}
        free = [number for number in here if id(live.objects[number]) not in self.claimed]
        for key, ref in node["items"]:
            if not is_node(key):
                continue
            if key[1] not in self.by_number and free:
                self._pair(key, ["@", free.pop(0)], live)
            twin = self.by_number.get(key[1])
            live_number = live.numbers.get(id(twin)) if twin is not None else None
            if live_number in here:
                self._pair(ref, here[live_number], live)


def _is_over(node: Node, live_node: Node) -> bool:
    """True of a generator that can never come to the saved place: it is of other code, or has ended."""
    if node["k"] != "generator":
        return False
    return "at" in node and ("at" not in live_node or node["code"] != live_node["code"])

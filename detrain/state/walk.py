"""Capture: live objects to a state tree.

It goes breadth first, so that an object is named by its shortest path; but what is a dict's key, or belongs to an object that
only works on others (an optimizer), is named by another path if there is one: a weight is the model's.

It reads and never writes: no random number is drawn, no tensor's version counter moves, no attribute access goes through a property.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from detrain.errors import CaptureError
from detrain.state import patches, registry
from detrain.state.attributes import instance_dict, own_dict, slot_values
from detrain.state.captured import Captured
from detrain.state.census import Census
from detrain.state.classes import is_made_at_run_time, type_name
from detrain.state.collector import collector_paused
from detrain.state.handler import KEY, MemoryRanges, mark_not_saved
from detrain.state.tree import ATOMS, Array, Node, Place, Ref, Tree, encode_atom, encode_value, is_value, key_segment
from detrain.state.user_code import is_user_module

#: Below it lies no object; numbers that a script counts lie there.
LOWEST_ADDRESS = 1 << 32
#: Characters of a path; what lies deeper is named by the number of what holds it.
_LONGEST_PATH = 400
#: Elements whose refs are the elements themselves.
_PLAIN_ELEMENTS = frozenset({type(None), bool, str})

#: Passes over each walk once it has met everything: they add what only all objects together show. Each is independent of the others.
after_walk: list[Callable[[Walk], None]] = []


#: Methods of types written in C whose instances may end something when they are dropped: a file, a connection, a device.
_ENDING = ("__exit__", "close", "commit", "disconnect", "quit", "release", "shutdown", "stop", "terminate")


def is_dropped_silently(obj: Any) -> bool:
    """True if nobody notices that an object is dropped: no `__del__`, nothing of the system's, no code that is still to run."""
    cls = type(obj)
    handler = registry.handler_for(cls)
    if not handler.is_dropped_silently or hasattr(cls, "__del__"):
        return False
    return handler.kind != "opaque" or not any(hasattr(cls, name) for name in _ENDING)


class _Dead(NamedTuple):
    """A variable that the program writes before it reads it again: a root, or a field of a node."""

    parent: int | None
    name: str
    segment: str
    obj: Any
    field: str = ""


class Walk:
    """One capture: give it the roots, then `run` it.

    `tree`, `objects`, `paths` and `numbers` are those of `Captured`, and grow while it runs.
    """

    def __init__(self, census: Census | None = None, leave: Mapping[int, str] = MappingProxyType({})) -> None:
        """`census` tells where objects stood when the loops were entered.

        `leave` maps the `id` of objects that are not to be captured to the reason; their nodes are marked as kept.
        """
        self.tree = Tree()
        self._leave = leave
        self.numbers: dict[int, int] = {}
        self.objects: list[Any] = []  # holds them, so that no id is used twice during the walk
        self.paths: list[str] = []
        self._pending: deque[int] = deque()
        self._later: deque[int] = deque()  # keys, and objects that are captured last
        #: By node: what depends on all that is met, and what it refers to weakly.
        self._at_end: deque[tuple[int, Callable[[], None], Any]] = deque()
        self._dead: deque[_Dead] = deque()
        self.unfinished: list[Any] = []
        self._made: dict[type, bool] = {}  # whether a class is the script's own, or made at run time
        #: By its `id`, each instance's dict, which is held so that it keeps that, and the number of the instance.
        self._attributes: dict[int, tuple[Any, int]] = {}
        self._keys: set[int] = set()  # numbers of those that are named as keys so far
        self._census = census
        #: True if some numbers may be addresses of objects.
        self.has_large_numbers = False
        #: By node: memory that its owner may move, and where it was.
        self.places: dict[int, Place] = {}

    def root(self, name: str, obj: Any) -> None:
        """Add a root; `name` begins the paths of everything under it."""
        self.tree.roots[name] = self.ref(obj, None, name)

    def run(self, dead: Mapping[str, Any] = MappingProxyType({})) -> Captured:
        """Walk until nothing new is found. `dead`: further roots, which nobody will read again (`detrain.state.liveness`).

        Of those, one that a resume could not bring back is left out.
        """
        with collector_paused(promotes=True):
            self._capture_alive()
            self._dead.extend(_Dead(None, name, name, obj) for name, obj in dead.items())
            self._capture_all()
            self._drop_moved()
            self._share_attributes()
            for add in after_walk:
                add(self)
        return self.captured()

    def _capture_alive(self) -> None:
        """What the roots lead to that are given so far."""
        self._capture_pending()

    def captured(self) -> Captured:
        """What has been found so far."""
        return Captured(self.tree, self.objects, self.paths, self.numbers, self.unfinished, self.places)

    def _capture_pending(self) -> None:
        while self._pending or self._later:
            number = (self._pending or self._later).popleft()
            self._keys.discard(number)
            self._capture(number)

    def _capture_all(self) -> None:
        self._capture_pending()
        while self._dead or self._at_end:
            if self._dead:
                self._capture_dead(self._dead.popleft())
            else:
                self._current, action, _ = self._at_end.popleft()
                action()
            self._capture_pending()

    def _capture_dead(self, dead: _Dead) -> None:
        """Everything that is reached without it has been captured: what comes now belongs to it alone."""
        start, num_arrays = len(self.tree.nodes), len(self.tree.arrays)
        ref = self.ref(dead.obj, dead.parent, dead.segment)
        if dead.parent is None:
            self.tree.roots[dead.name] = ref
        else:
            node = self.tree.own(dead.parent)
            node[dead.field] = [*node[dead.field], [dead.name, ref]]
        self._capture_pending()
        nodes, own = self.tree.nodes[start:], self.objects[start:]
        if not any(node.get("loud") for node in nodes):
            return
        watched = {id(target) for number, _, target in self._at_end if number < start}
        if not all(is_dropped_silently(one) and id(one) not in watched for one in own):
            return  # what the program does by overwriting it is part of the run
        path = self.paths[start]
        self._forget_from(start, num_arrays)
        self.numbers[id(dead.obj)] = start
        self.objects.append(dead.obj)
        self.paths.append(path)
        left: Node = {"k": "kept", "t": type_name(type(dead.obj)), "p": dead.parent, "s": dead.segment}
        mark_not_saved(left, "the script writes this variable before it reads it again", warns=False)
        self.tree.nodes.append(left)

    def _forget_from(self, start: int, num_arrays: int) -> None:
        for obj in self.objects[start:]:
            del self.numbers[id(obj)]
        self._dead = deque(dead for dead in self._dead if dead.parent is None or dead.parent < start)
        self._at_end = deque(entry for entry in self._at_end if entry[0] < start)
        self.places = {number: place for number, place in self.places.items() if number < start}
        for grown, length in (
            (self.tree.nodes, start), (self.objects, start), (self.paths, start), (self.tree.arrays, num_arrays),
        ):  # fmt: skip
            del grown[length:]

    def _drop_moved(self) -> None:
        """Drop views of memory that its owner has moved: code of the script may have run (`__getstate__`, `__reduce__`), and did that."""
        if self._are_still():
            return
        now = registry.memory_ranges([place.owner for place in self.places.values()])
        memories = list(zip(now.addresses, now.sizes, strict=True))
        for (number, place), memory in zip(list(self.places.items()), memories, strict=True):
            if memory != (place.address, place.num_bytes):
                del self.places[number]
                node = self.tree.own(number)
                self.tree.arrays[node.pop("array")].drop()
                mark_not_saved(node, "its memory was moved while the state was looked at", warns=True)

    def _are_still(self) -> bool:
        return registry.are_still(self.places.values())

    def places_by_column(self) -> tuple[list[int], MemoryRanges]:
        """Of memory that is not copied yet: whose it is, by numbers of nodes, and where."""
        return columns_of(self.places)

    def of_kinds(self, kinds: frozenset[str]) -> list[int]:
        """Numbers of the nodes of these kinds."""
        return [number for number, node in enumerate(self.tree.nodes) if node["k"] in kinds]

    def ref(self, obj: Any, parent: int | None, segment: str) -> Ref:
        """The ref of a value met under a node; objects that are met for the first time are captured later."""
        kind = type(obj)
        if kind in ATOMS:
            if kind is int and obj >= LOWEST_ADDRESS:
                self.has_large_numbers = True
            return encode_atom(obj)
        if kind is tuple and is_value(obj):
            return encode_value(obj)
        number = self.numbers.get(id(obj))
        if number is None:
            number = len(self.tree.nodes)
            self.numbers[id(obj)] = number
            self.objects.append(obj)
            self.paths.append(self._path_below(parent, segment))
            self.tree.nodes.append({"k": "", "t": "", "p": parent, "s": segment})
            if segment == KEY:
                self._keys.add(number)
            (self._later if segment == KEY or registry.is_named_last(kind) else self._pending).append(number)
        elif number in self._keys and segment != KEY:
            self._keys.discard(number)
            self.paths[number] = self._path_below(parent, segment)
            self.tree.nodes[number].update(p=parent, s=segment)
        return ["@", number]

    def _path_below(self, parent: int | None, segment: str) -> str:
        if parent is None:
            return segment
        above = self.paths[parent]
        # A list of 50,000 links has paths of 50,000 segments, which would fill the memory.
        return f"{above}{segment}" if len(above) < _LONGEST_PATH else f"…#{parent}{segment}"

    def _capture(self, number: int) -> None:
        self._current = number
        obj = self.objects[number]
        node = self.tree.nodes[number]
        cls = type(obj)
        handler = registry.handler_for(cls)
        node["k"] = handler.kind
        node["t"] = type_name(cls)
        if id(obj) in self._leave:
            node["k"] = "kept"
            mark_not_saved(node, self._leave[id(obj)], warns=False)
            return
        if self._census is not None:
            self._census.mark(obj, node, self.path)
        try:
            handler.capture(obj, node, self)
            if handler.has_attributes and "kept" not in node:
                self._capture_attributes(obj, node, cls)
        except CaptureError as error:
            mark_not_saved(node, str(error), warns=True)
        except Exception as error:  # noqa: BLE001 - a checkpoint must not end the training; the leaf is named, and no resume is silent
            mark_not_saved(node, f"it cannot be looked at: {type(error).__name__}: {error}", warns=True)

    def _capture_attributes(self, obj: Any, node: Node, cls: type) -> None:
        attrs = instance_dict(obj)
        if attrs and self._attributes.setdefault(id(attrs), (attrs, self._current))[1] != self._current:
            # `self.__dict__ = self._shared`: all instances have the same attributes, and none is their owner
            node["dict_of"] = self.child(attrs, ".__dict__")
        elif attrs:
            inner = node.get("inner", ())
            added = patches.added_attributes  # of none, in a run: this is asked for every attribute of the state
            node["attrs"] = self.attributes(
                [(name, value) for name, value in attrs.items() if name not in inner and name not in added]
            )
        elif attrs is None and isinstance(own := own_dict(obj), dict):
            node["dict_of"] = self.child(own, ".__dict__")  # `self.__dict__ = self`, in a class derived from dict
        slots = slot_values(obj, cls)
        if slots:
            node["slots"] = self.attributes(slots, "slots")
        if cls not in self._made:
            self._made[cls] = is_user_module(cls.__module__) or is_made_at_run_time(cls)
        if self._made[cls]:
            node["class"] = self.child(cls, ".__class__")  # it may hold state, and no variable may name it

    def _share_attributes(self) -> None:
        """Where an instance's dict is somebody's own, a class's for example, its attributes are that dict."""
        for attributes, first in self._attributes.values():
            if (number := self.numbers.get(id(attributes))) is not None and "attrs" in self.tree.nodes[first]:
                node = self.tree.own(first)
                del node["attrs"]
                node["dict_of"] = ["@", number]

    # --- for handlers; `detrain.state.handler.Capturing` describes these ---------------------------------------------------------

    @property
    def path(self) -> str:
        """Path of the node that is being captured."""
        return self.paths[self._current].removeprefix(".")

    def child(self, obj: Any, segment: str) -> Ref:
        """The ref of a value under the node that is being captured."""
        return self.ref(obj, self._current, segment)

    def children(self, objs: Iterable[Any]) -> list[Ref]:
        """Refs of a sequence's elements."""
        values = list(objs)
        if not (set(map(type, values)) - _PLAIN_ELEMENTS):
            return values
        return [self.ref(value, self._current, f"[{position}]") for position, value in enumerate(values)]

    def items(self, mapping: Any) -> list[list[Ref]]:
        """Refs of keys and values of a mapping."""
        pairs = []
        for key, value in list(mapping.items()):
            key_ref = self.child(key, KEY)
            pairs.append([key_ref, self.child(value, key_segment(key_ref))])
        return pairs

    def attributes(self, names_values: Iterable[tuple[str, Any]], field_name: str = "attrs") -> list[list[Ref]]:
        """Refs of named values."""
        return [[name, self.child(value, key_segment(name, field_name))] for name, value in names_values]

    def dead_attributes(self, names_values: Iterable[tuple[str, Any]], field_name: str) -> None:
        """Further refs for a field of the node that is being captured."""
        for name, value in names_values:
            self._dead.append(_Dead(self._current, name, key_segment(name, field_name), value, field_name))

    def array(self, node: Node, data: np.ndarray[Any, Any] | Place, label: str = "", *, is_copy: bool = False) -> None:
        """Store bulk data with the node that is being captured."""
        if type(data) is Place:
            self.places[self._current] = data
        node["array"] = len(self.tree.arrays)
        self.tree.arrays.append(Array(self.path, data, label, is_copy=is_copy))

    def node(self, number: int) -> Node:
        """A node by its number."""
        return self.tree.nodes[number]

    def at_end(self, action: Callable[[], None], target: Any = None) -> None:
        """Go on with the node that is being captured once everything has been met that is reached without it."""
        self._at_end.append((self._current, action, target))

    def has_reached(self, obj: Any) -> bool:
        """True if an object has been reached so far."""
        return id(obj) in self.numbers

    def has_changed(self, fingerprint: Any) -> bool:
        """True if the object that is being captured had another fingerprint when the loops were entered."""
        return self._census is not None and self._census.has_changed(self.path, fingerprint)

    def wait_for(self, obj: Any) -> None:
        """Work is under way in an object."""
        self.unfinished.append(obj)

    def warn_of_hidden_state(self, name: str, type_name: str, why: str) -> None:
        """Add a loud node for something beside the roots that may change the state at any time."""
        self.tree.roots[name] = ["@", len(self.tree.nodes)]
        node = {"k": "beside", "t": type_name, "p": None, "s": name}
        mark_not_saved(node, why, warns=True)
        self.tree.nodes.append(node)
        self.objects.append(node)
        self.paths.append(name)


def columns_of(places: Mapping[int, Place]) -> tuple[list[int], MemoryRanges]:
    """Numbers of nodes, and memory, of these places."""
    memories = MemoryRanges(
        [place.address for place in places.values()],
        [place.num_bytes for place in places.values()],
        [place.rank for place in places.values()],
    )
    return list(places), memories

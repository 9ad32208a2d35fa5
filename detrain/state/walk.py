"""Capture: live objects to a state tree.

The walk goes breadth first, so that an object is named by its shortest path; but what is a dict's key, or belongs to an object that
only works on others (an optimizer), is named by another path if there is one: a weight is the model's.

It reads and never writes: no random number is drawn, no tensor's version counter moves, no attribute access goes through a property.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from detrain.errors import CaptureError
from detrain.state import registry
from detrain.state.collector import collector_paused
from detrain.state.sharing import note_shared
from detrain.state.tree import (
    ATOMS,
    Array,
    Node,
    Ref,
    Tree,
    decode_value,
    encode_atom,
    encode_value,
    is_value,
    key_segment,
)
from detrain.state.user_code import is_user_module

#: Kinds of nodes that are the same in every attempt, or are compared by content.
_WITHOUT_STATE = frozenset(
    {"class", "enum", "frozenset", "function", "kept", "method", "module", "numpy.generic", "tuple", "value"}
)
#: Below it lies no object; numbers that a script counts lie there.
LOWEST_ADDRESS = 1 << 32
#: Characters of a path; what lies deeper is named by the number of what holds it.
_LONGEST_PATH = 400
#: Path segment of an object that is a dict's key.
KEY = ".<key>"


class Walk:
    """One capture. `tree` is the result; `numbers` maps `id(obj)` to the node of every object that was met."""

    def __init__(self, census: Census | None = None, leave: Mapping[int, str] = MappingProxyType({})) -> None:
        """`leave` maps the `id` of objects that are not to be looked into to the reason."""
        self.tree = Tree()
        self._leave = leave
        self.numbers: dict[int, int] = {}
        self.objects: list[Any] = []  # by node number; holds them, so that no id is used twice during the walk
        self.paths: list[str] = []  # by node number
        self._pending: deque[int] = deque()
        self._later: deque[int] = deque()  # keys, and objects that are looked into last
        self._at_end: deque[tuple[int, Callable[[], None]]] = deque()  # by node: what hangs on all that is met
        self._keys: set[int] = set()  # numbers of those that are named as keys so far
        self._census = census
        self.reached: list[tuple[Node, list[Any]]] = []  # by pickles, of which the tree knows nothing
        self._has_large_numbers = False  # some of them may be addresses
        #: Memory that its owner may move, and where it was.
        self._lent: list[tuple[Node, Any, registry.Stretch | None]] = []

    def root(self, name: str, obj: Any) -> None:
        """Add a root; `name` begins the paths of everything under it."""
        self.tree.roots[name] = self.ref(obj, None, name)

    def note(self, name: str, type_name: str, why: str) -> None:
        """Add a loud node for something beside the roots that may change the state at any time."""
        self.tree.roots[name] = ["@", len(self.tree.nodes)]
        node = {"k": "beside", "t": type_name, "p": None, "s": name}
        keep(node, why, is_loud=True)
        self.tree.nodes.append(node)
        self.objects.append(node)
        self.paths.append(name)

    def run(self) -> Tree:
        """Walk until nothing new is found."""
        with collector_paused():
            self._look_at_all()
        return self.tree

    def _look_at_all(self) -> None:
        while self._pending or self._later or self._at_end:
            if self._pending or self._later:
                number = (self._pending or self._later).popleft()
                self._keys.discard(number)
                self._capture(number)
            else:
                self._current, action = self._at_end.popleft()
                action()
        self._return_moved()
        for node, reached in self.reached:
            shared = next((one for one in reached if self._holds_state(one)), None)
            if shared is not None:
                node["shares"] = self.paths[self.numbers[id(shared)]]
        if self._has_large_numbers:
            from detrain.state.addresses import name_addresses

            name_addresses(self)
        note_shared(self)

    def _return_moved(self) -> None:
        """Code of the script's may have run during the walk (`__getstate__`, `__reduce__`): what that has moved is not there to be read."""
        for node, obj, stretch in self._lent:
            if registry.handler_for(type(obj)).stretch(obj) != stretch:
                self.tree.arrays[node.pop("array")].data = np.empty(0, np.uint8)
                keep(node, "its memory was moved while the state was looked at", is_loud=True)
        self._lent = []

    def _holds_state(self, obj: Any) -> bool:
        """True for what the walk has met by itself as well, and that the loop may change."""
        number = self.numbers.get(id(obj))
        return number is not None and self.tree.nodes[number]["k"] not in _WITHOUT_STATE

    def ref(self, obj: Any, parent: int | None, segment: str) -> Ref:
        """The ref of a value met under a node; queues objects that are met for the first time."""
        kind = type(obj)
        if kind in ATOMS:
            if kind is int and obj >= LOWEST_ADDRESS:
                self._has_large_numbers = True
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

    def at_end(self, action: Callable[[], None]) -> None:
        """Go on with the node that is being captured once everything has been met that is reached without it."""
        self._at_end.append((self._current, action))

    def has_met(self, obj: Any) -> bool:
        """True if an object has been reached so far."""
        return id(obj) in self.numbers

    def array(
        self, node: Node, data: np.ndarray[Any, Any], label: str = "", *, is_copy: bool = False, lender: Any = None
    ) -> None:
        """Attach bulk data to the node that is being captured; `data` may be a view of live memory unless it `is_copy`.

        `lender` has memory that it may move although it is looked at.
        """
        if lender is not None:
            self._lent.append((node, lender, registry.handler_for(type(lender)).stretch(lender)))
        node["array"] = len(self.tree.arrays)
        self.tree.arrays.append(Array(self.path, data, label, is_copy=is_copy))

    def child(self, obj: Any, segment: str) -> Ref:
        """The ref of a value under the node that is being captured."""
        return self.ref(obj, self._current, segment)

    def children(self, objs: Any) -> list[Ref]:
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

    def attributes(self, names_values: Any, field_name: str = "attrs") -> list[list[Ref]]:
        """Refs of named values."""
        return [[name, self.child(value, key_segment(name, field_name))] for name, value in names_values]

    def is_as_first_told(self, told: Any) -> bool:
        """False if the object that is being captured told something else when the loops were entered."""
        return self._census is None or self._census.told.get(self.path, told) == told

    @property
    def path(self) -> str:
        """Path of the node that is being captured."""
        return self.paths[self._current].removeprefix(".")

    def _capture(self, number: int) -> None:
        self._current = number
        obj = self.objects[number]
        node = self.tree.nodes[number]
        cls = type(obj)
        handler = registry.handler_for(cls)
        node["k"] = handler.kind
        node["t"] = registry.type_name(cls)
        if id(obj) in self._leave:
            node["k"] = "kept"
            keep(node, self._leave[id(obj)], is_loud=False)
            return
        if self._census is not None:
            self._census.mark(obj, node, self)
        try:
            handler.capture(obj, node, self)
            if handler.has_attributes and "kept" not in node:
                self._capture_attributes(obj, node, cls)
        except CaptureError as error:
            keep(node, str(error), is_loud=True)
        except Exception as error:  # noqa: BLE001 - a checkpoint must not end the training; the leaf is named, and no resume is silent
            keep(node, f"it cannot be looked at: {type(error).__name__}: {error}", is_loud=True)

    def _capture_attributes(self, obj: Any, node: Node, cls: type) -> None:
        attrs = instance_dict(obj)
        if attrs:
            node["attrs"] = self.attributes(list(attrs.items()))
        elif attrs is None and isinstance(own := _dict_of(obj), dict):
            node["dict_of"] = self.child(own, ".__dict__")  # `self.__dict__ = self`, in a class derived from dict
        slots = [(name, value) for name, value in slot_values(obj, cls)]
        if slots:
            node["slots"] = self.attributes(slots, "slots")
        if is_user_module(cls.__module__) or is_local(cls):
            node["class"] = self.child(cls, ".__class__")  # it may hold state, and no variable may name it


_PLAIN_ELEMENTS = frozenset({type(None), bool, str})


def keep(node: Node, why: str, *, is_loud: bool) -> None:
    """Mark a node as *kept*: its object stays as the set-up code makes it. Loud: that may be wrong, and is said."""
    node["kept"] = why
    if is_loud:
        node["loud"] = True


def is_local(cls: type) -> bool:
    """True for a class that a function makes whenever it runs."""
    return "<locals>" in cls.__qualname__


def instance_dict(obj: Any) -> dict[str, Any] | None:
    """`obj.__dict__` without going through a property or a user's `__getattribute__`."""
    found = _dict_of(obj)
    return found if type(found) is dict else None


def _dict_of(obj: Any) -> Any:
    try:
        return object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None


@functools.cache
def slot_descriptors(cls: type[Any]) -> list[tuple[str, Any]]:
    """Name and member descriptor of every `__slots__` entry, as mangled names, base classes first."""
    found = []
    for base in reversed(cls.__mro__):
        if base is object or not registry.is_python_class(base):
            continue
        for name, value in base.__dict__.items():
            if type(value).__name__ == "member_descriptor":
                found.append((name, value))
    return found


def slot_values(obj: Any, cls: type) -> list[tuple[str, Any]]:
    """The slots of an object that are set."""
    values = []
    for name, descriptor in slot_descriptors(cls):
        try:
            values.append((name, descriptor.__get__(obj, cls)))
        except AttributeError:
            continue
    return values


class Census:
    """Where each object stood when the loops were entered, so that one that the loop has moved is recognised later.

    Objects are remembered by address without being held alive. If an address is used again by an object of the same type, the
    old object was unreachable, so nothing that is restored can tell the two apart.
    """

    def __init__(self, walk: Walk) -> None:
        self._numbers = walk.numbers
        self._types = [node["t"] for node in walk.tree.nodes]
        self._paths = [path.removeprefix(".") for path in walk.paths]
        #: What objects said that can only be compared, or only as long as nobody else changes them.
        self.told = {
            self._paths[number]: decode_value(node["told"])
            for number, node in enumerate(walk.tree.nodes) if "told" in node
        }  # fmt: skip
        self._by_path: dict[str, int] = {}
        for number, path in enumerate(self._paths):
            if not path.startswith("loops["):
                self._by_path.setdefault(path, number)

    def mark(self, obj: Any, node: Node, walk: Walk) -> None:
        """Write into `node` where its object comes from, if it is not from where it stands now."""
        path = walk.path
        number = self._numbers.get(id(obj))
        if number is not None and self._types[number] == node["t"]:
            origin = self._paths[number]
            if origin != path:
                node["from"] = origin
        elif path in self._by_path:
            node["from"] = ""  # the object that stood here was replaced: restoring must build a new one

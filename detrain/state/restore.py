"""Restore: bring the live objects to the state of a tree, in place.

Saved graph and live graph are walked together by path. An object that the set-up code has made is brought to the saved state
where it is, so that every alias the set-up code made still holds; one that no live object matches is built anew. What cannot be
restored exactly raises `RestoreError` naming the leaf.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np

from detrain.errors import RestoreError
from detrain.state import machinery, patches, registry
from detrain.state.attributes import instance_dict, slot_descriptors, slot_values
from detrain.state.captured import Captured
from detrain.state.classes import names_of_several, resolve_type, type_name
from detrain.state.collector import collector_paused
from detrain.state.filearray import ArrayFile, FileArray, Octets, in_file
from detrain.state.handler import MISSING, CannotBuild, Handler
from detrain.state.matching import Matching
from detrain.state.sharing import bytes_at, is_where_saved
from detrain.state.tree import Array, Node, Ref, Tree, decode_value, is_node, is_same_value
from detrain.state.unrestored import Unrestored
from detrain.state.user_code import is_user_module

_Item = TypeVar("_Item")

#: Up to here a copy of a copy takes less time than to say where the bytes lie.
_SMALL_BYTES = 4096


def _keep_identity(value: Any, live: Any) -> Any:
    """The live value if it is equal: pickle writes a second reference to one object otherwise than two equal objects."""
    if live is not MISSING and (live is value or is_same_value(live, value)):
        return live
    return sys.intern(value) if type(value) is str else value


def _by_file(items: Iterable[_Item], array_of: Callable[[_Item], FileArray]) -> list[tuple[ArrayFile, list[_Item]]]:
    found: dict[int, tuple[ArrayFile, list[_Item]]] = {}
    for item in items:
        file = array_of(item).file
        assert file is not None
        found.setdefault(id(file), (file, []))[1].append(item)
    return list(found.values())


def _names_of_several(tree: Tree) -> frozenset[str]:
    """Of the script's classes; looked for only where the tree has instances of some, for that takes a look at every class there is."""
    modules = {name.partition(":")[0] for name in {node["t"] for node in tree.nodes}}
    return names_of_several() if any(map(is_user_module, modules)) else frozenset()


class Origins:
    """The live objects by the path at which they stood when the loops were entered; dropped once the run has resumed."""

    def __init__(self, captured: Captured) -> None:
        self.paths: dict[int, str] = {}  # by `id`
        self.objects: dict[str, Any] = {}
        self.types: dict[str, type] = {}  # of all objects, by `type_name`
        for number, obj in enumerate(captured.objects):
            path = captured.path(number)
            self.objects.setdefault(path, obj)
            self.paths[id(obj)] = path
            cls = obj if issubclass(type(obj), type) else type(obj)  # a proxy whose target is gone cannot be asked
            self.types.setdefault(type_name(cls), cls)


class Restore:
    """One restore of one tree.

    Handlers see it as `detrain.state.handler.Restoring`, which describes what they may ask.
    """

    def __init__(
        self,
        tree: Tree,
        live: Captured,
        origins: Origins,
        set_aside: Callable[[], str] = str,
        *,
        allows_pickle: bool = True,
        process: int | None = None,
        is_last_time: bool = True,
    ) -> None:
        """`live` are the objects of this attempt, `origins` where they stood when the loops were entered.

        `set_aside` sets the checkpoint aside and returns a sentence that says so: it is called where it turns out later that the tree
        held too little. `allows_pickle`: False refuses what could only be unpickled. `process`: the number of the process that has saved
        the tree; libraries note it to know whether they have been forked. `is_last_time`: False if it can be done again, where
        `has_postponed` says that it has to be.
        """
        self._process, self._is_last_time = process, is_last_time
        #: Something needs what has been restored only behind it.
        self.has_postponed = False
        self.tree = tree
        self.set_aside = set_aside
        self.allows_pickle = allows_pickle
        self._origins = origins
        self._ambiguous = _names_of_several(tree)
        with collector_paused(promotes=True):
            #: Live objects that are views of the memory of others, by `id`.
            self._inner = {id(live.objects[number]) for number, node in enumerate(live.tree.nodes) if "within" in node}
            self._machinery = machinery.of_libraries(tree)
            #: Saved nodes of whose memory others are views, by `id`.
            self._outer = {id(tree.nodes[node["within"][1]]) for node in tree.nodes if "within" in node}
            self._matching = Matching(tree, live, origins.objects, origins.paths)
        self._done: dict[int, Any] = {}  # restored objects by node number
        self._held: list[Any] = []  # holds them, so that no `id` is used twice
        #: What is still to be filled: node number, object, whether it is new; of the kinds that are `is_last` in `_last`.
        self._pending: deque[tuple[int, Any, bool]] = deque()
        self._last: list[tuple[int, Any, bool]] = []
        #: Arrays that are still to be copied from their files, the node of each, and the object in whose memory it belongs.
        self._uncopied: list[tuple[FileArray, Node, Any]] = []
        #: By `id`: arrays that handlers have read where their files are mapped.
        self._read_in_map: dict[int, FileArray] = {}
        self._afterwards: list[Callable[[], None]] = []
        #: Live objects that stand in for saved ones whose state nobody could write down: path, type and reason.
        self.doubtful: list[str] = []
        self._given_up: dict[int, str] = {}  # nodes that cannot be restored, and why
        #: Differences that seldom matter, each a sentence.
        self.remarks: list[str] = []

    def run(self, live_roots: dict[str, Any]) -> dict[str, Any]:
        """Restore every root; returns the restored roots by name.

        `live_roots` are the live values of the same names; a root that is missing there is built anew.
        """
        self.prepare()
        with collector_paused(promotes=True):
            restored = {name: self.value(ref, live_roots.get(name, MISSING)) for name, ref in self.tree.roots.items()}
            self.fill_pending()
        while self._afterwards:
            afterwards, self._afterwards = self._afterwards, []
            for action in afterwards:
                action()
            self.fill_pending()
        for number, obj, is_new in self._last:
            self._fill(number, obj, is_new)
            self.fill_pending()
        self._check_again()
        return restored

    def prepare(self) -> None:
        """Take what can be taken to its place only by running it there; again, it changes nothing more."""
        prepared = []
        for number, node in enumerate(self.tree.nodes):
            handler = registry.handler_of_kind(node["k"])
            if handler is not None and type(handler).prepare is not Handler.prepare:
                prepared.append((handler, number, node))
        for is_last in (False, True):
            for handler, number, node in prepared:
                if handler.is_last is is_last:
                    handler.prepare(number, node, self)

    def value(self, ref: Ref, live: Any = MISSING) -> Any:
        """The restored value of a ref; `live` is what stands at its place now."""
        if type(ref) is not list or not is_node(ref):
            if type(live) is int and ref == self._process and live == os.getpid():
                return live  # set-up code has noted the process in both attempts
            return _keep_identity(decode_value(ref), live)
        number = ref[1]
        if number in self._done:
            return self._done[number]
        node = self.tree.nodes[number]
        if number in self._given_up:
            return self._replace(number, Unrestored(self._what(number), self._given_up[number], self.set_aside))
        handler = registry.handler_of_kind(node["k"])
        if handler is None:
            raise RestoreError(f"{self.tree.path(number)}: no handler for state of kind {node['k']!r} is loaded")
        target = self._live_match(number, live, node, handler)
        is_new = target is MISSING
        if is_new:
            if live is not MISSING and number in self._machinery:
                return live  # the library makes it again
            if "kept" in node:
                return self._replace(number, Unrestored(self._what(number), node["kept"]))
            target = self._build(number, node, handler)
            if number in self._done:  # built while its own parts were restored
                return self._done[number]
        self._done[number] = target
        if type(target) is Unrestored:
            return target
        self._matching.claimed.add(id(target))
        self._held.append(target)
        if node.get("loud"):
            self.doubtful.append(f"{self._what(number)}: {node['kept']}")
        if "kept" not in node:
            (self._last if handler.is_last else self._pending).append((number, target, is_new))
        return target

    def _replace(self, number: int, unrestored: Unrestored) -> Unrestored:
        self._done[number] = unrestored
        return unrestored

    def _what(self, number: int) -> str:
        return f"{self.tree.path(number)} ({self.tree.nodes[number]['t']})"

    def _live_match(self, number: int, live: Any, node: Node, handler: Handler) -> Any:
        """The live object that may be brought to the saved state: the one that was matched, else the one at its place; or MISSING."""
        target = self._matching.by_number.get(number, MISSING)
        if target is MISSING and live is not MISSING and id(live) not in self._matching.claimed:
            target = live
        return target if target is not MISSING and self._matches(target, node, handler) else MISSING

    def _matches(self, target: Any, node: Node, handler: Handler) -> bool:
        if "class" in node:
            here = () if node["t"] in self._ambiguous else (type(target),)
            if type_name(type(target)) != node["t"] or type(target) is not self.value(node["class"], *here):
                return False
        if not is_where_saved(target, node, self) if "within" in node else id(target) in self._inner:
            return False
        # Of an object that was kept the node says nothing more.
        return type_name(type(target)) == node["t"] if "kept" in node else handler.matches(target, node, self)

    # --- for handlers; `detrain.state.handler.Restoring` describes these ----------------------------------------------------------

    def matched(self, number: int) -> Any:
        """The live object that a node is matched with; None if there is none."""
        return self._matching.by_number.get(number)

    def match_again(self, number: int, obj: Any) -> None:
        """Match a node with an object that has just been run on, and all that is below it."""
        self._matching.add(number, obj)

    def match_stack(self, number: int, obj: Any) -> None:
        """Match what a suspended generator's loops run over."""
        self._matching.add_stack(number, obj)

    def replace_match(self, number: int, obj: Any) -> None:
        """Match a node with an object that has the saved state already."""
        self._matching.replace(number, obj)

    def is_claimed(self, obj: Any) -> bool:
        """True if an object is matched with some node."""
        return id(obj) in self._matching.claimed

    def give_up(self, number: int, why: str) -> None:
        """Let the script fail if it uses what this node stands for."""
        self._given_up[number] = why

    def postpone(self, number: int, error: RestoreError) -> None:
        """See `Restoring`."""
        if self._is_last_time:
            raise error
        self._given_up[number] = str(error)
        self.has_postponed = True

    def remark(self, text: str) -> None:
        """Report a difference that seldom matters."""
        self.remarks.append(text)

    def has_views(self, node: Node) -> bool:
        """True if other saved objects were views of this one's memory."""
        return id(node) in self._outer

    def values(self, refs: list[Ref], live: Sequence[Any] = ()) -> list[Any]:
        """Restored values of a sequence; `live` is the live sequence."""
        count = len(live)
        return [self.value(ref, live[i] if i < count else MISSING) for i, ref in enumerate(refs)]

    def fill_now(self, ref: Ref) -> None:
        """Bring what a ref names to its state before anything else."""
        self.value(ref)
        for entry in [pending for pending in self._pending if is_node(ref) and pending[0] == ref[1]]:
            self._pending.remove(entry)
            self._fill(*entry)
        self._copy()

    def fill_pending(self) -> None:
        """Fill now whatever has been matched or built so far."""
        while self._pending:
            number, obj, is_new = self._pending.popleft()
            self._fill(number, obj, is_new)
        self._copy()

    def afterwards(self, action: Callable[[], None]) -> None:
        """Run `action` once everything but the generators of random numbers is restored."""
        self._afterwards.append(action)

    def data(self, node: Node) -> np.ndarray[Any, Any]:
        """The bulk data of a node."""
        array = self.tree.arrays[node["array"]]
        filed = in_file(array)
        if filed is not None:
            self._read_in_map[id(filed)] = filed
        return array.data

    def put_data(self, node: Node, obj: Any) -> None:
        """Bring the bulk data of a node into the memory of `obj`, together with other such data."""
        array = self.tree.arrays[node["array"]]
        filed = in_file(array)
        if filed is not None:
            self._uncopied.append((filed, node, obj))
        elif array.num_bytes > _SMALL_BYTES:
            self._target(array, node, obj)[...] = np.frombuffer(array.octets(), np.uint8)
        else:
            ctypes.memmove(self._address(array, node, obj), bytes(array.octets()), array.num_bytes)

    def _address(self, array: Array, node: Node, obj: Any) -> int:
        """Where the bytes of an array belong."""
        memory = registry.handler_for(type(obj)).memory_range(obj)
        if memory is None or memory.num_bytes != array.num_bytes:
            there = "no" if memory is None else memory.num_bytes
            raise RestoreError(f"{self.path_of(node)} has {there} bytes, and {array.num_bytes} were saved")
        return memory.address

    def _target(self, array: Array, node: Node, obj: Any) -> Octets:
        return bytes_at(obj, self._address(array, node, obj), array.data.nbytes)

    def _copy(self) -> None:
        """Copy what lies in files. Only now is it certain where each object's memory is: a storage that grows moves."""
        uncopied, self._uncopied = self._uncopied, []
        targets = [(array, self._target(array, node, obj)) for array, node, obj in uncopied]
        for file, jobs in _by_file(targets, lambda job: job[0]):
            file.copy(jobs)

    def _check_again(self) -> None:
        for file, arrays in _by_file(self._read_in_map.values(), lambda array: array):
            file.check_again(arrays)

    def find_type(self, node: Node) -> Any:
        """The class of a node; raises `RestoreError` if the script has not defined it."""
        if "class" in node:
            return self.value(node["class"])
        if node["t"] in self._ambiguous:
            raise RestoreError(
                f"{self.path_of(node)}: several classes are called {node['t']}, and it is of one of them"
            )
        try:
            return resolve_type(node["t"])
        except LookupError as error:
            cls = self._origins.types.get(node["t"])
            if cls is None:
                raise RestoreError(f"{self.path_of(node)}: its class {node['t']} cannot be found: {error}") from None
            return cls

    def path_of(self, node: Node) -> str:
        """Path of a node, for messages."""
        return next(
            (self.tree.path(n) for n, candidate in enumerate(self.tree.nodes) if candidate is node),
            node.get("name", "?"),
        )

    def _build(self, number: int, node: Node, handler: Handler) -> Any:
        try:
            return handler.build(node, self)
        except CannotBuild as error:
            return Unrestored(self._what(number), str(error))
        except (TypeError, ValueError, AttributeError) as error:
            raise RestoreError(f"{self._what(number)} cannot be built: {error}") from error

    def _fill(self, number: int, obj: Any, is_new: bool) -> None:
        node = self.tree.nodes[number]
        handler = registry.handler_of_kind(node["k"])
        assert handler is not None
        if "class" in node:
            self.value(node["class"], type(obj))  # what its class holds
        handler.fill(obj, node, self, is_new)
        if handler.has_attributes:
            self._fill_attributes(obj, node, handler.attributes_left(obj, node, is_new))

    def _fill_attributes(self, obj: Any, node: Node, left: Collection[str]) -> None:
        live = instance_dict(obj)
        if "dict_of" in node:
            object.__setattr__(obj, "__dict__", self.value(node["dict_of"], MISSING if live is None else live))
        elif live is not None:
            if patches.are_used():
                left = {*left, *patches.left_alone(live, dict(node.get("attrs", ())), self.tree.nodes)}
            # Names of attributes are interned, as the interpreter has them: who pickles the object sees the same keys.
            restored = {
                sys.intern(name): self.value(ref, live.get(name, MISSING))
                for name, ref in node.get("attrs", ())
                if name not in left
            }
            restored |= {name: live[name] for name in left if name in live}
            if restored or live:
                live.clear()
                live.update(restored)
        cls: Any = type(obj)
        if slot_descriptors(cls):
            descriptors = dict(slot_descriptors(cls))
            present = dict(slot_values(obj, cls))
            saved = dict(node.get("slots", ()))
            for name in present.keys() - saved.keys():
                descriptors[name].__delete__(obj)
            for name, ref in saved.items():
                descriptors[name].__set__(obj, self.value(ref, present.get(name, MISSING)))

"""Restore: bring the live objects to the state of a tree, in place.

Saved graph and live graph are walked together by path. An object that the set-up code has made is brought to the saved state
where it is, so that every alias the set-up code made still holds; one without a live twin is built anew. What cannot be
restored exactly raises `RestoreError` naming the leaf.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np

from detrain.errors import RestoreError
from detrain.state import machinery, registry
from detrain.state.sharing import is_where_saved
from detrain.state.tree import Node, Ref, Tree, decode_value, is_node, is_same_value
from detrain.state.twins import Twins
from detrain.state.walk import Walk, instance_dict, slot_descriptors, slot_values


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


#: In place of a live value where there is none; None is a value.
MISSING: Any = _Missing()


def _keep_identity(value: Any, live: Any) -> Any:
    """The live value if it is the same: who pickles a state writes a second mention of one object otherwise than two objects."""
    if live is not MISSING and (live is value or is_same_value(live, value)):
        return live
    return sys.intern(value) if type(value) is str else value


class Origins:
    """The live objects by the path at which they stood when the loops were entered; dropped once the run has resumed."""

    def __init__(self, walk: Walk) -> None:
        self.paths: dict[int, str] = {}
        self.objects: dict[str, Any] = {}
        self.types: dict[str, type] = {}
        for number, obj in enumerate(walk.objects):
            path = walk.paths[number].removeprefix(".")
            self.objects.setdefault(path, obj)
            self.paths[id(obj)] = path
            cls = obj if issubclass(type(obj), type) else type(obj)  # a proxy whose target is gone cannot be asked
            self.types.setdefault(registry.type_name(cls), cls)


class CannotBuild(Exception):  # noqa: N818 - says what, not that it is a mistake
    """Raised by `Handler.build` for an object that only the set-up code can make."""


class Unrestored:
    """Stands where an object stood that the loop had made and that cannot be made again.

    Nine times in ten it is a leftover that the next iteration overwrites: the last row's `csv.writer`, a finished pass. If the
    script does use it, that use fails and names the leaf.
    """

    def __init__(self, what: str, why: str, set_aside: Callable[[], str] | None = None) -> None:
        """`set_aside`: what is done about the checkpoint when the script uses it, if it was there before the loop; it says so."""
        story = (
            "was made inside the loop and is not in the checkpoint"
            if set_aside is None
            else "cannot be brought to where it was"
        )
        self.__dict__["_text"] = f"{what} {story} ({why}); this resume cannot be exact"
        self.__dict__["_set_aside"] = set_aside

    def _fail(self, *_: Any, **__: Any) -> Any:
        set_aside = self.__dict__["_set_aside"]
        raise RestoreError(self.__dict__["_text"] + (f". {set_aside()}" if set_aside is not None else ""))

    __getattr__ = __setattr__ = __delattr__ = __call__ = __iter__ = __next__ = __len__ = __getitem__ = __setitem__ = (
        _fail
    )
    __contains__ = __enter__ = __exit__ = __bool__ = __add__ = __radd__ = __iadd__ = __mul__ = __rmul__ = __eq__ = _fail
    __repr__ = __str__ = __format__ = _fail
    __lt__ = __gt__ = __float__ = __int__ = __index__ = __neg__ = __sub__ = __rsub__ = __truediv__ = __matmul__ = _fail
    __hash__ = object.__hash__


class Restore:
    """One restore of one tree."""

    def __init__(
        self,
        tree: Tree,
        live: Walk,
        origins: Origins,
        set_aside: Callable[[], str] = str,
        *,
        allows_pickle: bool = True,
        process: int | None = None,
    ) -> None:
        """`set_aside` is for who finds out later that the tree held too little to go on: it says what has been done about that.

        `process`: the number of the process that has saved the tree. Libraries ask for it to know whether they have been forked.
        """
        self._process = process
        self.tree = tree
        self.set_aside = set_aside
        #: False: what could only be unpickled is refused.
        self.allows_pickle = allows_pickle
        self._origins = origins
        self._ambiguous = registry.names_of_several()
        #: Live objects that look into the memory of others.
        self._inner = {id(live.objects[number]) for number, node in enumerate(live.tree.nodes) if "within" in node}
        self._machinery = machinery.of_libraries(tree)
        #: Saved nodes into whose memory others look.
        self._outer = {id(tree.nodes[node["within"][1]]) for node in tree.nodes if "within" in node}
        self.twins = Twins(tree, live, origins.objects, origins.paths)
        self._done: dict[int, Any] = {}
        self._held: list[Any] = []
        self._pending: deque[tuple[int, Any, bool]] = deque()
        self._last: list[tuple[int, Any, bool]] = []
        self._afterwards: list[Callable[[], None]] = []
        #: Live objects that stand in for saved ones whose state nobody could write down: path, type and reason.
        self.doubtful: list[str] = []
        #: Nodes whose live objects cannot be taken to where they were, and why: an error if the script uses one.
        self.given_up: dict[int, str] = {}
        #: What is as it was but for something that seldom matters.
        self.remarks: list[str] = []

    def run(self, live_roots: dict[str, Any]) -> dict[str, Any]:
        """Restore every root; returns the restored roots by name.

        `live_roots` are the live values of the same names; a root that is missing there is built anew.
        """
        self.prepare()
        restored = {name: self.value(ref, live_roots.get(name, MISSING)) for name, ref in self.tree.roots.items()}
        self._drain()
        while self._afterwards:
            afterwards, self._afterwards = self._afterwards, []
            for action in afterwards:
                action()
            self._drain()
        for number, obj, is_new in self._last:
            self._fill(number, obj, is_new)
            self._drain()
        return restored

    def prepare(self) -> None:
        """Take what can be taken to its place only by running it there; again, it changes nothing more."""
        prepared = [(registry.handler_of_kind(node["k"]), number, node) for number, node in enumerate(self.tree.nodes)]
        for is_last in (False, True):
            for handler, number, node in prepared:
                if handler is not None and handler.is_last is is_last:
                    handler.prepare(number, node, self)

    def value(self, ref: Ref, live: Any = MISSING) -> Any:
        """The restored value of a ref; `live` is what stands at its place now."""
        if not is_node(ref):
            if type(live) is int and live == os.getpid() and ref == self._process:
                return live  # set-up code has noted the process in both attempts
            return _keep_identity(decode_value(ref), live)
        number = ref[1]
        if number in self._done:
            return self._done[number]
        node = self.tree.nodes[number]
        if number in self.given_up:
            what = f"{self.tree.path(number)} ({node['t']})"
            self._done[number] = Unrestored(what, self.given_up[number], self.set_aside)
            return self._done[number]
        handler = registry.handler_of_kind(node["k"])
        if handler is None:
            raise RestoreError(f"{self.tree.path(number)}: no handler for state of kind {node['k']!r} is loaded")
        target = self.twins.by_number.get(number, MISSING)
        if target is MISSING and live is not MISSING and id(live) not in self.twins.claimed:
            target = live
        if target is not MISSING and not self._is_twin(target, node, handler):
            target = MISSING
        is_new = target is MISSING
        if is_new and live is not MISSING and number in self._machinery:
            return live  # the library makes it again
        if is_new:
            if "kept" in node:
                self._done[number] = Unrestored(f"{self.tree.path(number)} ({node['t']})", node["kept"])
                return self._done[number]
            target = self._build(number, node, handler)
            if number in self._done:  # built while its own parts were restored
                return self._done[number]
        self._done[number] = target
        if type(target) is Unrestored:
            return target
        self.twins.claimed.add(id(target))
        self._held.append(target)
        if node.get("loud"):
            self.doubtful.append(f"{self.tree.path(number)} ({node['t']}): {node['kept']}")
        if "kept" not in node:
            (self._last if handler.is_last else self._pending).append((number, target, is_new))
        return target

    def _is_twin(self, target: Any, node: Node, handler: registry.Handler) -> bool:
        if node["t"] in self._ambiguous and "class" in node and type(target) is not self.value(node["class"]):
            return False
        if not is_where_saved(target, node, self) if "within" in node else id(target) in self._inner:
            return False
        # Of an object that was kept the node says nothing more.
        return registry.type_name(type(target)) == node["t"] if "kept" in node else handler.is_twin(target, node, self)

    def is_looked_into(self, node: Node) -> bool:
        """True for what other saved objects looked into the memory of."""
        return id(node) in self._outer

    def values(self, refs: list[Ref], live: Any = ()) -> list[Any]:
        """Restored values of a sequence; `live` is the live sequence."""
        count = len(live)
        return [self.value(ref, live[i] if i < count else MISSING) for i, ref in enumerate(refs)]

    def fill_now(self, ref: Ref) -> None:
        """Bring what a ref names to its state before anything else."""
        self.value(ref)
        for entry in [one for one in self._pending if is_node(ref) and one[0] == ref[1]]:
            self._pending.remove(entry)
            self._fill(*entry)

    def settle(self) -> None:
        """Fill now whatever has been found or built so far, for who cannot be built from what is still empty."""
        self._drain()

    def afterwards(self, action: Callable[[], None]) -> None:
        """Run `action` once everything but the generators of random numbers is restored."""
        self._afterwards.append(action)

    def data(self, node: Node) -> np.ndarray[Any, Any]:
        """The bulk data of a node."""
        return self.tree.arrays[node["array"]].data

    def find_type(self, node: Node) -> Any:
        """The class of a node; raises `RestoreError` if the script has not defined it."""
        if node["t"] in self._ambiguous:
            if "class" in node:
                return self.value(node["class"])
            raise RestoreError(
                f"{self.path_of(node)}: several classes are called {node['t']}, and it is of one of them"
            )
        try:
            return registry.resolve_type(node["t"])
        except LookupError as error:
            if "class" in node:
                return self.value(node["class"])
            found = self._origins.types.get(node["t"])
            if found is None:
                raise RestoreError(f"{self.path_of(node)}: its class {node['t']} cannot be found: {error}") from None
            return found

    def path_of(self, node: Node) -> str:
        """Path of a node, for messages."""
        return next(
            (self.tree.path(n) for n, candidate in enumerate(self.tree.nodes) if candidate is node),
            node.get("name", "?"),
        )

    def _build(self, number: int, node: Node, handler: registry.Handler) -> Any:
        try:
            return handler.build(node, self)
        except CannotBuild as error:
            return Unrestored(f"{self.tree.path(number)} ({node['t']})", str(error))
        except (TypeError, ValueError, AttributeError) as error:
            raise RestoreError(f"{self.tree.path(number)} ({node['t']}) cannot be built anew: {error}") from error

    def _drain(self) -> None:
        while self._pending:
            number, obj, is_new = self._pending.popleft()
            self._fill(number, obj, is_new)

    def _fill(self, number: int, obj: Any, is_new: bool) -> None:
        node = self.tree.nodes[number]
        handler = registry.handler_of_kind(node["k"])
        assert handler is not None
        if "class" in node:
            self.value(node["class"], type(obj))  # what its class holds
        handler.fill(obj, node, self, is_new)
        if handler.has_attributes:
            self._fill_attributes(obj, node)

    def _fill_attributes(self, obj: Any, node: Node) -> None:
        live = instance_dict(obj)
        if live is not None:
            # Names of attributes are interned, as the interpreter has them: who pickles the object sees the same keys.
            restored = {
                sys.intern(name): self.value(ref, live.get(name, MISSING)) for name, ref in node.get("attrs", ())
            }
            if restored or live:
                live.clear()
                live.update(restored)
        if "dict_of" in node:
            object.__setattr__(obj, "__dict__", self.value(node["dict_of"]))
        cls: Any = type(obj)
        descriptors = dict(slot_descriptors(cls))
        if descriptors:
            present = dict(slot_values(obj, cls))
            saved = dict(node.get("slots", ()))
            for name in present.keys() - saved.keys():
                descriptors[name].__delete__(obj)
            for name, ref in saved.items():
                descriptors[name].__set__(obj, self.value(ref, present.get(name, MISSING)))

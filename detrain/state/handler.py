"""The contract of a handler: all that detrain knows about one kind of object.

A handler is asked in this order. While a checkpoint is taken: `capture`, once for each object. In a later attempt, which has run the
set-up code again and holds live objects: `prepare` for every saved node; then, from the roots down, `matches` (may this live object be
brought to the saved state in place?), `build` where none may, and `fill`. Kinds that are `is_last` are filled after all others.

To add one, derive a class from `Handler`, declare `kind` and `fields`, write `capture` and what of the others differs from the defaults
below, and `register` an instance for its types (`detrain.state.registry`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np

from detrain.errors import RestoreError
from detrain.state.classes import type_name
from detrain.state.fields import Holds
from detrain.state.tree import Node, Place, Ref, Tree

#: Path segment of an object that is a dict's key.
KEY = ".<key>"


class _Missing:
    def __repr__(self) -> str:
        return "<missing>"


#: In place of a live value where there is none; None is a value.
MISSING: Any = _Missing()


class CannotBuild(Exception):  # noqa: N818 - says what, not that it is a mistake
    """Raised by `Handler.build` for an object that only the set-up code can make; its text says why.

    The resume goes on. An `Unrestored` stands in the object's place, and fails where the script uses it.
    """


class MemoryRange(NamedTuple):
    """Consecutive bytes of memory."""

    address: int
    num_bytes: int
    rank: int  # of several objects over the same bytes, the one with the lowest rank is the owner


class MemoryRanges(NamedTuple):
    """Those of several objects; of one that has none, the address is -1."""

    addresses: list[int]
    sizes: list[int]
    ranks: list[int]


class Glance(NamedTuple):
    """What `Handler.capture` would look at in several objects of one type, without their nodes: to see whether these are as before."""

    #: Columns of plain values with one entry for each object, compared by `==`.
    facts: list[list[Any]]
    #: How many parts each object has.
    counts: list[int]
    #: Every value that `capture` would give to the walk, object after object, in its order.
    parts: list[Any]
    #: The memory of each, of a handler that has looked at it along.
    memories: MemoryRanges | None = None


class Capturing(Protocol):
    """What a handler may ask of the walk, inside `capture` and what it gives to `at_end`.

    Every value that the node refers to is given to `child` or one of its plural forms; what they return is stored in the node. Raise
    `CaptureError` for an object whose state cannot be read: the node is then *kept* (the object stays as the set-up code makes it), and
    the user is warned.
    """

    @property
    def path(self) -> str:
        """Path of the object that is being captured."""

    def child(self, obj: Any, segment: str) -> Ref:
        """The ref of a value; `segment` is appended to the object's path to name it, separator included: `.weight`, `[3]`."""

    def children(self, objs: Iterable[Any]) -> list[Ref]:
        """Refs of a sequence's elements, named `[0]`, `[1]` and so on."""

    def items(self, mapping: Any) -> list[list[Ref]]:
        """[ref of the key, ref of the value] for what `mapping.items()` gives."""

    def attributes(self, names_values: Iterable[tuple[str, Any]], field_name: str = "attrs") -> list[list[Ref]]:
        """[name, ref] for each pair; `field_name` is the field of the node that they are stored in."""

    def dead_attributes(self, names_values: Iterable[tuple[str, Any]], field_name: str) -> None:
        """Add [name, ref] to a field of the node that is being captured, for dead variables, once all that is alive has been captured.

        Of one that a resume could not bring back, and that nobody else has, the ref says only that it was there.
        """

    def array(self, node: Node, data: np.ndarray[Any, Any] | Place, label: str = "", *, is_copy: bool = False) -> None:
        """Store bulk data with the node, once.

        `data` may be a view of live memory unless it `is_copy`; a `Place` is the `memory_range` of an owner that may move it without
        asking. `label` names a dtype that numpy lacks, under whole numbers of whose size the data is.
        """

    def node(self, number: int) -> Node:
        """A node that has been captured, or is being captured; `node["p"]` is the number of the one above."""

    def at_end(self, action: Callable[[], None], target: Any = None) -> None:
        """Go on with this object, in `action`, when everything that is reached without it has been captured.

        `target`: what the object refers to weakly.
        """

    def has_reached(self, obj: Any) -> bool:
        """True if the walk has reached `obj` so far."""

    def has_changed(self, fingerprint: Any) -> bool:
        """True if another fingerprint was stored, in `told`, for the object at this path when the loops were entered."""

    def wait_for(self, obj: Any) -> None:
        """Work is under way in `obj`: if there is time, `wait` for it and capture everything anew."""

    def warn_of_hidden_state(self, name: str, type_name: str, why: str) -> None:
        """Warn of something that is in no variable and may change the state at any time; `name` is its path."""


class Restoring(Protocol):
    """What a handler may ask of a restore.

    In `prepare`: only what is matched (`matched`, `match_again`, `match_stack`, `replace_match`, `is_claimed`, `give_up`, `postpone`) and
    `value` of what is ready. In `matches` and `build`: `value` and `values` of parts, which may themselves still be empty (`fill_pending`,
    `fill_now` fill them). In `fill`: everything. Raise `RestoreError`, naming the leaf by `path_of`, where the saved state cannot be
    reached exactly.
    """

    @property
    def tree(self) -> Tree:
        """The saved state."""

    @property
    def allows_pickle(self) -> bool:
        """False: what could only be unpickled is to be refused."""

    @property
    def set_aside(self) -> Callable[[], str]:
        """Sets the checkpoint aside, and returns a sentence that says so: for who finds out later that it held too little."""

    def value(self, ref: Ref, live: Any = MISSING) -> Any:
        """The restored value of a ref; `live` is what stands at its place now, and is taken if it matches."""

    def values(self, refs: list[Ref], live: Sequence[Any] = ()) -> list[Any]:
        """Restored values of a sequence; `live` is the live sequence, of any length."""

    def data(self, node: Node) -> np.ndarray[Any, Any]:
        """The bulk data of a node, to be copied."""

    def put_data(self, node: Node, obj: Any) -> None:
        """Bring the bulk data of a node into the memory of `obj`, its `memory_range`.

        That is done when what has been matched or built so far is filled (`fill_pending`, `fill_now`), together with other such data.
        """

    def find_type(self, node: Node) -> Any:
        """The class of a node; raises `RestoreError` if the script has not defined it."""

    def path_of(self, node: Node) -> str:
        """Path of a node, for messages."""

    def fill_now(self, ref: Ref) -> None:
        """Bring what a ref names to its state before anything else."""

    def fill_pending(self) -> None:
        """Fill whatever has been matched or built so far: for an object that cannot be built from parts that are still empty."""

    def afterwards(self, action: Callable[[], None]) -> None:
        """Run `action` once everything but the kinds that are `is_last` has been filled."""

    def matched(self, number: int) -> Any:
        """The live object that is brought to the state of this node; None if there is none."""

    def match_again(self, number: int, obj: Any) -> None:
        """Match a node with `obj`, which has just been run on, and what is below the node with what is below `obj` now."""

    def match_stack(self, number: int, obj: Any) -> None:
        """Match what a suspended generator's loops run over with what `obj`'s loops run over, whatever else leads there."""

    def replace_match(self, number: int, obj: Any) -> None:
        """Match a node with `obj`, which has the saved state already, in place of the object that was matched."""

    def is_claimed(self, obj: Any) -> bool:
        """True if `obj` is matched with some node."""

    def give_up(self, number: int, why: str) -> None:
        """The live object of this node cannot be taken to its saved state: an error if the script uses it."""

    def postpone(self, number: int, error: RestoreError) -> None:
        """In `prepare`: what a node stands for cannot be taken to its place before the rest has been restored.

        It is restored once more then, all of it. Raises `error` if it has been.
        """

    def remark(self, text: str) -> None:
        """Report a difference that seldom matters; the resume goes on."""

    def has_views(self, node: Node) -> bool:
        """True if other saved objects were views of this one's memory, so that it must stay where it is."""


class Handler:
    """Captures and restores one kind of object.

    Where `has_attributes` is True, the walk also saves `__dict__` and every `__slots__` entry of the object, those of the handled type
    included, and the restore sets them after `fill`; but those that `node["inner"]` names are not saved.
    """

    #: Stored in every node; names the handler in a later attempt, so it never changes.
    kind: ClassVar[str]
    #: Every field that `capture` stores in a node, and how it holds refs; see `detrain.state.fields`.
    fields: ClassVar[Mapping[str, Holds]] = MappingProxyType({})
    has_attributes: ClassVar[bool] = True
    #: True: prepared and filled after everything else. For generators of random numbers, from which restoring other objects may draw, and
    #: for iterators that may have been moved to their position already because another object was run.
    is_last: ClassVar[bool] = False
    #: True if `capture` looks at the node of the object's holder.
    looks_above: ClassVar[bool] = False
    #: True if nobody notices that an object is dropped: it holds no file, no process, no code that is still to run.
    is_dropped_silently: ClassVar[bool] = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        """Store the state of `obj` in `node`. Draws no random number and changes nothing that the script can see.

        Raises `CaptureError` if the state cannot be read.
        """
        raise NotImplementedError

    def glance(self, objs: Sequence[Any], cls: type) -> Glance | None:
        """All that `capture` looks at in objects of exactly this type; None if it has to look again each time.

        What `capture` does may hang on nothing else but the types of the parts, and the nodes of those above if it `looks_above`. It is
        called for the same objects many times, so it is made of few calls that run in C.
        """
        return None

    def prepare(self, number: int, node: Node, restore: Restoring) -> None:
        """Before anything is restored: advance an object that reaches its saved position only by being run. May be called twice."""

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        """True if a live object may be brought to the saved state in place."""
        return bool(type_name(type(live)) == node["t"])

    def build(self, node: Node, restore: Restoring) -> Any:
        """Make an object that `fill` can bring to the saved state, where no live one matches.

        Raises `CannotBuild` if only the set-up code can make one; TypeError, ValueError and AttributeError end the resume with the path.
        """
        cls = restore.find_type(node)
        return cls.__new__(cls)

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        """Bring `obj`, which matches or has just been built (`is_new`), to the saved state.

        Raises `RestoreError` if that cannot be done exactly.
        """

    def attributes_left(self, obj: Any, node: Node, is_new: bool) -> Collection[str]:
        """Names in `obj.__dict__` that `fill` has taken care of; the others are set to what was saved."""
        return ()

    def wait(self, obj: Any, until_s: float) -> None:
        """Let the work that is under way in an object end by itself, until this time of the monotonic clock at the latest."""

    # --- memory and generators: only of kinds that have some ---------------------------------------------------------------------

    def memory(self, obj: Any) -> tuple[int, int] | None:
        """Address and number of bytes where the object's elements lie in this order; None if they lie nowhere or elsewhere."""
        return None

    def memory_range(self, obj: Any) -> MemoryRange | None:
        """The memory that an object owns, or is a view of without saying whose it is; None if it names the owner, or has none."""
        return None

    def memory_ranges(self, objs: Sequence[Any]) -> MemoryRanges:
        """`memory_range` of each."""
        found = MemoryRanges([], [], [])
        for obj in objs:
            address, num_bytes, rank = self.memory_range(obj) or (-1, 0, 0)
            found.addresses.append(address)
            found.sizes.append(num_bytes)
            found.ranks.append(rank)
        return found

    def are_still(self, objs: Sequence[Any], memories: MemoryRanges) -> bool:
        """True if the memory of each is where it was."""
        addresses, sizes, _ = self.memory_ranges(objs)
        return addresses == memories.addresses and sizes == memories.sizes

    def device_memory(self, obj: Any) -> tuple[int, int] | None:
        """As `memory`, for elements on a device: what `fetch` gives bytes of."""
        return None

    def fetch(self, obj: Any, start: int, end: int) -> Any:
        """Bytes `start` to `end` of `device_memory`, once the device has done what it was given to do."""
        raise NotImplementedError(f"{self.kind} lies on no device")

    def replicas(self, node: Node, tree: Tree) -> Iterable[tuple[Ref, str]]:
        """Tensors that other ranks of the job have as well, bit for bit, each with the ranks that do."""
        return ()

    def fingerprint(self, obj: Any) -> bytes:
        """The state of a generator of random numbers, in microseconds and without a draw."""
        raise NotImplementedError(f"{self.kind} has no fingerprint")

    def watch(self, obj: Any) -> Callable[[], object] | None:
        """What gives the same again only while a generator's fingerprint is the same, and is quicker; None if there is no such thing.

        Once it gives something else it is of no more use.
        """
        return None


def mark_not_saved(node: Node, why: str, *, warns: bool) -> None:
    """Leave an object as the set-up code makes it; its node says `why`. `warns`: that may be wrong, so the user is told."""
    node["kept"] = why
    if warns:
        node["loud"] = True

"""Digests of live tensors and arrays, taken again and again without a new walk."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

import xxhash

from detrain.state import registry
from detrain.state.captured import Captured
from detrain.state.handler import Handler
from detrain.state.tree import Ref, is_node

#: Bytes of one digest.
PIECE_BYTES = 1 << 20
#: Bytes of each sample; a leaf whose samples are the same is taken for unchanged.
_SAMPLE_BYTES = 4096


class Leaf:
    """A tensor or an array whose elements lie contiguously in memory.

    It is not kept alive: once it is gone or has moved, its digest is 0.
    """

    def __init__(self, captured: Captured, number: int, memory: tuple[int, int]) -> None:
        self.path, self.num_bytes = captured.path(number), memory[1]
        #: Of the node in that capture.
        self.number, self._node = number, captured.tree.nodes[number]
        obj = captured.objects[number]
        self._ref = weakref.ref(obj)
        self._memory = memory
        self._handler = registry.handler_for(type(obj))
        storage: Ref = self._node.get("storage")
        self._storage: int = storage[1] if is_node(storage) else -1
        place = captured.places.get(self._storage)
        self._storage_at = place.address if place is not None else -1

    @property
    def address(self) -> int:
        """Where it begins."""
        return self._memory[0]

    def is_in(self, captured: Captured) -> bool:
        """True if it is a leaf of this capture as well: the same object, in the same place, with the same look."""
        place = captured.places.get(self._storage)
        return (
            place is not None
            and place.address == self._storage_at
            and captured.tree.nodes[self.number] is self._node
            and self._ref() is captured.objects[self.number]
        )

    def _find(self) -> Any:
        """The object, if it lives and has not moved."""
        obj = self._ref()
        return obj if obj is not None and self._where(obj) == self._memory else None

    def _where(self, obj: Any) -> tuple[int, int] | None:
        return self._handler.memory(obj)

    def _read(self, obj: Any, start: int, end: int) -> Any:
        """Bytes of an object that has just been found."""
        return (ctypes.c_ubyte * (end - start)).from_address(self._memory[0] + start)

    def digest(self, start: int = 0) -> int:
        """32 bits, never 0, of the xxh3-64 of `PIECE_BYTES` bytes from `start` on; 0 if the object is gone or has moved."""
        obj = self._find()
        if obj is None:
            return 0
        piece = self._read(obj, start, min(start + PIECE_BYTES, self.num_bytes))
        return (xxhash.xxh3_64_intdigest(piece) & 0xFFFFFFFF) or 1

    def sketch(self) -> int:
        """xxh3-64 of a few samples, to see cheaply whether a leaf changes at all; 0 if the object is gone or has moved."""
        obj = self._find()
        return 0 if obj is None else self._sketch(obj)

    def first_sketch(self) -> int:
        """The same of a leaf that has just been captured."""
        return self._sketch(self._ref())

    def _sketch(self, obj: Any) -> int:
        if self.num_bytes <= _SAMPLE_BYTES:
            return int(xxhash.xxh3_64_intdigest(self._read(obj, 0, self.num_bytes)))
        places = {0, max(0, self.num_bytes // 2 - _SAMPLE_BYTES // 2), max(0, self.num_bytes - _SAMPLE_BYTES)}
        state = xxhash.xxh3_64()
        for place in sorted(places):
            state.update(self._read(obj, place, min(place + _SAMPLE_BYTES, self.num_bytes)))
        return state.intdigest()


class DeviceLeaf(Leaf):
    """A leaf whose elements lie on a device. Reading it waits for the operations that were queued there."""

    def _where(self, obj: Any) -> tuple[int, int] | None:
        return self._handler.device_memory(obj)

    def _read(self, obj: Any, start: int, end: int) -> Any:
        return self._handler.fetch(obj, start, end)


def leaves(captured: Captured, before: Sequence[Leaf] = ()) -> list[Leaf]:
    """The leaves of what has just been captured, in the order of the walk; two that begin at one address count once.

    Those of the capture before that are the same again are the same objects.
    """
    found: list[Leaf] = []
    seen: set[int] = set()
    known = {leaf.number: leaf for leaf in before if leaf.number < len(captured.objects) and leaf.is_in(captured)}
    kinds = registry.handlers_with_leaves()
    for number, node in enumerate(captured.tree.nodes):
        handler = kinds.get(node["k"])
        if handler is None:
            continue
        leaf = known.get(number) or _leaf(captured, number, handler)
        if leaf is not None and leaf.address not in seen:
            seen.add(leaf.address)
            found.append(leaf)
    return found


def _leaf(captured: Captured, number: int, handler: Handler) -> Leaf | None:
    obj, kind = captured.objects[number], Leaf
    memory = handler.memory(obj)
    if memory is None:
        kind, memory = DeviceLeaf, handler.device_memory(obj)
    return kind(captured, number, memory) if memory is not None and memory[1] else None

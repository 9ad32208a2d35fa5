"""Digests of live tensors and arrays, taken again and again without a new walk."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import xxhash

from detrain.state import registry
from detrain.state.captured import Captured

#: Bytes of one digest.
PIECE_BYTES = 1 << 20
#: Bytes of each sample; a leaf whose samples are the same is taken for unchanged.
_SAMPLE_BYTES = 4096


class Leaf:
    """A tensor or an array whose elements lie contiguously in memory.

    It is not kept alive: once it is gone or has moved, its digest is 0.
    """

    def __init__(self, path: str, obj: Any, address: int, num_bytes: int) -> None:
        self.path, self.num_bytes = path, num_bytes
        self._ref = weakref.ref(obj)
        self._memory = address, num_bytes
        self._handler = registry.handler_for(type(obj))

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
        if obj is None:
            return 0
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


def leaves(captured: Captured) -> list[Leaf]:
    """The leaves of what has just been captured, in the order of the walk; two that begin at one address count once."""
    leaves: list[Leaf] = []
    seen: set[int] = set()
    for number, obj in enumerate(captured.objects):
        handler = registry.handler_of_kind(captured.tree.nodes[number]["k"])
        if handler is None:
            continue
        kind, memory = Leaf, handler.memory(obj)
        if memory is None:
            kind, memory = DeviceLeaf, handler.device_memory(obj)
        if memory is None or not memory[1] or memory[0] in seen:
            continue
        seen.add(memory[0])
        leaves.append(kind(captured.path(number), obj, *memory))
    return leaves

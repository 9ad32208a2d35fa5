"""Live memory: what can be digested again and again without a new walk."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import xxhash

from detrain.state import registry
from detrain.state.captured import Captured

#: Bytes that are digested in one go.
PIECE_BYTES = 1 << 20
#: A leaf of which none of this has changed is taken for unchanged. Bytes.
_SAMPLE_BYTES = 4096


class Leaf:
    """A tensor or an array that lies in one stretch of memory. It is not held alive: when it is gone, or elsewhere, it tells nothing."""

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
        """32 bits of the xxh3-64 of a piece, never 0; 0 if the object is gone."""
        obj = self._find()
        if obj is None:
            return 0
        piece = self._read(obj, start, min(start + PIECE_BYTES, self.num_bytes))
        return (xxhash.xxh3_64_intdigest(piece) & 0xFFFFFFFF) or 1

    def sketch(self) -> int:
        """Digest of a few samples, to see whether it changes at all."""
        obj = self._find()
        if obj is None:
            return 0
        places = {0, max(0, self.num_bytes // 2 - _SAMPLE_BYTES // 2), max(0, self.num_bytes - _SAMPLE_BYTES)}
        state = xxhash.xxh3_64()
        for place in sorted(places):
            state.update(self._read(obj, place, min(place + _SAMPLE_BYTES, self.num_bytes)))
        return state.intdigest()


class DeviceLeaf(Leaf):
    """One whose numbers lie on a device. Reading it waits until the device has done all that it was told to."""

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

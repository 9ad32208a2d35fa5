"""Live memory: what can be digested again and again without a new walk."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import xxhash

from detrain.state import registry
from detrain.state.walk import Walk

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
        self._buffer = (ctypes.c_ubyte * num_bytes).from_address(address)  # looked at only while `is_there`

    @property
    def is_there(self) -> bool:
        """True if the object lives and has not moved."""
        obj = self._ref()
        return obj is not None and self._handler.memory(obj) == self._memory

    def digest(self, start: int = 0) -> int:
        """32 bits of the xxh3-64 of a piece, never 0; 0 if the object is gone."""
        if not self.is_there:
            return 0
        piece = memoryview(self._buffer)[start : start + PIECE_BYTES]
        return (xxhash.xxh3_64_intdigest(piece) & 0xFFFFFFFF) or 1

    def sketch(self) -> int:
        """Digest of a few samples, to see whether it changes at all."""
        if not self.is_there:
            return 0
        whole = memoryview(self._buffer)
        places = {0, max(0, self.num_bytes // 2 - _SAMPLE_BYTES // 2), max(0, self.num_bytes - _SAMPLE_BYTES)}
        state = xxhash.xxh3_64()
        for place in sorted(places):
            state.update(whole[place : place + _SAMPLE_BYTES])
        return state.intdigest()


def leaves(walk: Walk) -> list[Leaf]:
    """The leaves of a walk that has just been made, in its order; two that begin at one address count once."""
    found: list[Leaf] = []
    seen: set[int] = set()
    for number, obj in enumerate(walk.objects):
        handler = registry.handler_of_kind(walk.tree.nodes[number]["k"])
        memory = handler.memory(obj) if handler is not None else None
        if memory is None or not memory[1] or memory[0] in seen:
            continue
        seen.add(memory[0])
        found.append(Leaf(walk.paths[number].removeprefix("."), obj, *memory))
    return found

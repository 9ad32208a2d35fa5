"""Where a state is copied to, so that the training can go on while it is written."""

from __future__ import annotations

import itertools
import mmap
import operator
from collections.abc import Iterator, Sequence
from ctypes import memmove
from typing import Any

import numpy as np
import psutil

from detrain.state.tree import Array, Place, Window
from detrain.store.threads import share_out

_ALIGNMENT = 64
#: What one thread copies at a time; below this much in all, the one that asks copies alone. Bytes.
_PIECE_BYTES, _ALONE_BYTES = 8 << 20, 32 << 20
#: A state that would take more of the memory that is free is written from where it lies.
_MOST_OF_FREE = 0.5
#: Where to, where from, how many bytes.
_Piece = tuple[int, int, int]


class Staging:
    """Holds one state."""

    def __init__(self) -> None:
        self._memory: np.ndarray[Any, Any] = np.empty(0, np.uint8)
        #: Of the state before: the copies, and where each begins. Most serve the next one, which so makes few objects.
        self._copies: list[Array] = []
        self._begins: list[int] = []

    def copy(self, arrays: Sequence[Array]) -> list[Array] | None:
        """Copies that stay as they are until the next call; None if there is not the memory for them."""
        sizes = [0 if array.is_copy else -(-array.num_bytes // _ALIGNMENT) * _ALIGNMENT for array in arrays]
        ends = list(itertools.accumulate(sizes))
        end = ends[-1] if ends else 0
        if not self._make_room(end):
            return None
        begins = list(map(operator.sub, ends, sizes))
        if begins != self._begins:
            self._begins, self._copies = (
                begins,
                [
                    array if array.is_copy else self._new(array, begin)
                    for array, begin in zip(arrays, begins, strict=True)
                ],
            )
        base, pieces = self._memory.ctypes.data, list[_Piece]()
        for at, (array, copy, begin) in enumerate(zip(arrays, self._copies, begins, strict=True)):
            if array.is_copy:
                self._copies[at] = array
                continue
            place, window = array.place, copy.place
            look = array.look if place is None else place.look
            if (
                type(window) is not Window
                or (window.look is not look and window.look != look)
                or copy.path != array.path
                or copy.label != array.label
            ):
                copy = self._copies[at] = self._new(array, begin)
            copy.digest = array.digest
            if type(place) is Place:
                pieces.append((base + begin, place.address, place.num_bytes))
            elif array.data.flags.c_contiguous:
                pieces.append((base + begin, array.data.ctypes.data, array.num_bytes))
            else:
                np.copyto(copy.data, array.data)
        if end < _ALONE_BYTES:
            for piece in pieces:
                memmove(*piece)
        else:
            share_out(_cut(pieces), lambda piece: memmove(*piece))
        return list(self._copies)

    def _new(self, array: Array, begin: int) -> Array:
        window = Window(self._memory.data, begin, array.num_bytes, array.look)
        return Array(array.path, window, array.label, array.digest, True)

    def _make_room(self, size: int) -> bool:
        if size <= len(self._memory):
            return True
        self._memory, self._begins, self._copies = np.empty(0, np.uint8), [], []
        if size > psutil.virtual_memory().available * _MOST_OF_FREE:
            return False
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError:
            return False
        # A loader's workers need it not, nor what the next copy would have to be parted from. No huge pages: beside a full page cache
        # the kernel tidies memory up to get them, and the first copy of 1.4 GB took 2.5 to 5 s instead of 0.8.
        memory.madvise(mmap.MADV_DONTFORK)
        self._memory = np.frombuffer(memory, np.uint8)
        return True


def _cut(pieces: list[_Piece]) -> Iterator[_Piece]:
    for to, come_from, num_bytes in pieces:
        for start in range(0, num_bytes, _PIECE_BYTES):
            yield to + start, come_from + start, min(_PIECE_BYTES, num_bytes - start)

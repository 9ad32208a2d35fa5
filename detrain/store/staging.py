"""Where a state is copied to, so that the training can go on while it is written."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
import psutil

from detrain.state.tree import Array
from detrain.store.threads import share_out

_ALIGNMENT = 64
#: What one thread copies at a time; below this much in all, the one that asks copies alone. Bytes.
_PIECE_BYTES, _ALONE_BYTES = 8 << 20, 32 << 20
#: A state that would take more of the memory that is free is written from where it lies.
_MOST_OF_FREE = 0.5


class Staging:
    """Holds one state."""

    def __init__(self) -> None:
        self._memory: np.ndarray[Any, Any] = np.empty(0, np.uint8)

    def copy(self, arrays: Sequence[Array]) -> list[Array] | None:
        """Copies that stay as they are until the next call; None if there is not the memory for them."""
        places, end = [], 0
        for array in arrays:
            places.append(end)
            if not array.is_copy:
                end += -(-array.data.nbytes // _ALIGNMENT) * _ALIGNMENT
        if not self._make_room(end):
            return None
        copies, pieces = [], []
        for array, begin in zip(arrays, places, strict=True):
            data = array.data
            if array.is_copy:
                copies.append(array)
                continue
            copy: Any = np.ndarray(data.shape, data.dtype, self._memory, begin)
            copies.append(Array(array.path, copy, array.label, array.digest, is_copy=True))
            if data.nbytes <= _PIECE_BYTES or not data.flags.c_contiguous:
                pieces.append((copy, data))
            else:
                pieces += _cut(copy.reshape(-1).view(np.uint8), data.reshape(-1).view(np.uint8))
        if end < _ALONE_BYTES:
            for copy, data in pieces:
                np.copyto(copy, data)
        else:
            share_out(pieces, lambda piece: np.copyto(*piece))
        return copies

    def _make_room(self, size: int) -> bool:
        if size <= len(self._memory):
            return True
        self._memory = np.empty(0, np.uint8)
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


def _cut(copy: Any, data: Any) -> list[tuple[Any, Any]]:
    starts = range(0, len(data), _PIECE_BYTES)
    return [(copy[start : start + _PIECE_BYTES], data[start : start + _PIECE_BYTES]) for start in starts]

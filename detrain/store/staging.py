"""Where a state is copied to, so that the training can go on while it is written."""

from __future__ import annotations

import itertools
import mmap
import operator
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from ctypes import CDLL, PYFUNCTYPE, c_size_t, c_void_p, memmove, memset
from typing import Any

import numpy as np
import psutil

from detrain.state import blank
from detrain.state.tree import Array, Look, Place, Window
from detrain.store.threads import share_out

#: `memmove` that keeps the interpreter's lock: to let go of it and take it again is what a copy of some bytes takes longest for.
_move = PYFUNCTYPE(None, c_void_p, c_void_p, c_size_t)(("memmove", CDLL(None)))
_ALIGNMENT = 64
#: What one thread copies at a time; below this much in all, the one that asks copies alone. Bytes.
_PIECE_BYTES, _ALONE_BYTES = blank.LEAST_BYTES, 32 << 20
#: A state that would take more of the memory that is free is written from where it lies.
_MOST_OF_FREE = 0.5
#: <sys/mman.h>; Python 3.11 does not name it. What stays blank takes no memory, and shall not be counted as if it did.
_MAP_NORESERVE = 0x4000
#: Where to, where from, how many bytes.
_Piece = tuple[int, int, int]
_Columns = tuple[list[str], list[str], list[Look], list[int]]
#: Of what is no place in live memory; no array looks so.
_NOWHERE = Place(None, 0, 0, (np.dtype(np.uint8), (-1,)))


class Staging:
    """Holds one state."""

    def __init__(self) -> None:
        self._memory: np.ndarray[Any, Any] = np.empty(0, np.uint8)
        #: So much of it has been written to, at least; the rest takes none as long as it is blank.
        self._num_taken = 0
        #: Of the state before: paths, labels, looks and sizes. Where the next one is alike, the copies serve it, and no objects are made.
        self._columns: _Columns = [], [], [], []
        self._copies: list[Array] = []
        #: Where each begins: in the memory, and as an address.
        self._begins: list[int] = []
        self._addresses: list[int] = []

    def copy(self, arrays: Sequence[Array]) -> list[Array] | None:
        """Copies that stay as they are until the next call; None if there is not the memory for them."""
        # By column: of ten thousand arrays one after the other it takes three times as long.
        places = [place if type(place := array.place) is Place else _NOWHERE for array in arrays]
        sources, sizes = [place.address for place in places], [place.num_bytes for place in places]
        columns = (
            [array.path for array in arrays],
            [array.label for array in arrays],
            [place.look for place in places],
            sizes,
        )
        others = [at for at, place in enumerate(places) if place is _NOWHERE]
        for at in others:
            if not arrays[at].is_copy:
                columns[2][at], sizes[at] = arrays[at].look, arrays[at].num_bytes
        if not self._fits(sources, sizes) or (columns != self._columns and not self._make_copies(arrays, columns)):
            return None
        for copy, array in zip(self._copies, arrays, strict=True):
            copy.digest = array.digest
        counts = sizes
        if others:
            counts = list(sizes)
            for at in others:
                sources[at], counts[at] = self._copy_other(at, arrays[at])
        pieces = zip(self._addresses, sources, counts, strict=True)
        if (num_bytes := sum(counts)) < _ALONE_BYTES:
            deque(itertools.starmap(_move, pieces), maxlen=0)
        else:
            taken: list[int] = []  # appended to by several threads
            share_out(_cut(pieces), lambda piece: taken.append(_copy_filled(*piece)))
            num_bytes = sum(taken)
        self._num_taken = max(self._num_taken, num_bytes)
        return list(self._copies)

    def _fits(self, sources: Sequence[int], sizes: Sequence[int]) -> bool:
        """Whether there is the memory for a copy. If not, what is here is given back."""
        size = sum(sizes)
        if size > len(self._memory):
            self._give_back()
        more = size - self._num_taken
        if more <= 0:
            return True
        free = psutil.virtual_memory().available * _MOST_OF_FREE
        if more > free:  # a buffer that is hardly filled needs less
            more = sum(map(_num_filled, sources, sizes)) - self._num_taken
        if more <= free:
            return True
        self._give_back()
        return False

    def _give_back(self) -> None:
        self._memory, self._begins, self._copies, self._columns = np.empty(0, np.uint8), [], [], ([], [], [], [])
        self._num_taken = 0

    def _copy_other(self, at: int, array: Array) -> tuple[int, int]:
        """Of an array that is no place in live memory: address and size of what is still to be copied."""
        if array.is_copy:
            self._copies[at] = array
        elif array.data.flags.c_contiguous:
            return int(array.data.ctypes.data), array.num_bytes
        else:
            np.copyto(self._copies[at].data, array.data)
        return 0, 0

    def _make_copies(self, arrays: Sequence[Array], columns: _Columns) -> bool:
        """Copies of these columns, those that are there where they fit. False if there is not the memory."""
        *_, looks, sizes = columns
        rounded = [-(-size // _ALIGNMENT) * _ALIGNMENT for size in sizes]
        ends = list(itertools.accumulate(rounded))
        if not self._make_room(ends[-1] if ends else 0):
            return False
        begins = list(map(operator.sub, ends, rounded))
        others: Iterable[int] = range(len(arrays))
        if begins == self._begins:
            paths, labels, before, _ = self._columns
            others = {*_differing(columns[0], paths), *_differing(columns[1], labels), *_differing(looks, before)}
        else:
            self._copies = list(arrays)
        for at in others:
            octets = self._memory.data[begins[at] : begins[at] + sizes[at]]
            self._copies[at] = Array(
                arrays[at].path, Window(octets, sizes[at], looks[at]), arrays[at].label, is_copy=True
            )
        self._begins, self._columns = begins, columns
        self._addresses = list(map(int(self._memory.ctypes.data).__add__, begins))
        return True

    def _make_room(self, size: int) -> bool:
        if size <= len(self._memory):
            return True
        self._give_back()
        try:
            memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        except OSError:
            return False
        # A loader's workers need it not, nor what the next copy would have to be parted from. No huge pages: beside a full page cache
        # the kernel tidies memory up to get them, and the first copy of 1.4 GB took 2.5 to 5 s instead of 0.8.
        memory.madvise(mmap.MADV_DONTFORK)
        self._memory = np.frombuffer(memory, np.uint8)
        return True


def _differing(column: Sequence[object], before: Sequence[object]) -> Iterator[int]:
    """Where two columns of one length differ."""
    return itertools.compress(itertools.count(), map(operator.ne, column, before))


def _octets_at(address: int, num_bytes: int) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return Place(None, address, num_bytes, (np.dtype(np.uint8), (num_bytes,))).view()


def _num_filled(address: int, num_bytes: int) -> int:
    """Bytes of an array that a copy of it takes."""
    if num_bytes < blank.LEAST_BYTES or not address:
        return num_bytes
    return sum(end - begin for begin, end, is_blank in blank.runs(_octets_at(address, num_bytes)) if not is_blank)


def _copy_filled(to: int, come_from: int, num_bytes: int) -> int:
    """What is zeros is not written to where it is zeros there, too. Returns how many bytes have been written."""
    if num_bytes < blank.LEAST_BYTES:
        memmove(to, come_from, num_bytes)
        return num_bytes
    taken = 0
    for begin, end, is_blank in blank.runs(_octets_at(come_from, num_bytes)):
        if not is_blank:
            memmove(to + begin, come_from + begin, end - begin)
        elif not blank.is_blank(_octets_at(to + begin, end - begin)):
            memset(to + begin, 0, end - begin)
        else:
            continue
        taken += end - begin
    return taken


def _cut(pieces: Iterable[_Piece]) -> Iterator[_Piece]:
    for to, come_from, num_bytes in pieces:
        for start in range(0, num_bytes, _PIECE_BYTES):
            yield to + start, come_from + start, min(_PIECE_BYTES, num_bytes - start)

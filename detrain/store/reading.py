"""Reading the arrays of a checkpoint.

Nothing live is written to before every digest has been checked, and what is written is checked again where it has arrived. So a resume
reads a large array twice:

1. Before the script begins, `Holder.check` reads each file from the disk in pieces that stay in the processor's cache, takes the digest
   of each piece there and forgets it. That takes as long as a bare read: the disk is what is waited for. No memory is taken for the state.
2. Where the state is restored, `Holder.copy` copies the array out of a map of the file, whose pages the system has by then, straight into
   the memory of a live tensor, by several threads, and takes the digest of each piece that has arrived there. That takes as long as a
   copy of memory.

Both go through a file from its beginning to its end. What lies between the large arrays is read after them: the system reads ahead of
who reads on, but begins again with little behind each page that it has already, which took half as long again.

Of 1 GB the first took 0.47 s (a bare read: 0.4 to 0.5 s) and the second 0.08 s. Other ways took longer: reading again from the open file
in place of the map 0.18 s; reading into new memory, to copy from there, 1 s more, because a new page takes the kernel longer to give than
to fill, and it would take the memory of the state a second time. Reading into the live tensors at once, and checking only then, would
save one of the two; a damaged file would then be found by a script that has begun and has half a state.

If somebody changes the file between the two, the second digest tells: the restore ends with an error that names the leaf, as it does
with all that cannot be restored, and the attempt starts again from an earlier checkpoint. Small arrays are read together with what
lies between them, and are kept.
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import xxhash

from detrain.errors import CheckpointError
from detrain.state import blank
from detrain.state.filearray import FileArray, Octets
from detrain.state.tree import digest_prefix
from detrain.store.threads import share_out

_Item = TypeVar("_Item")

#: Read at a time: it stays in the processor's cache until its digest has been taken. Bytes.
_PIECE_BYTES = 1 << 20
#: Small arrays and gaps are read together up to this size. Bytes.
_STRETCH_BYTES = 4 << 20
#: Memory into which arrays are read begins as they do in the file, to a multiple of this. Bytes.
_ALIGNMENT = 64
#: Below this much in all, the thread that asks reads alone. Bytes.
_ALONE_BYTES = 32 << 20


class Holder:
    """A file that holds arrays."""

    def __init__(self, path: Path) -> None:
        """Raises `CheckpointError` if it cannot be read."""
        self.name = path.name
        self._path = os.path.abspath(path)
        try:
            with open(path, "rb", buffering=0) as file:
                self.content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path.name} cannot be read: {error}") from None

    def array(self, path: str, label: str, dtype: np.dtype[Any], shape: tuple[int, ...], offset: int) -> FileArray:
        """One of its arrays, without its digest. Raises `CheckpointError` if there can be none there."""
        num_bytes = math.prod(shape) * dtype.itemsize
        if offset + num_bytes > len(self.content):
            raise CheckpointError(f"{self.name} is damaged at leaf {path}: it ends before")
        try:
            data: Any = np.ndarray(shape, dtype, self.content, offset if num_bytes else 0)
        except ValueError as error:  # no elements, in a shape that numpy cannot have
            raise CheckpointError(f"{self.name} is damaged at leaf {path}: {error}") from None
        return FileArray(path, data, label, file=self, offset=offset)

    def check(self, arrays: Iterable[FileArray]) -> None:
        """Read the arrays once and note their digests."""
        in_order = sorted(arrays, key=lambda one: one.offset)
        spare: list[memoryview] = []  # one for each thread

        def check(array: FileArray) -> None:
            buffer = spare.pop() if spare else memoryview(bytearray(_PIECE_BYTES))
            array.digest = _read_digest(number, array, buffer)
            spare.append(buffer)

        try:
            # By reading, not in the map: there, an error of the disk would kill the process.
            number = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                _work(in_order, check, sum(array.data.nbytes for array in in_order))
            finally:
                os.close(number)
        except OSError as error:
            raise CheckpointError(f"{self.name} cannot be read: {error}") from None

    def copy(self, arrays: Sequence[tuple[FileArray, Octets]]) -> None:
        """See `detrain.state.filearray.ArrayFile`."""

        def copy(job: tuple[FileArray, Octets]) -> None:
            array, target = job
            source, state = np.frombuffer(array.octets(), np.uint8), _begin_digest(array)
            may_be_blank = len(source) >= blank.LEAST_BYTES
            for start in range(0, len(source), _PIECE_BYTES):
                piece, comes = target[start : start + _PIECE_BYTES], source[start : start + _PIECE_BYTES]
                if not (may_be_blank and blank.is_blank(comes) and blank.is_blank(piece)):
                    np.copyto(piece, comes)
                state.update(piece.data)
            self._compare(array, state.hexdigest())

        in_order = sorted(arrays, key=lambda one: one[0].offset)  # as the disk reads ahead
        _work(in_order, copy, sum(len(target) for _, target in arrays))

    def check_again(self, arrays: Iterable[FileArray]) -> None:
        """See `detrain.state.filearray.ArrayFile`."""

        def check(array: FileArray) -> None:
            state = _begin_digest(array)
            state.update(array.octets())
            self._compare(array, state.hexdigest())

        inside = list(arrays)
        _work(inside, check, sum(array.data.nbytes for array in inside))

    def _compare(self, array: FileArray, digest: str) -> None:
        if digest != array.digest:
            raise CheckpointError(
                f"{self.name} has changed at leaf {array.path} since its digests were checked: the state has been restored from other "
                "bytes than were saved, so the training must not go on with it"
            )


def _read_digest(number: int, array: FileArray, buffer: memoryview) -> str:
    """Of what an open file has for an array; "" if it ends before."""
    state = _begin_digest(array)
    for start in range(0, array.data.nbytes, len(buffer)):
        piece = buffer[: array.data.nbytes - start]
        if not read_whole(number, piece, array.offset + start):
            return ""
        state.update(piece)
    return str(state.hexdigest())


def _begin_digest(array: FileArray) -> Any:
    return xxhash.xxh3_128(digest_prefix(array.label or array.data.dtype.str, array.data.shape))


def _work(items: Sequence[_Item], work: Callable[[_Item], None], num_bytes: int) -> None:
    if num_bytes >= _ALONE_BYTES:
        share_out(items, work)
    else:
        for item in items:
            work(item)


def read_whole(number: int, memory: memoryview, offset: int) -> bool:
    """Fill memory with the bytes of an open file from an offset on; False if it ends before. Raises OSError."""
    while memory:
        count = os.preadv(number, [memory], offset)
        if not count:
            return False
        memory, offset = memory[count:], offset + count
    return True


class Stretch(NamedTuple):
    """Bytes of a file that have been read together."""

    begin: int
    memory: np.ndarray[Any, Any]

    def between(self, begin: int, end: int) -> memoryview:
        """By offsets in the file."""
        return self.memory.data[begin - self.begin : end - self.begin]


def stretches(number: int, extents: Iterable[tuple[int, int]]) -> Iterator[tuple[Stretch, list[tuple[int, int]]]]:
    """Read extents (begin, end) of an open file, together where one begins where another ends; with the extents that are in each stretch.

    Raises OSError, and EOFError if the file ends before.
    """
    inside: list[tuple[int, int]] = []
    for begin, end in sorted(extents):
        if inside and (begin != inside[-1][1] or end - inside[0][0] > _STRETCH_BYTES):
            yield _read_stretch(number, inside), inside
            inside = []
        inside.append((begin, end))
    if inside:
        yield _read_stretch(number, inside), inside


def _read_stretch(number: int, inside: Sequence[tuple[int, int]]) -> Stretch:
    begin = inside[0][0] - inside[0][0] % _ALIGNMENT
    memory = np.empty(inside[-1][1] - begin, np.uint8)
    if not read_whole(number, memory.data, begin):
        raise EOFError(f"it ends before byte {inside[-1][1]}")
    return Stretch(begin, memory)

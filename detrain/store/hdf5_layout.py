"""The HDF5 side of a checkpoint: where in the file each array and document stands, and libhdf5's own bytes around them.

libhdf5 composes a file in which no array has been written; its bytes are kept, and serve every checkpoint whose arrays have the same
names and shapes. It never sees the file on the disk: when a write of its own fails, it cannot close the file any more, and making ten
thousand data sets takes it longer than writing them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import h5py
import numpy as np
import xxhash

from detrain.store.threads import with_breaks

#: What an array is aligned to that has its size: it can be mapped, and read as it lies. Bytes.
PAGE = 4096
#: What stands in front of HDF5's own first byte is ours. HDF5 allows for it, in powers of two. Bytes.
USER_BLOCK = PAGE
#: The path of a leaf is cut to this in the data set's attribute, which HDF5 bounds; the table has it whole. Characters.
_LONGEST_PATH = 1000
_PAGE_OF_MEMORY = 1 << 16
#: From here on an array is written by itself, and stays in its file until it is asked for. Bytes.
LARGE_BYTES = 64 << 10
#: So much of what is smaller is written at a time. Bytes.
_RUN_BYTES = 1 << 20
#: Data sets that are made between two breaks.
_SLOTS = 32


class Slot(NamedTuple):
    """An array to be: the number of its data set, and what HDF5 is told about it."""

    number: int
    path: str
    label: str
    dtype: str
    shape: tuple[int, ...]


class Run(NamedTuple):
    """A stretch of a file in which no large array lies: its bytes, and where each array belongs in it.

    Whoever writes the file puts the arrays there first; those of an earlier checkpoint lie there until then.
    """

    content: bytearray
    places: list[slice]
    numbers: list[int]


@dataclass(frozen=True)
class Frame:
    """A file without its arrays and documents. Offsets are in bytes, from the file's beginning."""

    #: Offset and size of each array by its number.
    arrays: dict[int, tuple[int, int]]
    #: Offset and capacity of each document by its name.
    documents: dict[str, tuple[int, int]]
    #: What stands behind the user block, in the order of the file: the number of a large array, the name of a document, or what lies
    #: between these, libhdf5's bytes and zeros among it.
    parts: tuple[int | str | Run, ...]
    #: Of all gaps, xxh3-128 in hex.
    gaps_digest: str
    size: int


class Composer:
    """Composes frames, and keeps the last."""

    def __init__(self) -> None:
        self._key: Any = None
        self._frame: Frame | None = None

    def compose(
        self,
        slots: Callable[[], Sequence[Slot]],
        of: object,
        capacities: dict[str, int],
        attributes: dict[str, int | str],
    ) -> Frame:
        """A file with these arrays, with documents of these many bytes, and with these attributes.

        `of` says which arrays they are: where it is the same as before, `slots` is not called.
        """
        key = (of, tuple(capacities.items()), tuple(attributes.items()))
        if self._frame is None or key != self._key:
            self._key, self._frame = key, _compose(slots(), capacities, attributes)
        return self._frame


def gaps_between(extents: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Begin and end of what lies behind the user block and in none of these (offset, size). Raises `ValueError` for what cannot lie so."""
    end = USER_BLOCK
    for offset, length in sorted(extents):
        if offset < end or offset + length > size:
            raise ValueError(f"{length} bytes at {offset} overlap others, or end after the end of the file")
        if offset > end:
            yield end, offset
        end = offset + length
    if end < size:
        yield end, size


class _Memory:
    """A file in memory, for libhdf5: pages that nothing is written to take none. No limit on files' sizes binds it, as one in tmpfs."""

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = {}
        self._position = 0
        self.size = 0

    def seek(self, offset: int, whence: int = 0) -> int:
        """As a file's."""
        self._position = offset + (0, self._position, self.size)[whence]
        return self._position

    def tell(self) -> int:
        """As a file's."""
        return self._position

    def write(self, content: Any) -> int:
        """As a file's."""
        data, done = memoryview(content).cast("B"), 0
        while done < len(data):
            number, start = divmod(self._position + done, _PAGE_OF_MEMORY)
            count = min(len(data) - done, _PAGE_OF_MEMORY - start)
            page = self._pages.setdefault(number, bytearray(_PAGE_OF_MEMORY))
            page[start : start + count] = data[done : done + count]
            done += count
        self._position += done
        self.size = max(self.size, self._position)
        return done

    def readinto(self, buffer: Any) -> int:
        """As a file's."""
        view = memoryview(buffer).cast("B")
        content = self.between(self._position, min(self._position + len(view), self.size))
        view[: len(content)] = content
        self._position += len(content)
        return len(content)

    def truncate(self, size: int) -> int:
        """As a file's; libhdf5 only makes it longer."""
        self.size = size
        return size

    def flush(self) -> None:
        """Nothing is held back."""

    def between(self, begin: int, end: int) -> bytes:
        """Content."""
        parts = []
        while begin < end:
            number, start = divmod(begin, _PAGE_OF_MEMORY)
            count = min(end - begin, _PAGE_OF_MEMORY - start)
            page = self._pages.get(number)
            parts.append(bytes(count) if page is None else bytes(page[start : start + count]))
            begin += count
        return b"".join(parts)


def _compose(slots: Sequence[Slot], capacities: dict[str, int], attributes: dict[str, int | str]) -> Frame:
    memory = _Memory()
    with h5py.File(_create(memory)) as file:
        for name, value in attributes.items():
            file.attrs[name] = value if isinstance(value, int) else _fixed(value)
        group = file.create_group("arrays")
        allocator = _Allocator()
        arrays = {slot.number: _extent(_make(group, slot, allocator)) for slot in with_breaks(slots, _SLOTS)}
        documents = {
            name: _extent(allocator.allocate(file.id, name, "|u1", (size,))) for name, size in capacities.items()
        }
    extents = [extent for extent in (*arrays.values(), *documents.values()) if extent[1]]
    gaps = [(begin, memory.between(begin, end)) for begin, end in gaps_between(extents, memory.size)]
    placed: list[tuple[int, int | str | bytes]] = [*gaps]
    placed += [(place[0], key) for found in (arrays, documents) for key, place in found.items() if place[1]]
    placed.sort(key=lambda one: one[0])
    digest = xxhash.xxh3_128_hexdigest(b"".join(gap for _, gap in gaps))
    return Frame(arrays, documents, tuple(_runs([part for _, part in placed], arrays)), digest, memory.size)


def _runs(parts: Sequence[int | str | bytes], arrays: Mapping[int, tuple[int, int]]) -> Iterator[int | str | Run]:
    content, places, numbers = bytearray(), list[slice](), list[int]()
    for part in parts:
        size = arrays[part][1] if isinstance(part, int) else len(part)
        is_large = isinstance(part, str) or (isinstance(part, int) and size >= LARGE_BYTES)
        if content and (is_large or len(content) + size > _RUN_BYTES):
            yield Run(content, places, numbers)
            content, places, numbers = bytearray(), [], []
        if isinstance(part, bytes):
            content += part
        elif isinstance(part, int) and not is_large:
            places.append(slice(len(content), len(content) + size))
            numbers.append(part)
            content += bytes(size)
        else:
            yield part
    if content:
        yield Run(content, places, numbers)


def _create(memory: _Memory) -> Any:
    created = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    created.set_userblock(USER_BLOCK)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_alignment(PAGE, PAGE)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, memory)
    return h5py.h5f.create(b"frame", h5py.h5f.ACC_TRUNC, created, access)


def _make(group: Any, slot: Slot, allocator: _Allocator) -> Any:
    found = allocator.allocate(group.id, str(slot.number), slot.dtype, slot.shape)
    allocator.write(found, b"path", slot.path[:_LONGEST_PATH])
    if slot.label:
        allocator.write(found, b"label", slot.label)
    return found


class _Allocator:
    """Makes data sets and their attributes in libhdf5's own terms: by h5py's, ten thousand take it twice as long."""

    def __init__(self) -> None:
        self._made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        self._made.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
        self._made.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
        self._made.set_obj_track_times(False)
        self._scalar = h5py.h5s.create(h5py.h5s.SCALAR)

    def allocate(self, group: Any, name: str, dtype: str, shape: tuple[int, ...]) -> Any:
        """A data set that nothing is written to."""
        space = h5py.h5s.create_simple(shape) if shape else self._scalar
        kind = h5py.h5t.py_create(np.dtype(dtype), logical=True)
        return h5py.h5d.create(group, name.encode(), kind, space, self._made)

    def write(self, found: Any, name: bytes, text: str) -> None:
        """An attribute."""
        value = np.asarray(_fixed(text))
        h5py.h5a.create(found, name, h5py.h5t.py_create(value.dtype, logical=True), self._scalar).write(value)


def _extent(found: Any) -> tuple[int, int]:
    size = int(found.get_storage_size())
    return (int(found.get_offset()), size) if size else (0, 0)


def _fixed(text: str) -> Any:
    """Texts have a fixed length: libhdf5 keeps those of variable length in a heap without a checksum."""
    return np.bytes_(text.encode())

"""The HDF5 side of a checkpoint: where in the file each array and document stands, and libhdf5's own bytes around them.

libhdf5 composes a file in which no array has been written; its bytes are kept, and serve every checkpoint whose arrays have the same
names and shapes. It never sees the file on the disk: when a write of its own fails, it cannot close the file any more, and making ten
thousand data sets takes it longer than writing them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import h5py
import numpy as np

#: What an array is aligned to that has its size: it can be mapped, and read as it lies. Bytes.
PAGE = 4096
#: What stands in front of HDF5's own first byte is ours. HDF5 allows for it, in powers of two. Bytes.
USER_BLOCK = PAGE
#: The path of a leaf is cut to this in the data set's attribute, which HDF5 bounds; the table has it whole. Characters.
_LONGEST_PATH = 1000
_PAGE_OF_MEMORY = 1 << 16


class Slot(NamedTuple):
    """An array to be: the number of its data set, and what HDF5 is told about it."""

    number: int
    path: str
    label: str
    dtype: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Frame:
    """A file without its arrays and documents. Offsets are in bytes, from the file's beginning."""

    #: Offset and size of each array by its number.
    arrays: dict[int, tuple[int, int]]
    #: Offset and capacity of each document by its name.
    documents: dict[str, tuple[int, int]]
    #: All else behind the user block, by offset: libhdf5's bytes, and zeros between.
    gaps: tuple[tuple[int, bytes], ...]
    size: int


class Composer:
    """Composes frames, and keeps the last."""

    def __init__(self) -> None:
        self._key: Any = None
        self._frame: Frame | None = None

    def compose(self, slots: Sequence[Slot], capacities: dict[str, int], attributes: dict[str, int | str]) -> Frame:
        """A file with these arrays, with documents of these many bytes, and with these attributes."""
        key = (tuple(slots), tuple(capacities.items()), tuple(attributes.items()))
        if self._frame is None or key != self._key:
            self._key, self._frame = key, _compose(slots, capacities, attributes)
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
        arrays = {slot.number: _extent(_make(group, slot)) for slot in slots}
        documents = {name: _extent(_allocate(file.id, name, "|u1", (size,))) for name, size in capacities.items()}
    extents = [extent for extent in (*arrays.values(), *documents.values()) if extent[1]]
    gaps = tuple((begin, memory.between(begin, end)) for begin, end in gaps_between(extents, memory.size))
    return Frame(arrays, documents, gaps, memory.size)


def _create(memory: _Memory) -> Any:
    created = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    created.set_userblock(USER_BLOCK)
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_libver_bounds(h5py.h5f.LIBVER_V110, h5py.h5f.LIBVER_V110)
    access.set_alignment(PAGE, PAGE)
    access.set_fileobj_driver(h5py.h5fd.fileobj_driver, memory)
    return h5py.h5f.create(b"frame", h5py.h5f.ACC_TRUNC, created, access)


def _make(group: Any, slot: Slot) -> Any:
    found = _allocate(group.id, str(slot.number), slot.dtype, slot.shape)
    attributes = h5py.AttributeManager(h5py.Dataset(found))
    attributes["path"] = _fixed(slot.path[:_LONGEST_PATH])
    if slot.label:
        attributes["label"] = _fixed(slot.label)
    return found


def _allocate(group: Any, name: str, dtype: str, shape: tuple[int, ...]) -> Any:
    made = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    made.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    made.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    made.set_obj_track_times(False)
    space = h5py.h5s.create_simple(shape) if shape else h5py.h5s.create(h5py.h5s.SCALAR)
    return h5py.h5d.create(group, name.encode(), h5py.h5t.py_create(np.dtype(dtype), logical=True), space, made)


def _extent(found: Any) -> tuple[int, int]:
    size = int(found.get_storage_size())
    return (int(found.get_offset()), size) if size else (0, 0)


def _fixed(text: str) -> Any:
    """Texts have a fixed length: libhdf5 keeps those of variable length in a heap without a checksum."""
    return np.bytes_(text.encode())

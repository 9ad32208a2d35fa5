"""One checkpoint: one HDF5 file, written once, committed by its rename.

Layout (format 2)::

    first 4096 bytes        HDF5's user block: `detrain checkpoint`, one line of JSON, the digest of that line, zeros. The line
                            says the format, the file's size, where the documents stand, and the digests of these and of all else
                            that is no array
    /                       attributes: format, detrain (version)
    /meta                   one JSON document, UTF-8, as bytes (below)
    /tree                   the state tree without its bulk data: one JSON document, UTF-8, as bytes
    /arrays/<number>        one contiguous data set for each array, on a page's boundary from a page's size on; attributes: path,
                            label (a dtype that numpy lacks). An array that an earlier file of the run holds has no data set here

The table `stored` in /tree names file, offset and digest (xxh3-128) of every array. Reading goes by the user block and the table alone:
libhdf5, which a damaged file can make loop or crash, is for other readers (`h5ls -r`, h5py). Every byte of the file is under one of the
digests. Nothing in a file is executed on reading.

`meta` carries the position, the list of checkpoints to pass through on the way there, the fingerprint of the environment, and the
digests of the sources.
"""

from __future__ import annotations

import functools
import json
import math
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash

from detrain.errors import CheckpointError
from detrain.package import __version__
from detrain.state.collector import collector_paused
from detrain.state.filearray import FileArray
from detrain.state.tree import Array, Tree, Window
from detrain.store.hdf5_layout import LARGE_BYTES, USER_BLOCK, gaps_between
from detrain.store.meta import Meta
from detrain.store.reading import Holder, Stretch, stretches

FORMAT = 2
#: What lies between the arrays is read in pieces of this size at most.
_GAP_BYTES = 1 << 20
#: Libhdf5's own bound, and numpy's before 2.
_MOST_DIMENSIONS = 32
MAGIC = b"detrain checkpoint\n"
#: What HDF5 files begin with, those of format 1 among them.
_HDF5 = b"\x89HDF\r\n\x1a\n"


class Stored(NamedTuple):
    """Where an array of the tree stands, and what it is."""

    path: str
    digest: str
    label: str
    dtype: str
    shape: tuple[int, ...]
    #: Name of the file that holds it; "" for the checkpoint's own.
    holder: str
    offset: int

    @property
    def nbytes(self) -> int:
        """Size."""
        return math.prod(self.shape) * _dtype(self.dtype).itemsize


@dataclass
class Checkpoint:
    """What a checkpoint file says without its state."""

    path: Path
    meta: Meta
    #: One for each array of the tree. None where it has been let go of; of a file just written only the large ones, to which a later
    #: one may point.
    stored: list[Stored] = field(default_factory=list)

    @property
    def name(self) -> str:
        """File name."""
        return self.path.name

    @property
    def needs(self) -> set[str]:
        """Names of the other files without which this one cannot be resumed from."""
        return {*(self.meta.holders or ()), *self.meta.chain}

    def is_built_on(self, name: str) -> bool:
        """True if `needs` has it; asked of every checkpoint there is whenever one is taken."""
        return name in self.meta.chain or name in (self.meta.holders or ())

    def without_table(self) -> Checkpoint:
        """The same without `stored`, which is most of it: of many checkpoints only the latest one's is ever needed again."""
        return replace(self, stored=[])

    @property
    def sequence(self) -> int:
        """Number of the save within the run; the latest checkpoint has the highest."""
        return self.meta.sequence


class _Header(NamedTuple):
    """The user block: of each document and of the rest, (offset, size, digest)."""

    size: int
    tree: tuple[int, int, str]
    meta: tuple[int, int, str]
    gaps: str


def encode_header(size: int, documents: dict[str, tuple[int, int, str]], gaps: str) -> bytes:
    """The user block. Sizes and offsets in bytes."""
    fields = {"format": FORMAT, "detrain": __version__, "size": size, "gaps": gaps, **documents}
    line = json.dumps(fields, separators=(",", ":")).encode()
    block = MAGIC + line + b"\n" + xxhash.xxh3_128_hexdigest(line).encode() + b"\n"
    return block.ljust(USER_BLOCK, b"\0")


def read_header(path: Path) -> Checkpoint:
    """Position, fingerprint and table of arrays of a checkpoint. Raises `CheckpointError` if the file cannot be trusted."""
    with _opened(path) as file:
        checkpoint, _, header = _read_documents(path, file)
        _read_between(path, file, _own_extents(checkpoint, [entry.nbytes for entry in checkpoint.stored]), header)
        return checkpoint


def read_outline(path: Path) -> Checkpoint:
    """The same without the table of arrays. Of the state tree, which is most of what a header is, the digest is checked and no more.

    The bytes outside the documents are not looked at. Raises `CheckpointError`.
    """
    with _opened(path) as file:
        header = _decode_header(path, os.pread(file, USER_BLOCK, 0), os.fstat(file).st_size)
        _read_bytes(path, file, *header.tree)
        meta = _decode_meta(path, _read_document(path, file, *header.meta))
    # An earlier detrain's file says only in its table what it needs.
    return read_header(path).without_table() if meta.holders is None else Checkpoint(path, meta)


def fingerprint(path: Path) -> str:
    """Of the file as it was written: its first page has the digests of all else in it. Raises OSError."""
    with open(path, "rb", buffering=0) as file:
        return str(xxhash.xxh3_128_hexdigest(file.read(USER_BLOCK)))


def load(path: Path, *, is_checked: bool = False) -> tuple[Checkpoint, Tree]:
    """A checkpoint with its state: large arrays are private maps of the files, to be copied by who keeps them.

    Every digest is checked. Raises `CheckpointError` naming the leaf that is damaged. `is_checked`: this process has loaded the file
    before, so large arrays are not read now; the restore checks their digests in the memory that it copies them to.
    """
    with collector_paused(promotes=True), _opened(path) as file:
        checkpoint, document, header = _read_documents(path, file)
        sizes = [entry.nbytes for entry in checkpoint.stored]
        large = _large_arrays(checkpoint, sizes, is_checked=is_checked)
        # Behind the large arrays: to read here and there before would break up what the system reads ahead of these.
        small = _read_between(path, file, _own_extents(checkpoint, sizes), header)
        arrays = [
            large.get(number) or _small_array(entry, size, small[entry.offset])
            for number, (entry, size) in enumerate(zip(checkpoint.stored, sizes, strict=True))
        ]
        for array, entry in zip(arrays, checkpoint.stored, strict=True):
            if array.compute_digest() != entry.digest:
                raise CheckpointError(
                    f"{entry.holder or checkpoint.name} is damaged at leaf {entry.path}: its bytes do not have the digest that they "
                    "were written with"
                )
        return checkpoint, Tree(nodes=document["nodes"], roots=document["roots"], arrays=arrays)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    """The number of the open file. Inside the block, an OSError says that it cannot be read."""
    try:
        with open(path, "rb", buffering=0) as file:
            yield file.fileno()
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from None


def _read_documents(path: Path, file: int) -> tuple[Checkpoint, dict[str, Any], _Header]:
    """Of an open file: position and table, state tree, header."""
    header = _decode_header(path, os.pread(file, USER_BLOCK, 0), os.fstat(file).st_size)
    tree, meta = (_read_document(path, file, *place) for place in (header.tree, header.meta))
    _check_kinds(path, tree)
    stored = list(_entries(path, tree["stored"]))
    holders = sorted({entry.holder for entry in stored if entry.holder})
    return Checkpoint(path, replace(_decode_meta(path, meta), holders=holders), stored), tree, header


def _own_extents(checkpoint: Checkpoint, sizes: Sequence[int]) -> list[tuple[int, int]]:
    """Offset and size of the arrays in the checkpoint's own file."""
    return [
        (entry.offset, size) for entry, size in zip(checkpoint.stored, sizes, strict=True) if size and not entry.holder
    ]


def _decode_header(path: Path, block: bytes, size: int) -> _Header:
    if not block.startswith(MAGIC):
        what = (
            "a checkpoint of format 1, or another HDF5 file" if block.startswith(_HDF5) else "another file, or cut off"
        )
        raise CheckpointError(f"{path.name} is not a checkpoint: its header is wrong; it is {what}")
    _, line, digest, rest = (block.split(b"\n", 3) + [b""] * 3)[:4]
    is_whole = xxhash.xxh3_128_hexdigest(line).encode() == digest and not rest.strip(b"\0")
    if not is_whole or len(block) < USER_BLOCK:
        raise CheckpointError(f"{path.name} is not a whole checkpoint: its first {USER_BLOCK} bytes are damaged")
    fields = json.loads(line)
    if fields["format"] > FORMAT:
        raise CheckpointError(
            f"{path.name} has format {fields['format']}, written by detrain {fields['detrain']}; this detrain reads up to {FORMAT}. "
            "Install the newer detrain to resume from it"
        )
    if size != fields["size"]:
        raise CheckpointError(
            f"{path.name} is not a whole checkpoint: it has {size} bytes, and was written with {fields['size']}"
        )
    return _Header(size, tuple(fields["tree"]), tuple(fields["meta"]), fields["gaps"])


def _read_bytes(path: Path, file: int, offset: int, size: int, digest: str) -> bytes:
    content = os.pread(file, size, offset)
    if xxhash.xxh3_128_hexdigest(content) != digest:
        raise CheckpointError(
            f"{path.name} is damaged: its state tree does not have the digest that it was written with"
        )
    return content


def _read_document(path: Path, file: int, offset: int, size: int, digest: str) -> Any:
    try:
        return json.loads(_read_bytes(path, file, offset, size, digest))
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path.name} does not hold a state tree: {error}") from None


def _decode_meta(path: Path, document: dict[str, Any]) -> Meta:
    try:
        return Meta.decode(document)
    except (TypeError, ValueError) as error:
        raise CheckpointError(f"{path.name} does not contain its position in the run: {error}") from None


def _check_kinds(path: Path, tree: Any) -> None:
    kinds = {"nodes": list, "roots": dict, "stored": list}
    if type(tree) is not dict or {name: type(tree.get(name)) for name in kinds} != kinds:
        raise CheckpointError(
            f"{path.name} does not hold a state tree: nodes, roots and stored are not what they should be"
        )


def _entries(path: Path, table: list[Any]) -> Iterator[Stored]:
    """Raises `CheckpointError` for what no save writes."""
    for fields in table:
        try:
            leaf, digest, label, dtype, shape, holder, offset = fields
            is_sound = (
                type(leaf) is type(digest) is type(label) is type(dtype) is type(holder) is str
                and all(type(one) is int and one >= 0 for one in (offset, *shape))
                and len(shape) <= _MOST_DIMENSIONS and _dtype(dtype).kind in "biufcSV" and not _dtype(dtype).hasobject
                and (not holder or os.path.basename(holder) == holder != path.name)
            )  # fmt: skip
        except (TypeError, ValueError):
            is_sound = False
        if not is_sound:
            raise CheckpointError(f"{path.name} does not hold a state tree: {str(fields)[:100]} is no array")
        yield Stored(leaf, digest, label, dtype, tuple(shape), holder, offset)


@functools.lru_cache(256)
def _dtype(text: str) -> np.dtype[Any]:
    return np.dtype(text)


def _read_between(path: Path, number: int, own: Sequence[tuple[int, int]], header: _Header) -> dict[int, Stretch]:
    """Check all that is in no array and no document; what small arrays were read along, by their offsets."""
    state, small = xxhash.xxh3_128(), {}
    try:
        extents: list[tuple[int, int]] = []
        gaps: set[int] = set()
        for begin, end in gaps_between([*own, header.tree[:2], header.meta[:2]], header.size):
            pieces = [(start, min(start + _GAP_BYTES, end)) for start in range(begin, end, _GAP_BYTES)]
            extents += pieces
            gaps.update(start for start, _ in pieces)
        extents += [(offset, offset + size) for offset, size in own if size < LARGE_BYTES]
        for stretch, inside in stretches(number, extents):
            for begin, end in inside:
                if begin in gaps:
                    state.update(stretch.between(begin, end))
                else:
                    small[begin] = stretch
    except (ValueError, EOFError) as error:
        raise CheckpointError(f"{path.name} does not hold a state tree: {error}") from None
    if state.hexdigest() != header.gaps:
        raise CheckpointError(
            f"{path.name} is damaged outside its state: its HDF5 structure is not the one that was written"
        )
    return small


def _large_arrays(checkpoint: Checkpoint, sizes: Sequence[int], *, is_checked: bool) -> dict[int, FileArray]:
    """By number in the table, each array that stays in its file: with the digest of its bytes, or, `is_checked`, with the table's."""
    holders: dict[str, Holder] = {}
    inside: dict[str, list[FileArray]] = {}
    found: dict[int, FileArray] = {}
    for number, (entry, size) in enumerate(zip(checkpoint.stored, sizes, strict=True)):
        if not entry.holder and 0 < size < LARGE_BYTES:
            continue
        name = entry.holder or checkpoint.name
        if name not in holders:
            holders[name] = Holder(checkpoint.path.with_name(name))
        array = holders[name].array(entry.path, entry.label, _dtype(entry.dtype), entry.shape, entry.offset)
        if is_checked:
            array.digest = entry.digest
        inside.setdefault(name, []).append(array)
        found[number] = array
    if not is_checked:
        for name, arrays in inside.items():
            holders[name].check(arrays)
    return found


def _small_array(entry: Stored, size: int, stretch: Stretch) -> Array:
    """One that has been read along with what lies between the large ones."""
    octets = stretch.between(entry.offset, entry.offset + size)
    return Array(entry.path, Window(octets, size, (_dtype(entry.dtype), entry.shape)), entry.label)

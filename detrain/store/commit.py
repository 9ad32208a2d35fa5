"""Writing a checkpoint: temporary name, sync, rename, sync of the directory. Until the rename there is none."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import xxhash

from detrain.package import __version__
from detrain.state.tree import Array, Tree, Window
from detrain.store.checkpoint import FORMAT, Checkpoint, Stored, encode_header
from detrain.store.directory import sync_folder
from detrain.store.encoding import Encoder, Looks, encode
from detrain.store.hdf5_layout import Frame, Run
from detrain.store.meta import Meta
from detrain.store.threads import with_breaks

#: An array below this size is written again rather than looked up in an earlier file. Bytes.
_INLINE_BYTES = 64 * 1024
#: Arrays whose digests are taken, or bytes put together, between two breaks.
_ARRAYS = 128
_encoder = Encoder()


def commit(path: Path, tree: Tree, meta: Meta, earlier: Checkpoint | None = None) -> Checkpoint:
    """Write a checkpoint. Raises OSError; then no file `path` has been made.

    Arrays that `earlier` (or a file that it points to) holds with the same path and bytes are not written again.
    """
    looks = _encoder.looks(tree.arrays)
    digests = _digests(tree.arrays, looks)
    held = _held_by_others(path, looks, digests, earlier)
    meta = replace(meta, holders=sorted({entry.holder for entry in held.values()}))
    own = [number for number in range(len(tree.arrays)) if number not in held]
    nodes, meta_text = _encoder.nodes(tree), encode(meta.encode())
    attributes: dict[str, int | str] = {"format": FORMAT, "detrain": __version__}
    frame = _encoder.frame(own, held, (sum(map(len, nodes)), len(meta_text)), attributes)
    offsets = [frame.arrays[number][0] if number not in held else 0 for number in range(len(tree.arrays))]
    texts = {"tree": [*nodes, b',"stored":', *_encoder.table(digests, held, offsets), b"}"], "meta": [meta_text]}
    padded = {name: _padded(pieces, frame.documents[name][1]) for name, pieces in texts.items()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write_synced(temporary, _pieces(frame, padded, tree.arrays))
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    columns = looks.paths, digests, looks.labels, looks.dtypes, looks.shapes, itertools.repeat(""), offsets
    stored = list(map(Stored._make, zip(*columns)))  # noqa: B905 - one of them has no end
    for number, entry in held.items():
        stored[number] = entry
    return Checkpoint(path, meta, stored)


def _digests(arrays: Sequence[Array], looks: Looks) -> list[str]:
    """Of each array, as `Array.compute_digest` has it: of those in staging it takes half as long to do so here."""
    found = []
    for start in with_breaks(range(0, len(arrays), _ARRAYS), 1):
        for array, prefix in zip(arrays[start : start + _ARRAYS], looks.prefixes[start : start + _ARRAYS], strict=True):
            place = array.place
            if not array.digest and type(place) is Window and place.num_bytes < _INLINE_BYTES:
                array.digest = xxhash.xxh3_128_hexdigest(prefix + place.octets())
            found.append(array.digest or array.compute_digest())
    return found


def _held_by_others(path: Path, looks: Looks, digests: Sequence[str], earlier: Checkpoint | None) -> dict[int, Stored]:
    """Arrays that earlier files hold, by number."""
    large = [number for number, size in enumerate(looks.sizes) if size >= _INLINE_BYTES]
    if earlier is None or not large:
        return {}
    known = {(entry.path, entry.digest): entry for entry in earlier.stored}
    held = {}
    for number in large:
        entry = known.get((looks.paths[number], digests[number]))
        holder = (entry.holder or earlier.name) if entry is not None else ""
        if entry is not None and holder != path.name:
            held[number] = entry._replace(holder=holder)
    return held


def _padded(pieces: Sequence[bytes], size: int) -> bytes:
    """Joined once: each copy of so many bytes takes milliseconds."""
    return b"".join((*pieces, b" " * (size - sum(map(len, pieces)))))


def _pieces(frame: Frame, documents: dict[str, bytes], arrays: Sequence[Array]) -> Iterator[memoryview]:
    """The whole file, from its first byte to its last."""
    places = {name: (*frame.documents[name], xxhash.xxh3_128_hexdigest(text)) for name, text in documents.items()}
    yield memoryview(encode_header(frame.size, places, frame.gaps_digest))
    for part in frame.parts:
        if isinstance(part, Run):
            content = part.content
            for start in with_breaks(range(0, len(part.inside), _ARRAYS), 1):
                for begin, number in part.inside[start : start + _ARRAYS]:
                    octets = arrays[number].octets()
                    content[begin : begin + len(octets)] = octets
            yield memoryview(content)
        else:
            yield arrays[part].octets() if isinstance(part, int) else memoryview(documents[part])


def _write_synced(path: Path, pieces: Iterator[memoryview]) -> None:
    with open(path, "wb", buffering=0) as file:
        for piece in pieces:
            left = piece
            while left:
                left = left[file.write(left) :]
        os.fsync(file.fileno())

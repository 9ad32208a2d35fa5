"""Writing a checkpoint: temporary name, sync, rename, sync of the directory. Until the rename there is none."""

from __future__ import annotations

import operator
import os
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import repeat
from pathlib import Path

import numpy as np
import xxhash

from detrain.package import __version__
from detrain.state import blank
from detrain.state.tree import Array, Tree, Window
from detrain.store.checkpoint import FORMAT, Checkpoint, Stored, encode_header
from detrain.store.directory import sync_folder
from detrain.store.encoding import Encoder, Looks, encode
from detrain.store.hdf5_layout import Frame, Run
from detrain.store.meta import Meta
from detrain.store.threads import with_breaks

#: Small arrays whose digests are taken, or bytes put together, between two breaks.
_ARRAYS = 512
_NOTHING = memoryview(b"")
_encoder = Encoder()


def commit(path: Path, tree: Tree, meta: Meta, earlier: Checkpoint | None = None) -> Checkpoint:
    """Write a checkpoint. Raises OSError; then no file `path` has been made.

    Arrays that `earlier` (or a file that it points to) holds with the same path and bytes are not written again.
    """
    looks = _encoder.looks(tree.arrays)
    octets = _octets_of_small(tree.arrays, looks)
    digests = _digests(tree.arrays, looks, octets)
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
        _write_synced(temporary, _pieces(frame, padded, tree.arrays, octets))
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    # Of small ones nothing is kept: ten thousand objects more would have Python's collector run at another moment of the script.
    stored = [
        held[number] if number in held else Stored(
            looks.paths[number], digests[number], looks.labels[number], looks.dtypes[number], looks.shapes[number], "", offsets[number],
        )
        for number in looks.large
    ]  # fmt: skip
    return Checkpoint(path, meta, stored)


def _octets_of_small(arrays: Sequence[Array], looks: Looks) -> list[memoryview]:
    """By number, the bytes of each array that is not large; of a large one nothing."""
    octets = [_NOTHING] * len(arrays)
    for start in with_breaks(range(0, len(looks.small), _ARRAYS), 1):
        for number in looks.small[start : start + _ARRAYS]:
            place = arrays[number].place
            octets[number] = place.octets if type(place) is Window else arrays[number].octets()
    return octets


def _digests(arrays: Sequence[Array], looks: Looks, octets: Sequence[memoryview]) -> list[str]:
    """Of each array, as `Array.compute_digest` has it: of small ones it takes a fifth as long to do so here."""
    found = [""] * len(arrays)
    for start in with_breaks(range(0, len(looks.small), _ARRAYS), 1):
        numbers = looks.small[start : start + _ARRAYS]
        for number in numbers:
            found[number] = arrays[number].digest = xxhash.xxh3_128_hexdigest(looks.prefixes[number] + octets[number])
    for number in with_breaks(looks.large):
        found[number] = arrays[number].compute_digest()
    return found


def _held_by_others(path: Path, looks: Looks, digests: Sequence[str], earlier: Checkpoint | None) -> dict[int, Stored]:
    """Arrays that earlier files hold, by number."""
    if earlier is None:
        return {}
    known = {(entry.path, entry.digest): entry for entry in earlier.stored}
    held = {}
    for number in looks.large:
        entry = known.get((looks.paths[number], digests[number]))
        holder = (entry.holder or earlier.name) if entry is not None else ""
        if entry is not None and holder != path.name:
            held[number] = entry._replace(holder=holder)
    return held


def _padded(pieces: Sequence[bytes], size: int) -> bytes:
    """Joined once: each copy of so many bytes takes milliseconds."""
    return b"".join((*pieces, b" " * (size - sum(map(len, pieces)))))


def _pieces(
    frame: Frame, documents: dict[str, bytes], arrays: Sequence[Array], octets: Sequence[memoryview]
) -> Iterator[memoryview]:
    """The whole file, from its first byte to its last."""
    extents = {name: (*frame.documents[name], xxhash.xxh3_128_hexdigest(text)) for name, text in documents.items()}
    yield memoryview(encode_header(frame.size, extents, frame.gaps_digest))
    for part in frame.parts:
        if isinstance(part, Run):
            for start in with_breaks(range(0, len(part.numbers), _ARRAYS), 1):
                inside = map(octets.__getitem__, part.numbers[start : start + _ARRAYS])
                deque(
                    map(operator.setitem, repeat(part.content), part.places[start : start + _ARRAYS], inside), maxlen=0
                )
            yield memoryview(part.content)
        else:
            yield arrays[part].octets() if isinstance(part, int) else memoryview(documents[part])


def _write_synced(path: Path, pieces: Iterator[memoryview]) -> None:
    with open(path, "wb", buffering=0) as file:
        for piece in pieces:
            for begin, end, is_blank in _runs(piece):
                left = piece[begin:end]
                if is_blank:
                    file.seek(len(left), os.SEEK_CUR)
                    continue
                while left:
                    left = left[file.write(left) :]
        file.truncate()  # where the end is blank
        os.fsync(file.fileno())


def _runs(piece: memoryview) -> Iterable[tuple[int, int, bool]]:
    """See `blank.runs`."""
    return blank.runs(np.frombuffer(piece, np.uint8)) if len(piece) >= blank.LEAST_BYTES else [(0, len(piece), False)]

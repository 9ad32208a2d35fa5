"""Writing a checkpoint: temporary name, sync, rename, sync of the directory. Until the rename there is none."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import xxhash

from detrain.package import __version__
from detrain.state.tree import Array, Tree
from detrain.store.checkpoint import FORMAT, Checkpoint, Stored, encode_header
from detrain.store.directory import sync_folder
from detrain.store.hdf5_layout import PAGE, Composer, Frame, Slot
from detrain.store.meta import Meta
from detrain.store.threads import with_breaks

#: An array below this size is written again rather than looked up in an earlier file. Bytes.
_INLINE_BYTES = 64 * 1024
#: What is smaller is written together with its neighbours. Bytes.
_SMALL_BYTES, _TOGETHER_BYTES = 64 * 1024, 1024 * 1024
#: A document's place in the file is so much longer at most than the document, that its frame may serve the next one.
_SPARE = 8
_FARTHEST = 2**63
#: Nodes or entries that are encoded at a time.
_PIECE_ITEMS = 512
_composer = Composer()


def commit(path: Path, tree: Tree, meta: Meta, earlier: Checkpoint | None = None) -> Checkpoint:
    """Write a checkpoint. Raises OSError; then no file `path` has been made.

    Arrays that `earlier` (or a file that it points to) holds with the same path and bytes are not written again.
    """
    held = _held_by_others(path, tree.arrays, earlier)
    own = [number for number in range(len(tree.arrays)) if number not in held]
    slots = [_slot(number, tree.arrays[number]) for number in with_breaks(own)]
    nodes, meta_text = _encode_tree(tree), _encode(meta.encode())
    # As long as the real table, which has to know the offsets first: none has more digits.
    longest = _with_table(nodes, _table(tree.arrays, held, dict.fromkeys(own, (_FARTHEST, 0))))
    frame = _composer.compose(slots, {"tree": _capacity(longest), "meta": _capacity(meta_text)}, _attributes())
    stored = _table(tree.arrays, held, frame.arrays)
    documents = {"tree": _with_table(nodes, stored), "meta": meta_text}
    padded = {name: text.ljust(frame.documents[name][1]) for name, text in documents.items()}
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        _write_synced(temporary, _pieces(frame, padded, {number: tree.arrays[number] for number in own}))
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return Checkpoint(path, meta, stored)


def _held_by_others(path: Path, arrays: Sequence[Array], earlier: Checkpoint | None) -> dict[int, Stored]:
    """Arrays that earlier files hold, by number."""
    if earlier is None:
        return {}
    known = {(entry.path, entry.digest): entry for entry in earlier.stored}
    held = {}
    for number, array in enumerate(with_breaks(arrays)):
        entry = known.get((array.path, array.compute_digest()))
        holder = (entry.holder or earlier.name) if entry is not None else ""
        if entry is not None and array.data.nbytes >= _INLINE_BYTES and holder != path.name:
            held[number] = entry._replace(holder=holder)
    return held


def _slot(number: int, array: Array) -> Slot:
    return Slot(number, array.path, array.label, array.data.dtype.str, array.data.shape)


def _table(arrays: Sequence[Array], held: dict[int, Stored], places: dict[int, tuple[int, int]]) -> list[Stored]:
    return [
        held[number] if number in held else Stored(
            array.path, array.compute_digest(), array.label, array.data.dtype.str, array.data.shape, "", places[number][0]
        )
        for number, array in enumerate(with_breaks(arrays))
    ]  # fmt: skip


def _attributes() -> dict[str, int | str]:
    return {"format": FORMAT, "detrain": __version__}


def _encode(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _encode_tree(tree: Tree) -> bytes:
    """Piece by piece: the encoder holds the interpreter's lock for as long as a piece takes."""
    return b'{"nodes":' + _encode_list(tree.nodes) + b',"roots":' + _encode(tree.roots) + b"}"


def _encode_list(items: Sequence[object]) -> bytes:
    starts = range(0, len(items), _PIECE_ITEMS)
    pieces = [_encode(items[start : start + _PIECE_ITEMS])[1:-1] for start in with_breaks(starts, 1)]
    return b"[" + b",".join(pieces) + b"]"


def _with_table(nodes: bytes, stored: list[Stored]) -> bytes:
    return nodes[:-1] + b',"stored":' + _encode_list(stored) + b"}"


def _capacity(document: bytes) -> int:
    """In few sizes: else the frame of one checkpoint would seldom fit the next."""
    step = max(PAGE, 1 << (len(document) // _SPARE).bit_length())
    return -(-len(document) // step) * step


def _pieces(frame: Frame, documents: dict[str, bytes], arrays: dict[int, Array]) -> Iterator[memoryview]:
    """The whole file, from its first byte to its last."""
    gaps = xxhash.xxh3_128()
    for _, gap in frame.gaps:
        gaps.update(gap)
    places = {
        name: (*frame.documents[name], xxhash.xxh3_128_hexdigest(text)) for name, text in documents.items()
    }  # fmt: skip
    parts: list[tuple[int, Any]] = [(0, encode_header(frame.size, places, gaps.hexdigest())), *frame.gaps]
    parts += [(frame.documents[name][0], text) for name, text in documents.items()]
    parts += [
        (frame.arrays[number][0], array.octets()) for number, array in with_breaks(arrays.items()) if array.data.size
    ]
    together = bytearray()
    for _, part in with_breaks(sorted(parts, key=lambda one: one[0])):
        if len(part) < _SMALL_BYTES:
            together += part
        if together and (len(part) >= _SMALL_BYTES or len(together) >= _TOGETHER_BYTES):
            yield memoryview(together)
            together = bytearray()
        if len(part) >= _SMALL_BYTES:
            yield memoryview(part)
    yield memoryview(together)


def _write_synced(path: Path, pieces: Iterator[memoryview]) -> None:
    with open(path, "wb", buffering=0) as file:
        for piece in pieces:
            left = piece
            while left:
                left = left[file.write(left) :]
        os.fsync(file.fileno())

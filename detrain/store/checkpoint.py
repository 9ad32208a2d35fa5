"""One checkpoint: one HDF5 file, written once, committed by its rename.

Layout (format 1), readable with `h5ls -r`::

    /                       attributes: format, detrain (version), tree_digest (xxh3-128 of /tree and /meta)
    /meta                   one JSON document, UTF-8, as bytes (below)
    /tree                   the state tree without its bulk data: one JSON document, UTF-8, as bytes
    /arrays/<number>        one contiguous data set for each array; attributes: path, label (a dtype that numpy lacks). An
                            array that an earlier file of the run holds has no data set here; its entry in the JSON document's
                            table `stored` names file and number. The table also holds every array's digest (xxh3-128).

`meta` carries the position, the list of checkpoints to pass through on the way there, the fingerprint of the environment, and the
digests of the sources. Nothing in a file is executed on reading. Texts in attributes have a fixed length: libhdf5 keeps those of
variable length in a heap without a checksum, and one flipped bit there can make it loop for ever.
"""

from __future__ import annotations

import io
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import xxhash

from detrain.errors import CheckpointError
from detrain.state.tree import Array, Tree

FORMAT = 1
#: An array below this size is written again rather than looked up in an earlier file. Bytes.
_INLINE_BYTES = 64 * 1024
#: The path of a leaf is cut to this in the data set's attribute, which HDF5 bounds; the table has it whole. Characters.
_LONGEST_PATH = 1000


@dataclass
class Checkpoint:
    """What a checkpoint file says without its state."""

    path: Path
    meta: dict[str, Any]
    #: Per array of the tree: [path, digest, dtype label, nbytes, file that holds it ("" for this one), number there].
    stored: list[list[Any]] = field(default_factory=list)

    @property
    def name(self) -> str:
        """File name."""
        return self.path.name

    @property
    def needs(self) -> set[str]:
        """Names of the other files without which this one cannot be resumed from."""
        return {entry[4] for entry in self.stored if entry[4]} | set(self.meta["chain"])

    @property
    def sequence(self) -> int:
        """Number of the save within the run; the latest checkpoint has the highest."""
        return int(self.meta["sequence"])


def save(path: Path, tree: Tree, meta: dict[str, Any], earlier: Checkpoint | None = None) -> Checkpoint:
    """Write a checkpoint: temporary name, sync, rename, sync of the directory. Raises OSError; then no file `path` exists.

    Arrays that `earlier` (or a file that it points to) holds with the same path and bytes are not written again.
    """
    known = {(entry[0], entry[1]): (entry[4] or earlier.name, entry[5]) for entry in earlier.stored} if earlier else {}
    stored: list[list[Any]] = []
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        # Composed in memory and written by us: when a write of its own fails, libhdf5 cannot close the file any more. Not through
        # its in-memory driver: the file images that HDF5 1.14 gives have a wrong checksum in their superblock.
        image = io.BytesIO()
        with h5py.File(image, "w", libver=("v110", "v110")) as file:
            group = file.create_group("arrays")
            for number, array in enumerate(tree.arrays):
                digest = array.compute_digest()
                size = int(array.data.nbytes)
                holder, there = known.get((array.path, digest), ("", number))
                if size < _INLINE_BYTES or not holder or holder == path.name:
                    holder, there = "", number
                    _write_array(group, number, array)
                stored.append([array.path, digest, array.label, size, holder, there])
            _write_document(file, tree, meta, stored)
        _write_synced(temporary, image.getbuffer())
        os.replace(temporary, path)
        _sync(path.parent)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return Checkpoint(path, meta, stored)


def _write_array(group: Any, number: int, array: Array) -> None:
    data = group.create_dataset(str(number), data=array.data, track_times=False)
    data.attrs["path"] = _fixed(array.path[:_LONGEST_PATH])
    if array.label:
        data.attrs["label"] = _fixed(array.label)


def _fixed(text: str) -> Any:
    return np.bytes_(text.encode())


def _text(attribute: Any) -> str:
    return attribute.decode() if isinstance(attribute, bytes) else str(attribute)


def _write_document(file: Any, tree: Tree, meta: dict[str, Any], stored: list[list[Any]]) -> None:
    document = {"nodes": tree.nodes, "roots": tree.roots, "stored": stored}
    text = json.dumps(document, separators=(",", ":")).encode()
    meta_text = json.dumps(meta, sort_keys=True)
    file.create_dataset("tree", data=np.frombuffer(text, dtype=np.uint8), track_times=False)
    import detrain

    file.attrs["format"], file.attrs["detrain"] = FORMAT, _fixed(detrain.__version__)
    # A data set, not an attribute: HDF5 bounds an attribute to 64 KiB.
    file.create_dataset("meta", data=np.frombuffer(meta_text.encode(), dtype=np.uint8), track_times=False)
    file.attrs["tree_digest"] = _fixed(_document_digest(text, meta_text.encode()))


def _document_digest(text: bytes, meta_text: bytes) -> str:
    state = xxhash.xxh3_128(text)
    state.update(b"\0")
    state.update(meta_text)
    return state.hexdigest()


def _write_synced(path: Path, content: memoryview) -> None:
    with open(path, "wb", buffering=0) as file:
        left = content
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def read_header(path: Path) -> Checkpoint:
    """Position, fingerprint and table of arrays of a checkpoint. Raises `CheckpointError` if the file cannot be trusted."""
    checkpoint, _ = _read_document(path)
    return checkpoint


def load(path: Path) -> tuple[Checkpoint, Tree]:
    """A checkpoint with its state, every digest checked. Raises `CheckpointError` naming the leaf that is damaged."""
    checkpoint, document = _read_document(path)
    tree = Tree(nodes=document["nodes"], roots=document["roots"])
    by_file: dict[str, list[int]] = {}
    for number, entry in enumerate(checkpoint.stored):
        by_file.setdefault(entry[4], []).append(number)
    arrays: dict[int, Array] = {}
    for holder, numbers in by_file.items():
        source = path.with_name(holder) if holder else path
        with _opened(source) as file:
            for number in numbers:
                arrays[number] = _read_array(file, source, checkpoint.stored[number])
    tree.arrays = [arrays[number] for number in range(len(checkpoint.stored))]
    return checkpoint, tree


def _read_document(path: Path) -> tuple[Checkpoint, dict[str, Any]]:
    with _opened(path) as file:
        try:
            version = int(file.attrs["format"])
            if version > FORMAT:
                raise CheckpointError(
                    f"{path.name} has format {version}, written by detrain {_text(file.attrs['detrain'])}; this detrain reads up to "
                    f"{FORMAT}. Install the newer detrain to resume from it"
                )
            text, meta_text = file["tree"][()].tobytes(), file["meta"][()].tobytes()
            digest = _text(file.attrs["tree_digest"])
        except (KeyError, OSError, RuntimeError, ValueError, TypeError, AttributeError) as error:
            raise CheckpointError(f"{path.name} is not a whole checkpoint: {error}") from None
    if _document_digest(text, meta_text) != digest:
        raise CheckpointError(
            f"{path.name} is damaged: its state tree does not have the digest that it was written with"
        )
    document = json.loads(text)
    return Checkpoint(path, json.loads(meta_text), document["stored"]), document


def _read_array(file: Any, source: Path, entry: list[Any]) -> Array:
    leaf, digest, label, _, _, number = entry
    try:
        data = file[f"arrays/{number}"][()]
    except (KeyError, OSError, RuntimeError, ValueError, TypeError) as error:
        raise CheckpointError(f"{source.name} is damaged at leaf {leaf}: {error}") from None
    array = Array(leaf, np.asarray(data), label)
    if array.compute_digest() != digest:
        raise CheckpointError(
            f"{source.name} is damaged at leaf {leaf}: its bytes do not have the digest that they were written with"
        )
    return array


def _opened(path: Path) -> Any:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read: {error}") from None

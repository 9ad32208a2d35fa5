"""The documents of one checkpoint after the other: what is kept of the last one shows nowhere."""

from __future__ import annotations

import json

import numpy as np
import pytest

from detrain.state.tree import Array, Tree
from detrain.store import checkpoint
from detrain.store.checkpoint import Stored
from detrain.store.commit import commit
from detrain.store.encoding import Encoder
from detrain.store.hdf5_layout import LARGE_BYTES
from detrain.store.meta import Meta


def tree(count: int, first: float = 0.0, shape: tuple[int, ...] = (3,)) -> Tree:
    nodes = [{"k": "list", "t": "builtins:list", "p": None, "s": f"é{n}", "seq": [first + n]} for n in range(count)]
    arrays = [Array(f'a"{n}é', np.full(shape, first + n), "bfloat16" * (n % 2)) for n in range(count)]
    return Tree(nodes, arrays, {"one": ["@", 0], "two": first})


def test_documents_are_those_of_a_new_encoder():
    kept, common = Encoder(), tree(700)
    trees = [
        common,
        tree(700, 5.0),
        Tree([*common.nodes[:200], *tree(300).nodes], common.arrays, {}),
        tree(3),
        tree(700, shape=(2, 5)),
    ]
    for one in trees:
        for encoder in (kept, Encoder()):
            held = {2: Stored("x", "", "", "<f8", (3,), "früher.h5", 4096)}
            encoder.looks(one.arrays)
            text = b"".join(encoder.nodes(one)) + b"}"
            assert json.loads(text) == {"nodes": one.nodes, "roots": one.roots}
            digests = [array.compute_digest() for array in one.arrays]
            offsets = [0 if number in held else 2**40 + number for number in range(len(one.arrays))]
            table = json.loads(b"".join(encoder.table(digests, held, offsets)))
            assert [entry[0] for entry in table] == [array.path for array in one.arrays]
            assert [entry[1] for entry in table] == digests
            assert [tuple(entry[2:5]) for entry in table] == [
                (array.label, array.data.dtype.str, list(array.data.shape)) for array in one.arrays
            ]
            assert [tuple(entry[5:]) for entry in table] == [
                ("früher.h5", 4096) if number in held else ("", offset) for number, offset in enumerate(offsets)
            ]


def test_an_error_half_way_leaves_the_texts_of_the_checkpoint_before():
    kept, one = Encoder(), tree(200)
    expected = b"".join(kept.nodes(one))
    broken = Tree([{"k": "other"}, *one.nodes[1:-1], {"k": object()}], one.arrays, one.roots)
    with pytest.raises(TypeError):
        kept.nodes(broken)
    assert b"".join(kept.nodes(one)) == expected


def test_place_of_a_document_is_never_too_small():
    encoder, one = Encoder(), tree(300)
    held = {number: Stored("x", "", "", "<f8", (3,), "é" * 40 + ".h5", 2**62) for number in range(0, 300, 2)}
    encoder.looks(one.arrays)
    nodes = b"".join(encoder.nodes(one))
    own = [number for number in range(300) if number not in held]
    frame = encoder.frame(own, held, (len(nodes), 5), {"format": 2})
    table = b"".join(encoder.table(["0" * 32] * 300, held, [2**62] * 300))
    assert frame.documents["tree"][1] >= len(nodes + b',"stored":' + table + b"}")


def test_checkpoints_one_after_the_other_are_read_as_they_were_written(tmp_path):
    last = None
    for number, one in enumerate(
        [tree(5), tree(5, 1.0), tree(700), tree(700, 2.0), tree(4, shape=(20_000,)), tree(4, shape=(20_000,))]
    ):
        last = commit(tmp_path / f"{number}.h5", one, Meta(number + 1), last)
        header, found = checkpoint.load(tmp_path / f"{number}.h5")
        assert [entry for entry in header.stored if entry.nbytes >= LARGE_BYTES] == last.stored
        anew = [Array(array.path, array.data, array.label) for array in one.arrays]
        assert [entry.digest for entry in header.stored] == [array.compute_digest() for array in anew]
        assert (found.nodes, found.roots) == (one.nodes, one.roots)
        assert [array.data.tobytes() for array in found.arrays] == [array.data.tobytes() for array in one.arrays]
    assert last is not None
    assert last.needs == {"4.h5"}

"""One checkpoint file: what is written is read, what is damaged is refused."""

import json
import struct
from pathlib import Path

import h5py
import numpy as np
import pytest

from detrain.errors import CheckpointError
from detrain.state.tree import Array
from detrain.store import checkpoint
from detrain.store.commit import commit
from tests.tiers import full_but

GOLDEN = Path(__file__).with_name("golden") / "checkpoint_2_5.h5"
DTYPES = ["?", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8", "c8", "c16", ">f4", ">i8"]


def numbers(dtype: str, count: int = 24) -> np.ndarray:
    raw = np.random.default_rng(0).integers(0, 256, count * np.dtype(dtype).itemsize, dtype=np.uint8)
    return (raw & 1).view(dtype) if dtype == "?" else raw.view(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_array_of_every_dtype_comes_back_with_its_bits(tmp_path, tree, meta, same_tree, dtype):
    saved = tree({"a": numbers(dtype), "b": numbers(dtype).reshape(2, 3, 4)})
    commit(tmp_path / "c.h5", saved, meta())
    header, loaded = checkpoint.load(tmp_path / "c.h5")
    same_tree(loaded, saved)
    assert header.meta == meta()


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (1,), (2, 0, 4), (1, 1, 1, 1, 1)])
def test_array_of_any_shape_comes_back(tmp_path, tree, meta, same_tree, shape):
    saved = tree({"a": np.full(shape, 1.5, np.float32)})
    commit(tmp_path / "c.h5", saved, meta())
    same_tree(checkpoint.load(tmp_path / "c.h5")[1], saved)


def test_payload_bits_of_nan_and_the_sign_of_zero_come_back(tmp_path, tree, meta, same_tree):
    bits = np.array([0x7FF8000000000001, 0xFFF8000000000000, 0x8000000000000000, 0x7FF0000000000000], np.uint64)
    saved = tree({"a": bits.view(np.float64)})
    commit(tmp_path / "c.h5", saved, meta())
    same_tree(checkpoint.load(tmp_path / "c.h5")[1], saved)


def test_array_that_is_not_contiguous_comes_back_with_its_elements(tmp_path, tree, meta, same_tree):
    whole = np.arange(24.0).reshape(4, 6)
    saved = tree({"a": whole[::2, ::-1], "b": whole.T})
    commit(tmp_path / "c.h5", saved, meta())
    same_tree(checkpoint.load(tmp_path / "c.h5")[1], saved)


def test_label_of_a_dtype_that_numpy_lacks_comes_back(tmp_path, tree, meta, same_tree):
    saved = tree({"a": np.arange(4, dtype=np.uint16)})
    saved.arrays[0].label = "bfloat16"
    commit(tmp_path / "c.h5", saved, meta())
    loaded = checkpoint.load(tmp_path / "c.h5")[1]
    same_tree(loaded, saved)
    assert loaded.arrays[0].label == "bfloat16"


def test_values_of_every_kind_come_back(tmp_path, tree, meta, same_tree):
    values = {
        "none": None, "yes": True, "one": 1, "half": 0.5, "minus zero": -0.0, "text": "häßlich \n\0 \U0001f600",
        "nan": ["f", struct.pack("<d", float("nan")).hex()], "bytes": ["b", "aGVsbG8="], "tuple": ["t", [1, ["t", []], "x"]],
        "big": 1 << 3999,
    }  # fmt: skip
    saved = tree({}, values)
    commit(tmp_path / "c.h5", saved, meta())
    loaded = checkpoint.load(tmp_path / "c.h5")[1]
    same_tree(loaded, saved)
    assert repr(loaded.roots["minus zero"]) == "-0.0"


def test_tree_of_many_arrays_comes_back(tmp_path, tree, meta, same_tree):
    saved = tree({f"a{number}": np.full(number % 7, number, np.int32) for number in range(500)})
    commit(tmp_path / "c.h5", saved, meta())
    same_tree(checkpoint.load(tmp_path / "c.h5")[1], saved)


def small_file(tmp_path, tree, meta) -> Path:
    path = tmp_path / "checkpoint_2_5.h5"
    arrays = {"train.weight": numbers("f4", 300), "train.step": np.array(7, np.int64)}
    commit(path, tree(arrays, {"train.epoch": 2}), meta())
    return path


@pytest.mark.parametrize("first", full_but([0], range(8)))
def test_flipped_bit_of_any_byte_is_refused(tmp_path, tree, meta, first):
    path = small_file(tmp_path, tree, meta)
    good = path.read_bytes()
    for offset in range(first, len(good), 8):
        changed = bytearray(good)
        changed[offset] ^= 1 << offset // 8 % 8
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match=r"checkpoint_2_5.h5 (is|does|has)"):
            checkpoint.load(path)


def test_every_flipped_byte_of_an_array_is_refused_naming_the_leaf(tmp_path, tree, meta):
    path = small_file(tmp_path, tree, meta)
    good = path.read_bytes()
    data = numbers("f4", 300).tobytes()
    start = good.index(data)
    for offset in range(start, start + len(data), 7):
        changed = bytearray(good)
        changed[offset] ^= 0x10
        path.write_bytes(changed)
        with pytest.raises(
            CheckpointError, match=r"checkpoint_2_5.h5 is damaged at leaf train.weight: its bytes do not have"
        ):
            checkpoint.load(path)


def test_flipped_byte_of_the_state_tree_is_refused(tmp_path, tree, meta):
    path = small_file(tmp_path, tree, meta)
    good = path.read_bytes()
    offset = good.index(b'"train.epoch":2') + len('"train.epoch":')
    path.write_bytes(good[:offset] + b"3" + good[offset + 1 :])
    with pytest.raises(CheckpointError, match=r"checkpoint_2_5.h5 is damaged: its state tree does not have the digest"):
        checkpoint.read_header(path)


def test_file_truncated_at_any_length_is_refused(tmp_path, tree, meta):
    path = small_file(tmp_path, tree, meta)
    good = path.read_bytes()
    for length in [*range(0, len(good), max(len(good) // 150, 1)), len(good) - 1]:
        path.write_bytes(good[:length])
        with pytest.raises(CheckpointError, match=r"checkpoint_2_5.h5 (is not a checkpoint|is not a whole checkpoint)"):
            checkpoint.load(path)


def test_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "checkpoint_1_0.h5"
    with h5py.File(path, "w") as file:
        file["weights"] = np.zeros(3)
    with pytest.raises(CheckpointError, match=r"checkpoint_1_0.h5 is not a checkpoint: its header is wrong; it is a"):
        checkpoint.load(path)


def test_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(CheckpointError, match=r"checkpoint_1_0.h5 cannot be read"):
        checkpoint.load(tmp_path / "checkpoint_1_0.h5")


def test_later_format_is_refused_and_says_which_detrain_wrote_it(tmp_path, tree, meta, monkeypatch):
    monkeypatch.setattr(checkpoint, "FORMAT", 3)
    monkeypatch.setattr(checkpoint, "__version__", "9.1")
    path = small_file(tmp_path, tree, meta)
    monkeypatch.undo()
    with pytest.raises(
        CheckpointError, match=r"has format 3, written by detrain 9.1; this detrain reads up to 2. Install the newer"
    ):
        checkpoint.read_header(path)


def test_big_array_that_did_not_change_is_not_written_again(tmp_path, tree, meta, same_tree):
    big, other = np.random.default_rng(0).random(20_000), np.arange(20_000.0)
    first = commit(tmp_path / "checkpoint_0_0.h5", tree({"data": big, "x": other}), meta(1))
    second = commit(tmp_path / "checkpoint_1_0.h5", tree({"data": big.copy(), "x": other + 1}), meta(2), first)
    saved = tree({"data": big.copy(), "x": other + 2})
    third = commit(tmp_path / "checkpoint_2_0.h5", saved, meta(3), second)
    assert (
        second.needs == third.needs == {"checkpoint_0_0.h5"}
    )  # the third points to the file itself, not to the second
    assert third.path.stat().st_size < big.nbytes * 1.5
    header, loaded = checkpoint.load(third.path)
    same_tree(loaded, saved)
    assert header.stored == third.stored


def test_small_array_is_written_again_so_that_no_file_is_held_for_it(tmp_path, tree, meta):
    first = commit(tmp_path / "checkpoint_0_0.h5", tree({"a": np.arange(10)}), meta(1))
    second = commit(tmp_path / "checkpoint_1_0.h5", tree({"a": np.arange(10)}), meta(2), first)
    assert second.needs == set()


def test_missing_earlier_file_is_named(tmp_path, tree, meta):
    big = np.arange(20_000.0)
    first = commit(tmp_path / "checkpoint_0_0.h5", tree({"data": big}), meta(1))
    second = commit(tmp_path / "checkpoint_1_0.h5", tree({"data": big}), meta(2), first)
    first.path.unlink()
    with pytest.raises(CheckpointError, match=r"checkpoint_0_0.h5 cannot be read"):
        checkpoint.load(second.path)


def test_damage_in_an_earlier_file_names_that_file_and_the_leaf(tmp_path, tree, meta):
    big = np.random.default_rng(0).random(20_000)
    first = commit(tmp_path / "checkpoint_0_0.h5", tree({"data": big}), meta(1))
    second = commit(tmp_path / "checkpoint_1_0.h5", tree({"data": big}), meta(2), first)
    raw = bytearray(first.path.read_bytes())
    raw[raw.index(big.tobytes()) + 1000] ^= 1
    first.path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"checkpoint_0_0.h5 is damaged at leaf data"):
        checkpoint.load(second.path)


def test_array_moved_to_another_path_is_written_in_full(tmp_path, tree, meta):
    big = np.arange(20_000.0)
    first = commit(tmp_path / "checkpoint_0_0.h5", tree({"data": big}), meta(1))
    second = commit(tmp_path / "checkpoint_1_0.h5", tree({"elsewhere": big}), meta(2), first)
    assert second.needs == set()


def test_checkpoint_saved_over_one_of_the_same_name_can_still_be_loaded(tmp_path, tree, meta, same_tree):
    big = np.arange(20_000.0)
    path = tmp_path / "checkpoint_0_0.h5"
    first = commit(path, tree({"data": big}), meta(1))
    saved = tree({"data": big})
    commit(path, saved, meta(2), first)
    same_tree(checkpoint.load(path)[1], saved)


# --- the layout on disk ---


def test_keys_and_attributes_of_a_fresh_file_are_the_documented_ones(tmp_path, tree, meta):
    saved = tree({"a": np.arange(3), "b": np.arange(2, dtype=np.uint16)}, {"epoch": 2})
    saved.arrays[1].label = "bfloat16"
    commit(tmp_path / "c.h5", saved, meta())
    with h5py.File(tmp_path / "c.h5", "r") as file:
        assert set(file) == {"arrays", "tree", "meta"}
        assert set(file.attrs) == {"format", "detrain"}
        assert file.attrs["format"] == 2
        assert set(file["arrays"]) == {"0", "1"}
        assert set(file["arrays/0"].attrs) == {"path"}
        assert set(file["arrays/1"].attrs) == {"path", "label"}
        assert file["arrays/0"].chunks is None  # contiguous
        assert (file["tree"].dtype, file["meta"].dtype) == (np.uint8, np.uint8)
        assert json.loads(file["meta"][()].tobytes()) == meta(holders=[]).encode()
        assert [file[f"arrays/{number}"][()].tolist() for number in "01"] == [[0, 1, 2], [0, 1]]


def test_same_state_gives_the_same_bytes(tmp_path, tree, meta):
    for name in ("a.h5", "b.h5"):
        commit(tmp_path / name, tree({"a": np.arange(3000.0)}, {"epoch": 2}), meta())
    assert (tmp_path / "a.h5").read_bytes() == (tmp_path / "b.h5").read_bytes()


def golden_tree(make):
    saved = make(
        {"train.weight": np.array([[1.5, -0.0], [np.inf, 2.0**-149]], np.float32), "train.step": np.array(7, np.int64)}
    )
    saved.nodes[0] |= {"k": "list", "t": "builtins:list"}
    saved.nodes.append(
        {
            "k": "dict",
            "t": "builtins:dict",
            "p": None,
            "s": "train.log",
            "items": [["best", 0.25], ["n", ["t", [1, 2]]]],
        }
    )
    saved.arrays.append(Array("train.half", np.array([0x3F80, 0x7FC0], np.uint16), "bfloat16"))
    saved.nodes.append({"k": "buffer", "t": "builtins:bytearray", "p": None, "s": "train.half", "array": 2})
    saved.roots.update(
        {"train.log": ["@", 2], "train.half": ["@", 3], "train.name": "größe", "train.nan": ["f", "000000000000f87f"]}
    )
    return saved


def test_golden_file_of_format_2_still_reads_to_the_same_tree(tree, meta, same_tree):
    """tests/store/golden/checkpoint_2_5.h5 was written by the first version of format 2 and is never written again."""
    header, loaded = checkpoint.load(GOLDEN)
    same_tree(loaded, golden_tree(tree))
    assert header.meta == meta(files={})  # of its time
    assert header.stored[0][:6] == ("train.weight", "2be96ea0cab4e94b56dd374c340642f2", "", "<f4", (2, 2), "")

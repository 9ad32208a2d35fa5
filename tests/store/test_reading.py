"""Large arrays stay in their files: each is digested as it is read from the disk, and again where it is copied to."""

import os

import numpy as np
import pytest

from detrain.errors import CheckpointError
from detrain.state.filearray import FileArray, in_file
from detrain.state.tree import Array
from detrain.store import checkpoint, reading
from detrain.store.commit import commit
from detrain.store.hdf5_layout import LARGE_BYTES

LARGE = np.random.default_rng(0).integers(0, 255, 3 * LARGE_BYTES + 5, np.uint8)


def change(path, content: bytes) -> None:
    """Flip a bit in the middle of this in a file, in place: a map of it sees that."""
    with open(path, "r+b") as file:
        offset = file.read().index(content) + len(content) // 2
        file.seek(offset)
        file.write(bytes([content[len(content) // 2] ^ 1]))


def large_of(tree) -> list[FileArray]:
    return [found for found in map(in_file, tree.arrays) if found is not None]


def test_large_arrays_stay_in_their_file_and_small_ones_do_not(tmp_path, tree, meta, same_tree):
    saved = tree(
        {f"{name} {size}": np.resize(LARGE, size) for size in (1, 4095, 65_535, 65_536, 200_000) for name in "ab"}
    )
    commit(tmp_path / "c.h5", saved, meta())
    loaded = checkpoint.load(tmp_path / "c.h5")[1]
    same_tree(loaded, saved)
    assert [one.data.nbytes for one in large_of(loaded)] == [65_536, 65_536, 200_000, 200_000]
    assert [one.digest for one in loaded.arrays] == [
        Array("", one.data, one.label).compute_digest() for one in saved.arrays
    ]


@pytest.mark.parametrize("alone", [0, 1 << 30], ids=["several threads", "one thread"])
@pytest.mark.parametrize("piece", [1, 4096, 100_000, 1 << 20])
def test_copies_have_the_bytes(tmp_path, tree, meta, monkeypatch, alone, piece):
    monkeypatch.setattr(reading, "_ALONE_BYTES", alone)
    monkeypatch.setattr(reading, "_PIECE_BYTES", piece if piece > 1 else 997)
    first = commit(tmp_path / "checkpoint_0_0.h5", tree({"a": LARGE, "b": LARGE[::-1]}), meta(1))
    commit(tmp_path / "checkpoint_1_0.h5", tree({"a": LARGE, "b": LARGE + 1}), meta(2), first)
    loaded = checkpoint.load(tmp_path / "checkpoint_1_0.h5")[1]
    for one, data in zip(large_of(loaded), (LARGE, LARGE + 1), strict=True):
        target = np.zeros(len(LARGE), np.uint8)
        one.file.copy([(one, target)])
        one.file.check_again([one])
        assert target.tobytes() == data.tobytes()


def test_large_arrays_of_a_file_that_was_checked_are_read_only_where_they_are_copied_to(tmp_path, tree, meta):
    path = tmp_path / "checkpoint_0_0.h5"
    commit(path, tree({"few": LARGE[:100], "train.other": LARGE + 1, "train.weight": LARGE}), meta())
    checkpoint.load(path)
    change(path, LARGE.tobytes())
    other, weight = large_of(checkpoint.load(path, is_checked=True)[1])
    target = np.zeros(len(LARGE), np.uint8)
    other.file.copy([(other, target)])
    assert target.tobytes() == (LARGE + 1).tobytes()
    with pytest.raises(CheckpointError, match=r"checkpoint_0_0.h5 has changed at leaf train.weight"):
        weight.file.copy([(weight, target)])
    change(path, LARGE[:100].tobytes())
    with pytest.raises(CheckpointError, match=r"checkpoint_0_0.h5 is damaged at leaf few"):
        checkpoint.load(path, is_checked=True)


def test_file_that_changes_after_it_was_checked_is_found_where_it_is_copied_or_was_read(tmp_path, tree, meta):
    path = tmp_path / "checkpoint_0_0.h5"
    commit(path, tree({"train.weight": LARGE, "train.other": LARGE + 1}), meta())
    weight, other = large_of(checkpoint.load(path)[1])
    change(path, LARGE.tobytes())
    message = r"checkpoint_0_0.h5 has changed at leaf train.weight since its digests were checked"
    with pytest.raises(CheckpointError, match=message):
        weight.file.copy([(other, np.empty(len(LARGE), np.uint8)), (weight, np.empty(len(LARGE), np.uint8))])
    with pytest.raises(CheckpointError, match=message):
        weight.file.check_again([other, weight])
    weight.file.copy([(other, np.empty(len(LARGE), np.uint8))])
    weight.file.check_again([other])


def test_error_of_the_disk_is_told_and_does_not_kill(tmp_path, tree, meta, monkeypatch):
    path = tmp_path / "checkpoint_0_0.h5"
    commit(path, tree({"train.weight": LARGE}), meta())

    def fail(number, memory, offset):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(reading, "read_whole", fail)
    with pytest.raises(CheckpointError, match=r"checkpoint_0_0.h5 cannot be read: .*Input/output error"):
        checkpoint.load(path)


def test_file_is_read_on_where_the_system_gives_less_than_was_asked_for(tmp_path, tree, meta, same_tree, monkeypatch):
    saved = tree({"a": LARGE, "b": np.arange(99.0)})
    commit(tmp_path / "c.h5", saved, meta())
    plain = os.preadv
    monkeypatch.setattr(reading.os, "preadv", lambda number, parts, offset: plain(number, [parts[0][:1000]], offset))
    same_tree(checkpoint.load(tmp_path / "c.h5")[1], saved)


def test_extents_that_touch_are_read_together(tmp_path):
    (tmp_path / "file").write_bytes(bytes(range(250)))
    number = os.open(tmp_path / "file", os.O_RDONLY)
    try:
        found = list(reading.stretches(number, [(70, 72), (100, 130), (72, 80), (130, 131)]))
        assert [inside for _, inside in found] == [[(70, 72), (72, 80)], [(100, 130), (130, 131)]]
        assert bytes(found[0][0].between(71, 80)) == bytes(range(71, 80))
        assert bytes(found[1][0].between(100, 131)) == bytes(range(100, 131))
        with pytest.raises(EOFError, match="it ends before byte 251"):
            list(reading.stretches(number, [(249, 251)]))
    finally:
        os.close(number)

"""Buffers that are made in advance and hardly filled: what is zeros takes neither memory nor disk."""

import numpy as np
import pytest

from detrain.adapters.numpy import _copy
from detrain.state import blank
from detrain.state.blank import PIECE_BYTES
from detrain.state.filearray import in_file
from detrain.state.tree import Array, Place
from detrain.store import checkpoint, staging
from detrain.store.commit import commit
from detrain.store.staging import Staging

SIZE = 96 * PIECE_BYTES + 12_345


def made(*filled: slice) -> np.ndarray:
    found = np.zeros(SIZE, np.uint8)
    for part in filled:
        found[part] = 0x80
    return found


def taken_bytes(memory: np.ndarray) -> int:
    """Of the pages in which an array lies, those that are its own: nobody has to give memory for a page that was only read."""
    address = memory.ctypes.data
    begin, inside, found = 0, False, 0
    with open("/proc/self/smaps", encoding="ascii") as file:
        for line in file:
            words = line.split()
            if "-" in words[0] and len(words) >= 5:
                begin, end = (int(word, 16) for word in words[0].split("-"))
                inside = begin < address + memory.nbytes and end > address
            elif inside and words[0] == "Anonymous:":
                found += int(words[1]) * 1024
    return found


def placed(data: np.ndarray) -> Array:
    """As the adapters say where live memory lies."""
    return Array("buffer", Place(data, data.ctypes.data, data.nbytes, (data.dtype, data.shape)))


@pytest.mark.parametrize(
    ("filled", "expected"),
    [
        ((), [(0, SIZE, True)]),
        ((slice(None),), [(0, SIZE, False)]),
        ((slice(SIZE - 1, None),), [(0, 96 * PIECE_BYTES, True), (96 * PIECE_BYTES, SIZE, False)]),
        (
            (slice(PIECE_BYTES - 1, PIECE_BYTES + 1),),
            [(0, 2 * PIECE_BYTES, False), (2 * PIECE_BYTES, SIZE, True)],
        ),
    ],
)
def test_runs(filled, expected):
    assert list(blank.runs(made(*filled))) == expected


def test_a_copy_of_what_is_blank_takes_no_memory_and_follows_the_original():
    live, held = made(slice(5 * PIECE_BYTES)), Staging()
    copies = held.copy([placed(live)])
    assert copies is not None
    assert np.array_equal(copies[0].data, live)
    assert taken_bytes(held._memory) <= 6 * PIECE_BYTES
    live[:] = 0
    live[40 * PIECE_BYTES : 41 * PIECE_BYTES] = 7
    again = held.copy([placed(live)])
    assert again is not None
    assert np.array_equal(again[0].data, live)
    assert again[0].compute_digest() == Array("", live).compute_digest()


def test_whether_there_is_memory_is_asked_of_what_is_filled(monkeypatch):
    live, held = made(slice(5 * PIECE_BYTES)), Staging()
    monkeypatch.setattr(staging.psutil, "virtual_memory", lambda: type("", (), {"available": 60 * PIECE_BYTES}))
    assert held.copy([placed(live)]) is not None
    live[: 30 * PIECE_BYTES] = 1  # 25 more: half of what is free is 30
    assert held.copy([placed(live)]) is not None
    live[:] = 1
    assert held.copy([placed(live)]) is None
    assert len(held._memory) == 0


@pytest.mark.parametrize("filled", [(slice(3),), (slice(SIZE - 1, None),), (slice(0, SIZE, 30 * PIECE_BYTES),), ()])
def test_a_file_has_holes_and_a_resume_leaves_them_blank(tmp_path, tree, meta, same_tree, filled):
    live = made(*filled)
    saved = tree({"few": np.arange(9), "buffer": live})
    commit(tmp_path / "c.h5", saved, meta())
    status = (tmp_path / "c.h5").stat()
    assert status.st_size > SIZE
    assert status.st_blocks * 512 < 8 * PIECE_BYTES
    loaded = checkpoint.load(tmp_path / "c.h5")[1]
    same_tree(loaded, saved)
    large = next(found for found in map(in_file, loaded.arrays) if found is not None)
    target, other = np.zeros(SIZE, np.uint8), np.full(SIZE, 9, np.uint8)
    large.file.copy([(large, target)])
    assert taken_bytes(target) <= 20 * PIECE_BYTES  # huge pages, it may be
    large.file.copy([(large, other)])
    assert np.array_equal(target, live)
    assert np.array_equal(other, live)


@pytest.mark.parametrize("order", ["C", "F"])
def test_an_array_is_filled_with_what_it_had(order):
    content = np.zeros((2_000_000, 7), np.float32, order)
    content[:1000, 3] = np.nan
    live, other = np.zeros_like(content), np.full_like(content, 5)
    for one in (live, other):
        _copy(one, content)
        assert one.tobytes("A") == content.tobytes("A")

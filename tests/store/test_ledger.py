"""The ledger's file: what is written is read, a torn end is cut off, damage is named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from detrain.errors import CheckpointError
from detrain.store import ledger
from detrain.store.ledger import Batch, LedgerFile

BATCHES = [Batch(n, n << 50, 1, n, 2**64 - n, n << 40, 7, 1, 3, tuple(range(n))) for n in range(1, 6)]
LOSSES = [(4, 0, 0.25), (5, 0, float("inf")), (5, 1, -1e-300)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A ledger of five batches."""
    path = tmp_path / "ledger"
    file = LedgerFile(path)
    file.append_json(b"A", {"attempt": 1, "batches": 0})
    file.append_json(b"L", {"number": 1, "leaves": [["model.weight", 64], ["ü", 3]]})
    for batch in BATCHES:
        file.append(b"B", batch.encode())
    file.append(b"V", ledger.encode_losses(99.0, LOSSES))
    file.append_json(b"S", {"name": "checkpoint_0_5.h5", "batches": 5, "at": 99.5})
    file.close()
    return path


def test_what_is_written_is_read(path: Path) -> None:
    found = ledger.read(path)
    assert list(found.batches.values()) == BATCHES
    assert found.lists == {1: [("model.weight", 64), ("ü", 3)]}
    assert found.attempts == [{"attempt": 1, "batches": 0}]
    assert found.losses == {(batches, which): value for batches, which, value in LOSSES}
    assert found.times == [(99.0, 5)]  # at 99.5 no more had ended
    assert found.saved == [{"name": "checkpoint_0_5.h5", "batches": 5, "at": 99.5}]


def test_a_ledger_that_is_not_there_is_empty(tmp_path: Path) -> None:
    assert ledger.read(tmp_path / "ledger") == ledger.Ledger({}, {}, [], [])


def test_a_batch_that_was_done_again_stands_as_it_was_done_last(path: Path) -> None:
    file = LedgerFile(path)
    file.append(b"B", Batch(3, 3 << 50, 9, 9, 7).encode())
    file.close()
    assert ledger.read(path).batches[3, 3 << 50] == Batch(3, 3 << 50, 9, 9, 7)
    assert len(ledger.read(path).batches) == 5


@pytest.mark.parametrize("cut", [1, 3, 4, 20, 60])
def test_a_torn_last_record_is_left_out_and_cut_off_by_the_next_attempt(path: Path, cut: int) -> None:
    size = os.stat(path).st_size
    os.truncate(path, size - cut)
    found = ledger.read(path)
    assert found.saved == []
    assert list(found.batches.values())[:4] == BATCHES[:4]
    LedgerFile(path).append_json(b"S", {"name": "next", "batches": 6, "at": 100.5})
    assert ledger.read(path).saved == [{"name": "next", "batches": 6, "at": 100.5}]
    assert ledger.read(path).batches == found.batches


def test_a_last_record_that_was_not_written_whole_is_torn_too(path: Path) -> None:
    # The length of the file may reach the disk before the bytes do.
    content = bytearray(path.read_bytes())
    content[-10:] = bytes(10)
    path.write_bytes(content)
    assert ledger.read(path).saved == []
    LedgerFile(path).close()
    assert os.stat(path).st_size < len(content)


def test_any_flipped_bit_before_the_last_record_is_named_and_never_cut_off(path: Path) -> None:
    whole = path.read_bytes()
    before = ledger.read(path)
    last = whole.rindex(b"S", 0, whole.rindex(b'{"name"'))
    for place in range(len(whole)):
        changed = whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :]
        path.write_bytes(changed)
        found, message = read_or_message(path)
        LedgerFile(path).close()
        if place < last:
            assert message.startswith("ledger is damaged at byte ")
            assert path.read_bytes() == changed
        else:
            assert found is not None
            assert (found.batches, found.saved) == (before.batches, [])
            assert path.read_bytes() == whole[:last]


def read_or_message(path: Path) -> tuple[ledger.Ledger | None, str]:
    try:
        return ledger.read(path), ""
    except CheckpointError as error:
        return None, str(error)


def test_what_was_done_with_other_arguments_stands_for_nothing_from_where_they_changed(path: Path) -> None:
    file = LedgerFile(path)
    file.append_json(b"A", {"attempt": 2, "batches": 3, "other_from": 3})
    file.append(b"B", Batch(4, 4 << 50, 9, 9, 7).encode())
    file.close()
    found = ledger.read(path)
    assert [key[0] for key in found.batches] == [1, 2, 4]
    assert found.losses == {}
    assert found.changed_at == [3]
    found.cut(0)
    assert (found.batches, found.changed_at) == ({}, [])


def test_what_nobody_asks_for_is_not_kept_in_memory(path: Path) -> None:
    found = ledger.read(path, since=4, has_losses=False)
    assert list(found.batches.values()) == BATCHES[3:]
    assert found.losses == {}
    assert found.saved == ledger.read(path).saved
    assert found.lists == ledger.read(path).lists


def test_a_list_that_is_as_an_earlier_one_is_the_same_in_memory(path: Path) -> None:
    file = LedgerFile(path)
    file.append_json(b"L", {"number": 2, "seen_at": [5, 9], "as": 1})
    file.close()
    found = ledger.read(path)
    assert found.lists[2] is found.lists[1]
    assert found.seen_at == {1: (-1, 1), 2: (5, 9)}
    assert found.window(BATCHES[0]) == found.window(BATCHES[0]) == []


def test_a_checkpoint_that_is_durable_later_does_not_turn_the_times_back(tmp_path: Path) -> None:
    file = LedgerFile(tmp_path / "ledger")
    for attempt, (at_s, batches) in ((1, (10.0, 0)), (2, (20.0, 6))):
        file.append_json(b"A", {"attempt": attempt, "batches": batches, "at": at_s})
        file.append(b"V", ledger.encode_losses(at_s + 4, [(batches + 4, 0, 0.5)]))
        file.append_json(b"S", {"name": "checkpoint.h5", "batches": batches + 3, "at": at_s + 4.5})
        file.append_json(b"S", {"name": "checkpoint.h5", "batches": batches + 6, "at": at_s + 6})
    file.close()
    assert ledger.read(tmp_path / "ledger").times == [(14.0, 4), (16.0, 6), (24.0, 10), (26.0, 12)]

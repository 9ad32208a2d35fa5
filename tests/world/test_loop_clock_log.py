"""`clock.log`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from detrain.world import loop_clock_log


def written(*made: tuple[int, int, int]) -> bytes:
    return np.array(list(made), loop_clock_log.RECORD).tobytes()


def test_readings_stand_in_the_order_of_their_batches(tmp_path: Path) -> None:
    path = tmp_path / loop_clock_log.NAME
    assert loop_clock_log.read(path).tolist() == []
    made = [(1, 77, 10), (3, 77, 11), (2, 79, 12), (3, 78, -13), (1, 75, 14)]
    path.write_bytes(written(*made))
    assert loop_clock_log.read(path).tolist() == [made[0], made[4], made[2], made[1], made[3]]


def test_what_is_taken_back_is_gone_and_what_follows_stands(tmp_path: Path) -> None:
    path = tmp_path / loop_clock_log.NAME
    made = [(1, 77, 10), (2, 77, 11), (2, 79, 12), (2, 78, 13), (3, 75, 14)]
    path.write_bytes(written(*made))
    loop_clock_log.take_back(path, 2, 1)
    later = [(2, 76, 20), (4, 76, 21)]
    with open(path, "ab") as file:
        file.write(written(*later))
    assert loop_clock_log.read(path).tolist() == [*made[:2], *later]
    loop_clock_log.take_back(path, 0, 0)
    assert loop_clock_log.read(path).tolist() == []


def test_a_torn_reading_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / loop_clock_log.NAME
    loop_clock_log.cut_torn(path)
    assert not path.exists()
    made = [(1, 77, 10), (2, 77, 11)]
    path.write_bytes(written(*made))
    os.truncate(path, path.stat().st_size - 3)
    assert loop_clock_log.read(path).tolist() == made[:1]
    loop_clock_log.cut_torn(path)
    assert path.stat().st_size == loop_clock_log.RECORD.itemsize


def test_zeros_at_the_end_are_no_readings(tmp_path: Path) -> None:
    """Some file systems leave them where the power failed."""
    path = tmp_path / loop_clock_log.NAME
    path.write_bytes(written((1, 77, 10)) + bytes(3 * loop_clock_log.RECORD.itemsize))
    assert loop_clock_log.read(path).tolist() == [(1, 77, 10)]
    loop_clock_log.cut_torn(path)
    assert path.stat().st_size == loop_clock_log.RECORD.itemsize


def test_what_was_counted_otherwise_stands_only_for_who_counts_like_that(tmp_path: Path) -> None:
    path = tmp_path / loop_clock_log.NAME
    path.write_bytes(written((1, 77, 10), (2, 77, 11), (3, 77, 12)))
    loop_clock_log.append_recount(path, 2)
    with open(path, "ab") as file:
        file.write(written((4, 77, 13)))
    assert loop_clock_log.read(path).tolist() == [(1, 77, 10), (4, 77, 13)]
    assert [one[0] for one in loop_clock_log.read(path, is_counted_anew=True).tolist()] == [1, 2, 3, 4]

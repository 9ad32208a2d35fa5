"""`clock.log`."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from detrain.store import readings


def written(*made: tuple[int, int, int]) -> bytes:
    return np.array(list(made), readings.RECORD).tobytes()


def test_readings_stand_in_the_order_of_their_batches(tmp_path: Path) -> None:
    path = tmp_path / readings.NAME
    assert readings.read(path).tolist() == []
    made = [(1, 7, 10), (3, 7, 11), (2, 9, 12), (3, 8, -13), (1, 5, 14)]
    path.write_bytes(written(*made))
    assert readings.read(path).tolist() == [made[0], made[4], made[2], made[1], made[3]]


def test_what_is_taken_back_is_gone_and_what_follows_stands(tmp_path: Path) -> None:
    path = tmp_path / readings.NAME
    made = [(1, 7, 10), (2, 7, 11), (2, 9, 12), (2, 8, 13), (3, 5, 14)]
    path.write_bytes(written(*made))
    readings.take_back(path, 2, 1)
    later = [(2, 6, 20), (4, 6, 21)]
    with open(path, "ab") as file:
        file.write(written(*later))
    assert readings.read(path).tolist() == [*made[:2], *later]
    readings.take_back(path, 0, 0)
    assert readings.read(path).tolist() == []


def test_a_torn_reading_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / readings.NAME
    readings.cut_torn(path)
    assert not path.exists()
    made = [(1, 7, 10), (2, 7, 11)]
    path.write_bytes(written(*made))
    os.truncate(path, path.stat().st_size - 3)
    assert readings.read(path).tolist() == made[:1]
    readings.cut_torn(path)
    assert path.stat().st_size == readings.RECORD.itemsize

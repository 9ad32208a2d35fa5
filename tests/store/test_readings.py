"""`clock.log`."""

from __future__ import annotations

import os
from pathlib import Path

from detrain.store import readings
from detrain.store.readings import Reading


def test_readings_stand_in_the_order_of_their_batches(tmp_path: Path) -> None:
    path = tmp_path / readings.NAME
    assert readings.read(path) == []
    made = [Reading(1, 7, 10), Reading(3, 7, 11), Reading(2, 9, 12), Reading(3, 8, -13), Reading(1, 5, 14)]
    path.write_bytes(readings.packed(made))
    assert readings.read(path) == [made[0], made[4], made[2], made[1], made[3]]


def test_what_is_taken_back_is_gone_and_what_follows_stands(tmp_path: Path) -> None:
    path = tmp_path / readings.NAME
    made = [Reading(1, 7, 10), Reading(2, 7, 11), Reading(2, 9, 12), Reading(2, 8, 13), Reading(3, 5, 14)]
    path.write_bytes(readings.packed(made))
    readings.take_back(path, 2, 1)
    later = [Reading(2, 6, 20), Reading(4, 6, 21)]
    with open(path, "ab") as file:
        file.write(readings.packed(later))
    assert readings.read(path) == [*made[:2], *later]
    readings.take_back(path, 0, 0)
    assert readings.read(path) == []


def test_a_torn_reading_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / readings.NAME
    readings.cut_torn(path)
    assert not path.exists()
    made = [Reading(1, 7, 10), Reading(2, 7, 11)]
    path.write_bytes(readings.packed(made))
    os.truncate(path, path.stat().st_size - 3)
    assert readings.read(path) == made[:1]
    readings.cut_torn(path)
    assert path.stat().st_size == readings.NUM_BYTES

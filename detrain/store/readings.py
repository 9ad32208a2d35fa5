"""What the training loop has read from the clocks: `clock.log`, appended to by the preload (`syscalls/clock.c`) at each reading.

A sequence of records: the batch that was running (uint32, counted from the run's beginning), the place that asked (uint32, a hash of clock,
file and line), the answer (int64, ns). Later attempts append what they read beyond what is known of a batch. A record with place 0
takes back what was noted from the answer-th reading of its batch on, and of all later batches.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

#: In the run directory.
NAME = "clock.log"
#: More than this is not noted.
MOST_BYTES = 64 << 20
_RECORD = struct.Struct("<IIq")
#: Of one record.
NUM_BYTES = _RECORD.size
_TAKEN_BACK = 0


class Reading(NamedTuple):
    """One reading."""

    batch: int
    place: int
    ns: int


def read(path: Path) -> list[Reading]:
    """Those that stand, in the order of their batches, of one batch in the order in which they were made. None without a file."""
    content = path.read_bytes() if path.exists() else b""
    whole = len(content) - len(content) % NUM_BYTES
    found: list[Reading] = []
    for reading in map(Reading._make, _RECORD.iter_unpack(content[:whole])):
        if reading.place == _TAKEN_BACK:
            found = list(_before(found, reading.batch, reading.ns))
        else:
            found.append(reading)
    return sorted(found, key=lambda reading: reading.batch)  # stable


def _before(found: list[Reading], batch: int, count: int) -> Iterable[Reading]:
    for reading in found:
        count -= reading.batch == batch
        if reading.batch < batch or (reading.batch == batch and count >= 0):
            yield reading


def packed(found: Iterable[Reading]) -> bytes:
    """As records."""
    return b"".join(_RECORD.pack(*reading) for reading in found)


def cut_torn(path: Path) -> None:
    """Take away a record that a killed attempt has left half written, so that what follows can be read."""
    if path.exists() and (rest := path.stat().st_size % NUM_BYTES):
        os.truncate(path, path.stat().st_size - rest)


def take_back(path: Path, batch: int, count: int) -> None:
    """Let nothing stand that was noted from the `count`-th reading of a batch on. Raises `OSError`."""
    with open(path, "ab") as file:
        file.write(_RECORD.pack(batch, _TAKEN_BACK, count))

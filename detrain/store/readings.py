"""What the training loop has read from the clocks: `clock.log`, appended to by the preload (`syscalls/clock.c`) at each reading.

A sequence of records: the batch that was running (uint32, counted from the run's beginning), the place that asked (uint32, a hash of clock,
file and line), the answer (int64, ns). Later attempts append what they read beyond what is known of a batch. A record with place 0
takes back what was noted from the answer-th reading of its batch on, and of all later batches.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

#: In the run directory.
NAME = "clock.log"
#: More than this is not noted.
MOST_BYTES = 64 << 20
RECORD = np.dtype([("batch", "<u4"), ("place", "<u4"), ("ns", "<i8")])
_TAKEN_BACK = 0


def read(path: Path) -> npt.NDArray[np.void]:
    """Those that stand, in the order of their batches, of one batch in the order in which they were made. None without a file."""
    content = path.read_bytes() if path.exists() else b""
    all_records = np.frombuffer(content, RECORD, len(content) // RECORD.itemsize)
    found = all_records[:0]
    start = 0
    for cut in np.flatnonzero(all_records["place"] == _TAKEN_BACK).tolist():
        found = np.concatenate([found, all_records[start:cut]])
        found = found[_stands(found, all_records[cut])]
        start = cut + 1
    found = np.concatenate([found, all_records[start:]])
    return found[np.argsort(found["batch"], kind="stable")]


def _stands(found: npt.NDArray[np.void], cut: np.void) -> npt.NDArray[np.bool_]:
    is_of_batch = found["batch"] == cut["batch"]
    is_kept: npt.NDArray[np.bool_] = (found["batch"] < cut["batch"]) | (
        is_of_batch & (np.cumsum(is_of_batch) <= cut["ns"])
    )
    return is_kept


def cut_torn(path: Path) -> None:
    """Take away a record that a killed attempt has left half written, so that what follows can be read."""
    if path.exists() and (rest := path.stat().st_size % RECORD.itemsize):
        os.truncate(path, path.stat().st_size - rest)


def take_back(path: Path, batch: int, count: int) -> None:
    """Let nothing stand that was noted from the `count`-th reading of a batch on. Raises `OSError`."""
    with open(path, "ab") as file:
        file.write(np.array((batch, _TAKEN_BACK, count), RECORD).tobytes())

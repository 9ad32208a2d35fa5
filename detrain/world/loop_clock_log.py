"""Clock readings of the training loop: `clock.log`, to which the preload (`syscalls/clock.c`) appends each reading.

A sequence of records: the batch that was running (uint32, counted from the beginning of the run), the place that read (uint32, a hash of
file and line, its two lowest bits the number of the clock), the reading (int64, ns). Later attempts append their readings beyond the known
ones of a batch. Small numbers of a place are marks: 1 takes back the readings of its batch from the given number on, and those of all
later batches; 2 says that from its batch on, later attempts number batches differently.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import numpy.typing as npt

#: In the run directory.
NAME = "clock.log"
#: More than this is not recorded.
MOST_BYTES = 64 << 20
RECORD = np.dtype([("batch", "<u4"), ("place", "<u4"), ("ns", "<i8")])
_TAKEN_BACK, _RECOUNTED = 1, 2


def read(path: Path, *, is_counted_anew: bool = False) -> npt.NDArray[np.void]:
    """Those that stand, in the order of their batches, of one batch in the order in which they were made. None without a file.

    `is_counted_anew`: for an attempt that does not know its loops either.
    """
    every = _records(path)
    found = every[:0]
    start = 0
    for mark in np.flatnonzero(every["place"] <= _RECOUNTED).tolist():
        found = np.concatenate([found, every[start:mark]])
        if every[mark]["place"] == _TAKEN_BACK or not is_counted_anew:
            found = found[_stands(found, every[mark])]
        start = mark + 1
    found = np.concatenate([found, every[start:]])
    return found[np.argsort(found["batch"], kind="stable")]


def before(found: npt.NDArray[np.void], batch: int, count: int) -> npt.NDArray[np.void]:
    """Of readings, those that come before the `count`-th of a batch."""
    cut: np.void = np.array([(batch, 0, count)], RECORD)[0]
    return found[_stands(found, cut)]


def _records(path: Path) -> npt.NDArray[np.void]:
    """All that were written; a file may end in zeros, where the power failed."""
    content = path.read_bytes() if path.exists() else b""
    every = np.frombuffer(content, RECORD, len(content) // RECORD.itemsize)
    zeros = np.flatnonzero(every["place"] == 0)
    return every[: zeros[0]] if len(zeros) else every


def _stands(found: npt.NDArray[np.void], cut: np.void) -> npt.NDArray[np.bool_]:
    is_of_batch = found["batch"] == cut["batch"]
    is_kept: npt.NDArray[np.bool_] = (found["batch"] < cut["batch"]) | (
        is_of_batch & (np.cumsum(is_of_batch) <= cut["ns"])
    )
    return is_kept


def cut_torn(path: Path) -> None:
    """Take away what a killed attempt has left half written, so that what follows can be read."""
    if path.exists() and (whole := len(_records(path)) * RECORD.itemsize) < path.stat().st_size:
        os.truncate(path, whole)


def take_back(path: Path, batch: int, count: int) -> None:
    """Let nothing stand that was noted from the `count`-th reading of a batch on. Raises `OSError`."""
    _mark(path, batch, _TAKEN_BACK, count)


def append_recount(path: Path, batch: int) -> None:
    """Mark what was noted from a batch on as counted otherwise than a later attempt will. Raises `OSError`."""
    _mark(path, batch, _RECOUNTED, 0)


def _mark(path: Path, batch: int, mark: int, count: int) -> None:
    with open(path, "ab") as file:
        file.write(np.array((batch, mark, count), RECORD).tobytes())

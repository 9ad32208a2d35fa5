"""What the script has printed, and when; written by the preload (`syscalls/printed.c`) as it goes by.

A sequence of records: seconds since 1970 (float64), stream (uint32; 1 standard output, 2 standard error), length (uint32), the bytes of one
call of `write`. Where standard output is no terminal Python collects some thousand bytes before it writes.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: In the run directory.
NAME = "printed.log"
#: More than this is not noted.
MOST_BYTES = 64 << 20
_HEAD = struct.Struct("<dII")


@dataclass(frozen=True)
class Line:
    """One line, without its end; one that was overwritten on a terminal counts like any other."""

    at_s: float  # since 1970, when its end was written
    stream: int
    text: str


def cut_torn(path: Path) -> None:
    """Take away what a killed attempt has left half written, so that what follows can be read."""
    if path.exists():
        whole = max((end for _, _, _, end in _records(path.read_bytes())), default=0)
        if whole < path.stat().st_size:
            os.truncate(path, whole)


def read(path: Path) -> Iterator[Line]:
    """The lines, in the order in which they were ended; a last one without an end is left out. None without a file."""
    rest = {1: b"", 2: b""}
    for at_s, stream, text, _ in _records(path.read_bytes() if path.exists() else b""):
        *lines, rest[stream] = (rest[stream] + text).replace(b"\r", b"\n").split(b"\n")
        for line in lines:
            if line:
                yield Line(at_s, stream, line.decode(errors="replace"))


def _records(content: bytes) -> Iterator[tuple[float, int, bytes, int]]:
    """Time, stream, bytes, and where the record ends."""
    start = 0
    while start + _HEAD.size <= len(content):
        at_s, stream, length = _HEAD.unpack_from(content, start)
        end = start + _HEAD.size + length
        if end > len(content) or stream not in (1, 2):
            return
        yield at_s, stream, content[start + _HEAD.size : end], end
        start = end

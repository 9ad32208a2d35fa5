"""The position of a text file that is being iterated over: `for line in file` disables its `tell`."""

from __future__ import annotations

import codecs
import io
import os
import re
from collections.abc import Iterator

#: Characters read in one go; more than a text file decodes ahead (8,192 bytes), so that reading them goes through a new piece of the file.
_AHEAD = 1 << 15
_MOST_BYTES = 4  # for a character, in the encodings of Unicode
#: Encodings whose decoders carry nothing from one character to the next.
_STATELESS = {"utf-8", "ascii", "iso8859-1", "cp1252"}
_UNIT = re.compile("\r\n|.|\r|\n", re.DOTALL)


def tell(file: io.TextIOWrapper) -> int:
    """The position of a text file for `seek`, as `tell` gives it, also in the middle of an iteration. The file stands there afterwards.

    `flush` enables `tell` again, but its result is right only from the next chunk of the file on. So some text is read ahead and then
    searched for before that position; each guess is tried out on the file itself.
    """
    try:
        return file.tell()
    except OSError:
        if file.writable():
            raise  # what it holds back could not be read again
    file.flush()
    ahead = file.read(_AHEAD)
    end = file.tell()
    for start in _guesses(file, ahead, end):
        file.seek(start)
        if file.read(len(ahead)) == ahead and file.tell() == end:
            break
    else:
        start = _count_back(file, len(ahead), end)
    file.seek(start)
    return start


def _guesses(file: io.TextIOWrapper, ahead: str, end: int) -> Iterator[int]:
    """Where a text that ends at a position may begin, if positions are those of bytes: with its line ends as they are, and translated."""
    if codecs.lookup(file.encoding).name not in _STATELESS or not isinstance(
        getattr(file.buffer, "raw", None), io.FileIO
    ):
        return
    yield end - len(ahead.encode(file.encoding, "surrogateescape"))
    num_bytes = _MOST_BYTES * 2 * len(ahead)
    before = os.pread(file.fileno(), min(num_bytes, end), max(0, end - num_bytes)).decode(
        file.encoding, "surrogateescape"
    )
    units = _UNIT.findall(before)[-len(ahead) :] if ahead else []
    yield end - len("".join(units).encode(file.encoding, "surrogateescape"))


def _count_back(file: io.TextIOWrapper, num_chars: int, end: int) -> int:
    """The position a number of characters before another, by reading the whole file twice."""
    file.seek(end)
    after = _count(file)
    file.seek(0)
    left = _count(file) - after - num_chars
    file.seek(0)
    while left:
        left -= len(file.read(min(left, _AHEAD)))
    return file.tell()


def _count(file: io.TextIOWrapper) -> int:
    return sum(map(len, iter(lambda: file.read(_AHEAD), "")))

"""Parts of an array that are zeros: of a replay buffer of a million rows, say, of which a program has filled few yet.

The system gives such memory when it is first written to. So a part that is zeros is not written to where it is zeros already: not in a
copy, not in a file, which has a hole there, and not in the live array that a resume fills.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import Any

import numpy as np

#: What is looked at as one. Bytes.
PIECE_BYTES = 1 << 20
#: Of smaller arrays nobody need look. Bytes.
LEAST_BYTES = 8 << 20

_Octets = np.ndarray[Any, np.dtype[np.uint8]]


def is_blank(octets: _Octets) -> bool:
    """True if all are zeros. Of most data that are not, the first few bytes tell."""
    return not octets.view(np.bool_).any()


def copy(target: _Octets, source: _Octets) -> None:
    """Make the bytes of `target` those of `source`, which is as long."""
    for begin, end, is_zeros in runs(source):
        if not is_zeros:
            np.copyto(target[begin:end], source[begin:end])
            continue
        for start in range(begin, end, PIECE_BYTES):
            piece = target[start : min(start + PIECE_BYTES, end)]
            if not is_blank(piece):
                piece.fill(0)


def runs(octets: _Octets) -> Iterator[tuple[int, int, bool]]:
    """Begin, end, and whether all between is zeros: by pieces, the like ones beside each other as one. 1 GB of zeros takes some 30 ms."""
    whole = len(octets) - len(octets) % PIECE_BYTES
    pieces: np.ndarray[Any, Any] = octets[:whole].view(np.bool_).reshape(-1, PIECE_BYTES)
    filled = list(np.any(pieces, axis=1))
    if whole < len(octets):
        filled.append(not is_blank(octets[whole:]))
    begin = 0
    for is_filled, alike in groupby(filled):
        end = min(begin + PIECE_BYTES * sum(1 for _ in alike), len(octets))
        yield begin, end, not is_filled
        begin = end

"""Arrays that stay in a checkpoint's file until they are copied to where they belong."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from detrain.state.tree import Array

#: Bytes.
Octets = np.ndarray[Any, np.dtype[np.uint8]]


class ArrayFile(Protocol):
    """A file of which the digests of all arrays have been checked once."""

    def copy(self, arrays: Sequence[tuple[FileArray, Octets]]) -> None:
        """Copy arrays, each into memory of its size, and check the digests of the copies.

        Raises `CheckpointError` naming the leaf that has changed since it was checked; memory has been written to by then.
        """

    def check_again(self, arrays: Iterable[FileArray]) -> None:
        """Raise the same for arrays that somebody has read in the map itself."""


class FileArray(Array):
    """An array whose `data` is a private map of a file. Once it `is_copy`, the file is no longer what counts."""

    __slots__ = ("file", "offset")

    def __init__(
        self, path: str, data: np.ndarray[Any, Any], label: str = "", *, file: ArrayFile | None = None, offset: int = 0
    ) -> None:
        """`offset`: in the file, in bytes."""
        super().__init__(path, data, label)
        self.file, self.offset = file, offset


def in_file(array: Array) -> FileArray | None:
    """The array if what counts is in its file."""
    return array if isinstance(array, FileArray) and array.file is not None and not array.is_copy else None

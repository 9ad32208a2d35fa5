"""Of a replay: what the script prints in the wanted epochs or batches goes to files of its own, apart from what it prints besides."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
from pathlib import Path

from detrain.loops.position import Position
from detrain.loops.running import Loop
from detrain.session.goal import Window

#: Begins the names of the files, in the run directory; the number of the epoch, or of the first batch, and a stream's ending follow.
PREFIX = "shown_"
ENDINGS = {1: ".out", 2: ".err"}


class Showing:
    """Where the standard output and error of this process go."""

    def __init__(self, folder: Path, window: Window) -> None:
        self._folder, self._window = folder, window
        self._others = {number: os.dup(number) for number in ENDINGS}
        self._shown: int | None = None
        self._has_entered = False

    def entered(self, filename: str, line: int) -> None:
        """A loop is entered: with the outermost of the training's, the first epoch begins."""
        loop = (os.path.normpath(self._window.loop[0]), self._window.loop[1])
        if not self._has_entered and (os.path.normpath(filename), line) == loop:
            self._has_entered = True
            self._switch(_wanted(self._window, 0, 0))

    def at_header(self, loop: Loop, position: Position) -> None:
        """An iteration is about to begin and is not counted yet; or the loop has ended."""
        self._has_entered = True
        is_within = loop.site.part == "batch"
        if loop.is_exhausted and not (is_within and loop.nest_parent is not None):
            self._switch(None)
        elif self._window.unit == "batches" and loop.is_exhausted:
            # There was a header, and no batch: what follows in the epoch is of its last one.
            self._switch(_wanted(self._window, position.epoch, position.batches - 1))
        else:
            self._switch(_wanted(self._window, position.epoch if is_within else position.epochs, position.batches))

    def _switch(self, shown: int | None) -> None:
        if shown == self._shown:
            return
        self._shown = shown
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        ctypes.CDLL(None).fflush(None)
        for number, ending in ENDINGS.items():
            if shown is None:
                os.dup2(self._others[number], number)
                continue
            file = os.open(self._folder / f"{PREFIX}{shown}{ending}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(file, number)
            os.close(file)


def _wanted(window: Window, epoch: int, batches: int) -> int | None:
    """The number under which what is printed now is kept; None if it is not wanted. `batches` have ended."""
    if window.unit == "epochs":
        return epoch if window.first <= epoch <= window.last else None
    return window.first if window.first <= batches + 1 <= window.last else None


def is_behind(window: Window, loop: Loop, position: Position) -> bool:
    """True at a header of the batch loop, or at the end of the outermost loop, behind the end of the window.

    A header may be that of no batch, where a loop ends: what follows it is still of the last one. So a batch has to have gone by.
    """
    if window.unit == "batches":
        return position.batches > window.last or (loop.is_exhausted and position.batches >= window.last)
    return position.epoch > window.last or (loop.is_exhausted and position.epoch >= window.last)

"""`detrain run --progress`: where the run is, on the last line of the terminal, which is kept for that while the others scroll.

A process of its own draws it by what the run leaves on disk, so the training does nothing for it. It ends with the training, however that
ends, and gives the line back.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from detrain.world.aside import start_aside

if TYPE_CHECKING:
    from detrain.report.now import Now

_STANDARD_ERROR = 2
_POLL_S, _LOOK_S = 0.1, 1.0
#: A terminal of fewer lines has none to give away.
_FEWEST_ROWS = 3
_SAVE, _RESTORE, _CLEAR, _REVERSE, _PLAIN = "\x1b7", "\x1b8", "\x1b[2K", "\x1b[7m", "\x1b[27m"
#: The cursor off the last line, wherever it is; what is there goes up with it.
_STEP_DOWN, _STEP_UP = "\x1bD", "\x1b[A"
#: What a terminal of another size has left of the line is below the cursor.
_CLEAR_BELOW = "\x1b[J"


def start(directory: Path) -> None:
    """Begin to show the run of this very process, which becomes the training; nothing is shown where standard error is no terminal.

    `directory`: of the run or the job, which need not be there yet.
    """
    if os.isatty(_STANDARD_ERROR) and os.environ.get("TERM", "dumb") != "dumb":
        start_aside("detrain.report.statusline", [str(os.getpid()), str(directory)])


class Line:
    """The last line of a terminal."""

    def __init__(self, terminal: int) -> None:
        """`terminal`: a descriptor. Each call is one write, which no other process's can part, and leaves the cursor where it was."""
        self._terminal = terminal
        #: Columns and rows of the terminal whose last line is kept; None if none is.
        self._size: tuple[int, int] | None = None

    def show(self, text: str) -> None:
        """Raises `OSError` where the terminal is gone."""
        columns, rows = size = os.get_terminal_size(self._terminal)
        if rows < _FEWEST_ROWS:
            return
        words = []
        if size != self._size:
            words += [self._given_back(), _STEP_DOWN, _STEP_UP, _CLEAR_BELOW]
        # The lines that scroll are named each time: a program may have reset the terminal.
        words += [
            _SAVE,
            f"\x1b[1;{rows - 1}r",
            f"\x1b[{rows};1H",
            _CLEAR,
            _REVERSE,
            text[: columns - 1],
            _PLAIN,
            _RESTORE,
        ]
        os.write(self._terminal, "".join(words).encode())
        self._size = size

    def hide(self) -> None:
        """Give the line back. Raises `OSError` where the terminal is gone."""
        os.write(self._terminal, self._given_back().encode())
        self._size = None

    def _given_back(self) -> str:
        return "" if self._size is None else f"{_SAVE}\x1b[r\x1b[{self._size[1]};1H{_CLEAR}{_RESTORE}"


class Follower:
    """What the line says of a run, from before its directory is there."""

    def __init__(self, directory: Path) -> None:
        """`directory`: of the run or the job."""
        from detrain.report.now import BY_WEIGHT, Watched

        self._directory, self._make, self._watched = directory, Watched, Watched(directory)
        self._names = ("", *BY_WEIGHT)
        self._has_run = False

    def text(self) -> str:
        """Raises `OSError`. Until an attempt holds the directory there may be another run in it, or none."""
        try:
            if not self._has_run:
                self._watched = self._make(self._directory)
            now = self._watched.look()
        except FileNotFoundError:  # it is just being moved aside, by --fresh
            return f"{self._directory.name}: starting"
        self._has_run = self._has_run or now.state == "running"
        return f"{self._directory.name}: {self._said(now) if self._has_run else 'starting'}"

    def _said(self, now: Now) -> str:
        cells = now.cells()
        return ", ".join(f"{name} {cells[name]}" if name else cells[name] for name in self._names if cells[name])


def follow(line: Line, text: Callable[[], str], state: Callable[[], str]) -> None:
    """Show the line until the training is over. `state`: running, stopped (Ctrl-Z), or "" when it has ended. Raises `OSError`."""
    next_s = 0.0
    try:
        while now := state():
            if now == "stopped":
                line.hide()
                next_s = 0.0
            elif time.monotonic() >= next_s:
                line.show(text())
                next_s = time.monotonic() + _LOOK_S
            time.sleep(_POLL_S)
    finally:
        line.hide()


def main() -> None:
    """The process that draws; its arguments are the training's process and the run's directory."""
    import psutil

    try:
        process = psutil.Process(int(sys.argv[1]))
    except psutil.NoSuchProcess:
        return

    def state() -> str:
        try:
            said = process.status()
        except psutil.NoSuchProcess:
            return ""
        return {psutil.STATUS_ZOMBIE: "", psutil.STATUS_DEAD: "", psutil.STATUS_STOPPED: "stopped"}.get(said, "running")

    with contextlib.suppress(OSError):  # nobody looks at a terminal that is gone
        follow(Line(_STANDARD_ERROR), Follower(Path(sys.argv[2])).text, state)

"""`detrain run --progress`: where the run is, on the last line of the terminal, which is kept for that while the others scroll.

A process of its own draws it by what the run leaves on disk, so the training does nothing for it. It ends with the training, however that
ends, and gives the line back; a training that ends in good order waits for that, so that whoever has started it finds the terminal whole.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from detrain.world import aside

_STANDARD_ERROR = 2
_POLL_S, _LOOK_S = 0.1, 1.0
#: A terminal of fewer lines has none to give away.
_FEWEST_ROWS = 3
_SAVE, _RESTORE, _CLEAR, _REVERSE, _PLAIN = "\x1b7", "\x1b8", "\x1b[2K", "\x1b[7m", "\x1b[27m"
#: The cursor off the last line, wherever it is; what is there goes up with it.
_STEP_DOWN, _STEP_UP = "\x1bD", "\x1b[A"
#: What a terminal of another size has left of the line is below the cursor.
_CLEAR_BELOW = "\x1b[J"


def start(directory: Path) -> int:
    """Begin to show the run of this very process, which becomes the training; nothing is shown where standard error is no terminal.

    `directory`: of the run or the job, which need not be there yet. Returns the number of the process that shows it, 0 if none does.
    """
    if os.isatty(_STANDARD_ERROR) and os.environ.get("TERM", "dumb") != "dumb":
        return aside.start_aside(__name__, [str(os.getpid()), str(directory)])
    return 0


def end(process: int) -> None:
    """Have what `start` has returned give the line back, and wait for that."""
    aside.ends_with_this(process)
    aside.end_all()


class Line:
    """The last line of a terminal."""

    def __init__(self, terminal: int) -> None:
        """`terminal`: a descriptor. Each call is one write, which no other process's can part, and leaves the cursor where it was."""
        self._terminal = terminal
        #: Columns and rows of the terminal whose last line is kept; None if none is.
        self._size: tuple[int, int] | None = None

    @property
    def columns(self) -> int:
        """Characters that it has room for. Raises `OSError` where the terminal is gone."""
        return os.get_terminal_size(self._terminal).columns - 1

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

    def text(self, columns: int) -> str:
        """In so many characters, what matters least left out: the run's name before anything else. Raises `OSError`.

        Until an attempt holds the directory there may be another run in it, or none.
        """
        said = self._parts()
        if len(named := f"{self._directory.name}: {', '.join(said)}") <= columns:
            return named
        while len(said) > 1 and len(", ".join(said)) > columns:
            said.pop()
        return ", ".join(said)

    def _parts(self) -> list[str]:
        try:
            if not self._has_run:
                self._watched = self._make(self._directory)
            now = self._watched.look()
        except FileNotFoundError:  # it is just being moved aside, by --fresh
            return ["starting"]
        self._has_run = self._has_run or now.state == "running"
        if not self._has_run:
            return ["starting"]
        cells = now.cells()
        return [f"{name} {cells[name]}" if name else cells[name] for name in self._names if cells[name]]


def follow(line: Line, text: Callable[[int], str], state: Callable[[], str]) -> None:
    """Show the line until the training is over. `state`: running, stopped (Ctrl-Z), or "" when it has ended. Raises `OSError`."""
    next_s = 0.0
    try:
        while now := state():
            if now == "stopped":
                line.hide()
                next_s = 0.0
            elif time.monotonic() >= next_s:
                line.show(text(line.columns))
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

    is_told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: is_told.set())

    def state() -> str:
        if is_told.is_set():
            return ""
        try:
            said = process.status()
        except psutil.NoSuchProcess:
            return ""
        return {psutil.STATUS_ZOMBIE: "", psutil.STATUS_DEAD: "", psutil.STATUS_STOPPED: "stopped"}.get(said, "running")

    with contextlib.suppress(OSError):  # nobody looks at a terminal that is gone
        follow(Line(_STANDARD_ERROR), Follower(Path(sys.argv[2])).text, state)

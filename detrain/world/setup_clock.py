"""What set-up code reads from the clocks, and the process id: later attempts of a run are answered what the first one was.

A seed, a run's name, a folder for its results are often taken from either; with other answers a resumed attempt would be another run.
Every reading of a clock that the script causes before its training loop is noted in `answers.log` under the place that asked; a later
attempt that asks at the same place gets the same answer. What is asked for the first time is answered by a clock that goes on from
the last answer, so that no deadline of the set-up code lies in the past. With the loop `clocks.py` takes over.

Libraries read other clocks than that of the time of day for their deadlines: what they read there is only answered where a run is done
again to prove it. The script's own questions for the process id get the first attempt's, all the way; libraries get the real one,
which they need to tell themselves from their children, but for those that only name a file by it.
"""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path

from detrain import package
from detrain.errors import CheckpointError
from detrain.messages import warn
from detrain.world import preload
from detrain.world.clocks import CLOCKS, REAL, Clocks

_OWN = os.path.realpath(package.FOLDER) + os.sep

#: In the run directory.
NAME = "answers.log"
#: A script that reads the clock more often than this in its set-up is waiting for something; one line of the file takes 70 bytes.
MOST_ANSWERS = 20_000


class Answers:
    """The answers of a run, in its run directory."""

    def __init__(
        self,
        path: Path,
        first_process: int,
        is_user_file: Callable[[str], bool],
        names_files: Callable[[str], bool],
        clocks: Clocks,
    ) -> None:
        """`names_files` tells of a library's file whether its code asks for the process id to name a file."""
        self._path, self._process, self._is_user_file, self._clocks = path, first_process, is_user_file, clocks
        self._names_files = names_files
        self._known: dict[tuple[str, int], int] = {}
        self._asked: dict[str, int] = {}
        self._shifts_ns = [0] * len(CLOCKS)  # of the answered clocks from the real ones
        self._is_full = False

    def begin(self) -> bool:
        """Answer from now on; False if no preload library is there to ask through. Raises `CheckpointError` for a damaged file."""
        self._known.update(read(self._path))
        _cut_torn(self._path)
        is_there = self._clocks.begin(self._clock, self._path)
        if is_there and self._process != os.getpid():
            preload.answer_process(self._process_id, self._process)
        return is_there

    def stop(self) -> None:
        """The script has ended, or this is a forked child."""
        preload.answer_process(None, 0)

    def _clock(self, clock: int, real_ns: int) -> int:
        """Nanoseconds, as the caller is to see them; since 1970, of the time of day."""
        place, is_script = self._place(sys._getframe(1))
        if place is None:
            return real_ns
        if clock != REAL:
            place = f"{CLOCKS[clock]} {place}"
        ordinal = self._asked.get(place, 0)
        self._asked[place] = ordinal + 1
        known = self._known.get((place, ordinal))
        is_told_again = clock == REAL or is_script or self._clocks.is_proof
        if known is not None and is_told_again:
            self._shifts_ns[clock] = known - real_ns
            return known
        answer = real_ns + self._shifts_ns[clock] if is_told_again else real_ns
        if known is None:
            self._record(place, ordinal, answer)
        return answer

    def _record(self, place: str, ordinal: int, answer: int) -> None:
        self._known[place, ordinal] = answer
        if len(self._known) > MOST_ANSWERS:
            if not self._is_full:
                self._is_full = True
                warn(
                    "clock-not-noted",
                    f"the set-up code has read the clocks {MOST_ANSWERS} times (last at {place}); later readings are not recorded, "
                    "and a resumed attempt will read other times",
                )
            return
        if not self._is_full and not self._clocks.record_reading(json.dumps([place, ordinal, answer]) + "\n"):
            self._is_full = True
            warn("clock-not-noted", f"clock readings of the set-up code cannot be recorded in {self._path}")

    def _place(self, frame: types.FrameType | None) -> tuple[str | None, bool]:
        """Who asks: the innermost line, and the script's line that led there, or None; and if it is the script itself."""
        innermost = frame
        while frame is not None and not self._is_user_file(frame.f_code.co_filename):
            if frame.f_code.co_filename.startswith(_OWN):
                return None, False
            frame = frame.f_back
        if frame is None or innermost is None:
            return None, False
        return (_line(frame), True) if frame is innermost else (f"{_line(frame)} > {_line(innermost)}", False)

    def _process_id(self, _: int, real: int) -> int:
        frame = sys._getframe(1)
        filename = frame.f_code.co_filename
        return self._process if self._is_user_file(filename) or self._names_files(filename) else real


def read(path: Path) -> dict[tuple[str, int], int]:
    """The answers in a file, in ns, by the place that asked and how often it had asked before; none without a file.

    Raises `CheckpointError` for a file that is damaged.
    """
    found = {}
    for number, line in enumerate(_whole_lines(path), 1):
        try:
            place, ordinal, answer = json.loads(line)
            found[place, ordinal] = answer
        except (ValueError, TypeError):
            raise CheckpointError(
                f"{path} is damaged in line {number}: what the set-up code read of the clock is not known"
            ) from None
    return found


def _whole_lines(path: Path) -> list[bytes]:
    """Without what an attempt that was killed has left half written: the script never got this reading."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    return content.split(b"\n")[:-1]


def _cut_torn(path: Path) -> None:
    """Take that away, so that what follows can be read."""
    whole = sum(len(line) + 1 for line in _whole_lines(path))
    if path.exists() and whole < path.stat().st_size:
        os.truncate(path, whole)


def _line(frame: types.FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"

"""What set-up code reads from the clock, and the process id: later attempts of a run are answered what the first one was.

A seed, a run's name, a folder for its results are often taken from either; with other answers a resumed attempt would be another run.
Every reading of the clock that the script causes before its training loop is noted in `answers.log` under the place that asked; a later
attempt that asks at the same place gets the same answer. What is asked for the first time is answered by a clock that goes on from
the last answer, so that no deadline of the set-up code lies in the past. With the loop the real clock is back.

The script's own questions for the process id get the first attempt's, all the way; libraries get the real one, which they need to
tell themselves from their children.
"""

from __future__ import annotations

import json
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path

import detrain
from detrain.launch import preload
from detrain.session.messages import warn

_OWN = os.path.dirname(os.path.realpath(detrain.__file__)) + os.sep

#: A script that reads the clock more often than this in its set-up is waiting for something; one line of the file takes 70 bytes.
MOST_ANSWERS = 20_000


class Answers:
    """The answers of a run, in its run directory."""

    def __init__(self, path: Path, first_process: int, is_user_file: Callable[[str], bool]) -> None:
        self._path, self._process, self._is_user_file = path, first_process, is_user_file
        self._known: dict[tuple[str, int], int] = {}
        self._asked: dict[str, int] = {}
        self._offset_ns = 0  # of the answered clock from the real one
        self._is_full = False

    def begin(self) -> bool:
        """Answer from now on; False if no preload library is there to ask through."""
        self._read()
        is_there = preload.answer_clock(self._clock)
        if is_there and self._process != os.getpid():
            preload.answer_process(self._process_id, self._process)
        return is_there

    def stop_clock(self) -> None:
        """The training loop begins."""
        preload.answer_clock(None)

    def stop(self) -> None:
        """The script has ended, or this is a forked child."""
        preload.answer_clock(None)
        preload.answer_process(None, 0)

    def _read(self) -> None:
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                place, ordinal, answer = json.loads(line)
            except ValueError:
                continue  # the torn last line of an attempt that was killed: nobody has seen the answer
            self._known[place, ordinal] = answer

    def _clock(self, real_ns: int) -> int:
        """Nanoseconds since 1970, as the caller is to see them."""
        place = self._place(sys._getframe(1))
        if place is None:
            return real_ns
        ordinal = self._asked.get(place, 0)
        self._asked[place] = ordinal + 1
        known = self._known.get((place, ordinal))
        if known is not None:
            self._offset_ns = known - real_ns
            return known
        answer = real_ns + self._offset_ns
        self._note(place, ordinal, answer)
        return answer

    def _note(self, place: str, ordinal: int, answer: int) -> None:
        self._known[place, ordinal] = answer
        if len(self._known) > MOST_ANSWERS:
            if not self._is_full:
                self._is_full = True
                warn(
                    "clock-not-noted",
                    f"the set-up code has read the clock {MOST_ANSWERS} times (last at {place}); what it reads from now on is not "
                    "noted, and a resumed attempt will read other times",
                )
            return
        try:
            with open(self._path, "a", encoding="utf-8") as file:
                file.write(json.dumps([place, ordinal, answer]) + "\n")
        except OSError as error:
            self._is_full = True
            warn("clock-not-noted", f"what the set-up code reads from the clock cannot be noted: {error}")

    def _place(self, frame: types.FrameType | None) -> str | None:
        """Who asks: the innermost line, and the script's line that led there; None if the script does not."""
        if frame is None:
            return None
        innermost = frame
        user: types.FrameType | None = frame
        while user is not None and not self._is_user_file(user.f_code.co_filename):
            if user.f_code.co_filename.startswith(_OWN):
                return None
            user = user.f_back
        if user is None:
            return None
        return _line(user) if user is innermost else f"{_line(user)} > {_line(innermost)}"

    def _process_id(self, real: int) -> int:
        frame = sys._getframe(1)
        return self._process if self._is_user_file(frame.f_code.co_filename) else real


def _line(frame: types.FrameType) -> str:
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"

"""What instrumented code calls. A hook finds its loop by the header's line and asks the session."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from detrain.session.session import Session

#: The session of this process; set by the launcher before the script begins.
session: Session = None  # type: ignore[assignment]


def record_loop(line: int, *iterable: Iterable[object], ended: bool = False, left: bool = False) -> object:
    """At a loop whose part in the training is not known: its iterable, or for a `while` True before every test.

    `ended`: the test of a `while` has failed. `left`: a `break` follows.
    """
    frame = sys._getframe(1)
    if iterable:
        return session.enter_for(frame, line, iterable[0])
    if ended or left:
        session.end_loop(frame, line, is_left=left)
        return None
    return session.tick_while(frame, line)


def record_epoch(line: int, *iterable: Iterable[object], ended: bool = False, left: bool = False) -> object:
    """At the header of the epoch loop."""
    frame = sys._getframe(1)
    if iterable:
        return session.enter_for(frame, line, iterable[0])
    if ended or left:
        session.end_loop(frame, line, is_left=left)
        return None
    return session.tick_while(frame, line)


def record_batch(
    line: int, *iterable: Iterable[object], loaded: bool = False, ended: bool = False, left: bool = False
) -> object:
    """At the header of the batch loop; `loaded`: behind what a batch loop has loaded by itself."""
    frame = sys._getframe(1)
    if iterable:
        return session.enter_for(frame, line, iterable[0])
    if loaded:
        session.batch_loaded(frame, line)
        return None
    if ended or left:
        session.end_loop(frame, line, is_left=left)
        return None
    return session.tick_while(frame, line)


def enter_loop(line: int) -> None:
    """Before a `while` loop."""
    session.enter_while(sys._getframe(1), line)

"""What instrumented code calls. A hook finds its loop by the header's line and asks the session.

Their parameters have defaults, and none is for keywords alone: only so does the interpreter call them without packing arguments.
"""

from __future__ import annotations

from collections.abc import Iterable
from sys import _getframe
from typing import Any

from detrain.session.session import Session

#: The session of this process; set by the launcher before the script begins.
session: Session = None  # type: ignore[assignment]

_NOTHING: Any = object()  # None is an iterable that a script may give by mistake


def record_loop(line: int, iterable: Iterable[object] = _NOTHING, ended: bool = False, left: bool = False) -> object:
    """At a loop whose part in the training is not known: its iterable, or for a `while` True before every test.

    `ended`: the test of a `while` has failed. `left`: a `break` follows.
    """
    frame = _getframe(1)
    if iterable is not _NOTHING:
        return session.enter_for(frame, line, iterable)
    if ended or left:
        session.end_loop(frame, line, is_left=left)
        return None
    return session.tick_while(frame, line)


def record_epoch(line: int, iterable: Iterable[object] = _NOTHING, ended: bool = False, left: bool = False) -> object:
    """At the header of the epoch loop."""
    frame = _getframe(1)
    if iterable is not _NOTHING:
        return session.enter_for(frame, line, iterable)
    if ended or left:
        session.end_loop(frame, line, is_left=left)
        return None
    return session.tick_while(frame, line)


def record_batch(
    line: int, iterable: Iterable[object] = _NOTHING, loaded: bool = False, ended: bool = False, left: bool = False
) -> object:
    """At the header of the batch loop; `loaded`: behind what a batch loop has loaded by itself."""
    frame = _getframe(1)
    if iterable is not _NOTHING:
        return session.enter_for(frame, line, iterable)
    if loaded:
        session.batch_loaded(frame, line)
        return None
    if ended or left:
        session.end_loop(frame, line, is_left=left)
        return None
    return session.quiet.counts_while(line, frame, session.stack) or session.tick_while(frame, line)


def enter_loop(line: int) -> None:
    """Before a `while` loop."""
    session.enter_while(_getframe(1), line)

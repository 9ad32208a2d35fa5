"""Loops while they run: which are active, where each of them is.

A `for` loop's iterable is handed back to the interpreter inside a chain of C iterators: before each element it asks the `Loop`
(so that a loop's header is where state is saved and restored), then the user's own iterator. No frame of ours is on the stack
while the user's iterator runs, so its tracebacks are its own.
"""

from __future__ import annotations

import gc
import itertools
import sys
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from detrain.session.session import Session


@dataclass(eq=False, slots=True)
class Site:
    """One instrumented loop header. `part` is "" until the loop is known to be in a nest."""

    filename: str
    line: int
    end_line: int
    part: str = ""
    is_demoted: bool = False

    @property
    def key(self) -> tuple[str, int]:
        """File and line."""
        return self.filename, self.line


class Loop:
    """One entry of a loop. Its iterations count from 0; -1 before the first."""

    __slots__ = (
        "active_chain", "children", "entered_at", "finished", "frame_id", "gradient_at", "is_exhausted", "iterable", "iteration",
        "ordinal", "parent", "replacement", "session", "site", "start_point",
    )  # fmt: skip

    def __init__(self, session: Session, site: Site, parent: Loop | None, ordinal: int, frame_id: int) -> None:
        self.session = session
        self.site = site
        self.parent = parent
        self.ordinal = ordinal
        self.frame_id = frame_id
        self.iteration = -1
        self.gradient_at = -1  # the last iteration in which gradients were computed
        self.is_exhausted = False
        #: Entries of inner loops in the present iteration, by site.
        self.children: dict[Site, int] = {}
        #: The last checkpoint taken at this loop's header (file name), and those that lead past the inner loops that have
        #: ended in the present iteration.
        self.start_point = ""
        self.finished: list[str] = []
        self.iterable: Any = None
        self.replacement: Any = None
        self.active_chain: Any = None
        self.entered_at = 0.0

    # The ticker of a `for` loop: C code calls it before it fetches the next element.
    def __iter__(self) -> Loop:
        return self

    def __next__(self) -> None:
        self.tick(sys._getframe(1))

    def tick(self, frame: types.FrameType) -> None:
        """An iteration is about to begin; `frame` is the loop's."""
        self.iteration += 1
        if self.children:
            self.children = {}
            self.finished = []
        session = self.session
        session.top = self
        if self.site.part:
            session.at_header(self, frame)

    def wrap(self, iterable: Any) -> Iterator[Any]:
        """What the interpreter iterates over in place of `iterable`."""
        self.iterable = iterable
        self.active_chain = itertools.chain.from_iterable(_Feed(self))
        return map(_second, self, self.active_chain)

    @property
    def iterator(self) -> Any:
        """The user's iterator of a `for` loop; None before the first element and for a `while` loop."""
        if self.active_chain is None:
            return None
        referents = gc.get_referents(self.active_chain)
        # The chain holds its source and, between the first element and the end, the iterator that it takes from.
        return referents[1] if len(referents) > 1 else None

    def way_here(self) -> list[str]:
        """Checkpoints through which this loop's present iteration is reached, in order."""
        return [*([self.start_point] if self.start_point else []), *self.finished]

    @property
    def path(self) -> list[Loop]:
        """The active loops down to this one, outermost first."""
        loops: list[Loop] = []
        current: Loop | None = self
        while current is not None:
            loops.append(current)
            current = current.parent
        return loops[::-1]


def _second(_: Any, element: Any) -> Any:
    return element


class _Feed:
    """Gives the chain the user's iterable, then tells the loop that it is exhausted."""

    def __init__(self, loop: Loop) -> None:
        self._loop: Loop | None = loop

    def __iter__(self) -> _Feed:
        return self

    def __next__(self) -> Any:
        loop = self._loop
        if loop is None:
            raise StopIteration
        if not loop.is_exhausted and loop.iterable is not _TAKEN:
            iterable, loop.iterable = (loop.iterable if loop.replacement is None else loop.replacement), _TAKEN
            loop.replacement = None
            return iterable
        self._loop = None
        loop.is_exhausted = True
        if loop.site.part:
            loop.session.at_end(loop, sys._getframe(1))
        raise StopIteration


_TAKEN: Any = object()


def is_active(loop: Loop, frames: dict[int, types.FrameType]) -> bool:
    """True if the loop's frame is among these (by id) and stands inside the loop."""
    frame = frames.get(loop.frame_id)
    if frame is None or frame.f_code.co_filename != loop.site.filename:
        return False
    return loop.site.line <= (frame.f_lineno or 0) <= loop.site.end_line


def frames_above(frame: types.FrameType | None) -> dict[int, types.FrameType]:
    """A frame and those that called it, by id."""
    found = {}
    while frame is not None:
        found[id(frame)] = frame
        frame = frame.f_back
    return found


def innermost_active(top: Loop | None, frame: types.FrameType) -> Loop | None:
    """The innermost loop that is running, seen from `frame`; `top` is the loop that was entered or ticked last."""
    if top is None:
        return None
    frames = frames_above(frame)
    while top is not None and not is_active(top, frames):
        top = top.parent
    return top

"""The running loops of the script, as reported by the hooks."""

from __future__ import annotations

import os
import types
from collections.abc import Iterable, Mapping, Sequence

from detrain.loops.running import Listener, Loop, Site, address, innermost_active, is_inside


class LoopStack:
    """Knows every loop header by file and line, which loop was entered or has begun an iteration last, and how often each was entered."""

    def __init__(
        self, parts: Mapping[str, Mapping[int, str]], nums_in_nest: Mapping[tuple[str, int], int] | None = None
    ) -> None:
        """What is known from inst.info.

        `parts`: by file and header line, the loops' parts in the training. `nums_in_nest`: how often they stand in it, where that is
        more than once.
        """
        #: Gets the events of the training's loops; set before the first loop is entered.
        self.listener: Listener | None = None
        #: The loop that was entered, or has begun an iteration, last; it may have ended.
        self.top: Loop | None = None
        self.sites: dict[tuple[str, int], Site] = {}
        self._parts, self._nums_in_nest = parts, nums_in_nest or {}
        self._loops_of: dict[str, Mapping[int, int]] = {}
        self._nameless: dict[Site, Site] = {}
        self._root_children: dict[Site, int] = {}
        self._root_finished: list[str] = []

    def add_file(self, filename: str, loops: Mapping[int, int]) -> None:
        """The loops of a file that has just been instrumented: header line to last line."""
        self._loops_of[filename] = loops

    def is_user_file(self, filename: str) -> bool:
        """True for the script and the user's modules."""
        return filename in self._loops_of

    def enter(self, frame: types.FrameType, line: int) -> Loop | None:
        """The header at `line` of `frame` is about to be executed for the first time; None where the loop is of no interest."""
        filename, top = frame.f_code.co_filename, self.top
        if (
            top is not None
            and top.site.part == "batch"
            and self._is_nothing(filename, line, top)
            and is_inside(top, frame)
        ):
            return None  # as below, in half the time: a batch may enter a loop for each of its samples
        site = self._site(filename, line)
        parent = innermost_active(self._top_before(frame, line), frame)
        if not site.part and parent is not None and parent.site.part == "batch":
            return None  # inside a batch nothing is of interest any more
        self._finish_sibling(parent)
        path = [] if parent is None else parent.path
        ordinals = []
        for children in (*(loop.children for loop in reversed(path)), self._root_children):
            ordinals.append(children.get(site, 0))
            children[site] = ordinals[-1] + 1
        assert self.listener is not None
        named = self._within_itself(site) if _is_within_itself(site, path) else site
        self.top = Loop(self, self.listener, named, parent, ordinals, address(frame))
        if named.part:
            self.top.follow_sibling()
        return self.top

    def _is_nothing(self, filename: str, line: int, top: Loop) -> bool:
        """True if the loop is known to be none of the training's, and surely none of those that run or have run around `top`."""
        site = self.sites.get((filename, line))
        if site is None or site.part:
            return False
        loop: Loop | None = top
        while loop is not None and loop.site.line != line and loop.interrupted is None:
            loop = loop.parent
        return loop is None

    def find(self, frame: types.FrameType, line: int) -> Loop | None:
        """The loop with its header at `line` of `frame` that was entered already."""
        here, top = address(frame), self.top
        while top is not None and top.interrupted is None:  # as nearly always: none runs beside another
            if top.site.line == line and top.frame_address == here:
                return top
            top = top.parent
        pending, seen = [top], set[Loop]()
        while pending:
            loop = pending.pop()
            if loop is None or loop in seen:
                continue
            if loop.frame_address == here and loop.site.line == line:
                return loop
            seen.add(loop)
            # Also where a generator that feeds the loop has begun before it, and has come to the top.
            pending += [loop.interrupted, loop.parent]
        return None

    def running(self, frame: types.FrameType) -> list[Loop]:
        """The loops that are running, seen from `frame`, outermost first."""
        loop = innermost_active(self.top, frame)
        return loop.path if loop is not None else []

    def checkpoints_before(self, loop: Loop) -> list[str]:
        """Checkpoints through which a later attempt comes to a loop's header, in order; not the one of the header itself."""
        names = list(self._root_finished)
        for outer in loop.path[:-1]:
            names += outer.checkpoints_here()
        return names

    def demoted(self) -> set[tuple[str, int]]:
        """File and line of the loops that were taken for the training's and are not."""
        return {site.key for site in self.sites.values() if site.is_demoted}

    def _top_before(self, frame: types.FrameType, line: int) -> Loop | None:
        """The innermost loop so far, without an earlier entry of the loop that is entered: that one has ended."""
        earlier = self.find(frame, line)
        return self.top if earlier is None else earlier.parent

    def _finish_sibling(self, parent: Loop | None) -> None:
        """A loop behind an earlier sibling is entered: getting here again needs what led to the end of that one."""
        ended, before = None, self.top
        while before is not None and before is not parent:
            ended, before = (before if before.site.part else ended), before.parent
        if ended is not None and before is parent:
            outer = ended.nest_parent
            (self._root_finished if outer is None else outer.finished).extend(ended.checkpoints_here())
            if outer is not None:
                outer.ended = ended.site
                outer.is_led_past = outer.is_led_past and ended.is_marked and ended.is_led_past

    def _within_itself(self, site: Site) -> Site:
        """The same loop, where it is none of the training's."""
        return self._nameless.setdefault(site, Site(site.filename, site.line, site.end_line, is_within_itself=True))

    def _site(self, filename: str, line: int) -> Site:
        site = self.sites.get((filename, line))
        if site is None:
            end_line = self._loops_of.get(filename, {}).get(line, line)
            path = os.path.normpath(filename)
            parts = self._parts.get(path, {})
            part = parts.get(line, "")
            is_followed = part == "batch" and list(parts.values()).count("batch") > 1
            num_in_nest = self._nums_in_nest.get((path, line), 1)
            site = Site(
                filename, line, end_line, part, is_fixed=bool(part), is_followed=is_followed, num_in_nest=num_in_nest
            )
            self.sites[filename, line] = site
        return site


def _is_within_itself(site: Site, path: Sequence[Loop]) -> bool:
    """True where a loop of the training is entered in one of its own iterations, or where that is true of a loop around it.

    A library's engine trains and evaluates by the same loops; an evaluation that the training calls is none of its epochs.
    """
    if path and path[-1].site.is_within_itself:
        return True
    return bool(site.part) and sum(loop.site is site for loop in path) >= site.num_in_nest


def is_at(loop: Loop, position: Iterable[tuple[str, int, int, int]]) -> bool:
    """True if this is the loop of a position, in the iterations of the loops around it; its own iteration is not compared.

    `position`: of each of the training's loops, outermost first: file, line, ordinal, iteration.
    """
    places = list(position)
    path = loop.nest
    if len(path) != len(places):
        return False
    for active, (filename, line, ordinal, iteration) in zip(path, places, strict=True):
        here = os.path.normpath(active.site.filename)
        if (here, active.site.line, active.ordinal) != (os.path.normpath(filename), line, ordinal):
            return False
        if active is not loop and active.iteration != iteration:
            return False
    return True

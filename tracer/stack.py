"""The loops around a place in the running program: from the frames on the stack, lexically in each."""

from __future__ import annotations

import ast
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detrain.loops.sites import LoopSite, find_statements
from detrain.tracer.probes import Site
from detrain.tracer.sizes import attributes_of


class Stack:
    """Finds the sites around an event. Files without probes, a library's, get sites when gradients are computed inside their loops."""

    def __init__(
        self,
        sites: dict[tuple[str, int], Site],
        is_below: Callable[[str], bool],
        function_in: Callable[[str], str | None],
    ) -> None:
        self._sites = sites
        self._is_below = is_below
        self._function_in = function_in
        self._loops: dict[str, dict[int, list[LoopSite]]] = {}
        self._headers: dict[tuple[str, int], ast.expr | None] = {}

    def frames(self, frame: types.FrameType | None) -> list[types.FrameType]:
        """The script's and the libraries' frames, innermost first."""
        found = []
        while frame is not None:
            if not self._is_below(frame.f_code.co_filename):
                found.append(frame)
            frame = frame.f_back
        return found

    def path(self, frame: types.FrameType, *, may_watch: bool = False) -> list[Site]:
        """The running loops around `frame`, outermost first.

        Loops of libraries count once they have been seen with `may_watch`: what computes gradients may train, what steps an
        optimizer may be that optimizer's own loop.
        """
        found: list[Site] = []
        for one in self.frames(frame):
            here = [self._site(one, loop, may_watch) for loop in self.loops_around(one)]
            found = [*(site for site in here if site is not None), *found]
        return found

    def loops_around(self, frame: types.FrameType) -> list[LoopSite]:
        """The loops of the frame's own code around its present line, outermost first."""
        code = frame.f_code
        loops = self._loops_of(code.co_filename)
        line = frame.f_lineno or 0
        scope = 0 if code.co_name == "<module>" else code.co_firstlineno
        return [loop for loop in loops.get(scope, ()) if loop.line <= line <= loop.end_line]

    def _loops_of(self, filename: str) -> dict[int, list[LoopSite]]:
        if filename not in self._loops:
            by_scope: dict[int, list[LoopSite]] = {}
            for loop, statement in _parse(filename):
                by_scope.setdefault(loop.scope_line, []).append(loop)
                self._headers[filename, loop.line] = getattr(statement, "iter", None)
            self._loops[filename] = by_scope
        return self._loops[filename]

    def _site(self, frame: types.FrameType, loop: LoopSite, may_watch: bool) -> Site | None:
        key = frame.f_code.co_filename, loop.line
        site = self._sites.get(key)
        if site is None:
            function = self._function_in(frame.f_code.co_filename)
            if not may_watch or function not in (None, frame.f_code.co_name):
                return None
            site = self._sites[key] = Site(*key, loop.end_line, is_probed=False)
        if not site.is_probed and site.watched is not frame:
            site.watched = frame
            site.enter(_header_value(frame, self._headers.get(key)))
            site.tick()
            _watch(frame, site)
        site.function = frame.f_code.co_qualname
        return site


def _header_value(frame: types.FrameType, node: ast.expr | None) -> Any:
    """What a library's `for` loop iterates over, as far as its header is made of names: `loader`, `enumerate(self.loader)`."""
    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        return dict(attributes_of(_header_value(frame, node.value))).get(node.attr)
    if isinstance(node, ast.Call):
        values = [_header_value(frame, one) for one in node.args]
        return next((one for one in values if one is not None), None)
    return None


def _parse(filename: str) -> list[tuple[LoopSite, ast.For | ast.While]]:
    try:
        tree = ast.parse(Path(filename).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []  # code that was made from a string
    return find_statements(tree)


def _watch(frame: types.FrameType, site: Site) -> None:
    """Count the passes of a running frame through a loop's header, by the frame's own trace function: its code cannot be exchanged."""
    before: Any = frame.f_trace

    def on_line(running: types.FrameType, event: str, argument: Any) -> Any:
        if event == "line" and running.f_lineno == site.line:
            site.tick()
        if before is not None:
            before(running, event, argument)
        return on_line

    frame.f_trace = on_line
    if sys.gettrace() is None:
        sys.settrace(_trace_no_call)


def _trace_no_call(frame: types.FrameType, event: str, argument: Any) -> None:
    """Frames that begin now are not traced."""

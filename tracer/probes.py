"""Probes: calls that the tracer puts into the bytecode of the user's functions, at the loops; library code has none.

A `for` loop's probe stands behind FOR_ITER, a `while` loop's at the beginning of its body; a second one tells that the loop is entered,
and what a `for` loop is about to iterate over. Nanoseconds that each mechanism adds to an iteration, by `benchmarks/trace.py --only
probes` on an AMD EPYC, fastest runs, which is why probes are used on every version:

    Python                                                          3.11   3.12   3.13
    a probe that calls `itertools.count.__next__`, a C function       20     26     22
    a probe that calls a Python function that counts                  24     28     24
    LINE events of `sys.monitoring` (not DISABLEd: they count)         -    116     99
    `sys.settrace`                                                   111    163    109
"""

from __future__ import annotations

import ast
import itertools
import sys
import types
from collections.abc import Iterator
from typing import Any

from bytecode import Bytecode, Instr
from bytecode.instr import InstrLocation

from detrain.loops.sites import LoopSite, find_statements

_Position = tuple[int, int]  # line and column


class Site:
    """One loop, with how often it has gone round. Serves as its own running entry: which frame runs it is of no interest here."""

    def __init__(self, filename: str, line: int, end_line: int, *, is_probed: bool = True) -> None:
        self.filename, self.line, self.end_line = filename, line, end_line
        self.is_probed = is_probed
        self.function = ""
        self.part = ""
        self.is_demoted = self.is_fixed = False
        self.gradient_at = self.updated_at = -1
        self.num_updated = 0
        self._counter = itertools.count(1)
        self.tick = self._counter.__next__
        self._before_entry = 0
        #: What the `for` loop that was entered last iterates over.
        self.iterator: Any = None
        #: The running frame whose lines are watched, of a loop that has no probe: a library's.
        self.watched: types.FrameType | None = None

    def enter_while(self) -> None:
        """The loop is entered, and is a `while` loop."""
        self.enter(None)

    def enter(self, iterable: Any) -> None:
        """The loop is entered."""
        self._before_entry = self.ticks
        self.gradient_at = self.updated_at = -1
        self.num_updated = 0
        self.iterator = iterable

    @property
    def ticks(self) -> int:
        """Iterations begun so far, of all entries."""
        return int(repr(self._counter)[len("count(") : -1]) - 1

    @property
    def iteration(self) -> int:
        """Of the present entry, from 0."""
        return self.ticks - self._before_entry - 1

    @property
    def site(self) -> Site:
        """Itself."""
        return self


class Probes:
    """Puts probes into the code of source files and knows the sites that they count."""

    def __init__(self) -> None:
        self.sites: dict[tuple[str, int], Site] = {}

    def site_of(self, filename: str, found: LoopSite) -> Site:
        """The site that counts a loop."""
        site = self.sites[filename, found.line] = Site(filename, found.line, found.end_line)
        return site

    def compile(self, tree: ast.Module, filename: str) -> types.CodeType:
        """The code of a file with a probe at every loop; the tree is changed."""
        marks: _Marks = {}
        for found, statement in find_statements(tree):
            if found.is_in_class:
                continue  # a class body looks its names up in whatever its metaclass gives; no training loop stands in one
            site = self.site_of(filename, found)
            marks.update((position, (mark, site, statement)) for position, mark in _positions_of(statement))
        tree = ast.fix_missing_locations(_Markers().visit(tree))
        code: types.CodeType = compile(tree, filename, "exec", dont_inherit=True)
        return _insert(code, marks) if marks else code


#: Lines that no file has, for the constants that mark where a `while` loop is entered and where its body begins: they become NOPs.
_ENTRY_LINE, _BODY_LINE = 1_000_000, 2_000_000

#: What stands at a position: "enter" or "body" of a `while`, "target" of a `for`.
_Marks = dict[_Position, tuple[str, Site, Any]]


def _positions_of(statement: ast.For | ast.While) -> Iterator[tuple[_Position, str]]:
    """The positions of the instructions by which a loop is known."""
    if isinstance(statement, ast.For):
        yield (statement.target.lineno, statement.target.col_offset), "target"
        return
    yield (_ENTRY_LINE + statement.lineno, 0), "enter"
    yield (_BODY_LINE + statement.lineno, 0), "body"


class _Markers(ast.NodeTransformer):
    """Puts a constant before each `while`, and at the beginning of its body."""

    def visit_While(self, node: ast.While) -> list[ast.stmt]:
        self.generic_visit(node)
        node.body.insert(0, self._marker(_BODY_LINE + node.lineno))
        return [self._marker(_ENTRY_LINE + node.lineno), node]

    @staticmethod
    def _marker(line: int) -> ast.stmt:
        place: Any = {"lineno": line, "end_lineno": line, "col_offset": 0, "end_col_offset": 1}
        return ast.Expr(ast.Constant(0, **place), **place)


def _insert(code: types.CodeType, marks: _Marks) -> types.CodeType:
    """With probes in this code and in the code of the functions inside."""
    inner = {n: _insert(one, marks) for n, one in enumerate(code.co_consts) if isinstance(one, types.CodeType)}
    if inner:
        code = code.replace(co_consts=tuple(inner.get(n, one) for n, one in enumerate(code.co_consts)))
    if not any((line, column) in marks for line, _, column, _ in code.co_positions()):
        return code
    bytecode = Bytecode.from_code(code)
    bytecode[:] = list(_with_probes(list(bytecode), marks))
    return bytecode.to_code()


def _with_probes(instructions: list[Any], marks: _Marks) -> Iterator[Any]:
    for number, one in enumerate(instructions):
        if not isinstance(one, Instr):
            yield one
            continue
        mark, site, statement = _mark_of(one, marks)
        if mark in ("enter", "body"):
            yield from _call(site.enter_while if mark == "enter" else site.tick, _location(statement))
            continue
        loop = _loop_of(instructions, number, marks) if one.name in ("GET_ITER", "FOR_ITER") else None
        if loop is not None and one.name == "GET_ITER":
            yield from _call(loop.enter, one.location, has_argument=True)
        yield one
        if loop is not None and one.name == "FOR_ITER":
            yield from _call(loop.tick, one.location)


def _mark_of(one: Any, marks: _Marks) -> tuple[str, Any, Any]:
    location = one.location
    position: Any = (location.lineno, location.col_offset) if location is not None else None
    nothing: tuple[str, Any, Any] = ("", None, None)
    return marks.get(position, nothing)


def _loop_of(instructions: list[Any], number: int, marks: _Marks) -> Site | None:
    """The `for` statement to which a GET_ITER or FOR_ITER belongs, known by what follows: it stores into the target."""
    for one in itertools.islice(instructions, number + 1, number + 6):
        if not isinstance(one, Instr) or one.name in ("FOR_ITER", "EXTENDED_ARG"):
            continue
        mark, site, _ = _mark_of(one, marks)
        return site if mark == "target" else None
    return None


def _location(statement: ast.stmt) -> InstrLocation:
    return InstrLocation(statement.lineno, statement.lineno, statement.col_offset, statement.col_offset + 5)


def _call(function: Any, location: Any, *, has_argument: bool = False) -> list[Any]:
    """Instructions that call a function and drop what it returns; its argument is the value on top of the stack, which stays."""

    def make(name: str, *argument: Any) -> Instr:
        return Instr(name, *argument, location=location)

    constant, null = make("LOAD_CONST", function), make("PUSH_NULL")
    callee = [constant, null] if sys.version_info >= (3, 13) else [null, constant]
    count = int(has_argument)
    arguments = [make("COPY", 3)] if has_argument else []
    precall = [make("PRECALL", count)] if sys.version_info < (3, 12) else []
    return [*callee, *arguments, *precall, make("CALL", count), make("POP_TOP")]

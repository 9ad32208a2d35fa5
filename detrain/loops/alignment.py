"""Two versions of one source file: which line of the one is which line of the other. Pure.

For a replay of a run with lines added to its script (`detrain.proof.replay`). Lines are matched as `diff` matches them. For what has to be
found again with certainty that is not enough: loops are matched by where they stand (the function, the loops around them) and by the text
of their headers, functions by their names; where that does not decide, nothing is matched.
"""

from __future__ import annotations

import ast
import difflib
import dis
import inspect
import types
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from detrain.errors import UsageError
from detrain.state.patches import Patch

#: Function or class, headers of the loops around it there, its own header.
_Place = tuple[str, tuple[str, ...], str]
_BINDS_GLOBAL = frozenset({"STORE_NAME", "STORE_GLOBAL", "DELETE_NAME", "DELETE_GLOBAL"})
_MODULE = "<module>"
_WITH_THEIR_HEADERS = "with the headers that they had. Add lines around and in them only"


@dataclass(frozen=True)
class Alignment:
    """How a source was before, and how it is now."""

    #: Line before to line now; of lines that are in both.
    lines: dict[int, int]
    #: The same for loops: the lines of their headers.
    loops: dict[int, int]
    #: The headers of all loops before, by line.
    headers: dict[int, str]
    #: Lines of code before that are not there now.
    gone: list[int]
    added: dict[str, frozenset[str]]
    #: Attributes that are set now, and were not named before.
    attributes: frozenset[str]

    def loop(self, line: int, filename: str, now: str, *, rule: str = _WITH_THEIR_HEADERS) -> int:
        """The header, now, of a loop of the training that had its header at `line`. Raises `UsageError` if that is not certain.

        `rule`: the end of what it says of how loops have to stand, with what to do.
        """
        found = self.loops.get(line)
        if found is None:
            what = self.headers.get(line, "no loop")
            raise UsageError(
                f"{now} has no loop, or several, that can be the training's loop at {filename}:{line} ({what}): the loops of the training "
                f"have to stand in the same functions, in each other, {rule}"
            )
        return found

    def patch(self) -> Patch:
        """What an attempt that runs the source of now has to know."""
        return Patch({now: then for then, now in self.lines.items()}, self.added, self.attributes)


def align(before: bytes, now: bytes, name: str, *, has_other_headers: bool = False) -> Alignment:
    """Match two versions; `name` is that of the second, for messages. Raises `UsageError` where Python cannot read it.

    `has_other_headers`: loops whose headers read otherwise are matched too, in their order, in functions whose loops stand in each other as
    before.
    """
    trees = []
    for content in (before, now):
        try:
            trees.append(ast.parse(content))
        except (SyntaxError, ValueError) as error:
            line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
            raise UsageError(f"{name}{line}: Python cannot read it: {error}") from None
    olds, news = _lines(before), _lines(now)
    matcher = difflib.SequenceMatcher(None, olds, news, autojunk=False)
    lines = {
        block.a + number + 1: block.b + number + 1
        for block in matcher.get_matching_blocks()
        for number in range(block.size)
    }
    code_lines = {node.lineno for node in ast.walk(trees[0]) if isinstance(node, ast.expr | ast.stmt)}
    gone = sorted(code_lines - lines.keys())
    places = [_places(tree) for tree in trees]
    loops = _paired(places[0].loops, places[1].loops)
    if has_other_headers:
        by_order = _paired_in_order(places[0].loops, places[1].loops)
        taken_by_header = set(loops.values())
        loops |= {then: line for then, line in by_order.items() if then not in loops and line not in taken_by_header}
    first_lines = _paired(places[0].scopes, places[1].scopes)
    certain = {**loops, **first_lines}
    taken = set(certain.values())
    lines = {then: line for then, line in lines.items() if line not in taken} | certain
    codes = [compile(tree, name, "exec", dont_inherit=True) for tree in trees]
    headers = {line: place[2] for line, place in places[0].loops}
    return Alignment(lines, loops, headers, gone, _added_names(*codes), _added_attributes(*codes))


def changed_lines(before: bytes, now: bytes) -> list[int]:
    """Lines of the second version that are new or other ones; where lines were only taken out, the one that follows them."""
    matcher = difflib.SequenceMatcher(None, _lines(before), _lines(now), autojunk=False)
    return sorted(
        line
        for kind, _, _, begin, end in matcher.get_opcodes()
        if kind != "equal"
        for line in range(begin + 1, max(end, begin + 1) + 1)
    )


def _lines(content: bytes) -> list[bytes]:
    return [line.rstrip() for line in content.splitlines()]


def _paired(before: list[tuple[int, _Place]], now: list[tuple[int, _Place]]) -> dict[int, int]:
    """Lines of what stands at the same places, in its order there, where there are as many of it as before."""
    counts = [Counter(place for _, place in side) for side in (before, now)]
    found: dict[int, int] = {}
    for place, count in counts[0].items():
        if counts[1][place] == count:
            sides = ([line for line, other in side if other == place] for side in (before, now))
            found.update(zip(*sides, strict=True))
    return found


def _paired_in_order(before: list[tuple[int, _Place]], now: list[tuple[int, _Place]]) -> dict[int, int]:
    """The loops of the functions that have as many as before, and in each other as before: `for` in place of `for`, `while` of `while`."""
    sides = []
    for side in (before, now):
        by_function: dict[str, list[tuple[int, tuple[str, ...]]]] = {}
        for line, (qualname, around, header) in side:
            by_function.setdefault(qualname, []).append((line, tuple(one.split()[0] for one in (*around, header))))
        sides.append(by_function)
    found: dict[int, int] = {}
    for qualname, loops in sides[0].items():
        others = sides[1].get(qualname, [])
        if [kinds for _, kinds in loops] == [kinds for _, kinds in others]:
            found.update(zip((line for line, _ in loops), (line for line, _ in others), strict=True))
    return found


class _places(ast.NodeVisitor):  # noqa: N801 - called like a function
    """The loops, and the functions and classes, of a source: line and place of each."""

    def __init__(self, tree: ast.Module) -> None:
        self.loops: list[tuple[int, _Place]] = []
        self.scopes: list[tuple[int, _Place]] = []
        self._qualname, self._around = "", tuple[str, ...]()
        self.visit(tree)

    def visit_For(self, node: ast.For) -> None:
        self._visit_loop(node, f"for {ast.unparse(node.target)} in {ast.unparse(node.iter)}")

    def visit_While(self, node: ast.While) -> None:
        self._visit_loop(node, f"while {ast.unparse(node.test)}")

    def _visit_loop(self, node: ast.For | ast.While, header: str) -> None:
        self.loops.append((node.lineno, (self._qualname, self._around, header)))
        before, self._around = self._around, (*self._around, header)
        self.generic_visit(node)
        self._around = before

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_scope(node, "")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_scope(node, ".<locals>")

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_scope(node, ".<locals>")

    def _visit_scope(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, within: str) -> None:
        before = self._qualname, self._around
        qualname = f"{self._qualname}.{node.name}" if self._qualname else node.name
        line = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        self.scopes.append((line, (qualname, (), "")))
        self._qualname, self._around = f"{qualname}{within}", ()
        self.generic_visit(node)
        self._qualname, self._around = before


def _added_attributes(before: types.CodeType, now: types.CodeType) -> frozenset[str]:
    known = {name for one in _nested(before) for name in one.co_names}
    steps = (step for one in _nested(now) for step in dis.get_instructions(one))
    return frozenset(step.argval for step in steps if step.opname == "STORE_ATTR") - known


def _added_names(before: types.CodeType, now: types.CodeType) -> dict[str, frozenset[str]]:
    """What the source binds now and did not bind, by function or class."""
    sides = [_bound(code) for code in (before, now)]
    found = {scope: frozenset(names - sides[0].get(scope, set())) for scope, names in sides[1].items()}
    return {scope: names for scope, names in found.items() if names}


def _bound(code: types.CodeType) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {_MODULE: set()}
    for one in _nested(code):
        is_function = bool(one.co_flags & inspect.CO_OPTIMIZED)
        own = found.setdefault(one.co_qualname, set())
        own.update((*one.co_varnames, *one.co_cellvars) if is_function else ())
        for step in dis.get_instructions(one):
            if step.opname in _BINDS_GLOBAL:
                is_own = step.opname.endswith("_NAME") and not is_function
                (own if is_own else found[_MODULE]).add(step.argval)
    return found


def _nested(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _nested(constant)


def shown(lines: Iterable[int], most: int = 8) -> str:
    """Numbers of lines, for a message."""
    numbers = [str(line) for line in lines]
    return ", ".join(numbers[:most]) + (f" and {len(numbers) - most} more" if len(numbers) > most else "")

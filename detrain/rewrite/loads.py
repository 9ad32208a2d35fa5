"""Where a batch loop that loads its own data has loaded it: the statement behind which a hook stands. Pure."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Load:
    """What inst.info says: header of the batch loop, line of the call if it is in the same file, else the helper that makes it."""

    loop_line: int
    call_line: int = 0
    helper: str = ""


@dataclass(frozen=True)
class Place:
    """Behind a simple statement, or at the beginning of a compound statement's body; by the line on which it begins."""

    line: int
    is_body: bool


def place_of(tree: ast.Module, load: Load) -> Place | None:
    """The place of the hook; None if the loop at that line has no such call."""
    loop = next((n for n in ast.walk(tree) if isinstance(n, (ast.For, ast.While)) and n.lineno == load.loop_line), None)
    if loop is None:
        return None
    if load.call_line and isinstance(loop, ast.While) and _spans(loop.test, load.call_line) and _has_call(loop.test):
        return Place(loop.lineno, is_body=True)
    found = [one for one in _statements(loop.body) if load.call_line and _spans_header(one, load.call_line)]
    if not found and load.helper:
        found = [one for one in _statements(loop.body) if load.helper.rpartition(".")[2] in _called_names(one)]
    if not found:
        return None
    return Place(found[0].lineno, is_body=hasattr(found[0], "body"))


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a loop's body, those inside others as well; not those of functions and classes defined there."""
    for one in body:
        if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            continue
        yield one
        for name in ("body", "orelse", "finalbody"):
            yield from _statements(getattr(one, name, []))
        for part in [*getattr(one, "handlers", []), *getattr(one, "cases", [])]:
            yield from _statements(part.body)


def _headers(statement: ast.stmt) -> list[ast.AST]:
    """The expressions that a statement evaluates itself, without its body."""
    if not hasattr(statement, "body"):
        return [statement]
    parts = [getattr(statement, name, None) for name in ("test", "iter")]
    return [one for one in [*parts, *getattr(statement, "items", [])] if isinstance(one, ast.AST)]


def _spans(node: ast.AST, line: int) -> bool:
    parts: list[Any] = [one for one in ast.walk(node) if hasattr(one, "lineno")]
    lines = [(one.lineno, one.end_lineno) for one in parts]
    return any(first <= line <= last for first, last in lines)


def _has_call(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Call) for one in ast.walk(node))


def _spans_header(statement: ast.stmt, line: int) -> bool:
    return any(_spans(one, line) and _has_call(one) for one in _headers(statement))


def _called_names(statement: ast.stmt) -> set[str]:
    calls = [one for header in _headers(statement) for one in ast.walk(header) if isinstance(one, ast.Call)]
    return {one.func.attr if isinstance(one.func, ast.Attribute) else getattr(one.func, "id", "") for one in calls}

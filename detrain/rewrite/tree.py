"""Hooks in the tree of a source, as `transform` writes them into the source: what is compiled. Pure.

The tree is that of the instrumented source, and every node stands where it stands in the original one (see
`transform.parse_with_original_positions`); it is made without libcst, which takes longer to load than most scripts to compile.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import TypeVar

#: Part of a loop in the nest to the hook in its header.
HOOKS = {"epoch": "record_epoch", "batch": "record_batch", "outer": "record_loop", "": "record_loop"}
ENTER = "enter_loop"
_Node = TypeVar("_Node", bound=ast.AST)


def builtin_name(hook: str) -> str:
    """Under which name a hook is found by instrumented code."""
    return f"__detrain_{hook}__"


def add_hooks(tree: ast.Module, parts: Mapping[int, str]) -> None:
    """Put hooks at the loops whose header lines are the keys of `parts`; the values are their parts (see `HOOKS`)."""
    _AddHooks(parts).add_to(tree, None)


class _AddHooks:
    """Only statements are looked at: no other node has a loop in it."""

    def __init__(self, parts: Mapping[int, str]) -> None:
        self._parts = parts

    def add_to(self, node: ast.AST, loop: ast.For | ast.While | None) -> None:
        """Into everything below a node. `loop`: the one that a `break` in it would leave straight to what is behind, if that is told."""
        for name in ("body", "orelse", "finalbody"):
            statements = getattr(node, name, None)
            if isinstance(statements, list):  # the body of a lambda is none
                statements[:] = [one for statement in statements for one in self._with_hooks(statement, loop)]
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            self.add_to(part, loop)

    def _with_hooks(self, statement: ast.stmt, loop: ast.For | ast.While | None) -> list[ast.stmt]:
        if isinstance(statement, (ast.For, ast.While)):
            is_told = statement.lineno in self._parts and not statement.orelse
            self.add_to(statement, statement if is_told else None)
            return self._hooked(statement) if statement.lineno in self._parts else [statement]
        if isinstance(statement, ast.Break) and loop is not None:
            left = _at(self._call(loop, "left"), statement)
            return [_at(ast.Expr(left), statement), statement]
        keeps = isinstance(statement, (ast.AsyncFor, ast.With, ast.AsyncWith, ast.Try, ast.TryStar))
        self.add_to(statement, None if keeps else loop)
        return [statement]

    def _hooked(self, loop: ast.For | ast.While) -> list[ast.stmt]:
        if isinstance(loop, ast.For):
            call = _at(self._call(loop), loop.iter)
            call.args.append(loop.iter)
            loop.iter = call
            return [loop]
        enter = _at_start(ast.Expr(_call(ENTER, loop.lineno)), loop)
        hook, ended = _at(self._call(loop), loop.test), _at_start(ast.Expr(self._call(loop, "ended")), loop)
        loop.test = ast.copy_location(ast.BoolOp(ast.And(), [hook, loop.test]), loop.test)
        loop.orelse.insert(0, ended)
        return [enter, loop]

    def _call(self, loop: ast.For | ast.While, keyword: str = "") -> ast.Call:
        return _call(HOOKS[self._parts[loop.lineno]], loop.lineno, keyword)


def _call(hook: str, line: int, keyword: str = "") -> ast.Call:
    """`hook(line)`, or `hook(line, keyword=True)`."""
    keywords = [ast.keyword(keyword, ast.Constant(True))] if keyword else []
    return ast.Call(ast.Name(builtin_name(hook), ast.Load()), [ast.Constant(line)], keywords)


def _at(new: _Node, old: ast.expr | ast.stmt) -> _Node:
    """With everything in it, where the old node stands."""
    for node in ast.walk(new):
        ast.copy_location(node, old)
    return new


def _at_start(new: _Node, old: ast.stmt) -> _Node:
    """On the first line of a statement only: an inserted call must not seem to span the whole loop."""
    for node in ast.walk(new):
        if "lineno" in node._attributes:
            setattr(node, "lineno", old.lineno)  # noqa: B010 - ast.AST declares no such attribute
            setattr(node, "col_offset", old.col_offset)  # noqa: B010
            setattr(node, "end_lineno", old.lineno)  # noqa: B010
            setattr(node, "end_col_offset", old.col_offset + 5)  # noqa: B010
    return new

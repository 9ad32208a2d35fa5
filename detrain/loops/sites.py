"""The loops of a source file, by line. Needs no libcst, so that a cached file is loaded without it."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class LoopSite:
    """A loop in a source file: lines of its header and of its last statement, and where it stands.

    `scope_line` is the first line of the function or class around it (a decorator's, as in `co_firstlineno`); 0 at module level.
    """

    line: int
    end_line: int
    is_in_class: bool
    scope_line: int = 0
    scope: str = ""  # its name


def find_loops(tree: ast.Module) -> list[LoopSite]:
    """Every `for` and `while` statement, in the order of the source."""
    return [site for site, _ in find_statements(tree)]


def find_statements(tree: ast.Module) -> list[tuple[LoopSite, ast.For | ast.While]]:
    """The same, each with its statement."""
    finder = _Finder()
    finder.visit(tree)
    return sorted(finder.found, key=lambda pair: pair[0].line)


class _Finder(ast.NodeVisitor):
    def __init__(self) -> None:
        self.found: list[tuple[LoopSite, ast.For | ast.While]] = []
        self._is_in_class = False
        self._scope_line, self._scope = 0, ""

    def visit_For(self, node: ast.For) -> None:
        self._add(node)

    def visit_While(self, node: ast.While) -> None:
        self._add(node)

    def _add(self, node: ast.For | ast.While) -> None:
        end_line = node.end_lineno or node.lineno
        self.found.append((LoopSite(node.lineno, end_line, self._is_in_class, self._scope_line, self._scope), node))
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_scope(node, is_class=True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_scope(node, is_class=False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_scope(node, is_class=False)

    def _visit_scope(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef, is_class: bool) -> None:
        before = self._is_in_class, self._scope_line, self._scope
        self._is_in_class, self._scope = is_class, node.name
        self._scope_line = min([node.lineno, *(one.lineno for one in node.decorator_list)])
        self.generic_visit(node)
        self._is_in_class, self._scope_line, self._scope = before

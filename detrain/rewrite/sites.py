"""The loops of a source file, by line. Needs no libcst, so that a cached file is loaded without it."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class LoopSite:
    """A loop in a source file: line of its header and of its last statement, and whether a class body holds it directly."""

    line: int
    end_line: int
    is_in_class: bool


def find_loops(tree: ast.Module) -> list[LoopSite]:
    """Every `for` and `while` statement, in the order of the source."""
    found: list[LoopSite] = []
    _Finder(found).visit(tree)
    return sorted(found, key=lambda site: site.line)


class _Finder(ast.NodeVisitor):
    def __init__(self, found: list[LoopSite]) -> None:
        self._found = found
        self._is_in_class = False

    def visit_For(self, node: ast.For) -> None:
        self._add(node)

    def visit_While(self, node: ast.While) -> None:
        self._add(node)

    def _add(self, node: ast.For | ast.While) -> None:
        self._found.append(LoopSite(node.lineno, node.end_lineno or node.lineno, self._is_in_class))
        self.generic_visit(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._visit_scope(node, is_class=True)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._visit_scope(node, is_class=False)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._visit_scope(node, is_class=False)

    def _visit_scope(self, node: ast.AST, is_class: bool) -> None:
        before, self._is_in_class = self._is_in_class, is_class
        self.generic_visit(node)
        self._is_in_class = before

"""The loops of a source file, by line. Needs no libcst, so that a cached file is loaded without it."""

from __future__ import annotations

import ast
from dataclasses import dataclass


@dataclass(frozen=True)
class LoopSite:
    """A loop in a source file: line of its header and of its last statement, and whether it is a `for`."""

    line: int
    end_line: int
    is_for: bool


def find_loops(tree: ast.Module) -> list[LoopSite]:
    """Every `for` and `while` statement, in the order of the source."""
    found = [
        LoopSite(node.lineno, node.end_lineno or node.lineno, isinstance(node, ast.For))
        for node in ast.walk(tree)
        if isinstance(node, (ast.For, ast.While))
    ]
    return sorted(found, key=lambda site: site.line)

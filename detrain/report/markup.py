"""Pieces of HTML."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any


def figure(drawn: Any, name: str = "") -> str:
    """A picture that plotly has drawn, with its name above it."""
    html = drawn.to_html(full_html=False, include_plotlyjs=False, config={"displayModeBar": False, "responsive": True})
    head = f"<div class=name>{escape(name)}</div>" if name else ""
    return f"<div class=figure>{head}{html}</div>"


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table; cells are written as text."""
    head = "".join(f"<th>{escape(one)}</th>" for one in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class=table><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"

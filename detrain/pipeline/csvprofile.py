"""The tables that PipeDream's first optimizer took: a chain of layers, one a row."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

from detrain.errors import GraphError
from detrain.pipeline.layers import Layer, Profile
from detrain.plans.documents import read_text

_BYTES_EACH = 4.0  # sizes are counted in floats


def read(path: Path) -> Profile:
    """A profile. Raises `GraphError` naming file, row and column, or `OSError`."""
    return parse(read_text(path), str(path))


def parse(text: str, path: str = "the table") -> Profile:
    """The profile of a table with `Layer Type`, `Total time`, `Forward pass time (N)`, `Output Size…`, `Parameter Size (floats)`.

    Times are seconds of N mini-batches together; what is not forward is backward. Numbers may have commas in them. An
    output's size may be left out: it is none.
    """
    try:
        rows = [row for row in csv.reader(io.StringIO(text), strict=True) if any(row)]
    except csv.Error as error:
        raise GraphError(f"{path} is not a table: {error}") from None
    columns = _columns(rows[0] if rows else [], path)
    layers = [
        _layer(row, columns, number, f"{path}, row {number + 1} (layer {number})")
        for number, row in enumerate(rows[1:], 1)
    ]
    if not layers:
        raise GraphError(f"{path} has no layers")
    try:
        return Profile(tuple(layers), tuple((at, at + 1) for at in range(len(layers) - 1)), Path(path).stem)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None


def _columns(header: list[str], path: str) -> dict[str, tuple[int, float]]:
    """By what it holds: the place of a column, and what its numbers are multiplied with."""
    columns: dict[str, tuple[int, float]] = {}
    beginnings = ("Layer Type", "Total time", "Forward pass time", "Output Size", "Parameter Size (floats)")
    for beginning in beginnings:
        at = next((at for at, name in enumerate(header) if name.strip().startswith(beginning)), None)
        if at is None:
            raise GraphError(f"{path}, row 1: there is no column {beginning}")
        columns[beginning] = at, _BYTES_EACH
    forward = header[columns["Forward pass time"][0]]
    batches = re.search(r"\((\d+)\)\s*$", forward)
    if batches is None or not int(batches[1]):
        raise GraphError(f"{path}, row 1: {forward[:40]} does not say of how many mini-batches, as (100) does")
    for name in ("Total time", "Forward pass time"):
        columns[name] = columns[name][0], 1000.0 / int(batches[1])
    return columns


def _layer(row: list[str], columns: dict[str, tuple[int, float]], number: int, where: str) -> Layer:
    total_ms, forward_ms, output_bytes, parameter_bytes = (
        _number(row, name, *columns[name], where) for name in list(columns)[1:]
    )
    if forward_ms > total_ms:
        raise GraphError(f"{where}: the forward time is longer than the total time")
    at = columns["Layer Type"][0]
    kind = row[at].strip() if at < len(row) else ""
    return Layer(f"node{number}", kind or "layer", forward_ms, total_ms - forward_ms, (output_bytes,), parameter_bytes)


def _number(row: list[str], column: str, at: int, factor: float, where: str) -> float:
    text = (row[at] if at < len(row) else "").strip()
    if not text and column == "Output Size":
        return 0.0
    try:
        number = float(text.replace(",", ""))
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise GraphError(f"{where}: {column} is {text[:40] or 'empty'}, no number of zero or more")
    return number * factor

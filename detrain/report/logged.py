"""Numbers in the tables that a script has written: CSV, TSV and JSON lines, among the files that the run's journal names."""

from __future__ import annotations

import csv
import itertools
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from detrain.outputs import journal
from detrain.report.metrics import COUNTERS, Series

#: Larger files are no tables of metrics. Bytes.
_MOST_BYTES = 32 * 2**20
_DELIMITERS = {".csv": ",", ".tsv": "\t"}


def series_of(run_directory: Path) -> list[Series]:
    """Every column of numbers with two values at least, over the table's column of epochs or steps if it has one."""
    tables = sorted(path for path in map(Path, journal.paths_in(run_directory)) if _is_table(path))
    return [series for path in tables for series in _columns(path)]


def _is_table(path: Path) -> bool:
    try:
        return path.suffix in (*_DELIMITERS, ".jsonl") and path.is_file() and path.stat().st_size <= _MOST_BYTES
    except OSError:
        return False


def _columns(path: Path) -> Iterator[Series]:
    values: dict[str, list[tuple[int, float]]] = {}
    for number, row in enumerate(_rows(path)):
        for name, value in row.items():
            as_number = _number(value)
            if as_number is not None:
                values.setdefault(str(name), []).append((number, as_number))
    over = next((name for name in values if name.lower() in COUNTERS and _is_rising(values[name])), "")
    places = dict(values.get(over, ()))
    for name, found in values.items():
        if name.lower() not in COUNTERS and len(found) > 1:
            x = [places.get(number, number) if over else number for number, _ in found]
            yield Series(f"{path.name}: {name}", x, [value for _, value in found], over or f"rows of {path.name}")


def _rows(path: Path) -> Iterator[dict[Any, Any]]:
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from _named(file, _DELIMITERS[path.suffix]) if path.suffix in _DELIMITERS else _objects(file)
    except (OSError, UnicodeDecodeError, csv.Error):
        return  # no table after all


def _named(lines: Iterable[str], delimiter: str) -> Iterator[dict[Any, Any]]:
    """Rows by the names in the first one. Where that has nothing but numbers the table has no header, and columns are counted from 1."""
    rows = csv.reader(lines, delimiter=delimiter)
    first = next((row for row in rows if row), [])
    has_header = any(_number(cell) is None for cell in first)
    names = first if has_header else [f"column {number}" for number in range(1, len(first) + 1)]
    for row in itertools.chain([] if has_header else [first], rows):
        yield dict(zip(names, row, strict=False))


def _objects(lines: Iterable[str]) -> Iterator[dict[Any, Any]]:
    for line in lines:
        try:
            found = json.loads(line)
        except ValueError:
            return
        if isinstance(found, dict):
            yield found


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _is_rising(values: list[tuple[int, float]]) -> bool:
    numbers = [value for _, value in values]
    return all(math.isfinite(one) for one in numbers) and numbers == sorted(numbers) and numbers[0] < numbers[-1]

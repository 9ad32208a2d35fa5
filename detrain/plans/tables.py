"""Rows of one dataclass as comma-separated values."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


def write(path: Path, kind: type[DataclassInstance], rows: Sequence[DataclassInstance]) -> None:
    """With a header, the fields' names; None is nothing, and True is 1. Raises `OSError`."""
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([field.name for field in fields(kind)])
        writer.writerows(_values(row) for row in rows)


def add(path: Path, row: DataclassInstance) -> None:
    """One more row, behind those that `write` has written. Raises `OSError`."""
    with open(path, "a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow(_values(row))


def _values(row: DataclassInstance) -> list[object]:
    values = [getattr(row, field.name) for field in fields(row)]
    return ["" if value is None else int(value) if isinstance(value, bool) else value for value in values]

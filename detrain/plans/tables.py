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
    names = [field.name for field in fields(kind)]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for row in rows:
            values = [getattr(row, name) for name in names]
            writer.writerow(
                ["" if value is None else int(value) if isinstance(value, bool) else value for value in values]
            )

"""What the cells of experiments have come to: a row each, in a table and in a JSON document that grow row by row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from detrain.errors import GraphError
from detrain.plans import tables
from detrain.plans.documents import DocumentKind, read_text

DOCUMENT = DocumentKind("detrain remat experiment results", 1, "results of experiments")
CSV, JSON = "results.csv", "results.json"
#: How the document ends; a row more stands before it.
_END = b"\n]}\n"


@dataclass(frozen=True)
class Row:
    """One cell: a model, a budget, and a planner or policy. What there is not, without a plan for example, is None."""

    #: Of all that decides the result: another key is another cell.
    key: str
    experiment: str
    kind: str
    model: str
    #: As it stands in the file.
    budget: str
    planner: str
    #: ok; none: no plan, oom and thrash: how a policy has ended, error: what nobody has expected.
    status: str
    num_operators: int
    baseline_ns: int
    keep_all_bytes: int
    constant_bytes: int
    floor_bytes: int
    budget_bytes: int
    overhead: float | None = None
    clock_ns: int | None = None
    peak_bytes: int | None = None
    num_rematerialized: int | None = None
    num_evictions: int | None = None
    #: Storages whose metadata a policy has read to find the one to be evicted.
    num_accesses: int | None = None
    is_optimal: bool = False
    #: Of the planning, or of a script's whole run, over the repetitions: the median, the least and the most.
    seconds: float | None = None
    seconds_least: float | None = None
    seconds_most: float | None = None
    why: str = ""

    @property
    def share(self) -> float:
        """The budget over the peak of keeping all."""
        return self.budget_bytes / max(self.keep_all_bytes, 1)


class Store:
    """The results of a folder. Every row is on disk before the next cell begins."""

    def __init__(self, folder: Path) -> None:
        self._csv, self._json = folder / CSV, folder / JSON

    def read(self) -> list[Row]:
        """All rows; none if there is no document. One that was half written by a process that was killed is left out.

        Raises `GraphError` for what is no such document, or `OSError`.
        """
        if not self._json.exists():
            return []
        header, *lines = read_text(self._json).splitlines() or [""]
        if not header.endswith("["):
            raise GraphError(f"{self._json} is not {DOCUMENT.called}")
        try:
            DOCUMENT.check(json.loads(f"{header}]}}"), str(self._json))
        except ValueError:
            raise GraphError(f"{self._json} is not {DOCUMENT.called}") from None
        rows = []
        for number, line in enumerate(lines, 2):
            if line == "]}":
                break
            row = _row(line.removesuffix(","))
            if row is None and number < len(lines) + 1:
                raise GraphError(f"{self._json}: line {number} is not a result")
            if row is not None:
                rows.append(row)
        return rows

    def begin(self, rows: Sequence[Row]) -> None:
        """Have these and no others. Raises `OSError`."""
        header = json.dumps(DOCUMENT.header())[:-1] + ', "rows": ['
        lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
        # Renamed when it is whole: a process that is killed here leaves the rows that there were.
        written = self._json.with_suffix(".json.part")
        written.write_bytes(f"{header}\n{lines}".encode().rstrip(b"\n") + _END)
        written.replace(self._json)
        tables.write(self._csv, Row, rows)

    def add(self, row: Row) -> None:
        """One more. Raises `OSError`."""
        with open(self._json, "r+b") as file:
            end = file.seek(-len(_END), 2)
            file.seek(end - 1)
            is_first = file.read(1) == b"["
            file.write(f"{'' if is_first else ','}\n{json.dumps(asdict(row))}".encode() + _END)
        tables.add(self._csv, row)


def _row(line: str) -> Row | None:
    """None for what is none."""
    try:
        row = Row(**json.loads(line))
    except (ValueError, TypeError):
        return None
    for field in fields(Row):
        value = getattr(row, field.name)
        kinds = str(field.type).split(" | ")
        if ("None" if value is None else type(value).__name__) not in kinds:
            return None
    return row


def row_text(row: Row) -> str:
    """A line about a cell."""
    what = f"{row.experiment}: {row.model}, {row.budget}, {row.planner}: "
    if row.overhead is None:
        return f"{what}{row.why}"
    if not row.num_operators:  # measured
        return f"{what}{row.overhead:.3f} times {row.baseline_ns / 1e6:,.2f} ms; {row.num_rematerialized or 0:,} operators were run again"
    return f"{what}{row.overhead:.4f}{' optimal' if row.is_optimal else ''}, {row.num_rematerialized or 0:,} of {row.num_operators:,} again"

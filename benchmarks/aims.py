"""`python aims.py [FOLDER]`: one table of aims, of what is now and of what was before, by the figures that benchmarks leave there.

`make bench` prints it at its end; without a folder it tells the figures in `results/`. "Before" is what `results/before.json` has. Behind
what is now stands its standard error; where the aim is within two of them the run cannot tell whether it is met.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import NamedTuple

from measure import Report

RESULTS = Path(__file__).with_name("results")
LEAVES = "10,000 leaves, 10 MB"


class Aim(NamedTuple):
    """A figure is to be so much at most."""

    what: str
    file: str
    figure: str
    most: float
    unit: str = ""


AIMS = (
    Aim("a look at 30,000 objects", "store", "30,000 objects: ms of a walk", 30, "ms"),
    Aim("10,000 leaves: stall over torch.save", "store", f"{LEAVES}: stall over torch.save", 0.33),
    Aim("10,000 leaves: durable over torch.save", "store", f"{LEAVES}: durable over torch.save", 1.0),
    Aim("10,000 leaves: a step beside the writing, over one alone", "store", f"{LEAVES}: step beside", 1.2),
    Aim("10,000 leaves: load over torch.load", "store", f"{LEAVES}: load over torch.load", 1.0),
    Aim("1 GB: stall over memcpy", "store", "1 GB: stall over memcpy", 0.3),
    Aim("100 MB: load over a bare read", "store", "100 MB: load over read", 1.25),
    Aim("1 GB: load over a bare read", "store", "1 GB: load over read", 1.25),
    Aim("first attempt, added to python with torch", "hooks", "detrain, first attempt: seconds added", 0.15, "s"),
    Aim("later attempts, added to python with torch", "hooks", "detrain, loops known: seconds added", 0.1, "s"),
    Aim("a batch of `range`", "hooks", "range: ns added", 500, "ns"),
    Aim("a batch of a list", "hooks", "list: ns added", 500, "ns"),
    Aim("a batch of a `DataLoader`", "hooks", "DataLoader: ns added", 500, "ns"),
    Aim("a batch of a `while` loop", "hooks", "while: ns added", 500, "ns"),
    Aim("a batch of `range` with a step of 37 µs", "hooks", "range, a step in each batch: ns added", 500, "ns"),
    Aim("the ledger by the wall clock, 1 MB", "ledger", "1 MB: % longer", 1.0, "%"),
    Aim("the ledger by the wall clock, 100 MB", "ledger", "100 MB: % longer", 1.0, "%"),
    Aim("the ledger by the wall clock, 1 GB", "ledger", "1,000 MB: % longer", 1.0, "%"),
    # Of time, memory and files, by the exponent: 1 is linear; what is more is the spread of single runs.
    Aim("growth with the state's size", "scale", "MB: largest exponent", 1.1),
    Aim("growth with the number of leaves", "scale", "leaves: largest exponent", 1.1),
    Aim("growth with the batches of an epoch", "scale", "batches: largest exponent", 1.1),
    Aim("growth with the attempts of a run", "scale", "attempts: largest exponent", 1.1),
    Aim("growth with the checkpoints of a run", "scale", "checkpoints: largest exponent", 1.1),
)


def figures(folder: Path, file: str) -> dict[str, float]:
    """What a benchmark has left."""
    path = folder / f"{file}.json"
    found: dict[str, float] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found


def text(value: float | None, unit: str) -> str:
    """A figure; a dash if nobody has measured it."""
    return "-" if value is None else f"{value:,.2f} {unit}".rstrip()


def verdict(now: float, error: float, most: float) -> str:
    """Whether an aim is met, as far as the run can tell."""
    if abs(now - most) <= 2 * error:
        return "cannot tell"
    return "met" if now < most else "missed"


def main() -> None:
    """Print the table."""
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS
    before = figures(RESULTS, "before")
    rows = []
    for aim in AIMS:
        found = figures(folder, aim.file)
        now, error = found.get(aim.figure), found.get(f"{aim.figure}, error", 0.0)
        rows.append(
            [
                aim.what, text(aim.most, aim.unit), text(now, aim.unit), f"± {error:,.2f}" if error else "",
                text(before.get(aim.figure), aim.unit), "" if now is None else verdict(now, error, aim.most),
            ]
        )  # fmt: skip
    Report("Aims").table(["at most", "aim", "now", "", "before", ""], rows)


if __name__ == "__main__":
    main()

"""Numbers in what a script has printed: which metric had which value after how many batches."""

from __future__ import annotations

import math
import re
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

from detrain.store.ledger import Ledger
from detrain.store.printed import Line

_NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?|[-+]?nan|[-+]?inf"
#: `loss=0.3`, `val loss: 1e-3`, `'lr': 0.1`; and `loss 0.3`, where the number has a point.
_PAIRS = (
    re.compile(rf"(?<![\w.])([A-Za-z_][\w./@-]*(?: [A-Za-z_][\w./@-]*)?)['\"]?\s*[:=]\s*({_NUMBER})(?!\.?\d|[\w/:%])"),
    re.compile(
        r"(?<![\w.])([A-Za-z_][\w./@-]*(?: [A-Za-z_][\w./@-]*)?)\s+([-+]?\d*\.\d+(?:[eE][-+]?\d+)?)(?!\.?\d|[\w/:%])"
    ),
)
#: Characters of a line that are looked at.
_LONGEST = 2000
#: Names of counters: they say where, not how good.
COUNTERS = {
    "epoch",
    "epochs",
    "ep",
    "step",
    "steps",
    "iter",
    "iters",
    "iteration",
    "it",
    "i",
    "batch",
    "global_step",
    "seed",
}


#: What a series is over, if it can be told: how many had ended.
BATCHES = "batches"


@dataclass
class Series:
    """The values of one metric."""

    name: str
    x: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)
    over: str = BATCHES  # what x counts


class _Clock:
    """How many batches had ended when; from the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._begins = [attempt["at"] for attempt in ledger.attempts if "at" in attempt]
        self._times: list[list[tuple[float, int]]] = [[] for _ in range(len(self._begins) + 1)]
        for at_s, batches in ledger.times:
            self._times[self._attempt(at_s)].append((at_s, batches))

    def _attempt(self, at_s: float) -> int:
        return bisect_left(self._begins, at_s)

    def batches(self, at_s: float) -> int | None:
        """The number of the batch that ran then; None where no record tells."""
        times = self._times[self._attempt(at_s)]
        after = bisect_left(times, (at_s, -1))
        if after in (0, len(times)):
            return times[min(after, len(times) - 1)][1] if times else None
        (before_s, before), (then_s, then) = times[after - 1], times[after]
        return math.ceil(before + (then - before) * (at_s - before_s) / (then_s - before_s or 1.0))


def numbers_in(text: str) -> dict[str, float]:
    """Names and numbers of one line; counters are left out."""
    found: dict[str, float] = {}
    for pattern in _PAIRS:
        for name, number in pattern.findall(text[:_LONGEST]):
            if name.rpartition(" ")[2].lower() not in COUNTERS:
                found.setdefault(name, float(number))
    return found


def series_of(lines: Iterable[Line], ledger: Ledger) -> list[Series]:
    """Every metric with two values at least, those with most values first.

    What an attempt printed again after a resume takes the place of what the killed one had printed for the same batch. Where
    output reached the system in large pieces only (a buffered pipe), when it came tells nothing, and values are counted instead.
    """
    clock = _Clock(ledger)
    found: dict[str, list[tuple[int | None, float]]] = {}
    for line in lines:
        if line.text.startswith("detrain:"):
            continue
        at = clock.batches(line.at_s)
        for name, value in numbers_in(line.text).items():
            found.setdefault(name, []).append((at, value))
    result = [_series(name, points) for name, points in found.items() if len(points) > 1]
    return sorted(result, key=lambda one: -len(one.values))


def _series(name: str, points: list[tuple[int | None, float]]) -> Series:
    placed = {at: value for at, value in points if at is not None}
    if len(placed) * 2 < len(points):
        return Series(name, list(range(len(points))), [value for _, value in points], "times printed")
    order = sorted(placed)
    return Series(name, list(order), [placed[at] for at in order])

"""Numbers in what a script has printed: which metric had which value after how many batches."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from detrain.world.output_log import Line

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


def numbers_in(text: str) -> dict[str, float]:
    """Names and numbers of one line; counters are left out."""
    found: dict[str, float] = {}
    for pattern in _PAIRS:
        for name, number in pattern.findall(text[:_LONGEST]):
            if name.rpartition(" ")[2].lower() not in COUNTERS:
                found.setdefault(name, float(number))
    return found


def series_of(lines: Iterable[Line]) -> list[Series]:
    """Every metric with two values at least, those with most values first.

    Of values that came in one batch the last counts. Where output reached the system in large pieces only (a buffered pipe), when it came
    tells nothing, and values are counted instead.
    """
    found: dict[str, list[tuple[int | None, float]]] = {}
    for line in lines:
        if line.text.startswith("detrain:"):
            continue
        for name, value in numbers_in(line.text).items():
            found.setdefault(name, []).append((line.batches if line.is_prompt else None, value))
    result = [_series(name, points) for name, points in found.items() if len(points) > 1]
    return sorted(result, key=lambda one: -len(one.values))


def _series(name: str, points: list[tuple[int | None, float]]) -> Series:
    placed = {at: value for at, value in points if at is not None}
    if any(at is None for at, _ in points) or len(placed) * 2 < len(points):
        return Series(name, list(range(len(points))), [value for _, value in points], "times printed")
    order = sorted(placed)
    return Series(name, list(order), [placed[at] for at in order])

"""Which parts of a run a replay repeats, for the epochs or batches that are asked for. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from detrain.errors import UsageError
from detrain.session.goal import Window
from detrain.store.checkpoint import Checkpoint
from detrain.store.ledger import Ledger

EPOCHS, BATCHES = "epochs", "batches"
_RANGE = re.compile(r"(?P<first>\d+)(?P<to>-(?P<last>\d+)?)?$")


@dataclass(frozen=True)
class Reach:
    """How far a run came, by its ledger."""

    #: Batches that had ended when an epoch began, by epoch; of those that are on record.
    begins: dict[int, int]
    #: Batches that have ended.
    batches: int

    @property
    def last_epoch(self) -> int:
        """-1 if there is none."""
        return max(self.begins, default=-1)

    def batches_of(self, window: Window) -> tuple[int, int] | None:
        """Batches that had ended before the window, and at its end, as far as the run came; None where that is not known."""
        if window.unit == BATCHES:
            return window.first - 1, min(window.last, self.batches)
        begin, end = self.begins.get(window.first), self.begins.get(window.last + 1)
        end = self.batches if end is None and window.last == self.last_epoch else end
        return None if begin is None or end is None else (begin, end)


def reach_of(
    ledger: Ledger, checkpoints: Iterable[Checkpoint] = (), batch_loops: Collection[tuple[str, int]] = ()
) -> Reach:
    """Read it off the records, and off the checkpoints: of batches that take no time there are few records."""
    begins: dict[int, int] = {}
    for one in ledger.batches.values():
        epoch = max(one.epochs - 1, 0)
        begins[epoch] = min(begins.get(epoch, one.batches), one.batches - one.batch_in_epoch)
    last_epoch = max(begins, default=-1)  # a header with more epochs may be that of none
    for checkpoint in checkpoints:
        meta = checkpoint.meta
        is_within = bool(meta.position) and (meta.position[-1].filename, meta.position[-1].line) in batch_loops
        if not is_within and meta.epochs <= last_epoch:
            begins.setdefault(meta.epochs, meta.batches)
    return Reach(begins, max((one.batches for one in ledger.batches.values()), default=0))


def parse(text: str, unit: str) -> list[tuple[int, int | None]]:
    """`3`, `3-5`, `0-`, `2,5-7`: in order, those that touch as one; None: to the end. Raises `UsageError`."""
    found: list[tuple[int, int | None]] = []
    for part in text.split(","):
        match = _RANGE.match(part.strip())
        if match is None:
            raise UsageError(f"--{unit} {text}: expected numbers and ranges, as 3, 3-5, 4- or 2,5-7")
        first = int(match["first"])
        last = int(match["last"]) if match["last"] else None if match["to"] else first
        if last is not None and last < first:
            raise UsageError(f"--{unit} {text}: {part.strip()} ends before it begins")
        if unit == BATCHES and first == 0:
            raise UsageError(f"--{unit} {text}: batches count from 1, as in the ledger and in what `verify` says")
        found.append((first, last))
    return _joined(sorted(found, key=lambda one: one[0]))


def _joined(ranges: Iterable[tuple[int, int | None]]) -> list[tuple[int, int | None]]:
    found: list[tuple[int, int | None]] = []
    for first, last in ranges:
        if found and (found[-1][1] is None or first <= (found[-1][1] or 0) + 1):
            before, end = found[-1]
            found[-1] = before, None if end is None or last is None else max(end, last)
        else:
            found.append((first, last))
    return found


def windows(ranges: Iterable[tuple[int, int | None]], unit: str, reach: Reach) -> list[Window]:
    """Those ranges within the run. Raises `UsageError` where it did not come so far."""
    first_of_all, end = (0, reach.last_epoch) if unit == EPOCHS else (1, reach.batches)
    if end < first_of_all:
        raise UsageError("the ledger of the run holds no batch: there is nothing to replay")
    found = []
    for first, last in ranges:
        if first > end or (last is not None and last > end):
            raise UsageError(
                f"--{unit}: the run came to {unit.removesuffix('s').replace('batche', 'batch')} {end} (the first is {first_of_all}), and "
                f"{first if last in (None, first) else f'{first}-{last}'} is asked for"
            )
        found.append(Window(unit, first, end if last is None else last))
    return found


@dataclass(frozen=True)
class Part:
    """What one process repeats: from a checkpoint, or the run's beginning, through a window."""

    start: Checkpoint | None
    window: Window
    #: The checkpoint with which the window ends, if there is one: its state is compared.
    until: Checkpoint | None

    @property
    def epochs_before(self) -> int:
        """Whole epochs that are repeated before the window begins."""
        if self.window.unit == BATCHES:
            return 0
        return self.window.first - (self.start.meta.epochs if self.start is not None else 0)


def parts_of(
    window: Window,
    checkpoints: Sequence[Checkpoint],
    batch_loops: Collection[tuple[str, int]],
    *,
    is_whole: bool = False,
) -> list[Part]:
    """Repeat each epoch from the latest checkpoint before it; those that have the same one, together.

    No part begins within a wanted epoch: what the script gathers in an epoch, as a mean of its losses, is then of all its batches.
    `batch_loops`: file and line of each. `is_whole`: one part.
    """
    usable = sorted(checkpoints, key=lambda one: one.sequence)
    if window.unit == BATCHES or is_whole:
        windows = [(_start(window, usable), window)]
    else:
        windows = list(_by_start(window, usable))
    return [Part(start, one, _until(one, start, usable, batch_loops)) for start, one in windows]


def _by_start(window: Window, checkpoints: Sequence[Checkpoint]) -> Iterator[tuple[Checkpoint | None, Window]]:
    starts = [
        (epoch, _start(Window(EPOCHS, epoch, epoch), checkpoints)) for epoch in range(window.first, window.last + 1)
    ]
    while starts:
        first, start = starts[0]
        number = sum(one is start for _, one in starts)
        yield start, Window(EPOCHS, first, first + number - 1)
        starts = starts[number:]


def _start(window: Window, checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
    if window.unit == BATCHES:
        before = [one for one in checkpoints if one.meta.batches < window.first]
    else:
        before = [one for one in checkpoints if one.meta.epochs <= window.first]
    return before[-1] if before else None


def _until(
    window: Window,
    start: Checkpoint | None,
    checkpoints: Sequence[Checkpoint],
    batch_loops: Collection[tuple[str, int]],
) -> Checkpoint | None:
    since = start.sequence if start is not None else 0
    return next((one for one in checkpoints if one.sequence > since and _ends(window, one, batch_loops)), None)


def _ends(window: Window, checkpoint: Checkpoint, batch_loops: Collection[tuple[str, int]]) -> bool:
    """True if the checkpoint stands where the window has just ended."""
    meta = checkpoint.meta
    if not meta.position:
        return False
    is_within = (meta.position[-1].filename, meta.position[-1].line) in batch_loops
    if (
        window.unit == BATCHES
    ):  # within an epoch it may be the header at which the batch loop ends, and the epoch does not
        return meta.batches == window.last and not is_within
    if not is_within:
        return meta.epochs == window.last + 1
    if len(meta.position) == 1:  # no loop over epochs
        return meta.is_exhausted
    return meta.epochs == window.last + 2 and meta.batch_in_epoch == 0 and not meta.is_exhausted


def seconds_in_run(ledger: Ledger, begin: int, end: int) -> float | None:
    """How long the run took from when `begin` batches had ended to when `end` had, by its ledger; None if that does not say."""
    marks = [(one["at"], one["batches"]) for one in ledger.attempts if "at" in one]
    times = sorted([*((at_s, done, 1) for at_s, done in ledger.times), *((at_s, done, 0) for at_s, done in marks)])
    spent_s = covered = 0.0
    for (at_s, done, _), (later_s, then, is_no_mark) in pairwise(times):
        overlap = min(then, end) - max(done, begin)
        if is_no_mark and overlap > 0:
            spent_s += (later_s - at_s) * overlap / (then - done)
            covered += overlap
    return spent_s * (end - begin) / covered if covered else None

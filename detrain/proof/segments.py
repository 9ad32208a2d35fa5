"""The parts that a run falls into: from checkpoint to checkpoint, from its beginning to its end."""

from __future__ import annotations

import bisect
from dataclasses import dataclass

from detrain.store.checkpoint import Checkpoint
from detrain.store.ledger import Ledger


@dataclass(frozen=True)
class Segment:
    """One part. Without `start` it begins where the run does; without `until` it ends where the run, or its ledger, does."""

    start: Checkpoint | None
    until: Checkpoint | None
    is_whole: bool  # to the end of the script
    num_records: int  # in the ledger, of batches that begin and end in it

    @property
    def names(self) -> tuple[str, str]:
        """Where it begins and ends, for a person."""
        end = self.until.name if self.until is not None else "the end" if self.is_whole else "the last record"
        return (self.start.name if self.start is not None else "the beginning"), end


def segments_of(checkpoints: list[Checkpoint], ledger: Ledger, *, is_finished: bool) -> list[Segment]:
    """Cut a run at its checkpoints. The last part of a broken run is left out if the ledger has nothing of it."""
    batches = sorted(number for number, _ in ledger.batches)
    found: list[Segment] = []
    start: Checkpoint | None = None
    for until in sorted(checkpoints, key=lambda one: one.sequence):
        found.append(Segment(start, until, False, _count(batches, start, until)))
        start = until
    rest = _count(batches, start, None)
    if is_finished or rest:
        found.append(Segment(start, None, is_finished, rest))
    return found


def _count(batches: list[int], start: Checkpoint | None, until: Checkpoint | None) -> int:
    first = start.meta.batches if start is not None else -1
    end = until.meta.batches if until is not None else float("inf")
    return max(0, bisect.bisect_left(batches, end) - bisect.bisect_right(batches, first))

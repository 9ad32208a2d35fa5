"""The losses of an attempt, by the number of the batches that had ended when each was computed.

What lies on a device is read when a record of the ledger asks for it, so that the training need not wait for it at every batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import repeat
from struct import Struct

import xxhash

#: Gives the bits of a loss, and the loss as a number for a person, if it is one. A number in its place is a `float32` that has been read.
Reading = Callable[[], tuple[bytes, list[float]]] | float
_FLOAT32 = Struct("=f")
#: If no more than one batch in so many has losses, these are looked for among them, and not by the batches.
_FEW = 4
#: Of so many losses of one batch the value is noted.
MOST_VALUES = 16


class Losses:
    """Those of the batches since the last record, and of the batch that runs."""

    def __init__(self) -> None:
        self.running: list[Reading] = []  # of the batch that runs
        #: Of batches that have ended and had some, and whether they count.
        self._unread: list[tuple[int, bool, list[Reading]]] = []
        self._bits: dict[int, bytes] = {}
        self._curve: list[tuple[int, int, float]] = []
        self.num_batches = 0  # that have ended since the last were forgotten
        self._are_kept = True

    def add(self, readings: Iterable[Reading]) -> None:
        """Gradients are about to be computed of these."""
        self.running += readings

    def forget_running(self) -> None:
        """What came so far belongs to no batch."""
        self.running = []

    def end_batch(self, batches: int, *, counts: bool) -> None:
        """`batches` have ended. Those of one that does not count, before the first header, are on the curve only."""
        self.num_batches += 1
        if self.running:
            self.keep_running(batches, counts=counts)

    def keep_running(self, batches: int, *, counts: bool = True) -> None:
        """`batches` have ended, the last of them with losses."""
        if self._are_kept:
            self._unread.append((batches, counts, self.running))
        self.running = []

    def keep_none(self) -> None:
        """Nobody will ask for them any more. May be called by another thread."""
        self._are_kept = False

    def digest(self, first: int, end: int) -> int:
        """xxh3-64 of the losses of a range of batches; 0 if it is empty.

        Without bounds between batches: those that ran while their loop was not known yet lie under the first that was seen.
        """
        if end <= first:
            return 0
        self._read()
        bits = self._bits
        if len(bits) < (end - first) // _FEW:
            return xxhash.xxh3_64_intdigest(
                b"".join(bits[batches] for batches in sorted(bits) if first <= batches < end)
            )
        return xxhash.xxh3_64_intdigest(b"".join(map(bits.get, range(first, end), repeat(b""))))

    def take_curve(self) -> list[tuple[int, int, float]]:
        """Batch, number of the loss in it, value: those that have not been taken yet."""
        self._read()
        curve, self._curve = self._curve, []
        return curve

    def forget(self) -> None:
        """What has been read is on record."""
        self._bits = {}
        self.num_batches = 0

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        for batches, counts, readings in unread:
            found = [
                (_FLOAT32.pack(reading), (reading,)) if isinstance(reading, float) else reading()
                for reading in readings
            ]
            bits, values = found[0]  # of nearly every batch this is all
            if len(found) > 1:
                bits, values = b"".join(one for one, _ in found), [value for _, several in found for value in several]
            for number, value in enumerate(values[:MOST_VALUES]):
                self._curve.append((batches, number, value))
            if counts:  # more than one header may lie behind a batch: that which finds nothing left, and the loop's end
                self._bits[batches] = self._bits[batches] + bits if batches in self._bits else bits

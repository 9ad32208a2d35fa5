"""Where in the training an attempt is, in counts."""

from __future__ import annotations

import ctypes


class Position:
    """Epochs and batches begun in this run, and batches begun in the present epoch.

    All that changes them is here, but for what every batch pays for (`detrain.loops.running`), so that the preload's mirror of `batches` is
    never behind. They count headers: at the header of a batch `batches` batches have ended, within it the batch that runs is counted as
    well.
    """

    __slots__ = ("batch_in_epoch", "batches", "counter", "epochs")

    def __init__(self) -> None:
        self.epochs = self.batches = self.batch_in_epoch = 0
        #: `batches` where the preload reads it; for Python to read it from here would cost each batch more.
        self.counter = ctypes.c_uint64()

    @property
    def epoch(self) -> int:
        """The epoch that runs, from 0."""
        return max(self.epochs - 1, 0)

    @property
    def batch(self) -> int:
        """The batch that runs, from 0 in its epoch."""
        return max(self.batch_in_epoch - 1, 0)

    def begin_batch(self) -> None:
        """An iteration of the batch loop begins."""
        self.batches = self.counter.value = self.batches + 1
        self.batch_in_epoch += 1

    def begin_epoch(self) -> None:
        """An iteration of the epoch loop begins."""
        self.epochs += 1

    def leave_epoch(self) -> None:
        """The header of an epoch loop, or of a loop around it, is reached: the batches of the epoch before are over."""
        self.batch_in_epoch = 0

    def take_back(self, part: str) -> None:
        """The header of a loop of this part ("epoch", "batch" or "outer") found nothing left: it was no beginning."""
        self.epochs -= part == "epoch"
        self.batches -= part == "batch"
        self.counter.value = self.batches
        self.batch_in_epoch -= part == "batch"

    def count(self, part: str, iterations: int, earlier: int = 0) -> None:
        """A loop of this part turns out to be the training's, so many iterations of which have begun before anybody counted.

        `earlier`: iterations of entries before this one.
        """
        if part == "epoch":
            self.epochs += iterations
        elif part == "batch":
            self.batches += iterations + earlier
            self.counter.value = self.batches
            self.batch_in_epoch = iterations

    def move_to(self, epochs: int, batches: int, batch_in_epoch: int) -> None:
        """The run has been taken to a checkpoint with these counts."""
        self.epochs, self.batches, self.batch_in_epoch = epochs, batches, batch_in_epoch
        self.counter.value = batches

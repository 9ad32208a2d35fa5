"""When to checkpoint. Pure: counts and seconds in, yes or no out; the bits of a run never depend on it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from detrain.errors import UsageError

#: `auto` keeps the time that the training waits for checkpoints below this share of the run; `2%` names another.
BUDGET = 0.01
#: `auto` does not checkpoint more often than this. Seconds.
SHORTEST_S = 2.0

_WHEN = re.compile(r"(?P<count>\d+(?:\.\d+)?)?(?P<unit>epochs?|batch(?:es)?|s|%)$")


@dataclass(frozen=True)
class Every:
    """A parsed `--every`: kind is epoch, batch, seconds, auto or never; of auto, `count` is the share of the time."""

    kind: str
    count: float = 1.0


def parse(text: str) -> Every:
    """`epoch`, `5epochs`, `100batches`, `30s`, `auto`, `2%` (auto with this budget), `never`. Raises `UsageError`."""
    if text in ("auto", "never"):
        return Every(text, BUDGET)
    match = _WHEN.match(text)
    if match is None or (match["unit"] in "s%" and match["count"] is None):
        raise UsageError(f"--every {text}: expected epoch, 5epochs, 100batches, 30s, auto, 2% or never")
    count = float(match["count"] or 1)
    unit = {"e": "epoch", "b": "batch", "s": "seconds", "%": "auto"}[match["unit"][0]]
    if count <= 0 or (unit in ("epoch", "batch") and count != int(count)):
        raise UsageError(f"--every {text}: the number must be a whole number above zero")
    return Every(unit, count / 100 if unit == "auto" else count)


class Policy:
    """Decides at each header. `now_s` is a monotonic clock's reading."""

    def __init__(self, every: Every, now_s: float) -> None:
        self.every = every
        self.is_requested = False  # a signal asked for a checkpoint at the next batch
        self._last_s = now_s
        self._last_epoch = 0
        self._last_outer_s, self._last_outer_epoch = now_s, 0
        self._last_batch = 0
        self.cost_s = 0.0
        #: Seconds between checkpoints for `auto` and `30s`.
        self.interval_s = every.count if every.kind == "seconds" else SHORTEST_S
        self._longest_epoch_s = 0.0

    @property
    def goes_by_clock(self) -> bool:
        """True if how fast the machine is decides which checkpoints there are."""
        return self.every.kind in ("auto", "seconds")

    @property
    def chosen_s(self) -> float:
        """Seconds between checkpoints as `auto` has chosen them; 0 if the user has said when."""
        return self.interval_s if self.every.kind == "auto" else 0.0

    def begin(self, now_s: float) -> None:
        """The training begins; what the set-up took does not count."""
        self._last_s = now_s

    def on_saved(self, epoch: int, batch: int, now_s: float, cost_s: float, *, is_outer: bool = False) -> None:
        """A checkpoint was taken at these totals of epochs and batches begun."""
        if is_outer:
            self._last_outer_s, self._last_outer_epoch = now_s, epoch
        self._last_epoch, self._last_batch, self._last_s = epoch, batch, now_s
        self.cost_s = cost_s
        if self.every.kind == "auto":
            self.interval_s = max(SHORTEST_S, cost_s / self.every.count)
        self.is_requested = False

    def use_auto_if_no_epochs(self) -> bool:
        """The training has one loop only; True if that makes `epoch` mean nothing, so that it is `auto` from now on."""
        if self.every.kind != "epoch":
            return False
        self.every = Every("auto", BUDGET)
        return True

    def epoch_took(self, seconds: float) -> None:
        """An epoch has ended."""
        self._longest_epoch_s = max(self._longest_epoch_s, seconds)

    def is_due_at_epoch(self, epoch: int, now_s: float) -> bool:
        """At the header of an epoch (or outer) loop.

        Also when a checkpoint will fall due within the epoch that begins: one inside an epoch needs one at its beginning, from which
        what stands before the batch loop is run again.
        """
        if self.is_requested:
            return True
        kind = self.every.kind
        if kind == "epoch":
            return epoch - self._last_epoch >= self.every.count
        if kind == "batch":
            return True
        if kind == "never":
            return False
        elapsed_s = now_s - self._last_s
        is_long = self._longest_epoch_s > self.interval_s / 2
        return elapsed_s >= self.interval_s or (is_long and elapsed_s + self._longest_epoch_s >= self.interval_s)

    def is_due_at_outer(self, epoch: int, now_s: float) -> bool:
        """At the header of a loop around the epoch loop: counted by itself.

        A checkpoint inside needs one here, or a resume would run everything since the last one at this header again.
        """
        if self.is_requested:
            return True
        kind = self.every.kind
        if kind == "epoch":
            return epoch - self._last_outer_epoch >= self.every.count
        if kind in ("batch", "never"):
            return kind == "batch"
        return now_s - self._last_outer_s >= self.interval_s

    def is_due_at_batch(self, batch: int, now_s: float, *, is_near: bool = True) -> bool:
        """At the header of the batch loop. `is_near`: the epoch's beginning has been checkpointed, or is the first.

        By time, a checkpoint within an epoch whose beginning has none is put off for at most one more interval: such epochs are
        short, and resuming would run the epoch before again.
        """
        if self.is_requested:
            return True
        next_batch, next_s = self.next_at_batch(is_near=is_near)
        return batch >= next_batch or now_s >= next_s

    def next_at_batch(self, *, is_near: bool) -> tuple[float, float]:
        """The number of batches, and the moment, before which `is_due_at_batch` says no unless a checkpoint is asked for."""
        if self.every.kind == "batch":
            return self._last_batch + self.every.count, math.inf
        if self.every.kind not in ("auto", "seconds"):
            return math.inf, math.inf
        return math.inf, self._last_s + self.interval_s * (1 if is_near else 2)

    def is_due_at_end(self, is_outermost: bool, now_s: float) -> bool:
        """When a loop has ended: always behind the whole training, else if it took as long as the interval."""
        if self.every.kind == "never":
            return self.is_requested
        return is_outermost or now_s - self._last_s >= self.interval_s

"""When to checkpoint. Pure: counts and seconds in, yes or no out; the bits of a run never depend on it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from detrain.errors import UsageError
from detrain.session.pace import Pace

#: `auto` keeps the time that the training waits for checkpoints below this share of the run; `2%` names another.
BUDGET = 0.01
#: `auto` does not checkpoint more often than this. Seconds.
SHORTEST_S = 2.0
#: While an attempt is young, `auto` lets it wait for up to this share of its time: else one that is killed early, again and again, would
#: come no further than its checkpoint.
YOUNG_BUDGET = 0.2
#: A checkpoint that a signal asks for waits at most so long for a header to which a resume comes without running batches again. Seconds.
LONGEST_WAIT_S = 2.0

#: Beginnings that are held whatever they cost, while it is not known yet how long an iteration takes. More come where a loop inside a long
#: first iteration begins again and again.
_HELD_UNKNOWN = 8

_WHEN = re.compile(r"(?P<count>\d+(?:\.\d+)?)?(?P<unit>epochs?|batch(?:es)?|s|%)$")
_NAMED = re.compile(r"epochs:(?P<numbers>[1-9]\d*(?:,[1-9]\d*)*)$")


@dataclass(frozen=True)
class Every:
    """A parsed `--every`: kind is epoch, epochs, batch, seconds, auto or never; of auto, `count` is the share of the time."""

    kind: str
    count: float = 1.0
    #: Of `epochs`: behind how many of them.
    named: frozenset[int] = frozenset()


def parse(text: str) -> Every:
    """`epoch`, `5epochs`, `epochs:3,6`, `100batches`, `30s`, `auto`, `2%` (auto with this budget), `never`. Raises `UsageError`."""
    if text in ("auto", "never"):
        return Every(text, BUDGET)
    if named := _NAMED.match(text):
        return Every("epochs", named=frozenset(map(int, named["numbers"].split(","))))
    match = _WHEN.match(text)
    if match is None or (match["unit"] in "s%" and match["count"] is None):
        raise UsageError(f"--every {text}: expected epoch, 5epochs, epochs:3,6, 100batches, 30s, auto, 2% or never")
    count = float(match["count"] or 1)
    unit = {"e": "epoch", "b": "batch", "s": "seconds", "%": "auto"}[match["unit"][0]]
    if count <= 0 or (unit in ("epoch", "batch") and count != int(count)):
        raise UsageError(f"--every {text}: the number must be a whole number above zero")
    return Every(unit, count / 100 if unit == "auto" else count)


class Policy:
    """Decides at each header. `now_s` is a monotonic clock's reading.

    `is_near`, in all methods: a resume comes to this header without running a batch again, because the present iteration of each loop
    around it has a checkpoint at its beginning, on disk or held in memory.
    """

    def __init__(self, every: Every, now_s: float) -> None:
        self.every = every
        self._requested_s: float | None = None  # when a signal asked for a checkpoint
        self._began_s = self._last_s = now_s
        self._last_epoch = 0
        self._last_outer_s, self._last_outer_epoch = now_s, 0
        self._last_batch = 0
        self._costs_s: list[float] = []  # of the last few
        self._has_saved = False
        self._num_held = 0
        self._spent_s = 0.0  # on what `holds_beginning` may use of the training's time
        #: Seconds between checkpoints for `auto` and `30s`.
        self.interval_s = every.count if every.kind == "seconds" else SHORTEST_S

    @property
    def goes_by_clock(self) -> bool:
        """True if how fast the machine is decides which checkpoints there are."""
        return self.every.kind in ("auto", "seconds")

    @property
    def chosen_s(self) -> float:
        """Seconds between checkpoints as `auto` has chosen them; 0 if the user has said when."""
        return self.interval_s if self.every.kind == "auto" else 0.0

    @property
    def cost_s(self) -> float:
        """What a checkpoint costs: the median of the last three, of which none was the first of an attempt; 0 if there was no other."""
        return _median(self._costs_s) if self._costs_s else 0.0

    def begin(self, now_s: float) -> None:
        """The training begins; what the set-up took does not count."""
        self._began_s = self._last_s = self._last_outer_s = now_s

    def request(self, now_s: float) -> None:
        """A checkpoint is wanted as soon as possible; called by a signal's handler."""
        self._requested_s = now_s

    @property
    def is_requested(self) -> bool:
        """True from `request` to the next checkpoint."""
        return self._requested_s is not None

    def on_resumed(self, epoch: int, batch: int, now_s: float, cost_s: float) -> None:
        """The run is at a checkpoint with these totals of epochs and batches begun; `cost_s` as it stands in there, 0 if not known."""
        self._began_s = now_s
        self._set_last(epoch, batch, now_s)
        if cost_s:
            self._costs_s = [cost_s]
            self._choose_interval(now_s)

    def on_saved(self, epoch: int, batch: int, now_s: float, cost_s: float, *, is_outer: bool = False) -> None:
        """A checkpoint was taken at these totals of epochs and batches begun; the training has waited `cost_s` for it."""
        if is_outer:
            self._last_outer_s, self._last_outer_epoch = now_s, epoch
        self._set_last(epoch, batch, now_s)
        self._count(cost_s, is_spent=self.every.kind == "auto")
        self._choose_interval(now_s)
        self._requested_s = None

    def on_held(self, cost_s: float) -> None:
        """The beginning of an iteration has been copied into memory; the training has waited `cost_s` for it."""
        self._num_held += 1
        self._count(cost_s, is_spent=True)

    def _set_last(self, epoch: int, batch: int, now_s: float) -> None:
        self._last_epoch, self._last_batch, self._last_s = epoch, batch, now_s

    def _count(self, cost_s: float, *, is_spent: bool) -> None:
        """The first of an attempt loads modules and allocates memory, so it says nothing about the next."""
        if self._has_saved:
            self._costs_s = [*self._costs_s[-2:], cost_s]
            self._spent_s += cost_s if is_spent else 0.0
        self._has_saved = True

    def _choose_interval(self, now_s: float) -> None:
        """As the budget has it, but no longer than this attempt has trained: then a kill, whenever it comes, costs about half of it."""
        if self.every.kind == "auto":
            by_budget_s = self.cost_s / self.every.count if self._costs_s else math.inf
            young_s = max(now_s - self._began_s, self.cost_s / YOUNG_BUDGET)
            self.interval_s = max(SHORTEST_S, min(by_budget_s, young_s))

    def use_auto_if_no_epochs(self) -> bool:
        """The training has one loop only; True if that makes `epoch` mean nothing, so that it is `auto` from now on."""
        if self.every.kind not in ("epoch", "epochs"):
            return False
        self.every = Every("auto", BUDGET)
        return True

    def is_due_at_epoch(self, epoch: int, batch: int, now_s: float, pace: Pace, *, is_near: bool = True) -> bool:
        """At the header of an epoch loop whose iterations so far were of this `pace`.

        Also when a checkpoint will fall due within the epoch that begins: one inside an epoch needs one at its beginning, from which
        what stands before the batch loop is run again.
        """
        if self._is_request_due(now_s, is_near=is_near):
            return True
        if self.every.kind == "epoch":
            return epoch - self._last_epoch >= self.every.count
        if self.every.kind == "epochs":
            return epoch in self.every.named and epoch != self._last_epoch
        return self._is_due_around_batches(batch, now_s, pace, is_near=is_near)

    def is_due_at_outer(self, epoch: int, batch: int, now_s: float, pace: Pace, *, is_near: bool = True) -> bool:
        """At the header of a loop around the epoch loop: counted by itself.

        A checkpoint inside needs one here, or a resume would run everything since the last one at this header again.
        """
        if self._is_request_due(now_s, is_near=is_near):
            return True
        if self.every.kind == "epoch":
            return epoch - self._last_outer_epoch >= self.every.count
        return (self.goes_by_clock and now_s - self._last_outer_s >= self.interval_s) or self._is_due_around_batches(
            batch, now_s, pace, is_near=is_near
        )

    def _is_due_around_batches(self, batch: int, now_s: float, pace: Pace, *, is_near: bool) -> bool:
        if self.every.kind == "batch":
            is_long = pace.batches == 0 or pace.batches >= self.every.count
            return is_long or batch - self._last_batch >= self.every.count
        if not self.goes_by_clock:
            return False
        interval_s = self.interval_s * (1 if is_near else 2)
        elapsed_s = now_s - self._last_s
        is_long = is_near and pace.seconds > interval_s / 2
        return elapsed_s >= interval_s or (is_long and elapsed_s + pace.seconds >= interval_s)

    def holds_beginning(self, batch: int, now_s: float, pace: Pace, *, is_outer: bool = False) -> bool:
        """At the header of a loop around the batch loop where no checkpoint is due: True if one is to be kept in memory.

        It is written with the first that falls due inside, if one does: who counts can tell. Whenever a signal may ask for one, the time
        that the training waits for it must be within the budget; while it is not known how long an iteration takes, the first few need not.
        """
        kind = self.every.kind
        if kind == "never":
            return False
        is_unknown = not pace.seconds and self._num_held < _HELD_UNKNOWN
        if kind == "batch" and pace.batches and batch - self._last_batch + 2 * pace.batches >= self.every.count:
            return True
        if kind in ("epoch", "epochs") and is_outer:
            return True
        if not self._has_saved or is_unknown:
            return True
        budget = self.every.count if kind == "auto" else BUDGET
        return self._spent_s + self.cost_s <= budget * (now_s - self._began_s)

    def is_due_at_batch(self, batch: int, now_s: float, *, is_near: bool = True) -> bool:
        """At the header of the batch loop.

        By time, a checkpoint to which a resume would have to run batches again is put off for at most one more interval: such epochs
        are short, and the next header of the epoch loop is a better place.
        """
        if self._is_request_due(now_s, is_near=is_near):
            return True
        next_batch, next_s = self.next_at_batch(is_near=is_near)
        return batch >= next_batch or now_s >= next_s

    def next_at_batch(self, *, is_near: bool) -> tuple[float, float]:
        """The number of batches, and the moment, before which `is_due_at_batch` says no unless a checkpoint is asked for."""
        if self.every.kind == "batch":
            return self._last_batch + self.every.count, math.inf
        if not self.goes_by_clock:
            return math.inf, math.inf
        return math.inf, self._last_s + self.interval_s * (1 if is_near else 2)

    def is_due_at_end(self, now_s: float, *, is_outermost: bool, is_near: bool = True) -> bool:
        """When a loop has ended: always behind the whole training, else if a resume gets there and it took as long as the interval."""
        if is_outermost:
            return self.every.kind != "never" or self.is_requested
        if self._is_request_due(now_s, is_near=is_near):
            return True
        return self.goes_by_clock and is_near and now_s - self._last_s >= self.interval_s

    def _is_request_due(self, now_s: float, *, is_near: bool) -> bool:
        """A header from which a resume goes on may come soon; who asks will not wait for long."""
        return self._requested_s is not None and (is_near or now_s - self._requested_s >= LONGEST_WAIT_S)


def _median(values: Iterable[float]) -> float:
    """As in `statistics`, which every start would wait for."""
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2

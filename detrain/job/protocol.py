"""What a session asks of its job; of a process that trains alone there is little to ask, and none of the rest of this room is loaded."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # loaded by ranks alone
    from detrain.job.cuts import Kept
    from detrain.job.messages import Part
    from detrain.job.replicas import Replica


class Agreement(Protocol):
    """What a session asks at its headers, of a process that trains alone or of one rank."""

    @property
    def until(self) -> float:
        """The header's number up to which nothing new can be heard."""

    @property
    def ends_s(self) -> float:
        """When the time limit is reached, by the clock of a process that trains alone; ranks hear of it in time."""

    @property
    def is_last(self) -> bool:
        """True if the training ends behind the checkpoint that is asked for."""

    @property
    def is_alone(self) -> bool:
        """True if no other rank has to be asked."""

    def is_writing(self, own: bool) -> bool:
        """True if a checkpoint is being written: by this rank, if it is alone (`own`), else by some rank when rank 0 last looked."""

    @property
    def is_out(self) -> bool:
        """True if no cut can be taken any more: the ranks are out of step, or will be."""

    def leave(self) -> None:
        """From now on the ranks may be at different places."""

    def now_s(self, header: int) -> float:
        """The time that the policy goes by at this header. Seconds of rank 0's monotonic clock."""

    def jump(self) -> None:
        """A resume has come to a checkpoint: the next header has a number that does not follow the last one's."""

    def ask(self, *, is_last: bool = False) -> None:
        """A checkpoint is wanted, behind which the training ends if it `is_last`; called by a signal's handler."""

    def saved(self, name: str, cost_s: float) -> tuple[float, float]:
        """A checkpoint has been taken here, at the cost of so many seconds; returns the time, and the cost that the policy counts."""


class Alone:
    """A process that trains by itself: it goes by its own clock, and asks nobody."""

    is_alone, is_out, until = True, False, math.inf

    def __init__(self, on_asked: Callable[[float], None], ends_s: float = math.inf) -> None:
        """`ends_s`: when the time limit is reached."""
        self._on_asked, self.ends_s, self.is_last = on_asked, ends_s, False

    def leave(self) -> None:
        """See `Agreement`."""

    def is_writing(self, own: bool) -> bool:
        """See `Agreement`."""
        return own

    def now_s(self, header: int) -> float:  # noqa: ARG002 - at every header it is the time that it is
        """See `Agreement`."""
        now_s = time.monotonic()
        if now_s >= self.ends_s and not self.is_last:
            self.is_last = True
            self._on_asked(now_s)
        return now_s

    def jump(self) -> None:
        """See `Agreement`."""

    def ask(self, *, is_last: bool = False) -> None:
        """See `Agreement`."""
        self.is_last = self.is_last or is_last
        self._on_asked(time.monotonic())

    def saved(self, name: str, cost_s: float) -> tuple[float, float]:  # noqa: ARG002
        """See `Agreement`."""
        return time.monotonic(), cost_s


class Member(Protocol):
    """What a session asks of its job."""

    @property
    def agreement(self) -> Agreement:
        """What its policy goes by."""

    def begin(self) -> None:
        """Listen, and watch over the job, from now on."""

    def ready(self) -> None:
        """Wait until all ranks have put back the files that their scripts will find."""

    def when_whole(self, name: str, action: Callable[[], None]) -> None:
        """On rank 0: call this once the cut of this name exists, if it will."""

    def begins(self, name: str) -> None:
        """The part of a cut is about to be written."""

    def wrote(self, part: Part, replicas: Sequence[Replica] = ()) -> None:
        """The part of a cut is on the disk, or could not be written. Called by the thread that writes.

        `replicas`: the tensors in it that other ranks have as well.
        """

    @property
    def is_broken(self) -> bool:
        """True if a rank is gone that had not ended, so that nothing can be agreed any more."""

    def wait_for(self, name: str) -> bool:
        """Wait until the cut of this name exists; False if it will not."""

    def begins_behind(self, sequence: int) -> None:
        """The attempt goes on from the cut of this number: what lies behind it is of another future."""

    def kept(self) -> Kept:
        """Which parts of cuts are needed."""

    def whole(self) -> frozenset[str]:
        """Names of the cuts that exist."""

    def end(self, status: int, *, is_finished: bool) -> bool:
        """The script has ended here; waits for the others. True if it is finished on all ranks."""

    def close(self) -> None:
        """Take part in nothing any more."""

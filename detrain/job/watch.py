"""Ends a rank whose job has ended without it: no process may hold the run directory, or sit in a collective, for a peer that is gone."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

from detrain.messages import say

#: A rank that has lost a peer is given so long to end by what its script raises, or its launcher does. Seconds.
GRACE_S = 10.0
#: Exit status of a rank that is ended because of another.
STATUS = 1


class Watch:
    """Looks, about twice a second, whether this process still has a launcher and all its peers."""

    def __init__(
        self,
        rank: int,
        launcher: int,
        on_lost: Callable[[str, bool], None] = lambda *_: None,
        leave: Callable[[int], None] = os._exit,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`launcher`: the process that has started this one.

        `on_lost` is told, once, what the job has lost, and whether this rank is the one that says so to the user.
        """
        self._rank, self._on_lost, self._leave, self._clock = rank, on_lost, leave, clock
        self._launcher = launcher
        self._why = ""
        self._since_s = 0.0

    @property
    def why(self) -> str:
        """What the job has lost; "" if nothing."""
        return self._why

    def lost(self, why: str, teller: int = 0) -> None:
        """A peer is gone that had not ended. `teller`: the rank that says so."""
        if not self._why:
            self._why, self._since_s = why, self._clock()
            self._on_lost(why, self._rank == teller)

    def leave_if_lost(self) -> None:
        """End this process at once if a peer is gone: the script's thread can do no more without it."""
        if self._why:
            say(f"error: {self._why}, so rank {self._rank} ends")
            self._leave(STATUS)

    def turn(self) -> None:
        """Called by the thread that reads: it goes on while the script is blocked in a collective."""
        if os.getppid() != self._launcher:
            self._on_lost("the launcher is gone", False)
            say(
                f"error: the launcher of rank {self._rank} (process {self._launcher}) is gone, so it ends; the same command resumes"
            )
            self._leave(STATUS)
        elif self._clock() - self._since_s > GRACE_S:
            self.leave_if_lost()

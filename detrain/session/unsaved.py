"""Warns of training that is not checkpointed while it runs, not when it is over and lost."""

from __future__ import annotations

import os

from detrain.messages import warn

#: Updates outside any loop that is known, from which on they are taken for a training; a set-up may make one or two.
ENOUGH = 3


class Unsaved:
    """Counts weight updates that belong to no training loop; speaks once of each kind."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._counts: dict[str, int] = {}

    def outside_loops(self) -> None:
        """An update, but not inside a loop of the script's own files."""
        if self._is_enough("loops"):
            warn(
                "nothing-saved",
                "weights are being updated, but not inside a loop in the script's own files, so nothing has been checkpointed so far. "
                "If the loop is in a library, `detrain trace` finds it for later runs",
            )

    def in_thread(self) -> None:
        """An update in another thread than the script's first."""
        if self._is_enough("threads"):
            warn(
                "nothing-saved",
                "weights are being updated in a thread other than the script's main thread, where no training loop is followed: this "
                "training is not checkpointed",
            )

    def in_child(self) -> None:
        """An update, in a process that this one has become by a fork; never in the script's own."""
        if os.getpid() != self._pid and self._is_enough("children"):
            warn(
                "nothing-saved",
                f"process {os.getpid()}, which the script has forked, trains; only the script's first process is followed, and training "
                "in this one is not checkpointed",
            )

    def _is_enough(self, kind: str) -> bool:
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return self._counts[kind] == ENOUGH

"""How long iterations of the loops around the batch loop take: from it the policy tells whether a checkpoint will fall due inside one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the command line asks for a policy, and runs no loops
    from detrain.loops.running import Loop, Site


@dataclass
class Pace:
    """The longest iteration of a loop so far: seconds and batches; 0 before this attempt has seen a whole one."""

    seconds: float = 0.0
    batches: int = 0


class Paces:
    """Of all loops around the batch loop."""

    def __init__(self) -> None:
        self._paces: dict[Site, Pace] = {}
        self._began: dict[Loop, tuple[float, int]] = {}

    def of(self, loop: Loop) -> Pace:
        """The pace of this loop so far."""
        return self._paces.setdefault(loop.site, Pace())

    def at_header(self, loop: Loop, now_s: float, batches: int, *, is_whole: bool = True) -> Pace:
        """An iteration of `loop` begins, after so many batches of the run; returns the loop's pace so far.

        `is_whole`: False if the run is to be taken to a place within this iteration.
        """
        pace = self.of(loop)
        if loop in self._began:
            began_s, began_at = self._began[loop]
            pace.seconds = max(pace.seconds, now_s - began_s)
            pace.batches = max(pace.batches, batches - began_at)
        self._began = {active: self._began[active] for active in loop.path if active in self._began}
        if is_whole:
            self._began[loop] = now_s, batches
        return pace

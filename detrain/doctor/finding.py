"""One thing that the doctor has found."""

from __future__ import annotations

from dataclasses import dataclass

#: Worst first. `breaks`: runs will differ, or a resume will be refused. `risk`: they may. `note`: known and taken care of, but the
#: script is not the same under plain python.
LEVELS = ("breaks", "risk", "note")


@dataclass(frozen=True)
class Finding:
    """What, where, how bad, and what to do."""

    level: str
    where: str  # file:line, "machine", or the run directory
    what: str
    advice: str

    @property
    def rank(self) -> tuple[int, str]:
        """For sorting: worst first, then by place."""
        return LEVELS.index(self.level), self.where

"""What an experiment has measured of a script that trains within a memory budget."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Protocol


@dataclass(frozen=True)
class TimingOrder:
    """What is to be measured. Times in seconds."""

    #: A script with its arguments, or `-m` and a module with its.
    words: tuple[str, ...]
    #: In which it runs.
    folder: Path
    #: Batches that are timed, and batches before them that are not.
    num_batches: int
    num_before: int
    #: As `detrain run --memory-budget` takes it; "" for none.
    memory_budget: str = ""
    planner: str = "auto"
    #: The batches before go on until one has followed a plan, for so long at most.
    most_planning_s: float = 0.0


@dataclass(frozen=True)
class Timing:
    """How long batches took, and what the budget had to do for it since the script began."""

    batches_s: tuple[float, ...]
    peak_bytes: int
    budget_bytes: int
    num_again: int
    num_evictions: int
    why: str


class Measure(Protocol):
    """Runs a script for an experiment."""

    def __call__(self, order: TimingOrder) -> Timing:
        """Raises `NoPlanError` where the budget leaves no room, and `DetrainError` where the script fails."""

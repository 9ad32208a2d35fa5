"""What a planner gives: a schedule, judged by the simulator, and what is known of the best there can be."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from detrain.plans.errors import NoPlanError
from detrain.remat.graph import Graph
from detrain.remat.schedule import Schedule
from detrain.remat.simulator import Outcome, simulate


@dataclass(frozen=True)
class Plan:
    """A schedule that keeps to its budget."""

    schedule: Schedule
    outcome: Outcome
    seconds: float
    #: No schedule of those that `stages.program_of` can say takes less; None if nothing is known.
    bound_ns: int | None = None

    @property
    def is_optimal(self) -> bool:
        """True if the bound has been met."""
        return self.bound_ns is not None and self.outcome.clock_ns <= self.bound_ns


def best_of(
    graph: Graph, schedules: Iterable[Schedule], budget_bytes: int, *, until_s: float = float("inf"), began_s: float | None = None
) -> Plan:  # fmt: skip
    """The quickest schedule that keeps to the budget; of equal ones the one that needs the least memory, then the first.

    `schedules` may be a generator, which is asked for no more once `time.monotonic()` is past `until_s` or at Ctrl-C, if there is a
    schedule by then. `began_s` is when the planning began, as `time.monotonic()` gives it. Raises `NoPlanError` if no schedule keeps
    to the budget.
    """
    began_s = time.monotonic() if began_s is None else began_s
    best: tuple[Schedule, Outcome] | None = None
    try:
        for schedule in schedules:
            outcome = simulate(graph, schedule, budget_bytes)
            if not outcome.failure and (best is None or _rank(outcome) < _rank(best[1])):
                best = schedule, outcome
                if (on_best := _ON_BEST.get()) is not None:
                    on_best(outcome)
            if time.monotonic() > until_s and best is not None:
                break
    except KeyboardInterrupt:
        if best is None:
            raise
    if best is None:
        raise NoPlanError(f"no schedule within {budget_bytes:,} bytes has been found")
    return Plan(*best, time.monotonic() - began_s)


_ON_BEST: ContextVar[Callable[[Outcome], None] | None] = ContextVar("on_best", default=None)


@contextmanager
def reporting_best(on_best: Callable[[Outcome], None]) -> Iterator[None]:
    """Within it, `on_best` is called with the outcome of each schedule that is the best so far."""
    token = _ON_BEST.set(on_best)
    try:
        yield
    finally:
        _ON_BEST.reset(token)


def _rank(outcome: Outcome) -> tuple[int, int]:
    return outcome.clock_ns, outcome.peak_bytes

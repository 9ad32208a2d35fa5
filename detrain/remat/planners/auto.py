"""The quickest of what several planners find, each within its share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

from detrain.plans.errors import NoPlanError
from detrain.remat.graph import Graph
from detrain.remat.planners import dtr, ilp, rotor
from detrain.remat.planners.plan import Plan

#: Of the time, for the first two; the last has the rest.
_SHARE = 0.4


def plan(graph: Graph, budget_bytes: int, time_limit_s: float = 60.0) -> Plan:
    """Of the online policies, of rotor and, for a step small enough, of the mixed-integer program. Raises `NoPlanError`."""
    began_s = time.monotonic()
    until_s = began_s + time_limit_s
    best: Plan | None = None
    why = ""
    for find, limit_s in _turns(graph, time_limit_s, until_s):
        try:
            found = find(graph, budget_bytes, limit_s)
        except NoPlanError as error:
            why = why or str(error)
            continue
        if best is None or _rank(found) < _rank(best):
            best = found
    if best is None:
        raise NoPlanError(why)
    return replace(best, seconds=time.monotonic() - began_s)


def _turns(
    graph: Graph, time_limit_s: float, until_s: float
) -> Iterator[tuple[Callable[[Graph, int, float], Plan], float]]:
    yield dtr.plan, time_limit_s * _SHARE
    yield rotor.plan, time_limit_s * _SHARE
    if len(graph.operators) <= ilp.MOST_OPERATORS and until_s > time.monotonic():
        yield ilp.plan, until_s - time.monotonic()


def _rank(plan: Plan) -> tuple[int, int, bool]:
    return plan.outcome.clock_ns, plan.outcome.peak_bytes, not plan.is_optimal

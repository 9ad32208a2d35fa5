"""The best schedule of the online policies (Kirisame et al., ICLR 2021): each policy's trace is polished, and the quickest is taken.

Where all of them run out of memory, or turn in circles, what keeps nothing at all (`recompute_all`) may still be made to fit.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from dataclasses import replace

from detrain.remat.graph import Graph, Kind
from detrain.remat.online.policy import Runner, parse
from detrain.remat.planners import recompute_all
from detrain.remat.planners.forward_end import first_backward_index
from detrain.remat.planners.plan import Plan, best_of
from detrain.remat.planners.polish import polish
from detrain.remat.schedule import Action, Schedule, constants_given_back, freeing_early

#: In the order in which they are tried, the most promising first.
POLICIES = (
    "dtr:eager", "msps:eager", "dtr-eq:eager", "dtr:banish", "dtr-local:eager", "size:eager", "lru:eager", "e*-size:eager", "eq-size:eager",
    "local-size:eager", "eq-stale:eager",
)  # fmt: skip
#: Runs that take longer than this times the step without a budget are given up.
_LIMIT = 10.0


def plan(graph: Graph, budget_bytes: int, time_limit_s: float = 60.0) -> Plan:
    """Raises `NoPlanError` if nothing keeps to the budget."""
    began_s = time.monotonic()
    until_s = began_s + time_limit_s
    return best_of(graph, _polished(graph, budget_bytes), budget_bytes, until_s=until_s, began_s=began_s)


def _polished(graph: Graph, budget_bytes: int) -> Iterator[Schedule]:
    runner = Runner(graph)
    # A policy never lets go of a constant; a schedule does, where the program has given it back before memory is shortest.
    order = [command.target for command in graph.program if command.kind == Kind.COMPUTE]
    forward = set(order[: first_backward_index(graph, order)])
    given_back_bytes = sum(
        graph.tensors[base].size_bytes
        for operator, bases in constants_given_back(graph).items() if operator in forward
        for base in bases
    )  # fmt: skip
    budgets_bytes = (budget_bytes, budget_bytes + given_back_bytes) if given_back_bytes else (budget_bytes,)
    for name, policy_bytes in itertools.product(POLICIES, budgets_bytes):
        policy = parse(name)
        for is_compat in (True, False):
            result = runner.run(policy, policy_bytes, limit=_LIMIT, is_compat=is_compat, has_schedule=True)
            if result.status == "ok":
                schedule = result.schedule
                if policy_bytes != budget_bytes:
                    operators = [step.target for step in schedule.steps if step.action == Action.COMPUTE]
                    schedule = freeing_early(graph, operators, "", budget_bytes)
                yield replace(polish(graph, schedule, budget_bytes)[0], planner=f"dtr, {name}")
                break  # where nobody has to give anything up, both do the same
            if policy.deallocation == "banish":
                break
    if (nothing_kept := recompute_all.order(graph)) is not None:
        schedule = freeing_early(graph, nothing_kept, "dtr, nothing kept", budget_bytes)
        yield polish(graph, schedule, budget_bytes)[0]

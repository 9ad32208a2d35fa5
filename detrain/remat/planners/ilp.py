"""The optimal schedule, by mixed-integer programming with HiGHS (Huangfu, Hall, 2018), or the best within a time limit."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from detrain.plans.errors import NoPlanError
from detrain.remat.graph import Graph
from detrain.remat.planners import dtr
from detrain.remat.planners.plan import Plan, best_of
from detrain.remat.planners.stages import Program, operators_of, program_of
from detrain.remat.schedule import Schedule, freeing_early
from detrain.remat.simulator import simulate

#: The solver's rows may be off by so much, in shares of the budget; sizes are whole bytes.
_TOLERANCE = 1e-6
#: Statuses of `scipy.optimize.milp`.
_OPTIMAL, _STOPPED = 0, 1
#: Of a step with more operators the program has millions of variables.
MOST_OPERATORS = 120
_FEW_OPERATORS = 12


def plan(graph: Graph, budget_bytes: int, time_limit_s: float = 60.0, num_passes: int | None = None) -> Plan:
    """The schedule of least time, or the best that was found in time, which the policies' best is the first of.

    Operators are done for the first time in the program's order. Raises `NoPlanError` if there is none, or none was
    found in time, and for steps of more than `MOST_OPERATORS` operators.
    """
    began_s = time.monotonic()
    until_s = began_s + time_limit_s
    refuse_large(graph)
    bounds: list[float] = []
    schedules = _schedules(graph, budget_bytes, until_s, num_passes or _passes(graph), bounds)
    planned = best_of(graph, schedules, budget_bytes, until_s=until_s, began_s=began_s)
    if not bounds:
        return planned
    bound_ns = graph.cost_ns + math.ceil(bounds[0] - 1e-4 * max(1.0, abs(bounds[0])))
    return replace(planned, bound_ns=min(bound_ns, planned.outcome.clock_ns))


def refuse_large(graph: Graph) -> None:
    """Raises `NoPlanError` for steps of more than `MOST_OPERATORS` operators."""
    if len(graph.operators) > MOST_OPERATORS:
        raise NoPlanError(
            f"the step has {len(graph.operators):,} operators, and a program with more than {MOST_OPERATORS} is not solved; "
            "use rockmate or hiremate, which divide it"
        )


def _schedules(
    graph: Graph, budget_bytes: int, until_s: float, num_passes: int, bounds: list[float]
) -> Iterator[Schedule]:
    """What the policies have come to, and then what the solver makes of it; `bounds` gets what no solution goes below."""
    most_ns = None
    if len(graph.operators) > _FEW_OPERATORS:
        try:
            known = dtr.plan(graph, budget_bytes, until_s - time.monotonic())
        except NoPlanError:
            pass  # nothing to begin with
        else:
            yield replace(known.schedule, planner=f"ilp, from {known.schedule.planner}")
            most_ns = known.outcome.clock_ns - graph.cost_ns
    for margin in (0.0, 2 * _TOLERANCE):
        program = program_of(graph, max(math.floor(budget_bytes * (1 - margin)), 1), num_passes)
        try:
            x, bound = solve(program, until_s - time.monotonic(), most_ns)
        except NoPlanError:
            if most_ns is None:
                raise
            return  # nothing better in time
        bounds.append(bound)
        schedule = freeing_early(graph, operators_of(program, x), "ilp", budget_bytes)
        yield schedule
        if not simulate(graph, schedule, budget_bytes).failure:
            return


def _passes(graph: Graph) -> int:
    """More than one changes little, and is only tried where it costs little."""
    return 2 if len(graph.operators) <= _FEW_OPERATORS else 1


def solve(program: Program, time_limit_s: float, most_ns: float | None = None) -> tuple[np.ndarray, float]:
    """Values of the variables, and what no solution goes below; of solutions that cost `most_ns` at most. Raises `NoPlanError`."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    is_whole = np.zeros(len(program.cost))
    is_whole[: program.num_again] = 1
    # Costs of some 10^8 ns would put the gap's tolerance in the place of single operators.
    scale = max(float(program.cost.max(initial=0.0)), 1.0)
    constraints = [LinearConstraint(program.rows, ub=program.limits)]
    if most_ns is not None:
        constraints.append(LinearConstraint(program.cost[None, :] / scale, ub=most_ns / scale * (1 + 1e-9)))
    solution = milp(
        program.cost / scale, integrality=is_whole, bounds=Bounds(program.least, np.ones(len(program.cost))),
        constraints=constraints,
        options={"time_limit": max(time_limit_s, 0.1), "mip_rel_gap": 0.0},
    )  # fmt: skip
    if solution.x is None:
        raise NoPlanError(
            "no schedule within the budget exists"
            if solution.status == 2
            else f"none was found in time: {solution.message}"
        )
    bound = solution.mip_dual_bound if solution.mip_dual_bound is not None else 0.0
    return solution.x, max(float(bound), 0.0) * scale

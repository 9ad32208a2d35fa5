"""The best schedule there is, by mixed-integer programming on HiGHS (Huangfu, Hall, 2018), within a time limit."""

from __future__ import annotations

import math
import time

import numpy as np

from detrain.remat.graph import Graph
from detrain.remat.planners.plan import NoPlanError, Plan
from detrain.remat.planners.stages import Program, operators_of, program_of
from detrain.remat.schedule import freeing_early
from detrain.remat.simulator import simulate

#: The solver's rows may be off by so much, in shares of the budget; sizes are whole bytes.
_TOLERANCE = 1e-6
#: Statuses of `scipy.optimize.milp`.
_OPTIMAL, _STOPPED = 0, 1
#: Of a step with more operators the program has millions of variables.
MOST_OPERATORS = 120
_FEW_OPERATORS = 12


def plan(graph: Graph, budget_bytes: int, time_limit_s: float = 60.0, num_passes: int | None = None) -> Plan:
    """The schedule of least time, or the best that was found in time.

    Operators are done for the first time in the program's order. Raises `NoPlanError` if there is none, or none was
    found in time, and for steps of more than `MOST_OPERATORS` operators.
    """
    began_s = time.monotonic()
    if len(graph.operators) > MOST_OPERATORS:
        raise NoPlanError(
            f"the step has {len(graph.operators):,} operators, and a program of more than {MOST_OPERATORS} is not solved; "
            "take rockmate or hiremate, which cut it up"
        )
    for margin in (0.0, 2 * _TOLERANCE):
        program = program_of(graph, max(math.floor(budget_bytes * (1 - margin)), 1), num_passes or _passes(graph))
        x, bound = solve(program, time_limit_s - (time.monotonic() - began_s))
        schedule = freeing_early(graph, operators_of(program, x), "ilp", budget_bytes)
        outcome = simulate(graph, schedule, budget_bytes)
        if not outcome.failure:
            once_ns = sum(operator.cost_ns for operator in graph.operators)
            return Plan(
                schedule, outcome, time.monotonic() - began_s, once_ns + math.ceil(bound - 1e-4 * max(1.0, abs(bound)))
            )
    raise NoPlanError(f"what the solver has found does not keep to {budget_bytes:,} bytes: {outcome.failure}")


def _passes(graph: Graph) -> int:
    """More than one changes little, and is only tried where it costs little."""
    return 2 if len(graph.operators) <= _FEW_OPERATORS else 1


def solve(program: Program, time_limit_s: float) -> tuple[np.ndarray, float]:
    """Values of the variables, and what no solution goes below. Raises `NoPlanError`."""
    from scipy.optimize import Bounds, LinearConstraint, milp

    is_whole = np.zeros(len(program.cost))
    is_whole[: program.num_again] = 1
    # Costs of some 10^8 ns would put the gap's tolerance in the place of single operators.
    scale = max(float(program.cost.max(initial=0.0)), 1.0)
    found = milp(
        program.cost / scale, integrality=is_whole, bounds=Bounds(program.least, np.ones(len(program.cost))),
        constraints=LinearConstraint(program.rows, ub=program.limits),
        options={"time_limit": max(time_limit_s, 0.1), "mip_rel_gap": 0.0},
    )  # fmt: skip
    if found.x is None:
        raise NoPlanError(
            "no schedule within the budget exists" if found.status == 2 else f"none was found in time: {found.message}"
        )
    bound = found.mip_dual_bound if found.mip_dual_bound is not None else 0.0
    return found.x, float(bound) * scale

"""Checkmate's approximation (Jain et al., MLSys 2020): the program without whole numbers, rounded.

What is kept between stages is rounded; what that leaves out is made again.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence, Set

import numpy as np

from detrain.plans.errors import NoPlanError
from detrain.remat.graph import Graph
from detrain.remat.planners import ilp
from detrain.remat.planners.plan import Plan, best_of
from detrain.remat.planners.stages import Numbers, Program, program_of
from detrain.remat.schedule import Schedule, freeing_early

#: The program is solved for less memory than there is, as rounding up takes more. Shares of the budget.
_ALLOWANCES = (1.0, 0.95, 0.9, 0.8, 0.7, 0.55, 0.4)
_THRESHOLDS = (0.5, 0.3, 0.1, 0.01, 0.7, 0.9)


def plan(graph: Graph, budget_bytes: int, time_limit_s: float = 60.0) -> Plan:
    """The best of several roundings. Raises `NoPlanError` if none keeps to the budget or none was found in time, and as `ilp` does."""
    began_s = time.monotonic()
    ilp.refuse_large(graph)
    until_s = began_s + time_limit_s
    return best_of(graph, _roundings(graph, budget_bytes, until_s), budget_bytes, until_s=until_s, began_s=began_s)


def _roundings(graph: Graph, budget_bytes: int, until_s: float) -> Iterator[Schedule]:
    for allowance in _ALLOWANCES:
        program = program_of(graph, max(math.floor(budget_bytes * allowance), 1))
        x = _solve(program, until_s - time.monotonic())
        if x is None:
            return  # there is no solution for less memory, either
        for threshold in _THRESHOLDS:
            kept = _kept(program, x, threshold)
            yield freeing_early(graph, operators_keeping(graph, program.stages, kept), "lp-rounding", budget_bytes)


def _solve(program: Program, time_limit_s: float) -> Numbers | None:
    from scipy.optimize import linprog

    if time_limit_s <= 0:
        return None
    scale = max(float(program.cost.max(initial=0.0)), 1.0)
    solution = linprog(
        program.cost / scale, A_ub=program.rows, b_ub=program.limits,
        bounds=np.stack([program.least, np.ones(len(program.cost))], axis=1), method="highs", options={"time_limit": time_limit_s},
    )  # fmt: skip
    if solution.status not in (0, 1, 2):
        raise NoPlanError(f"the solver has failed: {solution.message}")
    return None if solution.x is None else np.asarray(solution.x)


def _kept(program: Program, x: Numbers, threshold: float) -> list[set[int]]:
    """By stage: what is kept from it for later ones."""
    kept: list[set[int]] = [set() for _ in program.stages]
    for (stage, step, tensor), variable in program.alive.items():
        if step == len(program.stages[stage]) - 1 and x[variable] > threshold:
            kept[stage].add(tensor)
    return kept


def operators_keeping(graph: Graph, stages: Sequence[Sequence[int]], kept: Sequence[Set[int]]) -> list[int]:
    """What has to be done so that these tensors are there behind each stage, and each stage's last operator is done."""
    order: list[int] = []
    there: set[int] = set()
    for number, operators in enumerate(stages):
        first = operators[-1] if number < len(stages) - 1 else None
        wanted = set(kept[number]) if first is not None else set(graph.outputs)
        done = {first} if first is not None else set()
        if first is not None:
            wanted.difference_update(graph.operators[first].outputs)
        missing = [
            *(tensor for tensor in wanted if tensor not in there),
            *(graph.operators[first].inputs if first is not None else ()),
        ]
        while missing:
            tensor = missing.pop()
            maker = graph.tensors[tensor].operator
            if tensor not in there and maker not in done:
                done.add(maker)
                missing += graph.operators[maker].inputs
        order += [operator for operator in dict.fromkeys(operators) if operator in done]
        made = {output for operator in done for output in graph.operators[operator].outputs}
        there = {tensor for tensor in there | made if tensor in kept[number]} if first is not None else there
    return order

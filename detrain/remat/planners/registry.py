"""The planners by name: functions that yield schedules to be judged, and modules with a function `plan` that gives a `Plan`."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterable, Iterator

from detrain.errors import GraphError, MissingExtra, UsageError
from detrain.plans.errors import NoPlanError
from detrain.remat.amounts import ONLINE
from detrain.remat.graph import Graph
from detrain.remat.planners import chen
from detrain.remat.planners.names import NAMES
from detrain.remat.planners.plan import Plan, best_of
from detrain.remat.schedule import Schedule, keep_all
from detrain.remat.simulator import floor_bytes

Planner = Callable[[Graph, int, float], Plan]

#: Planners that yield schedules of a graph and a budget in bytes, at once; `best_of` simulates them and takes the fastest that fits.
_SCHEDULES: dict[str, Callable[[Graph, int], Iterable[Schedule]]] = {
    "keep-all": lambda graph, _: [keep_all(graph)],
    "chen-sqrt": lambda graph, budget_bytes: [chen.sqrt(graph, budget_bytes)],
    "chen-greedy": chen.greedy,
}
#: Planners whose module needs numba or scipy, and is loaded when it is asked for; each has a function `plan`.
_LAZY_PLANNERS = {
    "griewank": "griewank", "ilp": "ilp", "lp-rounding": "rounding", "rotor": "rotor", "rockmate": "rockmate", "hiremate": "hiremate",
    "dtr": "dtr", "auto": "auto",
}  # fmt: skip
assert (*_SCHEDULES, *_LAZY_PLANNERS) == NAMES
#: What the modules need.
_NEEDED = ("numba", "scipy")


def plan(graph: Graph, budget_bytes: int, planner: str, time_limit_s: float = 60.0) -> Plan:
    """A schedule of `graph` that needs at most `budget_bytes` of memory, constants included.

    `planner` is one of `NAMES`, or an online policy (`dtr:eager`, see `detrain.remat.online.policy`); after `time_limit_s` the best
    so far is taken. Raises `GraphError` for a budget of zero bytes or less and for what is no policy, `NoPlanError` if the planner finds no
    schedule, `UsageError` if there is no such planner, `MissingExtra` if what it needs is not installed.
    """
    if budget_bytes <= 0:
        raise GraphError(f"a budget is above zero bytes, not {budget_bytes:,}")
    floor = floor_bytes(graph)
    if budget_bytes < floor:
        raise NoPlanError(
            f"{budget_bytes:,} bytes are less than the floor of {floor:,}: the constants, and the largest operator's inputs and outputs"
        )
    if planner not in _SCHEDULES:
        find = _policy(planner) if ":" in planner else _planner(planner)
        if not all(operator.is_constant for operator in graph.operators):
            return find(graph, budget_bytes, time_limit_s)
        planner = "keep-all"  # nothing can be done again
    began_s = time.monotonic()
    schedules = _SCHEDULES[planner](graph, budget_bytes)
    return best_of(graph, schedules, budget_bytes, until_s=began_s + time_limit_s, began_s=began_s)


def check(planner: str) -> None:
    """Raises what `plan` would where there is no such planner or policy (`UsageError`, `GraphError`), or one is not installed."""
    if planner not in _SCHEDULES:
        _ = _policy(planner) if ":" in planner else _planner(planner)


def training_planner(name: str) -> str:
    """What plans the steps of a training, by its name: `ONLINE`, for which this is "", or one of `NAMES`.

    `auto` is `ONLINE` where what it needs is not installed; for another `MissingExtra` is raised then, and `UsageError` for what is none.
    """
    if name not in (ONLINE, *NAMES):
        raise UsageError(f"there is no planner {name}: it is {ONLINE}, or one of {', '.join(NAMES)}")
    if name == ONLINE or (name == "auto" and not is_installed(name)):
        return ""
    if not is_installed(name):
        raise MissingExtra(f"the planner {name} needs numba and scipy, which are not installed", "plan")
    return name


def is_compiled(planner: str) -> bool:
    """True if it runs on what numba compiles at its first use, as policies do."""
    return planner not in _SCHEDULES


def is_installed(planner: str) -> bool:
    """True if what a planner of `NAMES` needs is there."""
    return planner in _SCHEDULES or all(importlib.util.find_spec(name) is not None for name in _NEEDED)


def pareto(
    graph: Graph, budgets_bytes: Iterable[int], planner: str, time_limit_s: float = 60.0
) -> Iterator[tuple[int, Plan | NoPlanError]]:
    """A plan, or why there is none, for each budget in bytes, from the smallest on; `time_limit_s` is for one plan.

    A plan for a smaller budget also keeps to a larger one and is taken again where it is quicker, so the time of a step never rises
    with the budget.
    """
    best: Plan | None = None
    for budget_bytes in sorted(budgets_bytes):
        planned: Plan | NoPlanError
        try:
            planned = plan(graph, budget_bytes, planner, time_limit_s)
        except NoPlanError as error:
            planned = error
        if best is not None and (isinstance(planned, NoPlanError) or planned.outcome.clock_ns > best.outcome.clock_ns):
            planned = best
        if isinstance(planned, Plan):
            best = planned
        yield budget_bytes, planned


def _policy(name: str) -> Planner:
    """What an online policy does, as it comes: nothing of it is improved afterwards."""
    try:
        from detrain.remat.online.policy import Runner, parse
    except ImportError as error:
        raise MissingExtra(f"{name} needs {error.name}, which is not installed", "plan") from None
    policy = parse(name)

    def run(graph: Graph, budget_bytes: int, _: float) -> Plan:
        began_s = time.monotonic()
        result = Runner(graph).run(policy, budget_bytes, is_compat=False, has_schedule=True)
        if result.status != "ok":
            raise NoPlanError(
                "it runs out of memory" if result.status == "oom" else "it turns in circles, and is given up"
            )
        return best_of(graph, [result.schedule], budget_bytes, began_s=began_s)

    return run


def _planner(name: str) -> Planner:
    if name not in _LAZY_PLANNERS:
        raise UsageError(f"there is no planner {name}: it is one of {', '.join(NAMES)}")
    try:
        module = importlib.import_module(f"detrain.remat.planners.{_LAZY_PLANNERS[name]}")
    except ImportError as error:
        raise MissingExtra(f"{name} needs {error.name}, which is not installed", "plan") from None
    planner: Planner = module.plan
    return planner

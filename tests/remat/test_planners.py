"""Planners: their schedules judged by the simulator, the optimum by trying everything."""

import random

import pytest

pytest.importorskip("scipy", reason='planners solve programs with scipy: pip install "detrain[plan]"')

from detrain.remat import builders
from detrain.remat.planners import ilp, rounding
from detrain.remat.planners.plan import NoPlanError
from detrain.remat.schedule import freeing_early, keep_all
from detrain.remat.simulator import floor_bytes, peak_bytes, simulate

from .exhaustive import least_ns
from .graphs import small_graph, training_graph


def cost_of(plan, graph, budget_bytes):
    """None if there is no plan."""
    try:
        found = plan(graph, budget_bytes)
    except NoPlanError:
        return None
    outcome = simulate(graph, found.schedule, budget_bytes)
    assert (outcome.failure, outcome) == ("", found.outcome)
    assert outcome.peak_bytes <= budget_bytes
    return outcome.clock_ns


@pytest.mark.parametrize("seed", range(200))
def test_the_optimum_is_the_least_of_all_schedules(seed):
    graph, rng = small_graph(seed), random.Random(seed)
    budget_bytes = rng.randrange(floor_bytes(graph), max(peak_bytes(graph), floor_bytes(graph)) + 2)
    least = least_ns(graph, budget_bytes)
    assert cost_of(ilp.plan, graph, budget_bytes) == least
    rounded = cost_of(rounding.plan, graph, budget_bytes)
    assert rounded is None or (least is not None and rounded >= least)


def test_an_optimum_says_so():
    graph = builders.chain(5)
    plan = ilp.plan(graph, int(peak_bytes(graph) * 0.7))
    assert plan.is_optimal
    assert plan.outcome.num_again > 0


def test_a_program_too_large_is_refused():
    with pytest.raises(NoPlanError, match="the step has 130 operators, and a program of more than 120 is not solved"):
        ilp.plan(builders.linear(65), 100)


@pytest.mark.parametrize("seed", range(40))
def test_throwing_away_early_takes_the_least_memory_of_an_order(seed):
    graph = training_graph(seed)
    kept = keep_all(graph)
    early = freeing_early(graph, [step.target for step in kept.steps if step.action == 0], "early")
    outcome = simulate(graph, early)
    assert outcome.failure == ""
    assert outcome.peak_bytes <= simulate(graph, kept).peak_bytes
    assert outcome.clock_ns == graph.cost_ns

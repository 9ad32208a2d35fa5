"""Planners: their schedules judged by the simulator, the optimum by trying everything."""

import random
from dataclasses import replace

import pytest

pytest.importorskip("numba", reason='planners are compiled by numba: pip install "detrain-run[plan]"')
pytest.importorskip("scipy", reason='planners solve programs with scipy: pip install "detrain-run[plan]"')

from detrain.errors import GraphError, UsageError
from detrain.plans.errors import NoPlanError
from detrain.remat import builders
from detrain.remat.graph import GraphBuilder
from detrain.remat.planners import ilp, recompute_all, rounding
from detrain.remat.planners.plan import Plan, best_of, reporting_best
from detrain.remat.planners.polish import polish
from detrain.remat.planners.registry import NAMES, pareto, plan
from detrain.remat.schedule import Action, freeing_early, keep_all
from detrain.remat.simulator import floor_bytes, peak_bytes, simulate
from tests.tiers import full_but

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


@pytest.mark.full
def test_what_the_policies_find_is_where_the_optimum_begins():
    graph = builders.transformer(2)
    budget_bytes = int(peak_bytes(graph) * 0.8)
    known = plan(graph, budget_bytes, "dtr", 5)
    found = ilp.plan(graph, budget_bytes, 6)
    assert found.outcome.clock_ns <= known.outcome.clock_ns
    assert found.schedule.planner.startswith("ilp")


def test_who_is_stopped_gives_the_best_so_far_and_tells_of_it():
    graph = builders.chain(6)
    heard = []

    def schedules():
        order = [step.target for step in keep_all(graph).steps if step.action == 0]
        yield freeing_early(graph, order, "first")
        raise KeyboardInterrupt

    with reporting_best(heard.append):
        found = best_of(graph, schedules(), peak_bytes(graph))
    assert found.schedule.planner == "first"
    assert heard == [found.outcome]
    with pytest.raises(KeyboardInterrupt):
        best_of(graph, schedules(), 1)


def largest_first():
    made = GraphBuilder("largest first")
    weight = made.constant("w", 3)
    made.release(made.compute("f", 3, [weight], [("a", 100, -1)])[0])
    (last,) = made.compute("g", 3, [weight], [("b", 2, -1)])
    return made.build([last])


def of_no_size_and_no_time():
    made = GraphBuilder("of no size and no time")
    (first,) = made.compute("f", 0, [made.constant("w", 0)], [("a", 0, -1)])
    return made.build(made.compute("g", 0, [first], [("b", 0, -1)]))


def only_constants():
    made = GraphBuilder("only constants")
    return made.build([made.constant("w", 5)])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "graph", [largest_first(), of_no_size_and_no_time(), only_constants()], ids=lambda graph: graph.name
)
def test_where_there_is_room_or_nothing_to_do_no_planner_takes_more_time(graph, name):
    found = plan(graph, max(peak_bytes(graph), 1), name, 5)
    assert found.outcome.clock_ns == graph.cost_ns


def test_a_program_too_large_is_refused():
    with pytest.raises(NoPlanError, match="the step has 130 operators, and a program with more than 120 is not solved"):
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


#: Those that any step can be given to; the program of `ilp` is for small ones.
QUICK = [name for name in NAMES if name != "hiremate"]


def check_all(graph, budget_bytes, names, least=None):
    """Every planner's schedule keeps to the budget, and none is below the optimum."""
    for name in names:
        cost = cost_of(lambda graph, budget_bytes, name=name: plan(graph, budget_bytes, name, 20), graph, budget_bytes)
        assert cost is None or least is None or cost >= least, name
        assert cost is None or cost >= graph.cost_ns, name


@pytest.mark.parametrize("seed", range(40))
def test_every_planner_keeps_to_the_budget(seed):
    graph, rng = training_graph(seed), random.Random(seed)
    budget_bytes = rng.randrange(floor_bytes(graph), peak_bytes(graph) + 2)
    check_all(graph, budget_bytes, QUICK if seed % 8 else NAMES, cost_of(ilp.plan, graph, budget_bytes))


@pytest.mark.soak
@pytest.mark.parametrize("part", range(20))
def test_every_planner_keeps_to_the_budget_on_a_thousand_steps(part, note_count):
    for seed in range(1000 + part * 50, 1050 + part * 50):
        graph, rng = training_graph(seed), random.Random(seed)
        check_all(graph, rng.randrange(floor_bytes(graph), peak_bytes(graph) + 2), NAMES)


@pytest.mark.parametrize(
    "name",
    full_but(
        set(NAMES) - {"auto", "ilp", "rockmate", "hiremate", "lp-rounding"},  # they take up to 47 s
        [name for name in NAMES if name not in ("hiremate", "lp-rounding")],
    ),
)
def test_more_memory_never_takes_more_time(name):
    graph = builders.residual(2 if name == "ilp" else 3)
    budgets = [int(peak_bytes(graph) * share) for share in (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)]
    times = [found.outcome.clock_ns for _, found in pareto(graph, budgets, name, 20) if isinstance(found, Plan)]
    assert times
    assert times == sorted(times, reverse=True)
    assert times[-1] == graph.cost_ns or name == "chen-sqrt"  # which knows no budget


@pytest.mark.parametrize("seed", range(30))
def test_polishing_never_makes_a_schedule_slower_or_larger_than_the_budget(seed):
    graph = training_graph(seed)
    order = [step.target for step in keep_all(graph).steps if step.action == 0]
    twice = [one for one in order if not graph.operators[one].is_backward]
    twice += [one for one in order if not graph.operators[one].is_constant]
    schedule = freeing_early(graph, twice, "twice")
    before = simulate(graph, schedule)
    assert before.failure == ""
    polished, outcome = polish(graph, schedule, before.peak_bytes)
    assert outcome == simulate(graph, polished, before.peak_bytes)
    assert outcome.failure == ""
    assert outcome.clock_ns <= before.clock_ns


def test_with_room_for_everything_polishing_leaves_nothing_done_twice():
    graph = builders.chain(6)
    order = [step.target for step in keep_all(graph).steps if step.action == 0]
    forward = [one for one in order if not graph.operators[one].is_backward]
    again = [one for one in forward if not graph.operators[one].is_constant]
    backward = [one for one in order if graph.operators[one].is_backward]
    _, outcome = polish(graph, freeing_early(graph, [*forward, *again, *backward], "twice"), 10**9)
    assert outcome.clock_ns == graph.cost_ns


@pytest.mark.parametrize("name", ["chen-greedy", "rotor", "griewank"])
def test_planners_do_not_go_by_the_flags_of_the_way_back(name):
    graph = builders.chain(12)
    flagged = replace(graph, operators=tuple(replace(one, is_backward=not one.is_constant) for one in graph.operators))
    budget_bytes = int(peak_bytes(graph) * 0.7)
    assert plan(flagged, budget_bytes, name).outcome == plan(graph, budget_bytes, name).outcome


@pytest.mark.parametrize(
    "graph", [builders.chain(20), builders.linear(30), builders.recurrent(8)], ids=lambda graph: graph.name
)
def test_what_keeps_nothing_is_a_schedule_of_little_memory(graph):
    schedule = freeing_early(graph, recompute_all.order(graph), "nothing kept")
    outcome = simulate(graph, schedule)
    assert outcome.failure == ""
    assert outcome.peak_bytes < peak_bytes(graph) * 0.75
    for budget_bytes in (outcome.peak_bytes, peak_bytes(graph)):
        polished = polish(graph, schedule, budget_bytes)[1]
        assert polished.failure == ""
        assert polished.clock_ns <= outcome.clock_ns
    assert polished.clock_ns == graph.cost_ns


@pytest.mark.parametrize("name", ["ilp", "rotor", "dtr", "griewank"])
def test_linear_nets_are_planned_as_well_as_can_be(name):
    """Half of the memory is enough if half of the layers are done twice; less than √n layers of memory is not tried."""
    graph = builders.linear(12)
    least = cost_of(ilp.plan, graph, 7)
    found = cost_of(lambda graph, budget_bytes: plan(graph, budget_bytes, name, 30), graph, 7)
    assert found == least if name != "griewank" else found >= least


@pytest.mark.parametrize(
    ("budget_bytes", "name", "error", "said"),
    [
        (0, "dtr", GraphError, "a budget is above zero bytes, not 0"), (-5, "ilp", GraphError, "a budget is above zero bytes, not -5"),
        (1, "rotor", NoPlanError, "1 bytes are less than the floor of 3: the constants, and the largest operator"),
        (9, "best", UsageError, "there is no planner best: it is one of keep-all, chen-sqrt"),
        (9, "keep-all", NoPlanError, "no schedule within 9 bytes has been found"),
    ],
)  # fmt: skip
def test_what_cannot_be_planned_is_refused(budget_bytes, name, error, said):
    with pytest.raises(error, match=said):
        plan(builders.linear(24), budget_bytes, name)


def test_a_library_that_is_missing_is_named(monkeypatch):
    import detrain.remat.planners.registry as registry

    def fail(name):
        raise ImportError(name="numba")

    monkeypatch.setattr(registry.importlib, "import_module", fail)
    with pytest.raises(UsageError, match=r"rotor needs numba, which is not installed: pip install -e '?/.*\[plan\]"):
        plan(builders.linear(24), 20, "rotor")


def recorded(depth=12, *, labels_bytes=1, is_accumulated=False):
    """As steps are recorded: labels that the first operators make and the loss reads, an update in place, gradients of the step before."""
    made = GraphBuilder("recorded")
    data = made.constant("data", 8)
    weights = [made.constant(f"w{number}", 5) for number in range(depth)]
    before = [made.constant(f"gradient{number}", 5) for number in range(depth)]
    (labels,) = made.compute("labels", 1, [data], [("labels", labels_bytes, -1)])
    sums = []
    for turn in range(1 + is_accumulated):
        layers, there = [], data
        for number, weight in enumerate(weights):
            (there,) = made.compute("forward", 10, [there, weight], [(f"f{turn}.{number}", 100, -1)])
            layers.append(there)
        for gradient in before if not turn else ():
            made.release(gradient)
        (loss,) = made.compute("loss", 1, [there, labels], [(f"loss{turn}", 1, -1)])
        (flow,) = made.compute("loss_backward", 1, [loss, there, labels], [(f"flow{turn}", 100, -1)], is_backward=True)
        for number in reversed(range(depth)):
            source = layers[number - 1] if number else data
            new, *_ = gradients = made.compute(
                "backward", 20, [flow, source, layers[number], weights[number]],
                [(f"flow{turn}.{number}", 100, -1), (f"of{turn}.{number}", 5, -1)], is_backward=True,
            )  # fmt: skip
            sums.append((number, gradients[1]))
            made.release(flow)
            made.release(layers[number])
            flow = new
        made.release(flow)
    made.release(labels)
    for number, gradient in sums:
        name = f"u{number}.{gradient}"
        (weights[number],) = made.compute("update", 2, [weights[number], gradient], [(name, 0, 0)], mutates=(0,))
    return made.build([gradient for _, gradient in sums])


@pytest.mark.parametrize("planner", ["rotor", "rockmate", "dtr", "auto"])
@pytest.mark.parametrize("share", [0.8, 0.6])
def test_recorded_steps_have_plans(planner, share):
    graph = recorded()
    found = plan(graph, int(peak_bytes(graph) * share), planner, 5)
    assert 1 < found.outcome.overhead < 1.4


def test_gradients_of_the_step_before_are_gone_where_the_program_has_let_go_of_them():
    graph = recorded()
    schedule = freeing_early(
        graph, [step.target for step in keep_all(graph).steps if step.action == Action.COMPUTE], ""
    )
    assert simulate(graph, schedule).peak_bytes <= peak_bytes(graph)


def test_a_policy_is_a_planner_that_improves_nothing():
    graph = builders.chain(12)
    budget_bytes = int(peak_bytes(graph) * 0.7)
    online, best = plan(graph, budget_bytes, "dtr:eager"), plan(graph, budget_bytes, "dtr")
    assert online.schedule.planner == "dtr:eager"
    assert best.outcome.clock_ns <= online.outcome.clock_ns
    with pytest.raises(NoPlanError):
        plan(graph, floor_bytes(graph), "random:banish")
    with pytest.raises(GraphError, match="there is no heuristic"):
        plan(graph, budget_bytes, "best:eager")


def test_a_large_step_is_not_rounded_for_minutes():
    graph = builders.chain(100)
    with pytest.raises(NoPlanError, match="a program with more than 120 is not solved"):
        plan(graph, int(peak_bytes(graph) * 0.5), "lp-rounding", 1)

"""A training that follows the plans of its own steps ends with the bits that it has without a budget."""

import itertools

import pytest
import torch

from detrain.adapters.torch.remat import recording, retrying
from detrain.adapters.torch.remat import runtime as runtime_module
from detrain.adapters.torch.remat.budget import budget
from detrain.adapters.torch.remat.planning import Answer, Planning
from detrain.adapters.torch.remat.plans import Act, Memory, plan_of
from detrain.errors import DetrainError, GraphError
from detrain.remat.graph import GraphBuilder
from detrain.remat.planners.registry import plan
from detrain.remat.schedule import Action, Schedule, Step, freeing_early
from detrain.remat.simulator import simulate
from tests.remat.test_running import UNBOUNDED, there_before, trained
from tests.tiers import full_but


class AtOnce:
    """A plan that is there when it is asked for. It has time, as numba may have to compile the planner first."""

    def __init__(self, planner, seconds=300):
        self.planner, self.seconds, self.asked = planner, seconds, []

    def __call__(self, graph, budget_bytes):
        try:
            found = plan(graph, budget_bytes, self.planner, self.seconds)
        except DetrainError as error:
            self.asked.append((graph, budget_bytes, str(error)))
            return Now(str(error))
        self.asked.append((graph, budget_bytes, found))
        return Now(Answer(found.schedule, found.outcome.peak_bytes, found.outcome.overhead))


class Now:
    def __init__(self, answer):
        self._answer = answer

    def answer(self):
        return self._answer

    def end(self):
        pass


def planned(program, share, plans, **options):
    """Train within a share of what the program takes, by plans; the digest without a budget, that within it, the follower."""
    foreign_bytes = there_before()
    expected, _ = trained(program, steps=10, **options)
    _, seen = trained(program, UNBOUNDED, steps=10, **options)
    limit_bytes = foreign_bytes + int((seen.space.peak_bytes - foreign_bytes) * share)
    found, runtime = trained(program, limit_bytes, steps=10, plan=plans, **options)
    assert runtime.space.peak_bytes <= limit_bytes
    return expected, found, runtime


#: Programs, and shares at which there is room for them.
FOLLOWED = {
    "own_functions": 0.8, "pictures": 0.5, "language": 0.5, "unrolled": 0.8, "reused_buffer": 0.8, "views_changed": 0.75,
    "gradients_of_gradients": 0.8, "filled_by_a_library": 0.8, "memory_of_numpy": 0.8, "channels_last": 0.5,
    "recurrent": 0.8, "transforms": 0.8,
}  # fmt: skip


@pytest.fixture(autouse=True)
def even_times(monkeypatch):
    """Operators take as long as each other, so that what is evicted does not hang on how busy the machine is."""
    ticks = itertools.count(step=10_000)
    for module in (recording, retrying, runtime_module):
        monkeypatch.setattr(module, "perf_counter_ns", lambda: next(ticks))


@pytest.mark.parametrize("program", full_but(["own_functions", "views_changed"], FOLLOWED))
def test_steps_that_follow_a_plan_have_the_same_bits(program):
    plans = AtOnce("dtr")
    expected, found, runtime = planned(program, FOLLOWED[program], plans)
    assert found == expected
    assert runtime.space.follower.num_followed
    assert plans.asked


@pytest.mark.parametrize("program", ["sparse_gradients", "looked_at"])  # the second hands memory out
def test_steps_that_no_planner_knows_are_not_planned(program):
    plans = AtOnce("chen-greedy")
    expected, found, runtime = planned(program, 0.8, plans)
    assert found == expected
    assert not plans.asked
    assert runtime.space.num_evictions


def follow(loss_of, make_plan, *, steps, limit_bytes):
    """Losses, and what the memory of each step was at most, of a net that takes so many steps; the follower."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(*(part for _ in range(8) for part in (torch.nn.Linear(32, 32), torch.nn.Tanh())))
    updates = torch.optim.SGD(net.parameters(), 1e-2)
    losses, peaks, again = [], [], []
    with budget(limit_bytes, plan=make_plan) as runtime:
        for number in range(steps):
            runtime.space.peak_bytes, before = 0, runtime.num_again
            updates.zero_grad()
            loss = loss_of(net, number)
            loss.backward()
            updates.step()
            losses.append(loss.item())
            peaks.append(runtime.space.peak_bytes)
            again.append(runtime.num_again - before)
    return losses, peaks, again, runtime.space.follower


def plain(net, number):
    return net(torch.randn(512, 32)).square().mean()


def room_for(loss_of, share):
    """Bytes: a share of what `follow` takes beside what others have."""
    foreign_bytes = there_before()
    _, peaks, *_ = follow(loss_of, None, steps=3, limit_bytes=UNBOUNDED)
    return foreign_bytes + int((peaks[-1] - foreign_bytes) * share)


@pytest.mark.parametrize(
    ("planner", "share"),
    [("dtr", 0.6), ("dtr:eager", 0.85)],  # the second: what the simulator's online policy does, as it comes
)
def test_the_simulator_says_what_a_followed_step_needs_and_runs_again(planner, share):
    plans, limit_bytes = AtOnce(planner), room_for(plain, share)
    _, peaks, again, follower = follow(plain, plans, steps=10, limit_bytes=limit_bytes)
    ((graph, budget_bytes, found),) = plans.asked
    assert follower.num_followed >= 5
    assert not follower.num_left
    assert budget_bytes == limit_bytes
    order = [step.target for step in found.schedule.steps if step.action == Action.COMPUTE]
    early = simulate(
        graph, freeing_early(graph, order, planner)
    )  # a policy holds what nobody needs until it wants the room
    assert peaks[-1] == pytest.approx(early.peak_bytes, rel=0.01)
    assert early.peak_bytes <= found.outcome.peak_bytes <= limit_bytes
    making = [any(graph.tensors[output].size_bytes for output in operator.outputs) for operator in graph.operators]
    planned_again = sum(count - 1 for count, is_making in zip(found.outcome.counts, making, strict=True) if is_making)
    assert again[-5:] == [planned_again] * 5  # a view is looked at again, not run


def test_where_the_program_does_something_else_the_plan_is_left_and_the_bits_stay():
    def sometimes(net, number):
        loss = plain(net, number)
        return loss + net(torch.randn(8, 32)).mean() if number in (6, 9) else loss

    limit_bytes = room_for(sometimes, 0.7)
    expected, *_ = follow(sometimes, None, steps=12, limit_bytes=UNBOUNDED)
    losses, _, _, follower = follow(sometimes, AtOnce("dtr"), steps=12, limit_bytes=limit_bytes)
    assert losses == expected
    assert follower.num_left == 2
    assert "which the plan does not have there" in follower.why


def test_each_path_has_a_plan_of_its_own():
    def either(net, number):
        return plain(net, number) if number % 2 else net(torch.randn(512, 32)).exp().mean()

    plans, limit_bytes = AtOnce("dtr"), room_for(either, 0.75)
    expected, *_ = follow(either, None, steps=24, limit_bytes=UNBOUNDED)
    losses, _, _, follower = follow(either, plans, steps=24, limit_bytes=limit_bytes)
    assert losses == expected
    assert len(plans.asked) == 2
    assert follower.num_followed >= 10


def test_where_there_is_no_plan_the_steps_go_on_as_they_come():
    limit_bytes = room_for(plain, 0.6)
    expected, *_ = follow(plain, None, steps=6, limit_bytes=UNBOUNDED)
    asked = []

    def none(graph, budget_bytes):
        asked.append(budget_bytes)
        return Now("a planner: there is none")

    losses, _, _, follower = follow(plain, none, steps=6, limit_bytes=limit_bytes)
    assert losses == expected
    assert asked == [limit_bytes]  # the same step is not asked for again
    assert follower.why == "a planner: there is none"


def chain():
    """a = first(x); b = second(a); c = third(b); the program lets go of a at once, and of b behind c."""
    made = GraphBuilder()
    x = made.constant("x", 8)
    (a,) = made.compute("first", 1, [x], [("a", 8, -1)])
    (b,) = made.compute("second", 1, [a], [("b", 8, -1)])
    made.release(a)
    (c,) = made.compute("third", 1, [b], [("c", 8, -1)])
    made.release(b)
    made.compute("last", 1, [a, c], [("d", 8, -1)]) if made.num_references(a) else made.compute(
        "last", 1, [c], [("d", 8, -1)]
    )
    return made.build()


def schedule_of(*steps):
    return Schedule(tuple(Step(Action.COMPUTE if kind == "do" else Action.FREE, target) for kind, target in steps))


def test_a_plan_says_what_is_done_before_each_operator():
    graph = chain()
    found = plan_of(
        ["1", "2", "3", "4"], graph,
        schedule_of(("do", 0), ("do", 1), ("do", 2), ("free", 2), ("do", 1), ("do", 2), ("do", 3), ("do", 4)), 0, 1.0,
    )  # fmt: skip
    memory = {name: Memory(place, 0) for place, name in enumerate("abcd")}
    made_again = [[act.operator for act in acts if act.evicted is None] for acts in found.acts]
    assert made_again == [[], [], [0, 1], [], []]
    assert Act(-1, memory["a"], is_last=True) in found.acts[2]
    assert found.held == {memory["a"]}  # made again where the program has let go of it already


def test_a_schedule_in_another_order_is_no_plan():
    with pytest.raises(GraphError, match="another order"):
        plan_of(["1", "2", "3", "4"], chain(), schedule_of(*(("do", number) for number in (0, 2, 1, 3, 4))), 0, 1.0)


def test_a_process_of_its_own_plans():
    graph = chain()
    planning = Planning(graph, 1000, "keep-all")
    found = next(answer for answer in (planning.answer() for _ in itertools.count()) if answer is not None)
    assert isinstance(found, Answer)
    assert found.overhead == 1.0
    assert [step.target for step in found.schedule.steps if step.action == Action.COMPUTE] == [0, 1, 2, 3, 4]
    too_small = Planning(graph, 1, "keep-all")
    why = next(answer for answer in (too_small.answer() for _ in itertools.count()) if answer is not None)
    assert "less than the floor" in why
    waiting = Planning(graph, 1000, "keep-all")
    waiting.end()
    waiting.end()  # ended once

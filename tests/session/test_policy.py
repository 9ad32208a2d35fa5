"""When a checkpoint is due, by hand-moved clocks."""

import itertools
import math
from collections.abc import Sequence

import pytest

from detrain.errors import UsageError
from detrain.loops.running import Loop, Site
from detrain.loops.stack import LoopStack
from detrain.session.pace import Pace, Paces
from detrain.session.policy import BUDGET, SHORTEST_S, YOUNG_BUDGET, Policy, parse


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [
        ("epoch", "epoch", 1), ("5epochs", "epoch", 5), ("100batches", "batch", 100), ("1batch", "batch", 1), ("30s", "seconds", 30),
        ("0.5s", "seconds", 0.5), ("epochs:3,6", "epochs", 1),
        ("auto", "auto", BUDGET), ("2%", "auto", 0.02), ("0.5%", "auto", 0.005), ("never", "never", BUDGET),
    ],
)  # fmt: skip
def test_words_for_when(text, kind, count):
    every = parse(text)
    assert (every.kind, every.count) == (kind, count)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "5",
        "s",
        "%",
        "0epochs",
        "0%",
        "1.5batches",
        "-1s",
        "5 epochs",
        "sometimes",
        "epochs:",
        "epochs:0",
        "epochs:3,",
    ],
)
def test_other_words_are_refused_and_named(text):
    with pytest.raises(UsageError, match=f"--every {text}: "):
        parse(text)


def live(every: str, *, stall_s: float, batch_s: float, until_s: float) -> list[float]:
    """Moments of the checkpoints of a training with one loop, each of which takes `stall_s`."""
    policy, now_s, batch, moments = Policy(parse(every), 0.0), 0.0, 0, []
    while now_s < until_s:
        if policy.is_due_at_batch(batch, now_s):
            now_s += stall_s
            moments.append(now_s)
            policy.on_saved(0, batch, now_s, stall_s)
        now_s += batch_s
        batch += 1
    return moments


def num_early(stall_s: float, share: float) -> float:
    """Checkpoints that an attempt takes beyond its budget while it is young: the interval doubles until it is as the budget has it."""
    return max(0.0, math.log2(stall_s / share / max(SHORTEST_S, stall_s / YOUNG_BUDGET))) + 1


@pytest.mark.parametrize("batch_s", [0.001, 0.3, 7.0])
@pytest.mark.parametrize("stall_s", [0.0001, 0.01, 0.2, 5.0, 30.0])
@pytest.mark.parametrize(("every", "share"), [("auto", 0.01), ("5%", 0.05), ("0.2%", 0.002)])
def test_auto_costs_no_more_than_its_budget_and_leaves_no_more_work_than_it_says(every, share, stall_s, batch_s):
    until_s = 40 * max(SHORTEST_S, stall_s / share, batch_s)
    batch_s = max(batch_s, until_s / 50_000)  # else the test would take minutes
    moments = live(every, stall_s=stall_s, batch_s=batch_s, until_s=until_s)
    # Two have to be taken before anybody knows what one costs: the first also loads modules and allocates memory.
    assert len(moments) >= 4
    assert (len(moments) - 2 - num_early(stall_s, share)) * stall_s <= share * (moments[-1] - moments[1])
    longest_s = max(later - earlier for earlier, later in itertools.pairwise(moments))
    # The interval that is on record, and what cannot be interrupted.
    assert longest_s <= max(SHORTEST_S, stall_s / share) + 2 * (stall_s + batch_s)


def test_auto_goes_by_what_the_last_ones_cost_but_not_the_first():
    policy = Policy(parse("auto"), 0.0)
    assert policy.chosen_s == SHORTEST_S
    policy.on_saved(0, 1, SHORTEST_S + 4, 4)
    assert policy.chosen_s == SHORTEST_S + 4
    for cost_s, interval_s in ((0.001, SHORTEST_S), (0.1, 5.05), (4, 10), (7, 400), (0.05, 400)):
        policy.on_saved(0, 1, 1000.0, cost_s)
        assert policy.chosen_s == pytest.approx(interval_s)


def test_auto_goes_by_what_the_killed_attempt_knew():
    policy = Policy(parse("auto"), 0.0)
    policy.on_resumed(0, 1, 100.0, 0.1)
    policy.on_saved(0, 1, 200.0, 5.0)
    assert policy.chosen_s == pytest.approx(10)


@pytest.mark.parametrize("cost_s", [0.0, 0.3, 5.0])
@pytest.mark.parametrize("every_s", [30.0, 100.0, 600.0])
def test_a_run_that_is_killed_again_and_again_comes_to_its_end(every_s, cost_s):
    batch, batch_s, done = 0, 0.1, []
    for _ in range(5):
        policy, now_s, saved = Policy(parse("auto"), 0.0), 0.0, batch
        if done:
            policy.on_resumed(0, batch, now_s, cost_s)
        while now_s < every_s:
            if policy.is_due_at_batch(batch, now_s):
                now_s += cost_s
                policy.on_saved(0, batch, now_s, cost_s)
                saved = batch
            now_s, batch = now_s + batch_s, batch + 1
        done.append((saved - (done[-1][0] if done else 0), saved))
        batch = saved
    # Half of the time at least, but for what a checkpoint costs, which itself is waited for.
    assert min(of_attempt for of_attempt, _ in done) * batch_s >= every_s / 2 - 2 * cost_s / YOUNG_BUDGET
    assert min(of_attempt for of_attempt, _ in done) > 0


@pytest.mark.parametrize("cost_s", [0.01, 0.3, 5.0])
def test_an_attempt_that_goes_on_takes_its_first_checkpoint_soon(cost_s):
    policy = Policy(parse("auto"), 0.0)
    policy.on_resumed(3, 40, 1000.0, cost_s)
    assert policy.is_due_at_batch(41, 1000.0 + max(SHORTEST_S, cost_s / YOUNG_BUDGET))
    assert not policy.is_due_at_batch(41, 1000.0 + SHORTEST_S / 2)


def live_in_epochs(every: str, epochs: Sequence[int], *, stall_s: float, batch_s: float) -> tuple[list[int], float]:
    """Batches that a resume from each checkpoint inside an epoch would run again, and the time that the training waited."""
    policy, now_s, batch, again, paces = Policy(parse(every), 0.0), 0.0, 0, [], Paces()
    stack = LoopStack({})
    epoch_loop = Loop(stack, None, Site("train.py", 1, 9, "epoch"), None, [0], 0)
    batch_loop = Loop(stack, None, Site("train.py", 2, 8, "batch"), epoch_loop, [0, 0], 0)
    waited_s, marked_at = 0.0, 0

    def wait() -> None:
        nonlocal now_s, waited_s
        now_s, waited_s = now_s + stall_s, waited_s + stall_s

    for number, num_batches in enumerate(epochs):
        epoch_loop.iteration += 1
        pace = paces.at_header(epoch_loop, now_s, batch)
        is_due = policy.is_due_at_epoch(number, batch, now_s, pace, is_near=epoch_loop.is_near)
        if number > 0 and (is_due or policy.holds_beginning(batch, now_s, pace)):
            wait()
            policy.on_saved(number, batch, now_s, stall_s) if is_due else policy.on_held(stall_s)
            epoch_loop.mark("epoch")
            marked_at = batch
        began_at = batch
        for _ in range(num_batches):
            if policy.is_due_at_batch(batch, now_s, is_near=batch_loop.is_near):
                wait()
                policy.on_saved(number + 1, batch, now_s, stall_s)
                again.append(0 if batch_loop.is_near else began_at - marked_at)
            now_s, batch = now_s + batch_s, batch + 1
    return again, waited_s / now_s


@pytest.mark.parametrize("every", ["auto", "0.2%", "10s", "7batches", "2epochs"])
@pytest.mark.parametrize("stall_s", [0.001, 0.05, 1.0])
@pytest.mark.parametrize(
    "epochs", [[10] * 400, [1000] * 6, [1] * 3000, [3, 2000, 3, 2000], [2**n for n in range(12)]], ids=len
)
def test_a_checkpoint_in_an_epoch_comes_with_one_at_its_beginning(every, stall_s, epochs):
    again, share = live_in_epochs(every, epochs, stall_s=stall_s, batch_s=0.1)
    assert again.count(0) >= 0.8 * len(again), again
    if every in ("auto", "0.2%") and sum(epochs) * 0.1 > 100 * stall_s:
        num_more = 6 + num_early(stall_s, parse(every).count)
        assert share <= parse(every).count + num_more * stall_s / (sum(epochs) * 0.1)


@pytest.mark.parametrize("every", ["auto", "100batches", "epoch", "30s"])
def test_a_loop_that_begins_again_and_again_in_a_long_first_iteration_costs_no_more_than_the_budget(every):
    policy, now_s, stall_s = Policy(parse(every), 0.0), 0.0, 0.05
    for batch in range(5000):
        now_s += 0.02
        if policy.holds_beginning(batch, now_s, Pace()):
            policy.on_held(stall_s)
            now_s += stall_s
    assert now_s - 5000 * 0.02 <= 9 * stall_s + BUDGET * now_s


@pytest.mark.parametrize("every", ["epoch", "3batches", "30s", "never"])
def test_who_counts_chooses_for_himself(every):
    policy = Policy(parse(every), 0.0)
    policy.on_saved(0, 1, 100.0, 5.0)
    assert policy.chosen_s == 0

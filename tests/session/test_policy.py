"""When a checkpoint is due, by hand-moved clocks."""

import itertools

import pytest

from detrain.errors import UsageError
from detrain.session.policy import BUDGET, SHORTEST_S, Policy, parse


@pytest.mark.parametrize(
    ("text", "kind", "count"),
    [
        ("epoch", "epoch", 1), ("5epochs", "epoch", 5), ("100batches", "batch", 100), ("1batch", "batch", 1), ("30s", "seconds", 30),
        ("0.5s", "seconds", 0.5), ("auto", "auto", BUDGET), ("2%", "auto", 0.02), ("0.5%", "auto", 0.005), ("never", "never", BUDGET),
    ],
)  # fmt: skip
def test_words_for_when(text, kind, count):
    every = parse(text)
    assert (every.kind, every.count) == (kind, count)


@pytest.mark.parametrize("text", ["", "5", "s", "%", "0epochs", "0%", "1.5batches", "-1s", "5 epochs", "sometimes"])
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


@pytest.mark.parametrize("batch_s", [0.001, 0.3, 7.0])
@pytest.mark.parametrize("stall_s", [0.0001, 0.01, 0.2, 5.0, 30.0])
@pytest.mark.parametrize(("every", "share"), [("auto", 0.01), ("5%", 0.05), ("0.2%", 0.002)])
def test_auto_costs_no_more_than_its_budget_and_leaves_no_more_work_than_it_says(every, share, stall_s, batch_s):
    until_s = 40 * max(SHORTEST_S, stall_s / share, batch_s)
    batch_s = max(batch_s, until_s / 50_000)  # else the test would take minutes
    moments = live(every, stall_s=stall_s, batch_s=batch_s, until_s=until_s)
    # The first has to be taken before anybody knows what one costs.
    assert len(moments) >= 3
    assert (len(moments) - 1) * stall_s <= share * (moments[-1] - moments[0])
    longest_s = max(later - earlier for earlier, later in itertools.pairwise(moments))
    # The interval that is on record, and what cannot be interrupted.
    assert longest_s <= max(SHORTEST_S, stall_s / share) + stall_s + 2 * batch_s


def test_auto_goes_by_what_the_last_one_cost():
    policy = Policy(parse("auto"), 0.0)
    assert policy.chosen_s == SHORTEST_S
    for cost_s, interval_s in ((0.001, SHORTEST_S), (0.1, 10), (4, 400), (7, 700), (0.05, 5)):
        policy.on_saved(0, 1, 100.0, cost_s)
        assert policy.chosen_s == pytest.approx(interval_s)


@pytest.mark.parametrize("every", ["epoch", "3batches", "30s", "never"])
def test_who_counts_chooses_for_himself(every):
    policy = Policy(parse(every), 0.0)
    policy.on_saved(0, 1, 100.0, 5.0)
    assert policy.chosen_s == 0

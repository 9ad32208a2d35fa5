"""Policies that go by rank 0's clock say yes at the same headers, whatever each rank's own clock does."""

import threading
import time

import pytest

from detrain.job import agreement
from detrain.job.agreement import Follower, Leader
from detrain.job.messages import Ask, Saved, Tick
from detrain.job.protocol import Alone
from detrain.session.policy import Policy, parse


class Pair:
    """Rank 0 and another, each with its policy; what rank 0 tells reaches the other at once."""

    def __init__(self, every="1s"):
        self.clock_s = 100.0
        self.policies = [Policy(parse(every), 0.0), Policy(parse(every), 0.0)]
        self.out, self.told, self.is_busy = [], [], False
        self.leader = Leader(self.tell, self.policies[0].request, lambda: self.is_busy, lambda: self.clock_s)
        self.follower = Follower(self.ask, self.policies[1].request, self.out.append, lambda: None)

    def tell(self, message):
        self.told.append(message)
        self.follower.on_message(message)

    def ask(self, message):
        assert isinstance(message, Ask)
        self.leader.ask(is_last=message.is_last)

    def header(self, number, batch_s):
        """Rank 0 passes the header, then the other; returns which of them save there."""
        self.clock_s += batch_s
        due = []
        for end, policy in ((self.leader, self.policies[0]), (self.follower, self.policies[1])):
            now_s = end.now_s(number)
            if number == 0:
                policy.begin(now_s)
            due.append(policy.is_due_at_batch(number, now_s))
            if due[-1]:
                now_s, cost_s = end.saved(f"c{number}", 0.01 if end is self.leader else 7.0)
                policy.on_saved(0, number, now_s, cost_s)
        return due


@pytest.mark.parametrize("batch_s", [0.0001, 0.004, 0.3, 2.5])
def test_all_save_at_the_same_headers(batch_s):
    pair = Pair()
    due = [pair.header(number, batch_s) for number in range(3000)]
    assert all(one == other for one, other in due)
    assert any(one for one, _ in due) == (3000 * batch_s > 1)
    assert pair.policies[0].interval_s == pair.policies[1].interval_s
    assert not pair.out


@pytest.mark.parametrize("to", [1, 2, 40, 100_000])
@pytest.mark.parametrize("num_before", [1, 3])
def test_behind_a_resume_all_save_as_soon_as_it_is_due(to, num_before):
    pair = Pair("1s")
    for number in range(num_before):
        assert pair.header(number, 0.001) == [False, False]
    pair.clock_s += 30.0  # what the restore takes
    for end, policy in ((pair.leader, pair.policies[0]), (pair.follower, pair.policies[1])):
        end.jump()
        policy.on_resumed(3, to, end.now_s(to), 0.1)
    due = [pair.header(to + number, 0.1) for number in range(60)]
    assert all(one == other for one, other in due)
    first = next(number for number, (one, _) in enumerate(due) if one)
    assert 1.0 <= 0.1 * (first + 1) <= 1.3  # it is heard of one tick later
    assert not pair.out


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_what_is_asked_for_before_a_resume_has_come_to_its_checkpoint_is_done_behind_it(who):
    pair = Pair("never")
    pair.header(0, 0.1)
    getattr(pair, who).ask()
    pair.header(1, 0.1)
    pair.leader.jump()
    pair.follower.jump()
    due = [pair.header(number, 0.1) for number in range(500, 510)]
    assert due.count([True, True]) == 1
    assert all(one == other for one, other in due)


def test_a_rank_that_does_not_come_to_rank_0s_checkpoint_is_out_of_step():
    pair = Pair("never")
    pair.header(0, 0.1)
    pair.leader.jump()
    pair.leader.now_s(7)
    for number in range(4):
        pair.follower.now_s(number)
    assert pair.out == ["rank 0 has come to a checkpoint, this rank not, at header 2"]


def test_rank_0_publishes_about_every_period_and_at_each_header_of_a_slow_loop():
    quick, slow = Pair("never"), Pair("never")
    for number in range(4000):
        quick.header(number, 0.0001)
    for number in range(50):
        slow.header(number, 1.0)
    assert 4000 / agreement.MOST_HEADERS <= len(quick.told) <= 40
    assert 50 <= len(slow.told) <= 52


def test_batches_that_become_slow_are_not_decided_on_far_ahead():
    pair = Pair("30s")
    for number in range(100_000):
        pair.header(number, 0.000002)
    due = [pair.header(number, 1.0)[0] for number in range(100_000, 101_200)]
    assert any(due[: 2 * agreement.MOST_HEADERS + 2])
    assert 5 <= sum(due) <= 40


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_one_rank_is_asked_and_all_save(who):
    pair = Pair("never")
    for number in range(10):
        assert pair.header(number, 0.5) == [False, False]
    getattr(pair, who).ask()
    due = [pair.header(number, 0.5) for number in range(10, 16)]
    assert [one for one, _ in due] == [other for _, other in due]
    assert sum(one for one, _ in due) == 1


def test_auto_goes_by_the_costs_of_rank_0():
    pair = Pair("auto")
    for number in range(200):
        due = pair.header(number, 0.1)
        assert due[0] == due[1]
    assert pair.policies[1].cost_s == 0.01


def test_whether_one_is_being_written_is_what_rank_0_has_published():
    pair = Pair()
    pair.header(0, 1.0)
    pair.is_busy = True
    for number in (1, 2):
        pair.header(number, 1.0)
    assert pair.leader.is_writing(False)
    assert pair.follower.is_writing(False)


def test_a_rank_waits_for_rank_0():
    follower = Follower(lambda _: None, lambda _: None, lambda _: None, lambda: None)
    threading.Timer(0.05, follower.on_message, [Tick(0, 5, 3.0)]).start()
    assert follower.now_s(0) == 3.0
    assert [follower.now_s(header) for header in (1, 2, 3, 4)] == [3.0] * 4


@pytest.mark.parametrize(
    ("ticks", "why"),
    [
        ([Tick(7, 8, 1.0)], "rank 0 is at header 7, this rank at 0"),
        ([], "rank 0 has told nothing for header 0"),
    ],
)
def test_a_rank_out_of_step_goes_on_without_cuts(ticks, why, monkeypatch):
    out = []
    follower = Follower(lambda _: None, lambda _: None, out.append, lambda: None)
    for tick in ticks:
        follower.on_message(tick)
    if not ticks:
        follower.on_first_ended()
    follower.now_s(0)
    assert out == [why]
    assert follower.is_out
    assert follower.until == float("inf")
    follower.now_s(10**9)
    assert out == [why]


def test_another_checkpoint_than_rank_0s_is_out_of_step():
    out = []
    follower = Follower(lambda _: None, lambda _: None, out.append, lambda: None)
    follower.on_message(Tick(0, 9, 1.0))
    follower.now_s(0)
    follower.on_message(Saved("a", 2.0, 0.1))
    follower.saved("b", 0.2)
    assert out == ["rank 0 has saved a, this rank b"]


def test_headers_may_be_far_apart():
    pair = Pair()
    for number in (0, 5, 6, 4000, 4001, 90000):
        due = pair.header(number, 0.4)
        assert due[0] == due[1]
    assert not pair.out
    assert pair.leader.until == pair.follower.until


def test_ranks_that_leave_agree_on_nothing_more_and_wait_for_nobody():
    pair = Pair("1batches")
    for number in range(5):
        assert pair.header(number, 0.1) == ([True, True] if number else [False, False])
    pair.tell = lambda message: pair.told.append(message)
    pair.leader.leave()
    pair.follower.leave()
    pair.follower.on_first_ended()
    assert pair.leader.is_out
    assert pair.follower.is_out
    assert pair.leader.until == pair.follower.until == float("inf")
    pair.follower.now_s(400)  # whatever rank 0 does meanwhile
    assert pair.follower.saved("x", 0.25)[1] == 0.25
    assert pair.out == []
    assert pair.leader.now_s(7) == pair.clock_s


@pytest.mark.parametrize("who", ["leader", "follower"])
def test_behind_a_last_checkpoint_all_end(who):
    pair = Pair("never")
    for number in range(10):
        pair.header(number, 0.5)
    getattr(pair, who).ask(is_last=True)
    ends = []
    for number in range(10, 20):
        due = pair.header(number, 0.5)
        ends.append((*due, pair.leader.is_last, pair.follower.is_last))
    assert [True] * 4 in map(list, ends)
    assert all(
        due == last for due, _, last, _ in ends[:-1] if due
    )  # nobody saves who does not know that it is the last
    assert all(one == other and one_ends == other_ends for one, other, one_ends, other_ends in ends)


def test_all_end_at_the_time_limit_of_rank_0():
    pair = Pair("never")
    pair.leader._limit_s = 105.0
    ends = [(*pair.header(number, 0.5), pair.leader.is_last, pair.follower.is_last) for number in range(30)]
    first = ends.index((True, True, True, True))
    assert ends[:first] == [(False,) * 4] * first
    assert 9 <= first <= 13


def test_a_process_that_trains_alone_ends_at_its_time_limit(monkeypatch):
    now_s, asked = [10.0], []
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    alone = Alone(asked.append, 12.0)
    assert (alone.now_s(0), alone.is_last, asked) == (10.0, False, [])
    now_s[0] = 12.5
    assert (alone.now_s(1), alone.now_s(2), alone.is_last, asked) == (12.5, 12.5, True, [12.5])

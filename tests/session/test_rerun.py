"""Which part of a run an attempt is to do again, and where it stops."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from detrain.adapters.protocol import MemoryUse
from detrain.errors import NotSupported
from detrain.remat import graphfile
from detrain.remat.graph import GraphBuilder
from detrain.session import rerun
from detrain.session.goal import Goal
from detrain.session.recorder import position_of
from detrain.session.rerun import REPORT, Rerun
from detrain.store.meta import LoopPosition


class Left(BaseException):
    """The process would have ended here."""


@pytest.fixture(autouse=True)
def stays(monkeypatch):
    def leave(files, status):
        raise Left(status)

    monkeypatch.setattr(rerun, "leave", leave)


@pytest.fixture
def context(tmp_path):
    calls = ["add", "mul"]
    log = SimpleNamespace(stop=lambda: calls)
    return SimpleNamespace(
        directory=SimpleNamespace(path=tmp_path),
        files=None,
        position=SimpleNamespace(batches=0),
        frameworks=SimpleNamespace(log_operators=lambda is_user_file: log),
        is_user_file=lambda name: True,
    )


def at(iteration, *, is_exhausted=False):
    """A header of a single loop."""
    loop = SimpleNamespace(ordinal=0, iteration=iteration, is_exhausted=is_exhausted)
    loop.nest = [loop]
    return loop


def left(context):
    return json.loads((context.directory.path / REPORT).read_text())


@pytest.mark.parametrize(
    "goal",
    [
        Goal(),
        Goal(is_whole=True, reports_arrivals=True),
        Goal(position=[LoopPosition("train.py", 3, 0, 1), LoopPosition("train.py", 4, 1, 2)], is_exhausted=True),
        Goal(num_steps=5),
        Goal(operators=(None, (3, 4))),
        Goal(operators=((1, 2), (3, 4))),
    ],
)
def test_a_goal_reads_back_from_its_json(goal):
    assert Goal.decode(json.loads(json.dumps(goal.encode()))) == goal


def test_without_a_goal_the_attempt_stops_where_the_ledger_does(context):
    attempt = Rerun(context, Goal())
    attempt.begin(SimpleNamespace(has_expectations=True, num_compared=4))
    attempt.at_header(at(2))
    attempt.begin(SimpleNamespace(has_expectations=False, num_compared=5))
    with pytest.raises(Left):
        attempt.at_header(at(3))
    assert left(context) == {"num_compared": 5, "difference": None, "is_stopped": True}


def test_the_first_difference_is_reported_and_ends_the_attempt(context):
    attempt = Rerun(context, Goal())
    with pytest.raises(Left):
        attempt.differs(SimpleNamespace(batches=7, epochs=2, batch_in_epoch=3), "model.weight")
    assert left(context)["difference"] == {"batches": 7, "epoch": 1, "batch": 3, "leaf": "model.weight"}


def test_operators_are_recorded_from_one_header_to_another(context):
    first, end = at(1), at(3)
    attempt = Rerun(context, Goal(operators=((10, position_of(first)), (12, position_of(end)))))
    attempt.differs(SimpleNamespace(batches=9, epochs=1, batch_in_epoch=0), "lr")  # the operators tell more: it goes on
    context.position.batches = 9
    attempt.at_header(at(0))
    context.position.batches = 10
    attempt.at_header(first)
    context.position.batches = 11
    attempt.at_header(at(2))
    context.position.batches = 12
    with pytest.raises(Left):
        attempt.at_header(end)
    assert left(context)["operators"] == ["add", "mul"]
    assert left(context)["difference"]["leaf"] == "lr"


def test_operators_are_recorded_no_further_than_the_batch_where_they_should_end(context):
    attempt = Rerun(context, Goal(operators=(None, (1, position_of(at(1))))))
    attempt.at_header(at(0))
    context.position.batches = 2  # another way was taken: the header that was to be the last is not met
    with pytest.raises(Left):
        attempt.at_header(at(9))
    assert left(context)["operators"] == ["add", "mul"]


def test_a_framework_that_cannot_log_its_operators_ends_the_attempt(context, monkeypatch):
    def refuse(is_user_file):
        raise NotSupported("framework", "a record of its operators")

    def fail(files, error):
        raise Left(str(error))

    monkeypatch.setattr(rerun, "fail", fail)
    context.frameworks.log_operators = refuse
    with pytest.raises(Left, match="a record of its operators"):
        Rerun(context, Goal(operators=(None, (3, 4)))).at_header(at(0))


def test_what_the_set_up_has_made_is_reported_for_each_checkpoint_on_the_way(context):
    attempt = Rerun(context, replace(Goal(), reports_arrivals=True))
    assert attempt.reports_arrivals
    attempt.arrived("checkpoint_1_0.h5", {"a": 1}, is_last=False)
    with pytest.raises(Left):
        attempt.arrived("checkpoint_2_0.h5", {"a": 2}, is_last=True)
    assert left(context)["arrivals"] == {"checkpoint_1_0.h5": {"a": 1}, "checkpoint_2_0.h5": {"a": 2}}


class Steps:
    """Records nothing, and counts."""

    def __init__(self):
        self.num_begun = 0

    def begin_step(self):
        self.num_begun += 1

    def end(self):
        builder = GraphBuilder()
        for number in range(self.num_begun):
            builder.compute("step", 1, [], [(f"t{number}", 4, -1)])
        return builder.build()


def test_so_many_batches_are_recorded_from_the_first_header_on(context):
    context.frameworks.record_steps = Steps
    one = Rerun(context, Goal(num_steps=3))
    context.position.batches = 7  # of loops that trained before
    for batches in range(7, 10):
        context.position.batches = batches
        one.at_header(at(batches))
    context.position.batches = 10
    with pytest.raises(Left):
        one.at_header(at(10))
    assert len(graphfile.decode(left(context)["graph"]).operators) == 3


def test_a_script_that_ends_before_has_left_what_it_did(context):
    context.frameworks.record_steps = Steps
    one = Rerun(context, Goal(num_steps=3))
    one.at_header(at(0))
    one.at_end()
    found = left(context)
    assert len(graphfile.decode(found["graph"]).operators) == 1
    assert not found["is_stopped"]


class Budget:
    """Evicts from the first batch on, and has a plan from the fifth on."""

    def __init__(self, context):
        self._context = context

    def use(self):
        return MemoryUse(
            100, 90, num_evictions=1, num_again=1, again_s=0.0, num_planned=int(self._context.position.batches > 5)
        )


@pytest.mark.parametrize(("most_planning_s", "first"), [(0.0, 2), (60.0, 6)])
def test_batches_are_timed_behind_others_and_behind_the_first_that_follows_a_plan(context, most_planning_s, first):
    one = Rerun(context, Goal(num_timed=3, num_before=2, most_planning_s=most_planning_s))
    for batches in range(first + 3):
        context.position.batches = batches
        one.at_header(at(batches), Budget(context))
    context.position.batches = first + 3
    with pytest.raises(Left):
        one.at_header(at(first + 3), Budget(context))
    found = left(context)
    assert len(found["batches_s"]) == 3
    assert found["memory"]["budget_bytes"] == 100

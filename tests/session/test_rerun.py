"""Which part of a run an attempt is to do again, and where it stops."""

import json
from dataclasses import replace
from types import SimpleNamespace

import pytest

from detrain.errors import NotSupported
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

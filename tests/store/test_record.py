"""`run.json` and a checkpoint's `/meta` as typed objects: what is written is read again, and what an earlier detrain wrote as well."""

import json

import pytest

from detrain.errors import CheckpointError
from detrain.launch.request import Request
from detrain.session.goal import Goal
from detrain.store.meta import LoopPosition, Meta
from detrain.store.record import Change, Command, Invocation, RunRecord
from detrain.world.machine import Machine

CHANGE = Change(Invocation(("--lr", "1"), 0), Invocation(("--lr", "2"), 3), "conflicts")
RECORD = RunRecord(
    "/w/train.py", "train", Command("train.py", "", True, False, ("-O",)), ["--lr", "2"], "/w", 3, "key", "30s", "now", 7, 2,
    Machine("AMD", ["avx"], 4, 2, {"OMP_NUM_THREADS": "1"}), True, True, False, 5, [CHANGE],
)  # fmt: skip
META = Meta(
    3, [LoopPosition("/w/train.py", 3, 0, 2)], True, ["checkpoint_0_0.h5"], [["train", "<module>", 1]], ["helper"], 2, 0, 2, 20, 0,
    0.5, {"python": "3"}, {"torch": {"threads": 1}}, [1, 2], [3], [4], "/w", 9, 6, ["--lr", "2"], 3, {"/w/train.py": "ab"},
)  # fmt: skip


def test_a_record_is_read_as_it_was_written():
    assert RunRecord.decode(json.loads(RECORD.dumps())) == RECORD


def test_a_record_that_an_earlier_detrain_wrote_has_the_defaults_of_then():
    record = RunRecord.decode({"script": "/w/train.py", "arguments": [], "seed": 0, "attempts": 3})
    assert (record.command, record.entropy, record.machine, record.process) == (None, None, None, None)
    assert record.only_known is False  # every loop carried hooks
    assert not {"command", "entropy", "machine", "process"} & record.encode().keys()


def test_what_a_later_detrain_wrote_into_a_record_is_passed_over():
    assert RunRecord.decode({**RECORD.encode(), "ranks": 4}) == RECORD


@pytest.mark.parametrize("wrong", [{"machine": "fast"}, {"machine": {"speed": 1}}, {"changes": [1]}, {"command": 3}])
def test_a_record_of_something_else_is_refused(wrong):
    with pytest.raises(CheckpointError, match="holds no record of a run"):
        RunRecord.decode({**RECORD.encode(), **wrong})


def test_a_record_takes_other_arguments():
    other = RECORD.with_invocation(CHANGE.old)
    assert (other.arguments, other.seed, other.invocation) == (["--lr", "1"], 0, CHANGE.old)
    assert RECORD.invocation == CHANGE.new


def test_meta_is_read_as_it_was_written():
    assert Meta.decode(json.loads(json.dumps(META.encode()))) == META


@pytest.mark.parametrize(
    "document", [{}, {"sequence": "1", "chain": []}, {"sequence": 1}, {"sequence": 1, "chain": {}}]
)
def test_meta_without_its_place_in_the_run_is_refused(document):
    with pytest.raises(ValueError, match="sequence"):
        Meta.decode(document)


def test_a_request_arrives_as_it_was_sent():
    goal = Goal([LoopPosition("/w/train.py", 3, 0, 2)], True, (None, (4, 77)), False, True)
    request = Request(
        "train.py", "", ["--lr", "2"], "train", "/w/run", seed=3, machine=RECORD.machine, changes=[CHANGE], goal=goal
    )
    assert Request.decode(request.encode()) == request
    assert request.invocation == CHANGE.new

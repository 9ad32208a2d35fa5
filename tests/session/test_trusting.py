"""Decisions about other arguments, without a process."""

import json

import pytest

from detrain.errors import ResumeRefused
from detrain.launch.request import Request
from detrain.proof import probing
from detrain.proof.sandbox import NoSandbox
from detrain.proof.worker import Order
from detrain.session.trusting import Trusting
from detrain.state.tree import Tree
from detrain.store.commit import commit
from detrain.store.directory import RunDirectory
from detrain.store.meta import LoopPosition, Meta
from detrain.store.record import Change, Invocation, RunRecord
from detrain.store.sides import Side

OLD, NEW, OTHER = ["--lr", "1"], ["--lr", "2"], ["--lr", "3"]


def invocation(arguments):
    return Invocation(tuple(arguments), 0)


class Flags:
    def __init__(self, **flags):
        self.values = flags

    def flags(self):
        return {"torch": self.values}


@pytest.fixture
def directory(tmp_path):
    """A run of two checkpoints, of which one leads to the other."""
    found = RunDirectory(tmp_path)
    found.write_record(RunRecord(arguments=OLD))
    return found


def save(directory, number, arguments, chain=()):
    meta = Meta(
        number, [LoopPosition("t", 1, 0, number)], chain=list(chain), arguments=arguments, flags={"torch": {"threads": 1}}, folder="/",
    )  # fmt: skip
    tree = Tree([], [], {"lr": int(arguments[1]), "n": number})
    return commit(directory.checkpoint_path(number, 0), tree, meta)


def request_of(directory, arguments, **options):
    return Request("train.py", "", arguments, "train", str(directory.path), **{"trust_changes": True, **options})


@pytest.fixture
def probed(monkeypatch):
    """What was done again, by arguments and checkpoint; and what was known of others by then."""
    orders = []

    def carry_out(order):
        orders.append((order.record.arguments, order.start, sorted(order.olds)))
        return {"arrivals": {name: {"of": order.record.arguments} for name in order.checkpoints}}

    monkeypatch.setattr(Order, "carry_out", carry_out)
    return orders


def test_nothing_is_done_again_where_arguments_are_the_same(directory, probed):
    save(directory, 1, OLD)
    request = request_of(directory, OLD)
    probing.prepare(request)
    assert (probed, request.olds) == ([], None)


def test_a_chain_of_one_way_is_done_again_once(directory, probed):
    save(directory, 1, OLD)
    save(directory, 2, OLD, ["checkpoint_1_0.h5"])
    request = request_of(directory, NEW)
    probing.prepare(request)
    assert probed == [(OLD, "checkpoint_2_0.h5", [])]
    with open(request.olds, encoding="utf-8") as file:
        assert sorted(json.load(file)) == ["checkpoint_1_0.h5", "checkpoint_2_0.h5"]


def test_a_way_that_took_over_another_is_done_again_with_what_that_one_made(directory, probed):
    directory.write_record(RunRecord(arguments=NEW, changes=[Change(invocation(OLD), invocation(NEW), "")]))
    save(directory, 1, OLD)
    save(directory, 2, NEW, ["checkpoint_1_0.h5"])
    probing.prepare(request_of(directory, OTHER))
    assert probed == [(OLD, "checkpoint_1_0.h5", []), (NEW, "checkpoint_2_0.h5", ["checkpoint_1_0.h5"])]
    probed.clear()
    probing.prepare(
        request_of(directory, NEW, trust_changes=False)
    )  # the same command as before comes by the first one as well
    assert probed == [(OLD, "checkpoint_1_0.h5", [])]


def test_without_a_sandbox_it_is_refused_unless_the_checkpoint_may_win(directory, monkeypatch, capfd):
    save(directory, 1, OLD)

    def refuse(order):
        raise NoSandbox("no namespaces here")

    monkeypatch.setattr(Order, "carry_out", refuse)
    with pytest.raises(
        ResumeRefused, match=r"made of the old arguments cannot be told here: no namespaces here\..* --keep-trained"
    ):
        probing.prepare(request_of(directory, NEW))
    request = request_of(directory, NEW, keep_trained=True)
    probing.prepare(request)
    assert request.changes[-1] == Change(invocation(OLD), invocation(NEW), "everything")
    assert "[arguments-ignored]" in capfd.readouterr().err


def taken_over(directory, old_roots, new_roots, keeps="", flags=None):
    from detrain.session.trusting import Beside
    from detrain.store.checkpoint import load

    checkpoint, tree = load(save(directory, 1, OLD).path)
    beside = Beside(checkpoint.meta, Flags(**(flags or {"threads": 1})))
    old = Side.of(Tree([], [], {**old_roots, **beside.saved})).encode()
    trusting = Trusting(invocation(NEW), [Change(invocation(OLD), invocation(NEW), keeps)], {checkpoint.name: old})
    merged = trusting.merge(checkpoint, tree, Tree([], [], new_roots), beside)
    return merged.roots, beside


def test_switches_of_frameworks_follow_as_well(directory):
    roots, beside = taken_over(directory, {"lr": 1, "n": 0}, {"lr": 2, "n": 0}, flags={"threads": 4})
    assert roots == {"lr": 2, "n": 1}
    assert beside.flags == {"torch": {"threads": 4}}


def test_conflicts_are_refused_and_kept_by_the_second_flag(directory):
    with pytest.raises(
        ResumeRefused, match="n: the old arguments made 0, the loop has changed it to 1, the new ones make 7"
    ):
        taken_over(directory, {"lr": 1, "n": 0}, {"lr": 2, "n": 7})
    assert taken_over(directory, {"lr": 1, "n": 0}, {"lr": 2, "n": 7}, "conflicts")[0] == {"lr": 2, "n": 1}


def test_a_thousand_conflicts_make_a_short_message(directory):
    many = {f"w{number}": number for number in range(1000)}
    with pytest.raises(ResumeRefused) as caught:
        taken_over(directory, {**many, "lr": 1, "n": 0}, {**dict.fromkeys(many, -1), "lr": 2, "n": 0})
    assert len(str(caught.value)) < 2000
    assert "… and 990 more" in str(caught.value)

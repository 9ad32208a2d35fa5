"""What a run takes over when it goes on with other arguments: old, saved and new state, merged leaf by leaf."""

import argparse
import copy
import itertools
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import detrain.adapters.numpy
import detrain.adapters.torch
import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
from detrain.state.restore import Origins, Restore
from detrain.state.tree import Tree
from detrain.state.walk import Walk
from detrain.store.merge import merge
from detrain.store.sides import Side


def walk_of(roots):
    walk = Walk()
    for name, value in roots.items():
        walk.root(name, value)
    return walk.run()


def merged(old, saved, new):
    """The new roots, brought to the merge of the three; what followed, and what is in conflict."""
    side = Side.decode(json.loads(json.dumps(Side.of(walk_of(old).tree).encode())))
    live = walk_of(new)
    result = merge(side, walk_of(saved).tree, live.tree)
    json.dumps([result.tree.nodes, result.tree.roots])
    restored = Restore(result.tree, live, Origins(live)).run(new)
    return restored, {one.path: (one.old, one.new) for one in result.followed}, [one.path for one in result.conflicts]


def arguments(**values):
    return argparse.Namespace(**{"lr": 0.01, "epochs": 12, **values})


class Meter:
    def __init__(self, size=1):
        self.size, self.total, self.values = size, 0, []


def table():
    """Name, old, saved, new, what comes out, what followed, what is in conflict."""
    yield "nothing differs", {"a": 1}, {"a": 2}, {"a": 1}, {"a": 2}, [], []
    yield "the loop has not changed it", {"a": 1}, {"a": 1}, {"a": 3}, {"a": 3}, ["a"], []
    yield "both have changed it", {"a": 1}, {"a": 2}, {"a": 3}, {"a": 2}, [], ["a"]
    yield "both have changed it alike", {"a": 1}, {"a": 3}, {"a": 3}, {"a": 3}, [], []
    yield "by type", {"a": 1}, {"a": 1}, {"a": 1.0}, {"a": 1.0}, ["a"], []
    yield "by bits", {"a": 0.0}, {"a": 0.0}, {"a": -0.0}, {"a": -0.0}, ["a"], []
    yield "not a number", {"a": float("inf")}, {"a": float("inf")}, {"a": 2.0}, {"a": 2.0}, ["a"], []
    yield "variables of the loop stay", {}, {"a": 2}, {}, {"a": 2}, [], []
    yield "a variable more", {}, {}, {"a": [1]}, {"a": [1]}, ["a"], []
    yield "a variable less", {"a": [1]}, {"a": [1]}, {}, {}, ["a"], []
    yield "a variable less that the loop has changed", {"a": [1]}, {"a": [2]}, {}, {"a": [2]}, [], ["a"]
    yield "a longer list", {"a": [64, 64]}, {"a": [64, 64]}, {"a": [64, 64, 32]}, {"a": [64, 64, 32]}, ["a[2]"], []
    yield "a shorter list", {"a": [64, 64]}, {"a": [64, 64]}, {"a": [32]}, {"a": [32]}, ["a[0]", "a[1]"], []
    yield "a list that the loop fills", {"a": []}, {"a": [1, 2]}, {"a": []}, {"a": [1, 2]}, [], []
    yield "both fill it", {"a": []}, {"a": [1, 2]}, {"a": [9]}, {"a": [1, 2]}, [], ["a[0]"]
    yield "another type", {"a": None}, {"a": None}, {"a": {"b": 1}}, {"a": {"b": 1}}, ["a"], []
    yield "another type, changed", {"a": {"b": 1}}, {"a": {"b": 2}}, {"a": None}, {"a": {"b": 2}}, [], ["a"]
    yield (
        "another type, in a dict",
        {"d": {"a": 1}},
        {"d": {"a": 1, "n": 5}},
        {"d": {"a": [2]}},
        {"d": {"a": [2], "n": 5}},
        ["d.a"],
        [],
    )
    yield "a tuple", {"a": ([], 1)}, {"a": ([3], 1)}, {"a": ([], 2)}, {"a": ([3], 2)}, ["a[1]"], []
    yield "a set", {"a": {"x"}}, {"a": {"x"}}, {"a": {"y", "z"}}, {"a": {"y", "z"}}, ["a"], []
    yield "a set that the loop fills", {"a": {"x"}}, {"a": {"x", "q"}}, {"a": {"x"}}, {"a": {"x", "q"}}, [], []
    yield "a set that both change", {"a": {"x"}}, {"a": {"x", "q"}}, {"a": {"y"}}, {"a": {"x", "q"}}, [], ["a"]
    yield "a range", {"a": range(12)}, {"a": range(12)}, {"a": range(14)}, {"a": range(14)}, ["a"], []
    yield (
        "long numbers",
        {"a": list(range(2000))},
        {"a": list(range(2000))},
        {"a": list(range(1500))},
        {"a": list(range(1500))},
        ["a"],
        [],
    )
    yield (
        "an array",
        {"a": np.ones(3)},
        {"a": np.ones(3)},
        {"a": np.zeros((2, 2))},
        {"a": np.zeros((2, 2))},
        ["a.shape"],
        [],
    )


@pytest.mark.parametrize(("old", "saved", "new", "expected", "followed", "conflicts"), [
    pytest.param(*case[1:], id=case[0]) for case in table()
])  # fmt: skip
def test_a_leaf_comes_from_the_arguments_unless_the_loop_has_changed_it(old, saved, new, expected, followed, conflicts):
    restored, has_followed, in_conflict = merged(old, saved, new)
    assert repr(restored) == repr(expected)
    assert sorted(has_followed) == followed
    assert in_conflict == conflicts


def loop_of(epochs, wrap):
    return {"loops[0].iterator": wrap(range(epochs))}


@pytest.mark.parametrize("wrap", [
    iter, enumerate, lambda of: zip(of, of, strict=False), lambda of: enumerate(iter(of), 3), lambda of: itertools.islice(of, 100),
    lambda of: iter(list(of)), lambda of: enumerate(list(of)),
])  # fmt: skip
def test_a_loop_keeps_its_place_and_takes_the_new_end(wrap):
    old, saved, new = (loop_of(epochs, wrap) for epochs in (12, 12, 14))
    (now,), (reference,) = saved.values(), loop_of(14, wrap).values()
    for one in (now, reference):
        for _ in range(5):
            next(one)
    restored, _, conflicts = merged(old, saved, new)
    assert conflicts == []
    assert list(restored["loops[0].iterator"]) == list(reference)


def test_an_iterator_inside_that_the_loop_has_made_of_old_parts_is_a_conflict():
    old, saved, new = ({"loops[0].iterator": itertools.chain(range(n), range(n))} for n in (12, 12, 14))
    next(saved["loops[0].iterator"])
    assert merged(old, saved, new)[2] == ["loops[0].iterator.<state>[1]"]
    old, saved, new = ({"loops[0].iterator": itertools.chain(range(12), range(n))} for n in (12, 12, 12))
    next(saved["loops[0].iterator"])
    assert merged(old, saved, new)[2] == []


def test_a_range_with_a_step_is_not_in_conflict_with_its_own_slices():
    old, saved, new = iter(range(0, 11, 2)), iter(range(0, 11, 2)), iter(range(0, 11, 2))
    next(saved)
    restored, followed, conflicts = merged({"a": old}, {"a": saved}, {"a": new})
    assert (list(restored["a"]), followed, conflicts) == ([2, 4, 6, 8, 10], {}, [])


def test_a_loop_that_stands_behind_its_new_end_ends():
    saved = iter(range(12))
    for _ in range(5):
        next(saved)
    restored, _, conflicts = merged({"a": iter(range(12))}, {"a": saved}, {"a": iter(range(3))})
    assert (list(restored["a"]), conflicts) == ([], [])


def test_a_place_in_steps_of_another_size_is_a_conflict():
    saved = iter(range(0, 12, 2))
    next(saved)
    _, _, conflicts = merged({"a": iter(range(0, 12, 2))}, {"a": saved}, {"a": iter(range(0, 12, 3))})
    assert conflicts == ["a"]


def test_attributes_follow_and_what_the_loop_counts_stays():
    old, saved, new = {"m": Meter(3)}, {"m": Meter(3)}, {"m": Meter(5)}
    saved["m"].total, saved["m"].values = 7, [1.5]
    restored, followed, conflicts = merged(old, saved, new)
    assert restored["m"] is new["m"]
    assert vars(restored["m"]) == {"size": 5, "total": 7, "values": [1.5]}
    assert (followed, conflicts) == ({"m.size": ("3", "5")}, [])


def test_another_of_two_objects_is_taken_and_both_keep_what_they_hold():
    def roots(choice):
        first, second = Meter(1), Meter(2)
        return {"first": first, "second": second, "now": (first, second)[choice]}

    old, saved, new = roots(0), roots(0), roots(1)
    saved["first"].total, saved["second"].total = 3, 4
    restored, followed, conflicts = merged(old, saved, new)
    assert restored["now"] is restored["second"] is new["second"]
    assert (restored["first"].total, restored["second"].total) == (3, 4)
    assert (list(followed), conflicts) == (["now"], [])


def test_what_is_grafted_leads_to_the_objects_that_were_restored():
    def roots(with_owner):
        meter = Meter()
        return {"m": meter, "owner": SimpleNamespace(of=meter, lr=0.1) if with_owner else None}

    old, saved, new = roots(False), roots(False), roots(True)
    saved["m"].total = 3
    restored, _, conflicts = merged(old, saved, new)
    assert restored["owner"] is new["owner"]
    assert restored["owner"].of is restored["m"] is new["m"]
    assert (restored["m"].total, restored["owner"].lr, conflicts) == (3, 0.1, [])


def trained(args, steps=0, scheduler=None):
    """Model and optimizer as set-up code makes them; after some steps."""
    torch.manual_seed(args.seed if "seed" in args else 1)
    model = torch.nn.Linear(2, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)
    schedule = None if scheduler is None else scheduler(optimizer)
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        if schedule is not None:
            schedule.step()
    return {"args": args, "model": model, "optimizer": optimizer, "scheduler": schedule}


def test_a_new_rate_reaches_the_optimizer_and_weights_stay():
    old, saved, new = trained(arguments()), trained(arguments(), 3), trained(arguments(lr=0.1))
    weights = copy.deepcopy(saved["model"].state_dict())
    restored, followed, conflicts = merged(old, saved, new)
    assert restored["model"] is new["model"]
    assert restored["optimizer"].param_groups[0]["lr"] == 0.1
    assert all(torch.equal(value, weights[name]) for name, value in restored["model"].state_dict().items())
    assert followed == dict.fromkeys(
        ["args.lr", "optimizer.defaults.lr", "optimizer.param_groups[0].lr"], ("0.01", "0.1")
    )
    assert conflicts == []


def test_a_rate_that_a_scheduler_has_changed_is_a_conflict():
    def halved(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

    old, saved, new = (trained(arguments(lr=lr), steps, halved) for lr, steps in ((0.01, 0), (0.01, 2), (0.1, 0)))
    _, followed, conflicts = merged(old, saved, new)
    assert sorted(conflicts) == ["optimizer.param_groups[0].lr", "scheduler._last_lr[0]"]
    assert "scheduler.base_lrs[0]" in followed


def test_weights_that_another_seed_would_make_are_conflicts():
    old, saved, new = trained(arguments(seed=1)), trained(arguments(seed=1), 2), trained(arguments(seed=2))
    _, _, conflicts = merged(old, saved, new)
    assert conflicts == ["model.weight", "model.bias"]


def test_weights_of_another_shape_do_not_fit():
    side = Side.of(walk_of({"a": torch.zeros(2, 3)}).tree)
    result = merge(side, walk_of({"a": torch.ones(2, 3)}).tree, walk_of({"a": torch.zeros(4, 3)}).tree)
    assert [(one.path, one.is_structural) for one in result.conflicts] == [("a.shape", True)]
    assert result.conflicts[0].saved == "[2, 3]"


def test_a_rate_in_a_tensor_follows_by_its_content():
    old, saved, new = (
        {"lr": torch.tensor(lr), "w": torch.full((3,), w)} for lr, w in ((0.1, 0.0), (0.1, 2.0), (0.5, 0.0))
    )
    restored, followed, conflicts = merged(old, saved, new)
    assert restored["lr"].item() == 0.5
    assert restored["w"].tolist() == [2.0] * 3
    assert (list(followed), conflicts) == (["lr"], [])


def test_tensors_that_share_memory_follow_each_by_itself():
    def roots(rate, weight):
        flat = torch.tensor([rate, weight, weight])
        return {"rate": flat[:1], "weight": flat[1:]}

    restored, followed, conflicts = merged(roots(1.0, 0.0), roots(1.0, 5.0), roots(2.0, 0.0))
    assert (restored["rate"].tolist(), restored["weight"].tolist()) == ([2.0], [5.0, 5.0])
    assert (list(followed), conflicts) == (["rate"], [])


def test_a_conflict_says_all_three_values():
    side = Side.of(walk_of({"lr": 0.01}).tree)
    result = merge(side, walk_of({"lr": 0.0043}).tree, walk_of({"lr": 0.1}).tree)
    assert [str(one) for one in result.conflicts] == [
        "lr: the old arguments made 0.01, the loop has changed it to 0.0043, the new ones make 0.1"
    ]


def test_samples_of_a_pass_are_not_skipped_where_batches_have_another_size():
    def roots(size):
        def batches():
            indices = iter([5, 3, 1, 4, 2, 0])
            while batch := list(itertools.islice(indices, size)):
                yield batch

        generator = batches()
        next(generator)
        return {"loops[0].iterator": generator}

    old, saved, new = roots(2), roots(2), roots(3)
    _, _, conflicts = merged(old, saved, new)
    assert "loops[0].iterator.indices.index" in conflicts


def test_batches_in_flight_are_not_added_to_nor_dropped():
    """More workers have more of them; a position is whole."""

    def tree_of(*flying):
        node = {"k": "torch.DataLoader iterator", "t": "w", "p": None, "s": "loops[0].iterator", "flying": list(flying)}
        return Tree([node], [], {"loops[0].iterator": ["@", 0]})

    for new in ((1, 2, 3), (1,)):
        result = merge(Side.of(tree_of(1, 2)), tree_of(1, 2), tree_of(*new))
        assert len(result.conflicts) == 1
        assert result.tree.nodes[0]["flying"] == [1, 2]

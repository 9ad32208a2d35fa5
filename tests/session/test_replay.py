"""Loaders whose calls are counted and replayed; without a framework."""

import random
import sqlite3
import sys
import types

import pytest

from detrain.errors import RestoreError
from detrain.session.replay import Replay, check
from detrain.state.walk import Walk


def cursor():
    numbers = "with recursive n(i) as (select 0 union all select i + 1 from n where i < 999) select i from n"
    return sqlite3.connect(":memory:").execute(numbers)


class Rows:
    """Gives numbers; its cursor cannot be captured."""

    def __init__(self):
        self.rng = random.Random(1)
        self.reader = cursor()
        self.given = 0

    def get(self, skip=0):
        row = int(next(self.reader)[0])
        self.given += 1
        if self.rng.random() < 0.3:
            return self.get()  # a part of the call around it
        if row == 5:
            raise ValueError("five")
        return row + skip


@pytest.fixture
def loading(monkeypatch):
    module = types.ModuleType("rows")
    module.Rows = type("Rows", (Rows,), {"get": Rows.get, "__qualname__": "Rows", "__module__": "rows"})
    monkeypatch.setitem(sys.modules, "rows", module)
    extra = {
        "loop_type": {"type": "ON_CUSTOM"},
        "dataloader": {"next": ("rows", "Rows.get"), "persistent": False},
    }
    random.seed(0)

    def begin():
        module.Rows = type("Rows", (Rows,), {"get": Rows.get, "__qualname__": "Rows", "__module__": "rows"})
        rows = module.Rows()
        made = Replay(extra, lambda: random.getstate())
        made.begin()
        return made, rows

    return begin


def take(rows, count):
    found = []
    for _ in range(count):
        try:
            found.append(rows.get())
        except ValueError:
            found.append(None)
    return found


def checkpoint(made, rows, num_batches=1):
    walk = Walk(leave=made.left)
    walk.root("data", rows)
    captured = walk.run()
    made.mark(captured, num_batches)
    return captured.tree


def test_calls_are_replayed_to_the_same_place(loading):
    made, rows = loading()
    take(rows, 9)
    tree = checkpoint(made, rows)
    following = take(rows, 9)
    again, other = loading()
    check(again.replay(tree, {"data": other}))
    assert take(other, 9) == following


def test_calls_inside_calls_count_once(loading):
    made, rows = loading()
    take(rows, 9)
    assert rows.given > 9
    assert sum(call[3] for call in checkpoint(made, rows).nodes[0]["calls"]) == 9


def test_calls_that_set_up_code_makes_again_are_not_made_twice(loading):
    made, rows = loading()
    take(rows, 9)
    tree = checkpoint(made, rows)
    following = take(rows, 3)
    again, other = loading()
    take(other, 4)
    check(again.replay(tree, {"data": other}))
    assert take(other, 3) == following


def test_what_something_else_has_changed_is_refused(loading):
    made, rows = loading()
    take(rows, 3)
    rows.rng.seed(77)
    tree = checkpoint(made, rows)
    again, other = loading()
    with pytest.raises(
        RestoreError, match="data differs from its state at the checkpoint although its calls have been replayed"
    ):
        check(again.replay(tree, {"data": other}))


def test_calls_that_draw_from_a_process_wide_generator_are_named(loading):
    made, rows = loading()
    type(rows).get.__wrapped__.__globals__["random"].random()  # beside a call: of no concern
    take(rows, 2)
    assert "loud" not in checkpoint(made, rows).nodes[0]
    rows.rng = random  # the module's own generator
    take(rows, 2)
    assert "draw from the process-wide generators" in checkpoint(made, rows).nodes[0]["kept"]


def test_arguments_that_are_not_values_are_named(loading):
    made, rows = loading()
    rows.rng = random.Random(0)
    rows.reader = cursor()
    with pytest.raises(TypeError):
        rows.get([1])
    assert "not plain values" in checkpoint(made, rows).nodes[0]["kept"]


def test_loader_none_of_whose_calls_was_seen_is_named(loading):
    made, rows = loading()
    assert "loud" not in checkpoint(made, rows, num_batches=0).nodes[0]
    assert "its calls were not seen" in checkpoint(made, rows, num_batches=3).nodes[0]["kept"]


def test_loader_that_can_be_captured_is_captured(loading):
    made, rows = loading()
    rows.reader = iter([["1"], ["2"]])
    assert made.left == {}

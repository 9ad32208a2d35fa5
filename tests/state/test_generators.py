"""Suspended generators, captured and restored in one process."""

import random

import pytest

import detrain.state.handlers.standard
from detrain.errors import RestoreError
from detrain.state.census import Census
from detrain.state.restore import Origins, Restore
from detrain.state.walk import Walk


def permutations(rng):
    """As torch's RandomSampler hands on a permutation."""
    for _ in range(2):
        yield from rng.sample(range(20), 20)


def walk_over(roots, census=None):
    walk = Walk(census)
    for name, value in roots.items():
        walk.root(name, value)
    return walk.run()


def test_list_whose_address_was_anothers_before_stays_the_one_that_the_generator_runs_over():
    assert detrain.state.handlers.standard
    held = [None]
    census = Census(walk_over({"held": held}))
    order = permutations(random.Random(1))
    taken = [next(order) for _ in range(7)]
    saved = walk_over({"held": [1], "order": order})
    running = next(n for n, obj in enumerate(saved.objects) if type(obj) is list and obj[:7] == taken)
    # The allocator gives the permutation the address of a list that stood in `held` when the loops were entered, and is gone.
    census._numbers[id(saved.objects[running])] = census._numbers[id(held)]
    saved = walk_over({"held": [1], "order": order}, census)
    assert saved.tree.nodes[running]["from"] == "held"

    live_roots = {"held": [None], "order": permutations(random.Random(2))}
    live = walk_over(live_roots)
    restored = Restore(saved.tree, live, Origins(live)).run(live_roots)
    assert restored["order"] is live_roots["order"]
    assert list(restored["order"]) == list(order)
    assert restored["held"] == [1]


class Drawing:
    """As a replay buffer in a data set that has no end: what it yields from is there later than the buffer."""

    def __init__(self):
        self.items = []

    def __iter__(self):
        while True:
            yield random.Random(len(self.items)).choice(self.items)


def test_generator_that_fails_on_a_buffer_that_is_not_filled_yet_is_made_behind_the_rest():
    buffer = Drawing()
    buffer.items += [3, 1, 4]
    held = {"draws": iter(buffer)}
    next(held["draws"])
    saved = walk_over({"buffer": buffer, "held": held})

    roots = {"buffer": Drawing(), "held": {}}
    live = walk_over(roots)
    with pytest.raises(RestoreError, match=r"failed on the way to its saved position: IndexError"):
        Restore(saved.tree, live, Origins(live)).run(dict(roots))
    first = Restore(saved.tree, live, Origins(live), is_last_time=False)
    roots = first.run(roots)
    assert first.has_postponed
    assert roots["buffer"].items == [3, 1, 4]
    again = Restore(saved.tree, walk_over(roots), Origins(live))
    roots = again.run(roots)
    assert not again.has_postponed
    roots["buffer"].items.append(5)
    buffer.items.append(5)
    assert [next(roots["held"]["draws"]) for _ in range(3)] == [next(held["draws"]) for _ in range(3)]


def test_generator_that_has_failed_in_the_set_up_is_made_anew():
    buffer = Drawing()
    buffer.items += [3, 1, 4]
    draws = iter(buffer)
    next(draws)
    saved = walk_over({"buffer": buffer, "draws": draws})
    roots = {"buffer": Drawing(), "draws": None}
    roots["draws"] = iter(roots["buffer"])
    with pytest.raises(IndexError):
        next(roots["draws"])
    roots["buffer"].items += [3, 1, 4]
    live = walk_over(roots)
    restored = Restore(saved.tree, live, Origins(live)).run(roots)
    assert next(restored["draws"]) == next(draws)

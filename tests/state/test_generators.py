"""Suspended generators, captured and restored in one process."""

import random

import detrain.state.handlers.standard
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

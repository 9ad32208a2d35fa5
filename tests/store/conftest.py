"""State trees as a capture yields them, made by hand: no framework, no session."""

import os
import random
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from detrain.state.tree import Array, Tree
from detrain.store.meta import LoopPosition, Meta


@pytest.fixture(autouse=True)
def unchanged_process() -> Iterator[None]:
    """Working directory, environment, `sys.path` and generators are the same after a test."""
    folder, environment, search, state = Path.cwd(), dict(os.environ), list(sys.path), random.getstate()
    yield
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    sys.path[:] = search
    random.setstate(state)


def make_tree(arrays: dict[str, np.ndarray], values: dict[str, Any] | None = None) -> Tree:
    """A tree with one node per array, and plain values at its roots."""
    tree = Tree()
    for number, (name, data) in enumerate(arrays.items()):
        tree.nodes.append({"k": "buffer", "t": "builtins:bytearray", "p": None, "s": name, "array": number})
        tree.arrays.append(Array(name, data))
        tree.roots[name] = ["@", number]
    tree.roots.update(values or {})
    return tree


def make_meta(sequence: int = 1, **changes: Any) -> Meta:
    """What a session writes beside the state."""
    meta = Meta(
        sequence, [LoopPosition("/nowhere/train.py", 3, 0, 2), LoopPosition("/nowhere/train.py", 4, 0, 5)], epochs=3, batches=25,
        batch_in_epoch=5, cost_s=0.01, facts={"python": "3.11.7"}, folder="/nowhere", arguments=["--lr", "0.1"],
        sources={"/nowhere/train.py": "542a7dd24e6826869b9c8331f9347a1a"},
    )  # fmt: skip
    return replace(meta, **changes)


def assert_same_tree(tree: Tree, other: Tree) -> None:
    """Nodes, roots and every array's dtype, shape and bytes."""
    assert tree.nodes == other.nodes
    assert tree.roots == other.roots
    assert len(tree.arrays) == len(other.arrays)
    for one, two in zip(tree.arrays, other.arrays, strict=True):
        assert (one.path, one.label, one.data.dtype, one.data.shape) == (
            two.path,
            two.label,
            two.data.dtype,
            two.data.shape,
        )
        assert one.data.tobytes() == two.data.tobytes()


@pytest.fixture
def tree() -> Callable[..., Tree]:
    return make_tree


@pytest.fixture
def meta() -> Callable[..., dict[str, Any]]:
    return make_meta


@pytest.fixture
def same_tree() -> Callable[[Tree, Tree], None]:
    return assert_same_tree

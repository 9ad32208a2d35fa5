"""Data sets and their iterators.

An iterator whose data set keeps no state of Python's or of a random operation's is written down by TensorFlow itself, buffers and
all, and set in place. Any other is taken to its place by asking it for as many elements again. A data set that shuffles draws the
seed of each pass from a generator of its own: how many passes have begun is written down, and as many are begun again.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import wraps
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import dataset_ops, iterator_ops, random_op, shuffle_op
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from detrain.errors import CaptureError, RestoreError
from detrain.state.registry import Handler
from detrain.state.restore import Restore
from detrain.state.tree import Node
from detrain.state.walk import Walk

Dataset = dataset_ops.DatasetV2
OwnedIterator = iterator_ops.OwnedIterator

#: Data sets that hold a generator of seeds.
_SEEDED = (shuffle_op._ShuffleDataset, random_op._RandomDataset)
_FAIL_IF_STATEFUL = 2


class _Passes:
    """How many passes over each seeded data set have begun, and what Python has taken of each pass."""

    def __init__(self) -> None:
        self.begun: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self.taken: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()


_passes = _Passes()


def patch() -> None:
    """Count passes and elements."""
    plain_create, plain_next = OwnedIterator._create_iterator, OwnedIterator._next_internal

    @wraps(plain_create)
    def create(iterator: Any, dataset: Any) -> None:
        plain_create(iterator, dataset)
        for one in _sources(dataset):
            _passes.begun[one] = _passes.begun.get(one, 0) + 1

    @wraps(plain_next)
    def step(iterator: Any) -> Any:
        result = plain_next(iterator)
        if context.executing_eagerly():
            _passes.taken[iterator] = _passes.taken.get(iterator, 0) + 1
        return result

    OwnedIterator._create_iterator = create
    OwnedIterator._next_internal = step


def _sources(dataset: Any) -> Iterator[Any]:
    """The seeded data sets that one is made of."""
    pending, seen = [dataset], set()
    while pending:
        one = pending.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        if isinstance(one, _SEEDED):
            yield one
        pending.extend(one._inputs())


class DatasetHandler(Handler):
    """A data set: made by the set-up code, and never changed but for the generator of its passes' seeds."""

    kind = "tensorflow.Dataset"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        node["inputs"] = walk.children(obj._inputs())
        if isinstance(obj, _SEEDED):
            node["passes"] = _passes.begun.get(obj, 0)

    def build(self, node: Node, restore: Restore) -> Any:
        raise RestoreError(f"{restore.path_of(node)}: a data set that the loop has made cannot be made again")

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        for ref, one in zip(node["inputs"], obj._inputs(), strict=True):
            restore.value(ref, one)
        missing = node.get("passes", 0) - _passes.begun.get(obj, 0)
        if missing < 0:
            raise RestoreError(f"{restore.path_of(node)}: more passes over it have begun than before")
        for _ in range(missing):
            iter(obj)


class IteratorHandler(Handler):
    """An iterator over a data set: TensorFlow's own description of its state, else how far Python has taken it."""

    kind = "tensorflow.Iterator"
    has_attributes = False
    is_last = True  # after its data set, of which it holds the generator of seeds

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        node["dataset"] = walk.child(getattr(obj, "_dataset", None), ".<data set>")
        try:
            state = tf.raw_ops.SerializeIterator(
                resource_handle=obj._iterator_resource, external_state_policy=_FAIL_IF_STATEFUL
            )
        except tf.errors.FailedPreconditionError as error:
            raise CaptureError(f"TensorFlow cannot save its position: {error.message.rpartition(' [Op:')[0]}") from None
        walk.array(node, np.frombuffer(tf.io.serialize_tensor(state).numpy(), dtype=np.uint8))

    def build(self, node: Node, restore: Restore) -> Any:
        dataset = restore.value(node["dataset"])
        if not isinstance(dataset, Dataset):
            raise RestoreError(f"{restore.path_of(node)}: the data set that it iterates over is not there")
        return iter(dataset)

    def is_twin(self, live: Any, node: Node, restore: Restore) -> bool:
        return isinstance(live, OwnedIterator)

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        restore.value(node["dataset"], getattr(obj, "_dataset", None))
        if "array" not in node:
            return
        content = restore.tree.arrays[node["array"]].data.tobytes()
        with ops.init_scope():
            tf.raw_ops.DeserializeIterator(
                resource_handle=obj._iterator_resource, serialized=tf.io.parse_tensor(content, tf.variant)
            )

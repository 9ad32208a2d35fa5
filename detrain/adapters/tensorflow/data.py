"""Data sets and their iterators.

An iterator whose data set keeps no state of Python's or of a random operation's is written down by TensorFlow itself, buffers and
all, and set in place. Any other counts, as its last step, what it hands out, to Python or to a graph, and is taken to its place by
asking a new one for as many elements. A data set that shuffles draws the seed of each pass from a generator of its own: how many
passes have begun is written down, and as many are begun again.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import (
    cache_op,
    concatenate_op,
    dataset_ops,
    iterator_ops,
    random_op,
    repeat_op,
    shuffle_op,
    snapshot_op,
)
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from detrain.errors import CaptureError, RestoreError
from detrain.state.registry import Handler
from detrain.state.restore import Restore
from detrain.state.tree import Node
from detrain.state.walk import Walk

Dataset = dataset_ops.DatasetV2
OwnedIterator = iterator_ops.OwnedIterator

#: Data sets that hold a generator of seeds.
_SEEDED = (shuffle_op._ShuffleDataset, random_op._RandomDataset)
#: Those that begin with what they are made of later than they begin themselves, or several times, or never again: how often a
#: generator of seeds below one has been asked, passes do not tell.
_LATE = (
    repeat_op._RepeatDataset, concatenate_op._ConcatenateDataset, cache_op.CacheDataset, snapshot_op._SnapshotDataset, *_SEEDED,
)  # fmt: skip
_FAIL_IF_STATEFUL = 2
#: In an iterator's state, once for each seeded data set in it that has not come to its end: how far its generator of seeds was.
_GENERATOR = b"epoch_num_random_samples"
#: Operations that count as stateful but keep nothing.
_HARMLESS = frozenset({"Assert", "Print", "PrintV2", "ReadFile", "MatchingFiles", "LookupTableFindV2", "NoOp"})


#: Passes over each seeded data set that have begun; those that graphs begin are counted by a variable.
_passes: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
_passes_in_graphs: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()


@dataclass
class _Counted:
    """An iterator that counts."""

    dataset: Any  # the script's
    taken: Any  # variable


_counted: weakref.WeakKeyDictionary[Any, _Counted] = weakref.WeakKeyDictionary()
#: Iterators in use over data sets with a generator of seeds that passes do not tell of.
_over_late: weakref.WeakKeyDictionary[Any, weakref.WeakSet[Any]] = weakref.WeakKeyDictionary()


def patch() -> None:
    """Count passes, and elements where TensorFlow cannot save a position."""
    plain = OwnedIterator._create_iterator

    @wraps(plain)
    def create(iterator: Any, dataset: Any) -> None:
        parts = list(_parts(dataset))
        if context.executing_eagerly() and any(map(_is_stateful, parts)):
            taken = _variable("taken")
            _counted[iterator] = _Counted(dataset, taken)
            plain(iterator, _counting(dataset, taken))
        else:
            plain(iterator, dataset)
        _begin_pass(dataset)
        if dataset in _over_late:
            _over_late[dataset].add(iterator)

    OwnedIterator._create_iterator = create
    for name in ("reduce", "get_single_element"):  # by `reduce` a graph goes through a `for` loop over a data set
        _count_passes(name)


def _count_passes(name: str) -> None:
    plain = getattr(Dataset, name)

    @wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        _begin_pass(self)
        return plain(self, *args, **kwargs)

    setattr(Dataset, name, method)


def _begin_pass(dataset: Any) -> None:
    """Note that it begins, now or whenever the graph that is being made is run; what a graph makes itself begins anew each time."""
    parts = [one for one in _parts(dataset) if isinstance(one._variant_tensor, ops.EagerTensor)]
    within = {id(inner) for one in parts for inner in one._inputs()}
    for one in parts:
        if id(one) not in within and _is_late(one):
            _over_late.setdefault(one, weakref.WeakSet())
    for one in parts:
        if not isinstance(one, _SEEDED):
            continue
        if context.executing_eagerly():
            _passes[one] = _passes.get(one, 0) + 1
        else:
            if one not in _passes_in_graphs:
                _passes_in_graphs[one] = _variable("passes")
            _passes_in_graphs[one].assign_add(1)


def _num_passes(dataset: Any) -> int:
    in_graphs = _passes_in_graphs.get(dataset)
    return _passes.get(dataset, 0) + (int(in_graphs.numpy()) if in_graphs is not None else 0)


def _variable(name: str) -> Any:
    with ops.init_scope():
        return resource_variable_ops.ResourceVariable(0, dtype=tf.int64, trainable=False, name=name)


def _counting(dataset: Any, taken: Any) -> Any:
    def count(*element: Any) -> Any:
        with tf.control_dependencies([taken.assign_add(1)]):
            same = tf.nest.map_structure(tf.identity, element, expand_composites=True)
        return same if len(same) > 1 else same[0]

    options = tf.data.Options()
    options.experimental_optimization.inject_prefetch = False  # it would count ahead of what is asked for
    return dataset.map(count).with_options(options)


def _parts(dataset: Any) -> Iterator[Any]:
    """A data set, and all that it is made of."""
    pending, seen = [dataset], set()
    while pending:
        one = pending.pop()
        if id(one) not in seen:
            seen.add(id(one))
            yield one
            pending.extend(one._inputs())


def _is_late(dataset: Any) -> bool:
    """True if a seeded data set is made of something, or makes something, of which passes do not tell when it begins."""
    late = [one for one in _parts(dataset) if isinstance(one, _LATE)]
    return any(isinstance(part, _SEEDED) for one in late for inner in one._inputs() for part in _parts(inner))


def _is_stateful(dataset: Any) -> bool:
    """True if a function of a data set keeps state, or runs Python."""
    graphs = [one.function.graph for one in dataset._functions()]
    seen: set[str] = set()
    while graphs:
        graph = graphs.pop()
        if any(one.op_def.is_stateful and one.type not in _HARMLESS for one in graph.get_operations()):
            return True
        for name, function in graph._functions.items():
            if name not in seen:
                seen.add(name)
                graphs.append(function.graph)
    return False


def _dataset_of(iterator: Any) -> Any:
    found = _counted.get(iterator)
    return getattr(iterator, "_dataset", None) if found is None else found.dataset


class DatasetHandler(Handler):
    """A data set: made by the set-up code, and never changed but for the generator of its passes' seeds."""

    kind = "tensorflow.Dataset"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        node["parts"] = walk.children(obj._inputs())
        if isinstance(obj, _SEEDED):
            node["passes"] = _num_passes(obj)
        if obj in _over_late and not _over_late[obj]:
            raise CaptureError(
                "how often its shuffling has begun, only an iterator over it can tell, and none is in use"
            )

    def build(self, node: Node, restore: Restore) -> Any:
        raise RestoreError(f"{restore.path_of(node)}: a data set that the loop has made cannot be made again")

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        for ref, one in zip(node["parts"], obj._inputs(), strict=True):
            restore.value(ref, one)
        missing = node.get("passes", 0) - _num_passes(obj)
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
        node["dataset"] = walk.child(_dataset_of(obj), ".<data set>")
        if obj in _counted:
            node["taken"] = int(_counted[obj].taken.numpy())
            return
        try:
            state = _state_of(obj)
        except tf.errors.FailedPreconditionError as error:
            raise CaptureError(f"TensorFlow cannot save its position: {error.message.rpartition(' [Op:')[0]}") from None
        content = tf.io.serialize_tensor(state).numpy()
        dataset = _dataset_of(obj)
        if dataset in _over_late and not _tells_generators(content, dataset):
            raise CaptureError("it has come to its end, and does not tell any more how often its shuffling has begun")
        walk.array(node, np.frombuffer(content, dtype=np.uint8))

    def prepare(self, number: int, node: Node, restore: Restore) -> None:
        """Elements that have to be asked for are asked for now, so that what that changes is restored after it."""
        if "taken" not in node:
            return
        live = restore.twins.by_number.get(number)
        if not self.is_twin(live, node, restore):
            dataset = restore.twins.by_number.get(node["dataset"][1])
            if dataset is None:
                return
            live = iter(dataset)
            restore.twins.replace(number, live)
        self._advance(live, node, restore)

    def _advance(self, iterator: Any, node: Node, restore: Restore) -> None:
        counted = _counted[iterator]
        for done in range(int(counted.taken.numpy()), node["taken"]):
            try:
                next(iterator)
            except StopIteration:
                raise RestoreError(
                    f"{restore.path_of(node)} ended after {done} elements, and {node['taken']} had been taken from it"
                ) from None

    def build(self, node: Node, restore: Restore) -> Any:
        dataset = restore.value(node["dataset"])
        if not isinstance(dataset, Dataset):
            raise RestoreError(f"{restore.path_of(node)}: the data set that it iterates over is not there")
        return iter(dataset)

    def is_twin(self, live: Any, node: Node, restore: Restore) -> bool:
        if not isinstance(live, OwnedIterator) or (live in _counted) != ("taken" in node):
            return False
        return "taken" not in node or int(_counted[live].taken.numpy()) <= node["taken"]

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        restore.value(node["dataset"], _dataset_of(obj))
        if "taken" in node:
            self._advance(obj, node, restore)
            return
        content = restore.tree.arrays[node["array"]].data.tobytes()
        if _tells_generators(content, _dataset_of(obj)):
            _set(obj, tf.io.parse_tensor(content, tf.variant))
        else:
            self._end(obj, content, node, restore)

    @staticmethod
    def _end(iterator: Any, content: bytes, node: Node, restore: Restore) -> None:
        """Set it to a state at its end. TensorFlow begins another pass for that, which draws; the generators are put back."""
        before = _state_of(iterator)
        dataset = _dataset_of(iterator)
        live = tf.io.serialize_tensor(before).numpy()
        if live == content:
            return
        if not _tells_generators(live, dataset):
            raise RestoreError(
                f"{restore.path_of(node)} has come to its end both here and there with other elements left, and its generator of "
                f"seeds cannot be put back. {restore.set_aside()}"
            )
        _set(iterator, tf.io.parse_tensor(content, tf.variant))
        passes = {one: _passes[one] for one in _parts(dataset) if one in _passes}
        _set(iter(dataset), before)
        _passes.update(passes)


def _state_of(iterator: Any) -> Any:
    return tf.raw_ops.SerializeIterator(
        resource_handle=iterator._iterator_resource, external_state_policy=_FAIL_IF_STATEFUL
    )


def _set(iterator: Any, state: Any) -> None:
    with ops.init_scope():
        tf.raw_ops.DeserializeIterator(resource_handle=iterator._iterator_resource, serialized=state)


def _tells_generators(content: bytes, dataset: Any) -> bool:
    """True if a state holds all generators of seeds: what has come to its end holds nothing of what it was made of."""
    parts = _parts(dataset) if dataset is not None else ()
    return content.count(_GENERATOR) >= sum(isinstance(one, _SEEDED) for one in parts)

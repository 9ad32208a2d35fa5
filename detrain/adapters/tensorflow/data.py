"""Data sets and their iterators.

TensorFlow itself saves and restores an iterator, buffers and all, whose data set holds no state of Python or of a random operation. Any
other iterator counts the elements that it gives, and is brought to its position by taking as many from a new one. Over a data set that
shuffles, as many passes are begun as had begun at the checkpoint.
"""

from __future__ import annotations

import weakref
from functools import wraps
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tensorflow.python.data.ops import iterator_ops
from tensorflow.python.eager import context
from tensorflow.python.framework import ops

from detrain.adapters.tensorflow.dataset_passes import Dataset, is_late, is_seeded, num_generators, parts_of, passes
from detrain.adapters.tensorflow.replay import Counted, is_stateful, remembers
from detrain.errors import CaptureError, RestoreError
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import CannotBuild, Capturing, Handler, Restoring
from detrain.state.tree import Node

OwnedIterator = iterator_ops.OwnedIterator

_FAIL_IF_STATEFUL = 2
#: In an iterator's state, once for each seeded data set in it that has not come to its end: how far its generator of seeds was.
_GENERATOR = b"epoch_num_random_samples"

_counted: weakref.WeakKeyDictionary[Any, Counted] = weakref.WeakKeyDictionary()


def patch() -> None:
    """Patch iterators: report passes that begin, and count elements where TensorFlow cannot save a position."""
    plain = OwnedIterator._create_iterator

    @wraps(plain)
    def create(iterator: Any, dataset: Any) -> None:
        if context.executing_eagerly() and any(map(is_stateful, parts_of(dataset))):
            _counted[iterator] = Counted(dataset, passes.before(dataset))
            plain(iterator, _counted[iterator].counting())
        else:
            plain(iterator, dataset)
        passes.begin(dataset)
        if dataset in passes.late:
            passes.late[dataset].add(iterator)

    OwnedIterator._create_iterator = create


def _dataset_of(iterator: Any) -> Any:
    found = _counted.get(iterator)
    return getattr(iterator, "_dataset", None) if found is None else found.dataset


class DatasetHandler(Handler):
    """A data set: made by the set-up code, and never changed but for the generator of its passes' seeds."""

    kind = "tensorflow.Dataset"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("passes"), "parts": Holds.LIST}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["parts"] = walk.children(obj._inputs())
        if is_seeded(obj):
            node["passes"] = passes.number(obj)
        if obj in passes.late and not passes.late[obj]:
            raise CaptureError(
                "only an iterator over it knows how many passes over its shuffled part have begun, and none is in use"
            )

    def build(self, node: Node, restore: Restoring) -> Any:
        raise CannotBuild("a data set")

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        for ref, one in zip(node["parts"], obj._inputs(), strict=True):
            restore.value(ref, one)
        if "passes" in node:
            passes.begin_missing_of(obj, node["passes"], restore.path_of(node))


class IteratorHandler(Handler):
    """An iterator over a data set: TensorFlow's own description of its state, else how far Python has taken it."""

    kind = "tensorflow.Iterator"
    fields: ClassVar = {**plain_fields("taken", "begun", "digest"), "dataset": Holds.ONE}
    has_attributes = False
    is_last = True  # after its data set, of which it holds the generator of seeds

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["dataset"] = walk.child(_dataset_of(obj), ".<data set>")
        if obj in _counted:
            self._capture_counted(_counted[obj], node)
            return
        try:
            state = _state_of(obj)
        except tf.errors.FailedPreconditionError as error:
            raise CaptureError(f"TensorFlow cannot save its position: {error.message.rpartition(' [Op:')[0]}") from None
        content = tf.io.serialize_tensor(state).numpy()
        dataset = _dataset_of(obj)
        if dataset in passes.late and not _holds_generators(content, dataset):
            raise CaptureError(
                "it is exhausted, and its state no longer says how many passes over its shuffled part have begun"
            )
        walk.array(node, np.frombuffer(content, dtype=np.uint8))

    def _capture_counted(self, counted: Counted, node: Node) -> None:
        if any(counted.begun) and is_late(counted.dataset):
            raise CaptureError("nothing says how many passes over its shuffled part had begun before this one")
        node["taken"], node["begun"], node["digest"] = counted.num_taken, counted.begun, counted.digest

    def prepare(self, number: int, node: Node, restore: Restoring) -> None:
        """Elements that have to be asked for are asked for now, so that what that changes is restored after it."""
        if "taken" not in node:
            return
        nodes = restore.tree.nodes
        counted = [(one["begun"], index) for index, one in enumerate(nodes) if one["k"] == self.kind and "taken" in one]
        if number == min(index for _, index in counted):
            for _, index in sorted(counted):  # in the order in which their passes began
                self._prepare(index, nodes[index], restore)

    def _prepare(self, number: int, node: Node, restore: Restoring) -> None:
        live = restore.matched(number)
        if not self.matches(live, node, restore):
            dataset = restore.matched(node["dataset"][1])
            if dataset is None:
                return
            # What a generator has begun on its way is there, but another iterator may have stood in its place in the script.
            begun = (one for one in list(_counted) if _dataset_of(one) is dataset and not restore.is_claimed(one))
            live = next((one for one in begun if self.matches(one, node, restore)), None)
            if live is None:
                passes.begin_missing(dataset, node["begun"], restore.path_of(node))
                live = iter(dataset)
            restore.replace_match(number, live)
        why_not = self._advance(live, node)
        if why_not:
            restore.give_up(number, why_not)  # left over from an earlier pass, if nobody asks it for more

    @staticmethod
    def _advance(iterator: Any, node: Node) -> str:
        """Ask it for as many elements. What is wrong with them, if anything is."""
        counted = _counted[iterator]
        for done in range(counted.num_taken, node["taken"]):
            try:
                next(iterator)
            except StopIteration:
                return f"it ended after {done} elements, and {node['taken']} had been taken from it"
        if counted.digest == node["digest"] or counted.has_ended or not remembers(counted.dataset):
            return ""
        return (
            "asked again for its elements, its data set has given others: what its functions read, a variable or numpy's generator, the "
            "loop had changed"
        )

    def build(self, node: Node, restore: Restoring) -> Any:
        dataset = restore.value(node["dataset"])
        if not isinstance(dataset, Dataset):
            raise CannotBuild("an iterator over a data set")
        return iter(dataset)

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not isinstance(live, OwnedIterator) or (live in _counted) != ("taken" in node):
            return False
        if "taken" not in node:
            return True
        counted = _counted[live]
        return bool(counted.begun == node["begun"] and counted.num_taken <= node["taken"])

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        restore.value(node["dataset"], _dataset_of(obj))
        if "taken" in node:
            if why_not := self._advance(obj, node):
                raise RestoreError(f"{restore.path_of(node)}: {why_not}. {restore.set_aside()}")
            return
        content = restore.data(node).tobytes()
        if _holds_generators(content, _dataset_of(obj)):
            _set(obj, tf.io.parse_tensor(content, tf.variant))
        else:
            self._end(obj, content, node, restore)

    @staticmethod
    def _end(iterator: Any, content: bytes, node: Node, restore: Restoring) -> None:
        """Set it to a state at its end. TensorFlow begins another pass for that, which draws; the generators are put back."""
        before = _state_of(iterator)
        dataset = _dataset_of(iterator)
        live = tf.io.serialize_tensor(before).numpy()
        if live == content:
            return
        if not _holds_generators(live, dataset):
            raise RestoreError(
                f"{restore.path_of(node)} has come to its end both here and there with other elements left, and its generator of "
                f"seeds cannot be put back. {restore.set_aside()}"
            )
        _set(iterator, tf.io.parse_tensor(content, tf.variant))
        put_back = passes.put_back(dataset)
        _set(iter(dataset), before)
        put_back()


def _state_of(iterator: Any) -> Any:
    return tf.raw_ops.SerializeIterator(
        resource_handle=iterator._iterator_resource, external_state_policy=_FAIL_IF_STATEFUL
    )


def _set(iterator: Any, state: Any) -> None:
    with ops.init_scope():
        tf.raw_ops.DeserializeIterator(resource_handle=iterator._iterator_resource, serialized=state)


def _holds_generators(content: bytes, dataset: Any) -> bool:
    """True if a saved state holds all generators of seeds; a part that has come to its end leaves out those of its inputs."""
    parts = parts_of(dataset) if dataset is not None else ()
    return content.count(_GENERATOR) >= sum(map(num_generators, parts))

"""Iterators that are brought to their position by taking as many elements from a new one, with a check that these are the same."""

from __future__ import annotations

from typing import Any

import tensorflow as tf
from tensorflow.python.data.ops import (
    batch_op,
    dataset_ops,
    filter_op,
    map_op,
    padded_batch_op,
    range_op,
    repeat_op,
    skip_op,
    take_op,
    zip_op,
)

from detrain.adapters.tensorflow.dataset_passes import parts_of, variable

#: Operations that are registered as stateful but keep no state.
_HARMLESS = frozenset({"Assert", "Print", "PrintV2", "ReadFile", "MatchingFiles", "LookupTableFindV2", "NoOp"})
#: Data sets that a function of another may make (`flat_map`, `interleave`); registered as stateful so that nobody folds them into
#: constants, as TensorFlow's `IsNodeStateful` knows. Where they are is a part of the iterator's own state.
_SOURCES = frozenset({
    "FixedLengthRecordDataset", "FixedLengthRecordDatasetV2", "RangeDataset", "SparseTensorSliceDataset", "TFRecordDataset",
    "TFRecordDatasetV2", "TensorDataset", "TensorSliceDataset", "TextLineDataset",
})  # fmt: skip
#: Operations that run Python.
_PYTHON = frozenset({"PyFunc", "EagerPyFunc", "PyFuncStateless"})
#: Data sets that make each element when it is asked for, and keep nothing for the next.
_MEMORYLESS = (
    batch_op._BatchDataset, filter_op._FilterDataset, map_op._MapDataset, dataset_ops._OptionsDataset,
    padded_batch_op._PaddedBatchDataset, range_op._RangeDataset, repeat_op._RepeatDataset, skip_op._SkipDataset,
    take_op._TakeDataset, zip_op._ZipDataset,
)  # fmt: skip
#: Elements of a tensor that its digest covers.
_NUM_TOLD = 16384
_FACTOR = 6364136223846793005  # odd: no digest before is lost


class Counted:
    """An iterator that counts the elements that it gives, to Python or to a graph."""

    def __init__(self, dataset: Any, begun: list[int] | None) -> None:
        """`dataset`: the script's; `begun`: what was taken of the generators of its seeded parts before this pass; None if unknown."""
        self.dataset, self.begun = dataset, begun
        self._taken, self._digest = variable("taken"), variable("digest")

    @property
    def num_taken(self) -> int:
        """The number of elements so far."""
        return int(self._taken.numpy())

    @property
    def digest(self) -> int:
        """A digest of the elements so far, in their order."""
        return int(self._digest.numpy())

    @property
    def has_ended(self) -> bool:
        """True if it has given as many elements as its data set says that there are."""
        return self.num_taken == int(self.dataset.cardinality().numpy())

    def counting(self) -> Any:
        """The data set with counting in it."""
        is_unpacked = type(self.dataset.element_spec) is tuple  # then `map` gives its parts as arguments

        def count(*element: Any) -> Any:
            digest = self._digest * _FACTOR + _digest_of(element)
            with tf.control_dependencies([self._taken.assign_add(1), self._digest.assign(digest)]):
                same = tf.nest.map_structure(_identity, element, expand_composites=True)
            return same if is_unpacked else same[0]

        options = tf.data.Options()
        options.experimental_optimization.inject_prefetch = False  # it would count elements before they are asked for
        return self.dataset.map(count).with_options(options)


def _identity(component: Any) -> Any:
    """A component as an operation of its own; None, which a data set may hold too, as itself."""
    return None if component is None else tf.identity(component)


def _digest_of(element: Any) -> Any:
    """() int64."""
    digest = tf.constant(0, tf.int64)
    for one in tf.nest.flatten(element, expand_composites=True):
        if one is not None and one.dtype not in (tf.variant, tf.resource):
            digest = digest * _FACTOR + _digest_of_tensor(one)
    return digest


def _digest_of_tensor(tensor: Any) -> Any:
    told = tf.reshape(tensor, [-1])[:_NUM_TOLD]
    if told.dtype == tf.string:
        told = tf.strings.to_hash_bucket_fast(told, tf.int64.max)
    elif told.dtype == tf.bool:
        told = tf.cast(told, tf.uint8)
    elif told.dtype.size < 4 and told.dtype.is_floating:
        told = tf.cast(told, tf.float32)
    octets = tf.reshape(tf.bitcast(told, tf.uint8), [1, -1])
    return tf.bitcast(tf.fingerprint(octets), tf.int64)[0] + tf.size(tensor, tf.int64)


def is_stateful(dataset: Any) -> bool:
    """True if a function of a data set keeps state, or runs Python."""
    return bool(_stateful_operations(dataset))


def remembers(dataset: Any) -> bool:
    """True if the next element may depend on what functions of the data set read for earlier ones."""
    if any(is_stateful(one) for one in parts_of(dataset)):
        if not isinstance(dataset, _MEMORYLESS) or _stateful_operations(dataset) & _PYTHON:
            return True
        return any(remembers(one) for one in dataset._inputs())
    return False


def _stateful_operations(dataset: Any) -> set[str]:
    graphs = [one.function.graph for one in dataset._functions()]
    seen: set[str] = set()
    found: set[str] = set()
    while graphs:
        graph = graphs.pop()
        found |= {one.type for one in graph.get_operations() if one.op_def.is_stateful} - _HARMLESS - _SOURCES
        for name, function in graph._functions.items():
            if name not in seen:
                seen.add(name)
                graphs.append(function.graph)
    return found

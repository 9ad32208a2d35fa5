"""Counts how many passes have begun over each data set that shuffles.

A shuffling data set draws the seed of each pass from a generator of its own, which can be advanced only by beginning passes. Passes that
Python begins are counted as they begin. Passes that a graph begins are counted by a variable that the graph increments; a graph that
takes the data set as an argument takes the variable of that data set with each call as well.
"""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import graph_pb2
from tensorflow.python.data.ops import (
    cache_op,
    concatenate_op,
    dataset_ops,
    random_op,
    repeat_op,
    shuffle_op,
    snapshot_op,
)
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from detrain.adapters.tensorflow import variable_names
from detrain.adapters.tensorflow.functions import functions
from detrain.errors import CaptureError, RestoreError

Dataset = dataset_ops.DatasetV2

#: Data sets that hold a generator of seeds, and those of which only TensorFlow knows what they are made of: what a graph is given, and
#: what one has returned.
_SEEDED = (shuffle_op._ShuffleDataset, random_op._RandomDataset, dataset_ops._VariantDataset)
#: What the operations are called that make those of the first two kinds.
_SEEDED_OPS = ("ShuffleDataset", "ShuffleAndRepeatDataset", "RandomDataset")
_IGNORE_STATE = 1
#: `enumerate` makes one of a range, which holds none.
_generators_of_variants: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
#: Those that begin with what they are made of later than they begin themselves, or several times, or never again: how often a
#: generator of seeds below one has been asked, passes do not tell.
_LATE = (
    repeat_op._RepeatDataset, concatenate_op._ConcatenateDataset, cache_op.CacheDataset, snapshot_op._SnapshotDataset,
    shuffle_op._ShuffleDataset, random_op._RandomDataset,
)  # fmt: skip
#: Operations that take an element, of a data set of data sets.
_TAKEN = frozenset({"IteratorGetNext", "IteratorGetNextSync", "OptionalGetValue"})


class Count:
    """How many passes graphs have begun over some data sets together."""

    def __init__(self, seeded: Counter[Any], given: Counter[Any] | None = None, *, is_late: bool = False) -> None:
        """Make one at 0.

        `seeded`: how often one pass begins each data set with a generator; `given`: the same, by references to tensors of a graph, for data
        sets that are arguments of the graph; `is_late`: passes do not say when all generators were used.
        """
        self.seeded = weakref.WeakKeyDictionary(seeded)
        self.given = given
        self.is_late = is_late
        self.variable = variable("passes")

    @property
    def number(self) -> int:
        """The number of passes so far."""
        return int(self.variable.numpy())


class Passes:
    """The passes over every data set of the process."""

    def __init__(self) -> None:
        self._by_python: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
        self._by_graphs: list[Count] = []
        #: Of graphs that take a data set as an argument, by the ids of their variables' handles, which are never freed.
        self._of_arguments: dict[int, Count] = {}
        self._by_variant: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()
        #: Data sets of which passes do not tell how often their generators were asked, and the iterators in use over each.
        self.in_doubt: weakref.WeakKeyDictionary[Any, weakref.WeakKeyDictionary[Any, None]] = (
            weakref.WeakKeyDictionary()
        )
        #: Those that a cache in memory holds the elements of: another attempt fills it anew, from the same seeds.
        self.cached: weakref.WeakSet[Any] = weakref.WeakSet()

    # --- events ----------------------------------------------------------------------------------------------------------------

    def know(self, dataset: Any) -> None:
        """Record a data set that has been made: a graph is given only its tensor."""
        self._by_variant[id(dataset._variant_tensor)] = dataset

    def begin(self, dataset: Any) -> None:
        """A pass begins, now or whenever the graph that is being made runs. A data set made inside a graph is new each time."""
        seeded, given = _seeded_in(dataset), _given_in(dataset)
        if context.executing_eagerly():
            for one, times in seeded.items():
                self._by_python[one] = self._by_python.get(one, 0) + times
            if is_late(dataset):
                self.doubt(_seeded_in(dataset, is_cached=False))
                self.cached.update(_seeded_in(dataset, is_cached=True))
        elif seeded or given:
            self._count(seeded, given, is_late=is_late(dataset)).variable.assign_add(1)

    def doubt(self, seeded: Iterable[Any]) -> None:
        """Passes do not tell how often the generators of these data sets are asked."""
        for one in seeded:
            self.in_doubt.setdefault(one, weakref.WeakKeyDictionary())

    def hold(self, dataset: Any, iterator: Any) -> None:
        """An iterator over a data set is in use: as long as it is, it may ask a generator at any time."""
        for one in _seeded_in(dataset):
            if one in self.in_doubt:
                self.in_doubt[one][iterator] = None

    @property
    def has_arguments(self) -> bool:
        """True if some graph takes a data set as an argument."""
        return bool(self._of_arguments)

    def put_back(self, dataset: Any) -> Callable[[], None]:
        """For a pass that is not to count: returns what sets the counts back."""
        before = {one: self._by_python[one] for one in parts_of(dataset) if one in self._by_python}
        return lambda: self._by_python.update(before)

    # --- calls of graphs that are given a data set -----------------------------------------------------------------------------

    def with_counters(self, function: Any, args: tuple[Any, ...]) -> list[Any]:
        """The arguments to call a function with: counters that stand for a data set among them are replaced by that data set's."""
        replaced = list(args)
        for index, arg in enumerate(args):
            count = self._of_arguments.get(id(arg))
            if count is not None:
                replaced[index] = self._counter_of(count, function.graph.inputs, args).variable.handle
        return replaced

    def _counter_of(self, count: Count, inputs: list[Any], args: tuple[Any, ...]) -> Count:
        seeded, late = Counter(count.seeded), count.is_late
        given: Counter[Any] = Counter()
        arg_of = {id(one): arg for one, arg in zip(inputs, args, strict=True)}
        for reference, times in (count.given or {}).items():
            arg: Any = arg_of.get(id(reference.deref()))
            dataset = self._by_variant.get(id(arg))
            if dataset is not None:
                for one, per_pass in _seeded_in(dataset).items():
                    seeded[one] += times * per_pass
                for one, per_pass in _given_in(dataset).items():
                    given[one] += times * per_pass
                late |= is_late(dataset)
            elif _is_placeholder(arg):
                given[arg.ref()] += times
            else:
                return count  # an unknown data set: `number` raises at the next checkpoint
        return self._count(seeded, given, is_late=late)

    def _count(self, seeded: Counter[Any], given: Counter[Any], *, is_late: bool) -> Count:
        if given:
            count = Count(seeded, given, is_late=is_late)
            self._of_arguments[id(count.variable.handle)] = count
            return count
        if is_late:
            self.doubt(seeded)
        for count in self._by_graphs:
            if dict(count.seeded) == seeded:
                return count
        self._by_graphs.append(Count(seeded))
        return self._by_graphs[-1]

    # --- questions -------------------------------------------------------------------------------------------------------------

    def number(self, dataset: Any) -> int:
        """How many passes have begun over a data set. Raises `CaptureError` if a graph has begun some over an unknown one."""
        if any(one.number for one in self._of_arguments.values()):
            raise CaptureError(
                "a graph has iterated over a data set that cannot be identified, so its passes cannot be counted"
            )
        return self._so_far(dataset)

    def before(self, dataset: Any) -> list[int]:
        """How many passes have begun over each part of a data set that has a generator of seeds, the outermost first."""
        return [self._so_far(one) for one in seeded_parts_of(dataset)]

    def _so_far(self, dataset: Any) -> int:
        in_graphs = sum(one.number * one.seeded[dataset] for one in self._by_graphs if dataset in one.seeded)
        return self._by_python.get(dataset, 0) + in_graphs

    def begin_missing(self, dataset: Any, wanted: list[int], path: str) -> None:
        """Begin passes until each such part has had as many as `wanted` says. Raises `RestoreError` if one has had more."""
        for one, number in zip(seeded_parts_of(dataset), wanted, strict=True):
            self.begin_missing_of(one, number, path)

    def begin_missing_of(self, dataset: Any, wanted: int, path: str) -> None:
        """The same for one part."""
        if self._so_far(dataset) > wanted:
            raise RestoreError(f"{path}: more passes over its data set have begun than at the checkpoint")
        while self._so_far(dataset) < wanted:
            iter(dataset)


passes = Passes()


def patch() -> None:
    """Patch what begins passes: iterators, `reduce` and calls of graphs."""
    for name in ("reduce", "get_single_element"):  # a graph runs a `for` loop over a data set by `reduce`
        _wrap_pass(name)
    init, call_flat = Dataset.__init__, atomic_function.AtomicFunction.call_flat

    @wraps(init)
    def know(dataset: Any, variant: Any) -> None:
        init(dataset, variant)
        passes.know(dataset)

    @wraps(call_flat)
    def call_with_counters(function: Any, *args: Any) -> Any:
        return call_flat(function, *(passes.with_counters(function, args) if passes.has_arguments else args))

    Dataset.__init__ = know
    atomic_function.AtomicFunction.call_flat = call_with_counters


def _wrap_pass(name: str) -> None:
    plain = getattr(Dataset, name)

    @wraps(plain)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        passes.begin(self)
        return plain(self, *args, **kwargs)

    setattr(Dataset, name, method)


def variable(name: str) -> Any:
    """A counter at 0, outside of any graph."""
    with ops.init_scope(), variable_names.count.paused():
        return resource_variable_ops.ResourceVariable(0, dtype=tf.int64, trainable=False, name=name)


def parts_of(dataset: Any, *, is_cached: bool | None = None) -> Iterator[Any]:
    """A data set, and all data sets that it is made of, as often as each is used.

    `is_cached`: only those that a cache in memory is made of, or only the others.
    """
    pending = [(dataset, False)]
    while pending:
        one, is_below = pending.pop()
        if is_cached is None or is_cached == is_below:
            yield one
        is_below = is_below or isinstance(one, cache_op.CacheDataset)
        pending.extend((inner, is_below) for inner in one._inputs())


def num_generators(dataset: Any) -> int:
    """How many generators of seeds a data set itself has, without those of its inputs."""
    if not isinstance(dataset, _SEEDED):
        return 0
    if type(dataset) is not dataset_ops._VariantDataset or not isinstance(dataset._variant_tensor, ops.EagerTensor):
        return 1
    if dataset not in _generators_of_variants:
        _generators_of_variants[dataset] = _num_in_graph(dataset._variant_tensor)
    return _generators_of_variants[dataset]


def _num_in_graph(variant: Any) -> int:
    """The same for a data set that only TensorFlow knows; 1 where TensorFlow does not say."""
    try:
        content = tf.raw_ops.DatasetToGraphV2(input_dataset=variant, external_state_policy=_IGNORE_STATE)
    except tf.errors.OpError:
        return 1
    graph = graph_pb2.GraphDef.FromString(content.numpy())
    return sum(node.op.startswith(_SEEDED_OPS) for node in graph.node)


def seeded_parts_of(dataset: Any, *, is_cached: bool | None = None) -> list[Any]:
    """The parts with a generator of seeds, each once, the outermost first."""
    return list(_seeded_in(dataset, is_cached=is_cached))


def is_seeded(dataset: Any) -> bool:
    """True if a data set has a generator of seeds that outlives a graph."""
    return isinstance(dataset._variant_tensor, ops.EagerTensor) and num_generators(dataset) > 0


def _seeded_in(dataset: Any, *, is_cached: bool | None = None) -> Counter[Any]:
    return Counter(filter(is_seeded, parts_of(dataset, is_cached=is_cached)))


def _given_in(dataset: Any) -> Counter[Any]:
    """References to the tensors of those parts that are arguments of a graph."""
    tensors = [one._variant_tensor for one in parts_of(dataset) if isinstance(one, dataset_ops._VariantDataset)]
    return Counter(one.ref() for one in tensors if not isinstance(one, ops.EagerTensor) and not _is_element(one))


def _is_element(tensor: Any) -> bool:
    """True for a data set that an iterator gave: it is new each time."""
    return functions.is_of_data(tensor.graph) if _is_placeholder(tensor) else tensor.op.type in _TAKEN


def _is_placeholder(tensor: Any) -> bool:
    return isinstance(tensor, tf.Tensor) and not isinstance(tensor, ops.EagerTensor) and tensor.op.type == "Placeholder"


def is_late(dataset: Any) -> bool:
    """True if passes do not say when the generator of a part, or of what it makes, is used."""
    late = [one for one in parts_of(dataset) if isinstance(one, _LATE)]
    return any(num_generators(part) for one in late for inner in one._inputs() for part in parts_of(inner))

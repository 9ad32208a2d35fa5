"""Random operations whose generator lives in a kernel: their numbers are drawn at a counter that can be saved.

Where a script asks for random numbers with a seed, TensorFlow makes an operation that holds a Philox generator of its own: the key is
the first seed, the upper half of the counter the second, and each call moves the lower half on by 256 for each number. That generator
can neither be read nor set. The operations without a state draw the same numbers of the same key and counter, so each is replaced by
one of those, and by a variable that says how far it has come. The numbers are TensorFlow's own, bit for bit.

In the functions of a data set (`map`, `filter`) the operations stay as they are: those belong to the data set's iterator.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import atomic_function
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.ops import (
    gen_candidate_sampling_ops,
    gen_image_ops,
    gen_nn_ops,
    gen_random_ops,
    gen_stateless_random_ops_v2,
    resource_variable_ops,
)

from detrain.adapters.tensorflow.scopes import is_in_data_function
from detrain.errors import CaptureError
from detrain.state.registry import Handler
from detrain.state.restore import Restore
from detrain.state.tree import Node
from detrain.state.walk import Walk

#: Numbers of the counter that one element uses up, of whatever type.
_PER_ELEMENT = 256
_PHILOX = 1
_WITHOUT_ANOTHER_FORM = {
    gen_random_ops: (
        "multinomial", "parameterized_truncated_normal", "random_gamma", "random_poisson_v2", "random_shuffle",
    ),
    gen_candidate_sampling_ops: (
        "all_candidate_sampler", "fixed_unigram_candidate_sampler", "learned_unigram_candidate_sampler",
        "log_uniform_candidate_sampler", "uniform_candidate_sampler",
    ),
    gen_image_ops: ("random_crop", "sample_distorted_bounding_box_v2"),
    gen_nn_ops: ("fractional_avg_pool", "fractional_max_pool"),
}  # fmt: skip


class Counters:
    """Every counter of the process, by the place where its operation was made."""

    def __init__(self) -> None:
        self.made: dict[str, Any] = {}  # to the variable
        self.saved: dict[str, int] = {}  # of a checkpoint, for those that have not been made yet
        self._num_at: dict[str, int] = {}
        self._places: dict[int, str] = {}  # by the id of the variable's handle
        self._recorded: dict[tuple[int, bytes], Any] = {}

    def new(self, place: str) -> Any:
        """The counter of an operation that is being made, at what a checkpoint says or at 0."""
        number = self._num_at[place] = self._num_at.get(place, -1) + 1
        name = f"{place}#{number}"
        with ops.init_scope(), tf.device("/cpu:0"):  # not `tf.Variable`: functions have a say in that
            start = self.saved.pop(name, 0)
            variable = resource_variable_ops.ResourceVariable(start, dtype=tf.int64, trainable=False, name="counter")
        self.made[name] = variable
        self._places[id(variable.handle)] = place  # the handle lives as long as the variable, which is never given up
        return variable

    def reset(self) -> None:
        """TensorFlow forgets its kernels, and begins with new ones."""
        with ops.init_scope():
            for variable in self.made.values():
                variable.assign(0)

    def of_call(self, handle: Any, function: Any) -> Any:
        """The counter of an operation in a function that is about to be called, by that of the function as it was traced.

        Called from a graph, it has a kernel of its own for each call; and so has what is called while gradients are recorded.
        """
        place = self._places.get(id(handle))
        if place is None:
            return handle
        if not context.executing_eagerly():
            return self.new(f"{_place_in_graph()}/{place}").handle
        if not function.name.startswith(b"__forward"):
            return handle
        key = id(handle), function.name
        if key not in self._recorded:
            self._recorded[key] = self.new(f"{place}:recorded").handle
        return self._recorded[key]

    def state(self) -> dict[str, int]:
        """How far each has come."""
        return {**self.saved, **{name: int(variable.numpy()) for name, variable in self.made.items()}}

    def set_state(self, state: dict[str, int]) -> None:
        """The inverse of `state`."""
        self.saved = {name: value for name, value in state.items() if name not in self.made}
        with ops.init_scope():
            for name, variable in self.made.items():
                variable.assign(state.get(name, 0))


class CountersHandler(Handler):
    """How far every counter has come."""

    kind = "tensorflow.counters"
    has_attributes = False
    is_last = True

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        node["counters"] = obj.state()

    def build(self, node: Node, restore: Restore) -> Any:
        return counters

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        obj.set_state(node["counters"])

    def fingerprint(self, obj: Any) -> bytes:
        return repr(sorted(obj.state().items())).encode()


class Unreadable:
    """Operations of which there is no form without a state: how far their generators have come cannot be read."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._run: set[tuple[Any, ...]] = set()

    def note(self, name: str, seed: int, seed2: int) -> None:
        """One is made. By itself, with seeds of its own, it is new each time; only the same again goes on where the last has ended."""
        attributes = name, seed, seed2
        if not context.executing_eagerly() or attributes in self._run:
            self.names.add(name)
        self._run.add(attributes)


class UnreadableHandler(Handler):
    """What is lost of them is named."""

    kind = "tensorflow.unreadable"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        if obj.names:
            raise CaptureError(
                f"{', '.join(sorted(obj.names))}: the generator is in TensorFlow's kernel and cannot be read"
            )

    def fingerprint(self, obj: Any) -> bytes:
        return b""


unreadable = Unreadable()
counters = Counters()
_eager: dict[tuple[Any, ...], Any] = {}


def replace() -> None:
    """Let the replacements act for as long as the process lives."""
    plain = gen_random_ops.random_uniform, gen_random_ops.random_standard_normal, gen_random_ops.truncated_normal

    def real(draw: Callable[..., Any]) -> Callable[..., Any]:
        return lambda shape, key, counter, dtype: draw(shape, key, counter, _PHILOX, dtype=dtype)

    stateless = gen_stateless_random_ops_v2
    for operation, draw in zip(
        plain,
        (
            stateless.stateless_random_uniform_v2,
            stateless.stateless_random_normal_v2,
            stateless.stateless_truncated_normal_v2,
        ),
        strict=True,
    ):
        _replace(operation, real(draw))
    _replace_integers()
    for module, names in _WITHOUT_ANOTHER_FORM.items():
        for name in names:
            _note_use(module, name)
    _wrap_calls()
    for name in ("_set_global_seed", "_clear_caches", "clear_kernel_cache"):
        _wrap_forgetting(name)


def _replace(plain: Callable[..., Any], draw: Callable[..., Any]) -> None:
    @wraps(plain)
    def operation(shape: Any, dtype: Any, seed: int = 0, seed2: int = 0, name: str | None = None) -> Any:
        if _is_left(seed, seed2):
            return plain(shape, dtype, seed=seed, seed2=seed2, name=name)
        with ops.name_scope(name, plain.__name__):
            shape = tf.convert_to_tensor(shape)
            key, counter = _advance(
                plain.__name__, tf.as_dtype(dtype), seed, seed2, tf.reduce_prod(tf.cast(shape, tf.int64))
            )
            return draw(shape, key, counter, dtype)

    setattr(gen_random_ops, plain.__name__, operation)


def _replace_integers() -> None:
    plain = gen_random_ops.random_uniform_int

    @wraps(plain)
    def random_uniform_int(
        shape: Any, minval: Any, maxval: Any, seed: int = 0, seed2: int = 0, name: str | None = None
    ) -> Any:
        if _is_left(seed, seed2):
            return plain(shape, minval, maxval, seed=seed, seed2=seed2, name=name)
        with ops.name_scope(name, "random_uniform_int"):
            shape, low, high = tf.convert_to_tensor(shape), tf.convert_to_tensor(minval), tf.convert_to_tensor(maxval)
            key, counter = _advance(
                "random_uniform_int", low.dtype, seed, seed2, tf.reduce_prod(tf.cast(shape, tf.int64))
            )
            return gen_stateless_random_ops_v2.stateless_random_uniform_int_v2(shape, key, counter, _PHILOX, low, high)

    gen_random_ops.random_uniform_int = random_uniform_int


def _note_use(module: Any, name: str) -> None:
    plain = getattr(module, name)
    place = list(inspect.signature(plain).parameters).index("seed")

    @wraps(plain)
    def operation(*args: Any, **kwargs: Any) -> Any:
        seeds = [*args[place : place + 2], kwargs.get("seed", 0), kwargs.get("seed2", 0)]
        if not _is_left(seeds[0], seeds[1]):
            unreadable.note(name, *seeds[:2])
        return plain(*args, **kwargs)

    setattr(module, name, operation)


def _is_left(seed: int, seed2: int) -> bool:
    """True where TensorFlow seeds the operation by chance, and in the functions of data sets."""
    return (not seed and not seed2) or is_in_data_function() or not ops.executing_eagerly_outside_functions()


def _advance(kind: str, dtype: Any, seed: int, seed2: int, count: Any) -> tuple[Any, Any]:
    """Key and counter of a call that draws so many numbers; the next one begins behind them."""
    variable = _counter(kind, dtype, seed, seed2)
    place = tf.bitcast(variable.assign_add(count * _PER_ELEMENT) - count * _PER_ELEMENT, tf.uint64)
    key = tf.constant([seed % 2**64], tf.uint64)
    return key, tf.stack([place, tf.constant(seed2 % 2**64, tf.uint64)])


def _counter(kind: str, dtype: Any, seed: int, seed2: int) -> Any:
    if not context.executing_eagerly():
        return counters.new(f"{_place_in_graph()}:{kind}:{seed}:{seed2}")
    # TensorFlow keeps a kernel for all calls with the same attributes.
    attributes = kind, dtype, seed, seed2, ops.context.context().device_name
    found = _eager.get(attributes)
    if found is None:
        found = _eager[attributes] = counters.new(f"{kind}:{dtype.name}:{seed}:{seed2}")
    return found


def _place_in_graph() -> str:
    """The functions around an operation, outermost first, with what each is given; then the operation's scope."""
    graph, names = ops.get_default_graph(), []
    scope = graph.get_name_scope()
    while isinstance(graph, func_graph.FuncGraph):
        given = ",".join(f"{one.dtype.name}{one.shape}" for one in graph.inputs if one.dtype != tf.resource)
        names.append(f"{graph.name}({given})")
        graph = graph.outer_graph
    return "/".join([*reversed(names), scope])


def _wrap_calls() -> None:
    plain = atomic_function.AtomicFunction.call_flat

    @wraps(plain)
    def call_flat(function: Any, *args: Any) -> Any:
        return plain(function, *(counters.of_call(one, function) for one in args))

    atomic_function.AtomicFunction.call_flat = call_flat


def _wrap_forgetting(name: str) -> None:
    plain = getattr(context.Context, name)

    @wraps(plain)
    def forget(*args: Any, **kwargs: Any) -> None:
        plain(*args, **kwargs)
        counters.reset()

    setattr(context.Context, name, forget)

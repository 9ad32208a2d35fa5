"""Random operations without a stateless form: their kernels are advanced by drawing.

How far a call advances the generator follows from its inputs, and is counted. In a process that resumes at a checkpoint the kernel starts
anew, so it first draws as much in one call with little work, whose result is dropped. In a graph both calls must be of the same
operation, because each has a kernel of its own: it stands in a loop.

An operation that cannot be advanced so, or that XLA compiles, is recorded as unreadable.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import wraps
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import func_graph, ops
from tensorflow.python.ops import (
    control_flow_util,
    gen_candidate_sampling_ops,
    gen_image_ops,
    gen_nn_ops,
    gen_random_ops,
)

from detrain.adapters.tensorflow.counters import Counter, counters, is_left, unreadable

Tensors = dict[str, Any]


@dataclass(frozen=True)
class Skipped:
    """An operation, and how its kernel is advanced."""

    #: Its tensor arguments, with the dtypes that the operation prescribes or None.
    tensors: dict[str, tf.DType | None]
    #: How far a call advances the generator, from its inputs, in units of its own. () int64.
    units: Callable[[Tensors], Any]
    #: Inputs with which it advances by so many units.
    using_up: Callable[[Tensors, Any], Tensors]
    most: int  # units of one call
    is_differentiable: bool = False  # else TensorFlow lets no gradient through


def _units_of_shuffle(given: Tensors) -> Any:
    """One for each row but the last, in groups of four."""
    rows = tf.shape(given["value"], tf.int64)[0] if given["value"].shape.rank != 0 else tf.constant(0, tf.int64)
    is_nothing = (tf.size(given["value"], tf.int64) <= 1) | (rows <= 1)
    return tf.where(is_nothing, tf.zeros_like(rows), (rows + 2) // 4)


def _units_of_multinomial(given: Tensors) -> Any:
    """For each row of logits as many as there are samples, rounded up to a multiple of four."""
    samples = tf.cast(given["num_samples"], tf.int64)
    return tf.shape(given["logits"], tf.int64)[0] * ((samples + 3) // 4 * 4)


def _units_of_poisson(given: Tensors) -> Any:
    """One for each element."""
    return tf.reduce_prod(tf.cast(given["shape"], tf.int64)) * tf.size(given["rate"], tf.int64)


_MOST = 2**20
_SAMPLER = Skipped(
    tensors={"true_classes": tf.int64},
    units=lambda _given: tf.constant(1, tf.int64),  # the attributes alone decide how far
    using_up=lambda given, _units: {"true_classes": tf.zeros_like(given["true_classes"][:1])},
    most=1,
)

SKIPPED: tuple[tuple[ModuleType, str, Skipped], ...] = (
    (
        gen_random_ops,
        "random_shuffle",
        Skipped(
            {"value": None},
            _units_of_shuffle,
            lambda given, units: {"value": tf.zeros([4 * units + 1], given["value"].dtype)},
            _MOST,
            is_differentiable=True,
        ),
    ),
    (
        gen_random_ops,
        "multinomial",
        Skipped(
            {"logits": None, "num_samples": tf.int32},
            _units_of_multinomial,
            lambda given, units: {
                "logits": tf.zeros([1, 1], given["logits"].dtype),
                "num_samples": tf.cast(units, tf.int32),
            },
            _MOST,
        ),
    ),
    (
        gen_random_ops,
        "random_poisson_v2",
        Skipped(
            {"shape": tf.int32, "rate": None},
            _units_of_poisson,
            lambda given, units: {
                "shape": tf.cast([units], tf.int32),
                "rate": tf.zeros([1], given["rate"].dtype),
            },
            _MOST,
        ),
    ),
    (gen_candidate_sampling_ops, "log_uniform_candidate_sampler", _SAMPLER),
    (gen_candidate_sampling_ops, "uniform_candidate_sampler", _SAMPLER),
    (gen_candidate_sampling_ops, "fixed_unigram_candidate_sampler", _SAMPLER),
)

_UNREADABLE = {
    gen_random_ops: ("parameterized_truncated_normal",),
    gen_candidate_sampling_ops: ("all_candidate_sampler", "learned_unigram_candidate_sampler"),
    gen_image_ops: ("random_crop", "sample_distorted_bounding_box_v2"),
    gen_nn_ops: ("fractional_avg_pool", "fractional_max_pool"),
}


def replace() -> None:
    """Replace the operations for as long as the process lives."""
    for module, name, skipped in SKIPPED:
        _replace(module, name, skipped)
    for module, names in _UNREADABLE.items():
        for name in names:
            _record_use(module, name)


def _replace(module: ModuleType, name: str, skipped: Skipped) -> None:
    plain = getattr(module, name)
    signature = inspect.signature(plain)

    @wraps(plain)
    def operation(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = bound.arguments
        seeds = arguments["seed"] or 0, arguments["seed2"] or 0
        if is_left(*seeds):
            return plain(**arguments)
        if not context.executing_eagerly() and control_flow_util.GraphOrParentsInXlaContext(ops.get_default_graph()):
            unreadable.record(name, *seeds)
            return plain(**arguments)
        with ops.name_scope(arguments.pop("name"), name):
            given = {one: tf.convert_to_tensor(arguments.pop(one), dtype) for one, dtype in skipped.tensors.items()}

            def draw(given: Tensors) -> Any:
                return plain(**arguments, **given)

            if context.executing_eagerly():
                types = tuple(one.dtype for one in given.values())
                _skip_now(counters.eager(name, seeds, types, is_kernels=True), skipped, given, draw)
                return draw(given)
            return _draw_in_graph(counters.in_graph(name, seeds, is_kernels=True), skipped, given, draw)

    setattr(module, name, operation)


def _skip_now(counter: Counter, skipped: Skipped, given: Tensors, draw: Callable[[Tensors], Any]) -> None:
    drawn, behind = (int(value) for value in counter.values)
    while behind > 0:
        units = min(behind, skipped.most)
        draw(skipped.using_up(given, tf.constant(units, tf.int64)))
        behind -= units
    counter.set([drawn + int(skipped.units(given)), 0])


def _draw_in_graph(variable: Any, skipped: Skipped, given: Tensors, draw: Callable[[Tensors], Any]) -> Any:
    """Run the operation in a loop: with inputs that only advance the kernel, and in the last round with the real ones."""
    like = _outputs(given, draw)
    drawn, behind = tf.unstack(variable.read_value())

    def once(left: Any, *_before: Any) -> tuple[Any, ...]:
        is_behind = left > 0
        units = tf.minimum(left, skipped.most)
        values = tf.cond(is_behind, lambda: skipped.using_up(given, units), lambda: given)
        return (tf.where(is_behind, left - units, -1), *tf.nest.flatten(draw(values)))

    nothing = [tf.zeros([0] * (one.shape.rank or 0), one.dtype) for one in tf.nest.flatten(like)]
    _, *results = tf.while_loop(
        lambda left, *_: left >= 0,
        once,
        [behind, *nothing],
        shape_invariants=[tf.TensorShape([]), *(tf.TensorShape(None) for _ in nothing)],
        parallel_iterations=1,
    )
    variable.assign(tf.stack([drawn + skipped.units(given), tf.zeros_like(behind)]))
    for one, known in zip(results, tf.nest.flatten(like), strict=True):
        one.set_shape(known.shape)
    if not skipped.is_differentiable:
        results = [tf.stop_gradient(one) for one in results]
    return tf.nest.pack_sequence_as(like, results)


def _outputs(given: Tensors, draw: Callable[[Tensors], Any]) -> Any:
    """Tensors of the dtypes and shapes of the outputs, in a scratch graph."""
    with func_graph.FuncGraph("outputs").as_default():
        return draw({name: _like(one) for name, one in given.items()})


def _like(tensor: Any) -> Any:
    """A placeholder for a tensor; a constant where its value is known, as that may decide about shapes."""
    value = tf.get_static_value(tensor)
    return tf.raw_ops.Placeholder(dtype=tensor.dtype, shape=tensor.shape) if value is None else tf.constant(value)


def _record_use(module: ModuleType, name: str) -> None:
    plain = getattr(module, name)
    place = list(inspect.signature(plain).parameters).index("seed")

    @wraps(plain)
    def operation(*args: Any, **kwargs: Any) -> Any:
        seeds = [*args[place : place + 2], kwargs.get("seed", 0), kwargs.get("seed2", 0)]
        if not is_left(seeds[0], seeds[1]):
            unreadable.record(name, *seeds[:2])
        return plain(*args, **kwargs)

    setattr(module, name, operation)

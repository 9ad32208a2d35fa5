"""Random operations that have a stateless form: they draw at a counter of detrain's (`counters`).

The stateless form takes key and counter as arguments, and gives the same numbers, bit for bit, as the operation whose generator is in
the kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import ops
from tensorflow.python.ops import gen_random_ops, gen_stateless_random_ops_v2

from detrain.adapters.tensorflow.counters import counters, is_left

#: How far one element advances the counter, whatever its type.
_PER_ELEMENT = 256
_PHILOX = 1

_random, _stateless = gen_random_ops, gen_stateless_random_ops_v2


def replace() -> None:
    """Replace the operations for as long as the process lives."""
    for plain, draw in (
        (_random.random_uniform, _stateless.stateless_random_uniform_v2),
        (_random.random_standard_normal, _stateless.stateless_random_normal_v2),
        (_random.truncated_normal, _stateless.stateless_truncated_normal_v2),
    ):
        _replace_real(plain, draw)
    _replace_integers()
    _replace_gamma()


def _replace_real(plain: Callable[..., Any], draw: Callable[..., Any]) -> None:
    @wraps(plain)
    def operation(shape: Any, dtype: Any, seed: int = 0, seed2: int = 0, name: str | None = None) -> Any:
        if is_left(seed, seed2):
            return plain(shape, dtype, seed=seed, seed2=seed2, name=name)
        with ops.name_scope(name, plain.__name__):
            shape = tf.convert_to_tensor(shape)
            place = _advance(plain.__name__, (seed, seed2), (tf.as_dtype(dtype),), shape)
            return draw(shape, *place, _PHILOX, dtype=dtype)

    setattr(gen_random_ops, plain.__name__, operation)


def _replace_integers() -> None:
    plain = gen_random_ops.random_uniform_int

    @wraps(plain)
    def random_uniform_int(
        shape: Any, minval: Any, maxval: Any, seed: int = 0, seed2: int = 0, name: str | None = None
    ) -> Any:
        if is_left(seed, seed2):
            return plain(shape, minval, maxval, seed=seed, seed2=seed2, name=name)
        with ops.name_scope(name, plain.__name__):
            shape, low, high = tf.convert_to_tensor(shape), tf.convert_to_tensor(minval), tf.convert_to_tensor(maxval)
            place = _advance(plain.__name__, (seed, seed2), (low.dtype,), shape)
            return _stateless.stateless_random_uniform_int_v2(shape, *place, _PHILOX, low, high)

    gen_random_ops.random_uniform_int = random_uniform_int


def _replace_gamma() -> None:
    plain = gen_random_ops.random_gamma

    @wraps(plain)
    def random_gamma(shape: Any, alpha: Any, seed: int = 0, seed2: int = 0, name: str | None = None) -> Any:
        if is_left(seed, seed2):
            return plain(shape, alpha, seed=seed, seed2=seed2, name=name)
        with ops.name_scope(name, plain.__name__):
            shape, alpha = tf.convert_to_tensor(shape, tf.int32), tf.convert_to_tensor(alpha)
            # The kernel draws all samples of one alpha, then those of the next.
            rows = tf.stack([tf.size(alpha), tf.reduce_prod(shape)])
            place = _advance(plain.__name__, (seed, seed2), (alpha.dtype,), rows)
            each = tf.broadcast_to(tf.reshape(alpha, [-1, 1]), rows)
            drawn = _stateless.stateless_random_gamma_v3(rows, *place, _PHILOX, each)
            drawn = tf.reshape(tf.transpose(drawn), tf.concat([shape, tf.shape(alpha)], 0))
            sizes = tf.get_static_value(shape)
            drawn.set_shape(tf.TensorShape(sizes).concatenate(alpha.shape))
            return drawn

    gen_random_ops.random_gamma = random_gamma


def _advance(kind: str, seeds: tuple[int, int], types: tuple[tf.DType, ...], shape: Any) -> tuple[Any, Any]:
    """Key (1,) and counter (2,), uint64, for a call that draws `shape` numbers; the next call begins behind them."""
    key = tf.constant([seeds[0] % 2**64], tf.uint64)
    upper = seeds[1] % 2**64
    if context.executing_eagerly():
        counter = counters.eager(kind, seeds, types)
        place = counter.drawn
        counter.values += int(shape.numpy().prod(dtype="int64")) * _PER_ELEMENT
        return key, tf.constant([place, upper], tf.uint64)
    count = tf.reduce_prod(tf.cast(shape, tf.int64)) * _PER_ELEMENT
    place = tf.bitcast(counters.in_graph(kind, seeds).assign_add(count) - count, tf.uint64)
    return key, tf.stack([place, tf.constant(upper, tf.uint64)])

"""Generators that TensorFlow seeds from the system's entropy, and refuses to seed under op determinism: they get what `os.urandom` gives.

Under detrain that is one seeded stream. The global generator, which only TensorFlow holds, is part of the checkpoint.
"""

from __future__ import annotations

import math
import os
from functools import wraps
from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import config, ops
from tensorflow.python.ops import gen_stateful_random_ops, random_ops_util, stateful_random_ops

from detrain.state.fields import Holds
from detrain.state.handler import MISSING, Capturing, Handler, Restoring
from detrain.state.tree import Node

Generator = stateful_random_ops.Generator


class GlobalGenerator:
    """The generator of `tf.random.get_global_generator`, once there is one."""

    @property
    def value(self) -> Any:
        """`tf.random.Generator` or None."""
        return stateful_random_ops.global_generator


class GlobalGeneratorHandler(Handler):
    """What it is."""

    kind = "tensorflow.global generator"
    fields: ClassVar = {"value": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["value"] = walk.child(obj.value, "")

    def build(self, node: Node, restore: Restoring) -> Any:
        return global_generator

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        live = MISSING if obj.value is None else obj.value
        stateful_random_ops.global_generator = restore.value(node["value"], live)

    def fingerprint(self, obj: Any) -> bytes:
        return b"" if obj.value is None else bytes(obj.value.state.numpy().tobytes())


global_generator = GlobalGenerator()


def replace() -> None:
    """Replace what TensorFlow refuses under op determinism, for as long as the process lives."""
    ints, get = gen_stateful_random_ops.non_deterministic_ints, stateful_random_ops.get_global_generator

    @wraps(ints)
    def non_deterministic_ints(shape: Any, dtype: Any = tf.int64, name: str | None = None) -> Any:
        return _drawn(shape, tf.as_dtype(dtype)) if config.is_op_determinism_enabled() else ints(shape, dtype, name)

    @wraps(get)
    def get_global_generator() -> Any:
        if stateful_random_ops.global_generator is None and config.is_op_determinism_enabled():
            with ops.init_scope():
                made = Generator.from_non_deterministic_state()
            stateful_random_ops.global_generator = made
        return get()

    Generator.from_non_deterministic_state = _from_non_deterministic_state(Generator.from_non_deterministic_state)
    gen_stateful_random_ops.non_deterministic_ints = non_deterministic_ints
    for module in (stateful_random_ops, tf.random, tf.random.experimental):
        module.get_global_generator = get_global_generator


def _from_non_deterministic_state(plain: Any) -> Any:
    @wraps(plain.__func__)
    def from_non_deterministic_state(cls: Any, alg: Any = None) -> Any:
        if not config.is_op_determinism_enabled():
            return plain.__func__(cls, alg)
        number = random_ops_util.convert_alg_to_int(stateful_random_ops.DEFAULT_ALGORITHM if alg is None else alg)
        state = _drawn([stateful_random_ops._get_state_size(number)], tf.as_dtype(stateful_random_ops.SEED_TYPE))
        return cls(state=state, alg=number)

    return classmethod(from_non_deterministic_state)


def _drawn(shape: Any, dtype: tf.DType) -> Any:
    def draw(wanted: Any) -> Any:
        sizes = [int(size) for size in np.asarray(wanted)]
        octets = os.urandom(math.prod(sizes) * dtype.size)
        return np.frombuffer(octets, dtype=dtype.as_numpy_dtype).reshape(sizes)

    if context.executing_eagerly():
        return tf.constant(draw(tf.convert_to_tensor(shape).numpy()), dtype)
    made = tf.numpy_function(draw, [tf.convert_to_tensor(shape)], dtype)
    made.set_shape(tf.get_static_value(tf.convert_to_tensor(shape)))
    return made

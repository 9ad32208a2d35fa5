"""Tensors and variables: variables are brought to their saved values in place, tensors are values and are made anew."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.eager.polymorphic_function import polymorphic_function
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops

from detrain.adapters.tensorflow import variable_names
from detrain.errors import CaptureError
from detrain.state.classes import type_name
from detrain.state.fields import plain_fields
from detrain.state.handler import Capturing, Handler, Restoring
from detrain.state.tree import Node

EagerTensor = ops.EagerTensor
Variable = resource_variable_ops.BaseResourceVariable

_PLAIN = type_name(resource_variable_ops.ResourceVariable)
_IN_GRAPH = type_name(polymorphic_function.UnliftedInitializerVariable)

#: dtypes that numpy lacks are stored under whole numbers of their size.
_BY_SIZE = {1: np.uint8, 2: np.uint16}
_NUMPY = "?bhilqBHILQefdFD"


def _write(node: Node, walk: Capturing, dtype: tf.DType, value: Any) -> None:
    node["dtype"], node["shape"] = dtype.name, list(value.shape)
    if dtype == tf.string:
        node["text"] = [one.hex() for one in np.ravel(value).tolist()]
    elif value.dtype.char in _NUMPY:
        walk.array(node, value)
    else:
        walk.array(node, value.view(_BY_SIZE[value.dtype.itemsize]), dtype.name)


def _read(node: Node, restore: Restoring) -> Any:
    dtype = tf.as_dtype(node["dtype"])
    if "text" in node:
        texts = [bytes.fromhex(one) for one in node["text"]]
        return np.array(texts, dtype=object).reshape(node["shape"])
    raw = restore.data(node)
    return raw.view(dtype.as_numpy_dtype).reshape(node["shape"])


def _value_of(tensor: Any) -> Any:
    """The elements of an eager tensor as numpy sees them, without a copy where TensorFlow gives it."""
    if tensor.dtype in (tf.resource, tf.variant):
        raise CaptureError(f"a tensor of type {tensor.dtype.name} stands for an object inside TensorFlow")
    value = tensor._numpy()
    return value if isinstance(value, np.ndarray) else np.asarray(value)


class TensorHandler(Handler):
    """An eager tensor: a value that never changes."""

    kind = "tensorflow.Tensor"
    is_dropped_silently = True
    fields: ClassVar = plain_fields("dtype", "shape", "text")
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        _write(node, walk, obj.dtype, _value_of(obj))

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if (
            not isinstance(live, EagerTensor)
            or live.dtype.name != node["dtype"]
            or live.shape.as_list() != node["shape"]
        ):
            return False
        return _has_bits(_value_of(live), _read(node, restore))

    def build(self, node: Node, restore: Restoring) -> Any:
        with ops.init_scope():
            return tf.constant(_read(node, restore), tf.as_dtype(node["dtype"]), node["shape"])


def _has_bits(one: Any, other: Any) -> bool:
    if one.dtype == object:
        return bool(np.array_equal(one, other))
    return bool(one.tobytes() == other.tobytes())


class VariableHandler(Handler):
    """A `tf.Variable`: its value. The object behind it, to which graphs hold on, stays."""

    kind = "tensorflow.Variable"
    is_dropped_silently = True
    fields: ClassVar = plain_fields("dtype", "shape", "text", "name", "trainable", "unique")
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["t"] = _made_as(node["t"])
        node["name"], node["trainable"], node["unique"] = obj.name, obj.trainable, obj._unique_id
        if not context.executing_eagerly():
            raise CaptureError("a variable cannot be read while a graph is being built")
        if not resource_variable_ops.var_is_initialized_op(obj.handle):
            raise CaptureError("it has no value yet")
        _write(node, walk, obj.dtype, _value_of(_reading(obj)))

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return (
            _made_as(type_name(type(live))) == _made_as(node["t"])
            and live.dtype.name == node["dtype"]
            and bool(live.shape.is_compatible_with(node["shape"]))
        )

    def build(self, node: Node, restore: Restoring) -> Any:
        with ops.init_scope():
            return tf.Variable(
                _read(node, restore), trainable=node["trainable"], name=node["name"].partition(":")[0],
                dtype=tf.as_dtype(node["dtype"]), shape=node["shape"],
            )  # fmt: skip

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        _call(obj, node["unique"])
        if is_new:
            return
        wanted = _read(node, restore)
        with ops.init_scope():
            live = _value_of(_reading(obj))
            if live.shape != wanted.shape or not _has_bits(live, wanted):
                obj.assign(tf.constant(wanted, obj.dtype))

    def device_memory(self, obj: Any) -> tuple[int, int] | None:
        if not context.executing_eagerly() or obj.dtype in (tf.string, tf.resource, tf.variant):
            return None
        if not obj.shape.is_fully_defined() or not resource_variable_ops.var_is_initialized_op(obj.handle):
            return None
        return id(obj.handle), obj.shape.num_elements() * obj.dtype.size

    def fetch(self, obj: Any, start: int, end: int) -> Any:
        return np.ascontiguousarray(_value_of(_reading(obj))).reshape(-1).view(np.uint8)[start:end].data


def _call(variable: Any, unique: str) -> None:
    """Give a variable the name that optimizers know it by, and see to it that no later one is given the same."""
    variable._unique_id = unique
    variable_names.count.see(unique)


def _made_as(name: str) -> str:
    """A variable that came about inside a graph is one like any other once it has its value."""
    return _PLAIN if name == _IN_GRAPH else name


def _reading(variable: Any) -> Any:
    """Its value now; not through `read_value`, which tapes and the script's own classes see."""
    return resource_variable_ops.gen_resource_variable_ops.read_variable_op(variable.handle, variable.dtype)

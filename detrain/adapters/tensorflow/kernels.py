"""Deterministic formulations of the operations for which TensorFlow has no deterministic kernel.

`enable_op_determinism` makes them raise on a GPU (and `tf.timestamp` everywhere). With these the script runs, and gives the same bits
every time. Four are composed of deterministic operations; the others run on the CPU, as TensorFlow's own `scatter_nd` does then.
docs/kernels.md has the table.

One does not raise, and is on no list: `AddN` of more than two tensors in a graph. Its kernel begins with whichever input nobody else
reads any more, so that the order of the sum depends on which of two threads is first.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Mapping
from functools import wraps
from types import ModuleType
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import config
from tensorflow.python.ops import (
    array_ops,
    gen_image_ops,
    gen_linalg_ops,
    gen_logging_ops,
    gen_math_ops,
    gen_nn_ops,
    gen_sparse_ops,
)

from detrain.adapters.tensorflow.scopes import is_in_data_function

Function = Callable[..., Any]

#: Functions with deterministic kernels on the CPU, in the modules where gradients and public functions look them up.
ON_CPU: tuple[tuple[ModuleType, str], ...] = (
    (gen_math_ops, "dense_bincount"),
    (gen_image_ops, "crop_and_resize_grad_image"),
    (gen_image_ops, "crop_and_resize_grad_boxes"),
    (gen_nn_ops, "dilation2d_backprop_input"),
    (gen_nn_ops, "dilation2d_backprop_filter"),
    (gen_nn_ops, "max_pool_grad_with_argmax"),
    (array_ops, "fake_quant_with_min_max_vars_gradient"),
    (array_ops, "fake_quant_with_min_max_vars_per_channel_gradient"),
)

#: So many summands make the order of a sum matter: two give the same bits either way.
_FEWEST_WITH_AN_ORDER = 3


def contrast(images: Any, contrast_factor: Any) -> Any:
    """`AdjustContrastv2`: each channel's distance from its mean, times a factor. `images`: (…, height, width, channels)."""
    wide = tf.cast(images, tf.float32)
    mean = tf.reduce_mean(wide, [-3, -2], keepdims=True)
    return tf.cast((wide - mean) * contrast_factor + mean, images.dtype)


def nearest_gradient(grads: Any, size: Any, align_corners: bool = False, half_pixel_centers: bool = False) -> Any:
    """`ResizeNearestNeighborGrad`: each pixel's sum over those made of it. `grads`: (batch, height, width, channels); `size`: (2,)."""
    wide = grads if grads.dtype == tf.float64 else tf.cast(grads, tf.float32)
    size = tf.convert_to_tensor(size, tf.int32)
    for axis in (1, 2):
        order = [axis, *(one for one in range(4) if one != axis)]
        num, num_made = size[axis - 1], tf.shape(wide)[axis]
        source = _nearest(num, num_made, align_corners, half_pixel_centers)
        summed = tf.math.unsorted_segment_sum(tf.transpose(wide, order), source, num)
        wide = tf.transpose(summed, [order.index(one) for one in range(4)])
    return tf.cast(wide, grads.dtype)


def _nearest(num: Any, num_made: Any, align_corners: bool, half_pixel_centers: bool) -> Any:
    """Which of `num` pixels each of `num_made` was copied from, as TensorFlow's kernel reckons it."""
    is_aligned = align_corners and tf.greater(num_made, 1)
    have, made = tf.cast(num, tf.float32), tf.cast(num_made, tf.float32)
    scale = tf.where(is_aligned, (have - 1) / tf.maximum(made - 1, 1), have / made)
    place = (tf.range(made) + (0.5 if half_pixel_centers else 0.0)) * scale
    return tf.minimum(tf.cast(tf.floor(place + 0.5) if align_corners else tf.floor(place), tf.int32), num - 1)


def sparse_product(
    a_indices: Any, a_values: Any, a_shape: Any, b: Any, adjoint_a: bool = False, adjoint_b: bool = False
) -> Any:
    """`SparseTensorDenseMatMul`: a row of `b` for each value, summed by rows of the result. Takes memory for all those rows."""
    a_indices, a_values, a_shape, b = map(tf.convert_to_tensor, (a_indices, a_values, a_shape, b))
    if adjoint_a:
        a_indices, a_values, a_shape = a_indices[:, ::-1], tf.math.conj(a_values), a_shape[::-1]
    if adjoint_b:
        b = tf.linalg.adjoint(b)
    wide = tf.float32 if b.dtype in (tf.float16, tf.bfloat16) else b.dtype

    def at(tensor: Any, axis: int) -> Any:
        return tf.cast(tf.gather(tensor, a_indices[:, axis]), wide)

    @tf.custom_gradient  # type: ignore[untyped-decorator]
    def product(values: Any, dense: Any) -> Any:
        def gradients(upstream: Any) -> tuple[Any, Any]:
            of_values = tf.cast(tf.reduce_sum(at(upstream, 0) * tf.math.conj(at(dense, 1)), 1), values.dtype)
            return of_values, sparse_product(a_indices, values, a_shape, upstream, adjoint_a=True)

        rows = at(dense, 1) * tf.cast(values, wide)[:, None]
        return tf.cast(tf.math.unsorted_segment_sum(rows, a_indices[:, 0], a_shape[0]), dense.dtype), gradients

    return product(a_values, b)


def frozen_batch_norm_gradient(
    y_backprop: Any, x: Any, scale: Any, reserve_space_1: Any, reserve_space_2: Any, *, epsilon: float, **_others: Any
) -> tuple[Any, ...]:
    """`FusedBatchNormGrad` of a layer that does not train, channels last: gradients of `x`, of scale and of offset, and two empty ones.

    The reserved spaces hold the mean and the variance. Called as TensorFlow's gradients do, by keywords.
    """
    mean, inverse = reserve_space_1, tf.math.rsqrt(reserve_space_2 + epsilon)
    wide, axes = tf.cast(y_backprop, scale.dtype), list(range(len(x.shape) - 1))
    of_scale = tf.reduce_sum(wide * (tf.cast(x, scale.dtype) - mean), axes) * inverse
    empty = tf.zeros([0], scale.dtype)
    return tf.cast(wide * (scale * inverse), x.dtype), of_scale, tf.reduce_sum(wide, axes), empty, empty


def now() -> Any:
    """`Timestamp`, read from the clock of Python's `time`, for which detrain has answers in set-up code."""
    if context.executing_eagerly():
        return tf.constant(time.time(), tf.float64)
    seconds = tf.numpy_function(time.time, [], tf.float64)
    seconds.set_shape([])
    return seconds


def replace() -> None:
    """Install the formulations for as long as the process lives, for calls that TensorFlow would refuse."""
    _replace(gen_image_ops, "adjust_contrastv2", contrast)
    _replace(gen_image_ops, "resize_nearest_neighbor_grad", nearest_gradient)
    _replace(gen_sparse_ops, "sparse_tensor_dense_mat_mul", sparse_product)
    for name in ("fused_batch_norm_grad", "fused_batch_norm_grad_v2", "fused_batch_norm_grad_v3"):
        _replace(gen_nn_ops, name, frozen_batch_norm_gradient, lambda given: not given.get("is_training", True))
    for module, name in ON_CPU:
        _replace(module, name, _on_cpu(getattr(module, name)))
    _replace(gen_linalg_ops, "svd", _on_cpu(gen_linalg_ops.svd), _may_have_one_column)
    _replace_timestamp()
    _replace_sum()


def _replace(
    module: ModuleType, name: str, function: Function, is_refused: Callable[[Mapping[str, Any]], bool] = lambda _: True
) -> None:
    """`is_refused` says of the arguments of a call whether TensorFlow has no deterministic kernel for it on a GPU."""
    plain = getattr(module, name)
    signature = inspect.signature(plain)

    @wraps(plain)
    def operation(*args: Any, **kwargs: Any) -> Any:
        if not _is_for_gpu() or not is_refused(signature.bind(*args, **kwargs).arguments):
            return plain(*args, **kwargs)
        kwargs.pop("name", None)
        return function(*args, **kwargs)

    setattr(module, name, operation)


def _replace_timestamp() -> None:
    plain = gen_logging_ops.timestamp

    @wraps(plain)
    def timestamp(name: str | None = None) -> Any:
        return now() if config.is_op_determinism_enabled() else plain(name)

    tf.timestamp = gen_logging_ops.timestamp = timestamp


def _replace_sum() -> None:
    plain = gen_math_ops.add_n

    @wraps(plain)
    def add_n(inputs: Any, name: str | None = None) -> Any:
        if context.executing_eagerly() or not config.is_op_determinism_enabled() or len(inputs) < _FEWEST_WITH_AN_ORDER:
            return plain(inputs, name)
        total = plain(inputs[:2])
        for index, one in enumerate(inputs[2:], 2):
            total = plain([total, one], name if index == len(inputs) - 1 else None)
        return total

    gen_math_ops.add_n = add_n


def keep_order_of_sums() -> None:
    """Keep the graph optimizer from merging consecutive additions into one `AddN`."""
    tf.config.optimizer.set_experimental_options({"arithmetic_optimization": False})


def _is_for_gpu() -> bool:
    """True if an operation that is being made may run on a GPU and has to be deterministic."""
    return bool(config.is_op_determinism_enabled()) and not is_in_data_function() and context.num_gpus() > 0


def _may_have_one_column(given: Mapping[str, Any]) -> bool:
    """True for a matrix with one column or row, and for one whose sizes are not known yet."""
    sizes = tf.TensorShape(getattr(given["input"], "shape", None))[-2:]
    return sizes.rank is None or None in sizes.as_list() or 1 in sizes.as_list()


def _on_cpu(plain: Function) -> Function:
    def operation(*args: Any, **kwargs: Any) -> Any:
        with tf.device("/device:CPU:0"):
            return plain(*args, **kwargs)

    return operation

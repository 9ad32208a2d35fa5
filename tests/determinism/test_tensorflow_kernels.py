"""Formulations of TensorFlow's operations without a deterministic kernel: they compute what TensorFlow's own kernels do."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

import pytest

CASES = """
import json
import sys

import numpy as np
import tensorflow as tf
from detrain.adapters.tensorflow import kernels

rng = np.random.default_rng(3)


def some(*shape, dtype=tf.float32):
    return tf.constant(rng.normal(size=shape), dtype)


def weights(tensor):
    # another one for each element, from 0 to 1
    places = tf.reshape(tf.range(tf.size(tensor)), tf.shape(tensor))
    return tf.cast(places / tf.size(tensor), tensor.dtype.real_dtype)


def gradients(function, *inputs):
    with tf.GradientTape(persistent=True) as tape:
        for one in inputs:
            tape.watch(one)
        result = function(*inputs)
        results = [one for one in tf.nest.flatten(result) if one.dtype.is_floating or one.dtype.is_complex]
        total = sum(tf.reduce_sum(tf.abs(one) * weights(one)) for one in results)
    return [*results, *tape.gradient(total, inputs)]


def nearest(size, **how):
    return lambda x: tf.compat.v1.image.resize_nearest_neighbor(x, size, **how) ** 2


def product(**how):
    indices = [[0, 1], [0, 2], [1, 1], [3, 0]]
    return lambda values, dense: tf.sparse.sparse_dense_matmul(tf.SparseTensor(indices, values, [4, 3]), dense, **how)


def frozen(dtype):
    def of(x, scale, offset):
        mean, variance = tf.constant([0.1, 0.2, 0.3]), tf.constant([1.1, 0.2, 2.3])
        return tf.compat.v1.nn.fused_batch_norm(tf.cast(x, dtype), scale, offset, mean, variance, is_training=False)[0]
    return of


images = some(2, 5, 7, 3)
CASES = {
    "contrast": lambda: [tf.image.adjust_contrast(images, 1.7)],
    "contrast, uint8": lambda: [tf.image.adjust_contrast(tf.cast(images * 40 + 128, tf.uint8), 0.4)],
    "nearest, larger": lambda: gradients(nearest([11, 9]), images),
    "nearest, smaller": lambda: gradients(nearest([3, 4]), images),
    "nearest, aligned": lambda: gradients(nearest([9, 1], align_corners=True), images),
    "nearest, centers": lambda: gradients(nearest([13, 3], half_pixel_centers=True), images),
    "nearest, float64": lambda: gradients(nearest([11, 9]), tf.cast(images, tf.float64)),
    "nearest, float16": lambda: gradients(nearest([11, 9]), tf.cast(images, tf.float16)),
    "image.resize": lambda: gradients(lambda x: tf.image.resize(x, [12, 13], "nearest") ** 2, images),
    "sparse": lambda: gradients(product(), some(4), some(3, 5)),
    "sparse, adjoint a": lambda: gradients(product(adjoint_a=True), some(4), some(4, 5)),
    "sparse, adjoint b": lambda: gradients(product(adjoint_b=True), some(4), some(5, 3)),
    "sparse, complex": lambda: gradients(
        product(adjoint_a=True, adjoint_b=True), tf.complex(some(4), some(4)), tf.complex(some(5, 4), some(5, 4))
    ),
    "frozen": lambda: gradients(frozen(tf.float32), images, some(3), some(3)),
    "frozen, float16": lambda: gradients(frozen(tf.float16), images, some(3), some(3)),
    "counts": lambda: [tf.math.bincount([1, 3, 3, 0]), tf.math.bincount([1, 3, 3, 0], weights=[0.5, 1.5, 2.5, 3.5])],
    "crop": lambda: gradients(
        lambda x, boxes: tf.image.crop_and_resize(x, boxes, [0, 1], [4, 4]), images, tf.constant([[0.1, 0.2, 0.9, 0.7]] * 2)
    ),
    "dilation": lambda: gradients(
        lambda x, f: tf.nn.dilation2d(x, f, [1, 1, 1, 1], "SAME", "NHWC", [1, 1, 1, 1]), images, some(2, 2, 3)
    ),
    "argmax": lambda: gradients(lambda x: tf.nn.max_pool_with_argmax(x, 3, 2, "SAME"), images),
    "quantized": lambda: gradients(
        tf.quantization.fake_quant_with_min_max_vars, images, tf.constant(-1.0), tf.constant(1.0)
    ),
    "quantized by channel": lambda: gradients(
        tf.quantization.fake_quant_with_min_max_vars_per_channel, images, -tf.ones(3), tf.ones(3)
    ),
    "one column": lambda: [tf.linalg.svd(some(6, 1), compute_uv=False), *map(tf.abs, tf.linalg.svd(some(1, 6)))],
    "more columns": lambda: [tf.linalg.svd(some(6, 3), compute_uv=False)],
}


def everything(wrap):
    global rng
    found = {}
    for name, case in CASES.items():
        rng = np.random.default_rng(7)
        found[name] = [np.asarray(one).astype(complex) for one in wrap(case)()]
    return found
"""

COMPARED = (
    CASES
    + """
used = []
plain = everything(lambda case: case)
kernels._is_for_gpu = lambda: True
for name in ("contrast", "nearest_gradient", "sparse_product", "frozen_batch_norm_gradient"):
    def noted(*args, _function=getattr(kernels, name), _name=name, **kwargs):
        used.append(_name)
        return _function(*args, **kwargs)
    setattr(kernels, name, noted)
on_cpu = kernels._on_cpu
kernels._on_cpu = lambda plain: lambda *args, **kwargs: (used.append(plain.__name__), on_cpu(plain)(*args, **kwargs))[1]
kernels.replace()
for wrap in (lambda case: case, tf.function):
    ours = everything(wrap)
    for name, expected in plain.items():
        for one, other in zip(expected, ours[name], strict=True):
            tolerance = 4e-3 if "float16" in name else 1e-5
            np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance, err_msg=name)
print(json.dumps(sorted(set(used))))
"""
)

ON_GPU = (
    CASES
    + """
if not tf.config.list_physical_devices("GPU"):
    print("no GPU")
    sys.exit()
with tf.device("/cpu:0"):
    plain = everything(lambda case: case)
kernels.replace()
tf.config.experimental.enable_op_determinism()
first = everything(tf.function)
for name, expected in plain.items():
    for one, other in zip(expected, first[name], strict=True):
        np.testing.assert_allclose(other, one, rtol=4e-3, atol=4e-3, err_msg=name)
for _ in range(19):
    again = everything(tf.function)
    assert all(one.tobytes() == other.tobytes() for name in first for one, other in zip(first[name], again[name]))
print("same bits")
"""
)

TIMESTAMP = """
import tensorflow as tf

weight = tf.Variable(1.0)


@tf.function
def step():
    begun = tf.timestamp()
    weight.assign_add(1.0)
    return tf.timestamp() - begun


begun = tf.timestamp()
for batch in range(3):
    assert 0 <= float(step()) < 60
assert begun.dtype == tf.float64 and 0 <= float(tf.timestamp() - begun) < 600
print("ran", float(weight))
"""


@pytest.mark.full
def test_they_compute_what_the_kernels_compute() -> None:
    done = subprocess.run([sys.executable, "-c", COMPARED], capture_output=True, text=True)
    assert not done.returncode, done.stderr[-4000:]
    assert json.loads(done.stdout) == [
        "contrast", "crop_and_resize_grad_boxes", "crop_and_resize_grad_image", "dense_bincount",
        "dilation2d_backprop_filter", "dilation2d_backprop_input", "fake_quant_with_min_max_vars_gradient",
        "fake_quant_with_min_max_vars_per_channel_gradient", "frozen_batch_norm_gradient",
        "max_pool_grad_with_argmax", "nearest_gradient", "sparse_product", "svd",
    ]  # fmt: skip


@pytest.mark.gpu
@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")
def test_on_a_gpu_they_run_and_give_the_same_bits() -> None:
    done = subprocess.run([sys.executable, "-c", ON_GPU], capture_output=True, text=True)
    if done.stdout == "no GPU\n":
        pytest.skip("TensorFlow sees no GPU")
    assert done.stdout == "same bits\n", done.stderr[-4000:]


def test_the_time_that_tensorflow_shows(script) -> None:
    assert script(TIMESTAMP).attempt("run").endswith("ran 4.0\n")

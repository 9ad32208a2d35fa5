"""Reads and sets how far a shuffling data set has used its generator of seeds.

TensorFlow tells it nowhere but in the saved state of an iterator, and takes it from nowhere else. So a probe, an iterator that nobody
asks for an element, is made over the data set; its state is saved, the number in it replaced, and the probe set to that. Making the
probe has drawn a seed of its own, which is put back by the same.

A saved state is a vector of variants: for each iterator of the pipeline, and each part of one, the names of its values and the
values, compressed together (`VariantTensorData` and `SerializeIterator` of TensorFlow).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.core.framework import tensor_pb2
from tensorflow.python.data.ops.shuffle_op import _ShuffleDataset
from tensorflow.python.framework import ops

from detrain.errors import CaptureError

Variant = tensor_pb2.VariantTensorDataProto

_FAIL_IF_STATEFUL = 2
#: The name of the number, in the state of an iterator that shuffles.
NAME = b"epoch_num_random_samples"
#: What separates the names of a variant's values; the iterator's own name comes first.
_SEPARATOR = b"@@"


def state_of(iterator: Any) -> Any:
    """An iterator's saved state, (n,) variants. `iterator`: its resource."""
    return tf.raw_ops.SerializeIterator(resource_handle=iterator, external_state_policy=_FAIL_IF_STATEFUL)


def set_state(iterator: Any, state: Any) -> None:
    """Set an iterator, given by its resource, to a saved state."""
    with ops.init_scope():
        tf.raw_ops.DeserializeIterator(resource_handle=iterator, serialized=state)


def is_known(dataset: Any) -> bool:
    """True for a data set whose generator can be read."""
    return isinstance(dataset, _ShuffleDataset) and isinstance(dataset._variant_tensor, ops.EagerTensor)


def read(dataset: Any) -> int:
    """The numbers that passes over a data set have taken from its own generator so far. Nothing else may begin one meanwhile.

    Raises `CaptureError` if TensorFlow does not tell.
    """
    probe = _Probe(dataset)
    try:
        found = probe.find()
    except LookupError as error:
        raise CaptureError(str(error)) from None
    drawn = found.number - (2 if dataset._reshuffle_each_iteration else 1)  # what the probe itself has taken
    probe.set(found, drawn)
    return drawn


def write(dataset: Any, drawn: int) -> bool:
    """Let its generator stand where so many numbers had been taken from it. False if it does not then, or cannot be read."""
    probe = _Probe(dataset)
    try:
        probe.set(probe.find(), drawn)
        return probe.find().number == drawn
    except LookupError:  # another TensorFlow than the checkpoint's
        return False


@dataclass(frozen=True)
class _Found:
    """The number in a saved state: which of its variants holds it, that variant, its values, and which of them it is."""

    parts: Sequence[bytes]
    part: int
    variant: Any
    values: Sequence[Any]
    index: int

    @property
    def number(self) -> int:
        return int(self.values[self.index])


class _Probe:
    """An iterator that is never asked for an element, and asks its data set's inputs for none."""

    def __init__(self, dataset: Any) -> None:
        options = tf.data.Options()
        options.experimental_warm_start = options.autotune.enabled = False
        options.experimental_optimization.inject_prefetch = False
        options.experimental_optimization.apply_default_optimizations = False
        with ops.init_scope():
            self._quiet = dataset.with_options(options)
            types, shapes = self._quiet._flat_types, self._quiet._flat_shapes
            self._resource = tf.raw_ops.AnonymousIteratorV3(output_types=types, output_shapes=shapes)
            tf.raw_ops.MakeIterator(dataset=self._quiet._variant_tensor, iterator=self._resource)

    def find(self) -> _Found:
        parts = _split(tensor_pb2.TensorProto.FromString(tf.io.serialize_tensor(state_of(self._resource)).numpy()))
        for number, part in enumerate(parts):
            variant = Variant.FromString(part)
            names = variant.metadata.split(_SEPARATOR)[1:]
            if NAME in names:
                values = _values_of(variant, len(names))
                return _Found(parts, number, variant, values, names.index(NAME))
        raise LookupError("TensorFlow's saved state of a shuffling iterator does not tell where its generator stands")

    def set(self, found: _Found, drawn: int) -> None:
        values = list(found.values)
        values[found.index] = tf.constant(drawn, tf.int64)
        compressed = tf.raw_ops.CompressElement(components=values)
        found.variant.tensors[0].ParseFromString(tf.io.serialize_tensor(compressed).numpy())
        parts = list(found.parts)
        parts[found.part] = found.variant.SerializeToString()
        set_state(self._resource, tf.io.parse_tensor(_joined(parts).SerializeToString(), tf.variant))


def _values_of(variant: Any, number: int) -> list[Any]:
    """The values of a variant that are so many () int64."""
    content = tf.io.parse_tensor(variant.tensors[0].SerializeToString(), tf.variant)
    types, shapes = [tf.int64] * number, [tf.TensorShape([])] * number
    return list(tf.raw_ops.UncompressElement(compressed=content, output_types=types, output_shapes=shapes))


def _split(state: Any) -> list[bytes]:
    """The variants of a vector: their sizes come first, as varints."""
    content, sizes, at = state.tensor_content, [], 0
    for _ in range(state.tensor_shape.dim[0].size):
        size = shift = 0
        while True:
            octet = content[at]
            at, size, shift = at + 1, size | (octet & 0x7F) << shift, shift + 7
            if octet < 0x80:
                break
        sizes.append(size)
    parts = []
    for size in sizes:
        parts.append(content[at : at + size])
        at += size
    return parts


def _joined(parts: Sequence[bytes]) -> Any:
    vector = tensor_pb2.TensorProto(dtype=tf.variant.as_datatype_enum)
    vector.tensor_shape.dim.add(size=len(parts))
    vector.tensor_content = b"".join([*(_varint(len(part)) for part in parts), *parts])
    return vector


def _varint(number: int) -> bytes:
    octets = bytearray()
    while number >= 0x80:
        octets.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*octets, number])

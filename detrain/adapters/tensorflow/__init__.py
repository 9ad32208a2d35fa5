"""TensorFlow: variables, tensors, graphs' generators of random numbers, data sets' iterators, and where weights are updated."""

from __future__ import annotations

from detrain.adapters.tensorflow.adapter import ADAPTER

__all__ = ["ADAPTER"]

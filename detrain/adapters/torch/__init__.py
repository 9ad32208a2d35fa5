"""torch: tensors, loaders, generators, deterministic kernels, and where weights are updated."""

from __future__ import annotations

from detrain.adapters.torch.adapter import ADAPTER

__all__ = ["ADAPTER"]

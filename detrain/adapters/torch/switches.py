"""Process-wide switches of torch that decide what comes out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils import deterministic
from torch.utils.hooks import RemovableHandle

from detrain.adapters.torch import tensors
from detrain.messages import unheard

_AUTOCAST = ("cpu", "cuda")


def flags() -> dict[str, Any]:
    """Each switch by the name under which a checkpoint has it."""
    return {
        "default_dtype": tensors.dtype_name(torch.get_default_dtype()),
        "grad": torch.is_grad_enabled(),
        "anomaly": torch.is_anomaly_enabled(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "deterministic": torch.get_deterministic_debug_mode(),
        "fills_memory": deterministic.fill_uninitialized_memory,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "num_threads": torch.get_num_threads(),
        "next_hook": RemovableHandle.next_id,
        "autocast_cache": torch.is_autocast_cache_enabled(),
        **{f"autocast_{name}": torch.is_autocast_enabled(name) for name in _AUTOCAST},
        **{f"autocast_dtype_{name}": tensors.dtype_name(torch.get_autocast_dtype(name)) for name in _AUTOCAST},
        "print": dict(vars(torch._tensor_str.PRINT_OPTS)),
    }


_SETTERS: dict[str, Callable[[Any], Any]] = {
    "default_dtype": lambda v: torch.set_default_dtype(getattr(torch, v)),
    "grad": torch.set_grad_enabled,
    "anomaly": torch.autograd.set_detect_anomaly,
    "matmul_precision": torch.set_float32_matmul_precision,
    "deterministic": torch.set_deterministic_debug_mode,
    "fills_memory": lambda v: setattr(deterministic, "fill_uninitialized_memory", v),
    "cudnn_benchmark": lambda v: setattr(torch.backends.cudnn, "benchmark", v),
    "cudnn_deterministic": lambda v: setattr(torch.backends.cudnn, "deterministic", v),
    "num_threads": torch.set_num_threads,
    "next_hook": lambda v: setattr(RemovableHandle, "next_id", v),
    "autocast_cache": torch.set_autocast_cache_enabled,
    "autocast_cpu": partial(torch.set_autocast_enabled, "cpu"),
    "autocast_cuda": partial(torch.set_autocast_enabled, "cuda"),
    "autocast_dtype_cpu": lambda v: torch.set_autocast_dtype("cpu", getattr(torch, v)),
    "autocast_dtype_cuda": lambda v: torch.set_autocast_dtype("cuda", getattr(torch, v)),
    "print": lambda v: vars(torch._tensor_str.PRINT_OPTS).update(v),
}


def set_flags(saved: dict[str, Any]) -> None:
    """Set the switches that differ from the saved ones; a name that this version does not know is left out."""
    now = flags()
    for name, value in saved.items():
        if now.get(name) != value and name in _SETTERS:
            with unheard(Warning):
                _SETTERS[name](value)

"""Writing exported state dicts as torch's own files."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch

from detrain.errors import MissingExtra, UsageError


def save(state: Any, target: Path) -> None:
    """One file for `torch.load`; `weights_only` will do. Raises `UsageError` if it cannot be written."""
    try:
        torch.save(_converted(state), target)
    except (OSError, RuntimeError) as error:
        raise UsageError(f"{target} cannot be written: {error}") from None


def save_safetensors(tensors: Any, target: Path) -> None:
    """One file of tensors by their names. Raises `UsageError`."""
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError:
        raise MissingExtra("the file is written with safetensors, which is not installed", "export") from None
    try:
        save_file(_converted(tensors), target, {"format": "pt"})
    except (OSError, SafetensorError, ValueError) as error:
        raise UsageError(f"{target} cannot be written: {error}") from None


def save_distributed(state: Any, target: Path) -> None:
    """A folder for `torch.distributed.checkpoint.load`, which any number of ranks may read. Raises `UsageError`."""
    from torch.distributed import checkpoint

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that there is one process is meant
            checkpoint.save(_converted(state), checkpoint_id=target, no_dist=True)
    except OSError as error:
        raise UsageError(f"{target} cannot be written: {error}") from None


def _converted(value: Any) -> Any:
    """What stands for tensors made tensors of torch."""
    if isinstance(value, dict):
        return {key: _converted(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_converted(one) for one in value)
    if isinstance(value, str | int | float | bytes | complex | None):
        return value
    data = np.array(value.data)  # its own memory, in C order
    dtype = getattr(torch, value.dtype)
    octets = torch.from_numpy(data.reshape(-1).view(np.uint8))
    return octets.view(dtype).reshape(data.shape)

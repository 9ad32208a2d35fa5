"""Runs a recorded call once more: on the same values, in the same mode, with the same random numbers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import xxhash
from torch.utils._python_dispatch import _disable_current_modes

from detrain.adapters.torch.remat.cells import Call, Read, tensor_at

#: Before a budget makes the method revive what it is asked for.
_numpy: Callable[[torch.Tensor], Any] = torch.Tensor.numpy


def generator_of(kwargs: Mapping[str, Any], tensors: Sequence[torch.Tensor]) -> torch.Generator:
    """What an operator draws from: the generator that it is given, or the default one of its device."""
    given: torch.Generator | None = kwargs.get("generator")
    if given is not None:
        return given
    device = torch.device(kwargs["device"]) if kwargs.get("device") is not None else None
    if device is None and tensors:
        device = tensors[0].device
    if device is None or device.type != "cuda":
        return torch.default_generator
    return torch.cuda.default_generators[torch.cuda.current_device() if device.index is None else device.index]


def run_again(call: Call, storages: Sequence[Any]) -> Any:
    """Returns what it returns. `storages`: of what it reads, in the order of `call.reads`."""
    tensors = iter([_tensor_of(call, read, storage) for read, storage in zip(call.reads, storages, strict=True)])
    now = None
    if call.generator is not None:
        now = call.generator.get_state()
        call.generator.set_state(call.drawn_from)
    try:
        with (
            _disable_current_modes(),
            torch.set_grad_enabled(call.is_grad_enabled),
            torch._C._AutoDispatchBelowAutograd(),
        ):
            args = [_filled(part, tensors) for part in call.args]
            return call.func(*args, **{name: _filled(part, tensors) for name, part in call.kwargs.items()})
    finally:
        if call.generator is not None:
            call.generator.set_state(now)


def _tensor_of(call: Call, read: Read, storage: Any) -> torch.Tensor:
    with _disable_current_modes(), torch._C._AutoDispatchBelowAutograd():
        tensor = tensor_at(storage, read.view, storage.device)
        if read.is_scratch:
            return tensor.clone()
        return tensor.requires_grad_() if read.requires_grad and call.is_grad_enabled else tensor


def _filled(part: Any, tensors: Iterator[torch.Tensor]) -> Any:
    """An argument with its tensors again."""
    if isinstance(part, Read):
        return next(tensors)
    if isinstance(part, list):
        return [_filled(one, tensors) for one in part]
    return part


def digest_of(storage: Any) -> int:
    """Of all its bytes. Read from a copy: memory that numpy has looked at cannot be emptied any more."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        there = torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
        return xxhash.xxh3_64_intdigest(_numpy(there.clone().cpu()).data)

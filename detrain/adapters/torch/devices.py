"""Reads what lies on a device. Operations there run asynchronously, so a reader waits for them first."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from detrain.adapters.protocol import LossValue


def is_on_device(tensor: torch.Tensor) -> bool:
    """True if a tensor's memory is not the host's."""
    return not (tensor.is_cpu or tensor.is_meta)


def wait() -> None:
    """Synchronize every CUDA device that is in use, all streams."""
    if torch.cuda.is_initialized():
        for number in range(torch.cuda.device_count()):
            if torch._C._cuda_hasPrimaryContext(number):  # else asking would make one, of some hundred MB
                torch.cuda.synchronize(number)


def warm_up() -> None:
    """Initialise cuBLAS on the main thread and on autograd's.

    It cannot be initialised while a CUDA graph is captured, and the script's own warm-up may lie before the position where it goes on.
    """
    if not torch.cuda.is_initialized() or is_recording():
        return
    with unseen(), torch.inference_mode(False), torch.enable_grad():
        for number in range(torch.cuda.device_count()):
            if torch._C._cuda_hasPrimaryContext(number):
                matrix = torch.ones(1, 1, device=f"cuda:{number}", requires_grad=True)
                torch.autograd.Variable._execution_engine.run_backward(
                    (matrix @ matrix,),
                    (matrix.detach(),),
                    False,
                    False,
                    (),
                    allow_unreachable=True,
                    accumulate_grad=True,
                )


def is_recording() -> bool:
    """True while operations are captured into a CUDA graph instead of being run."""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


def unseen() -> AbstractContextManager[Any]:
    """A context for detrain's own operations: no dispatch or function mode of the script's sees them."""
    return _without_modes() if torch._C._len_torch_dispatch_stack() else torch._C.DisableTorchFunction()


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def fetch(tensor: torch.Tensor, start: int, end: int) -> memoryview:
    """Copy bytes `start` to `end` of a contiguous tensor's elements to host memory; waits for the device."""
    wait()
    start += tensor.storage_offset() * tensor.element_size()
    end += tensor.storage_offset() * tensor.element_size()
    with unseen():
        window = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return memoryview(window.set_(tensor.untyped_storage(), start, (end - start,)).cpu().numpy())


def copied(raw: torch.Tensor) -> torch.Tensor:
    """The bytes of a device's storage, copied to host memory. `raw`: (num_bytes,) uint8.

    The memory is pinned if it can be: a device writes to it at the full speed of its bus, and torch's allocator keeps it for the next copy.
    """
    if raw.is_cuda:
        with contextlib.suppress(RuntimeError):  # no more memory can be pinned
            return torch.empty(raw.shape, dtype=raw.dtype, pin_memory=True).copy_(raw)
    return raw.cpu()


def read(loss: torch.Tensor) -> LossValue:
    """Read a tensor of one element that nothing writes to any more; waits for its device."""
    with unseen():
        if is_on_device(loss):
            wait()
            loss = loss.cpu()
        bits = ctypes.string_at(loss.data_ptr(), loss.element_size())
        return bits, [loss.item()] if loss.is_floating_point() else []

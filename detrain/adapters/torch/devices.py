"""Reading what lies on a device: the processor has only asked for it, so whoever reads it waits."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

#: The bits of one loss, and the loss as a number for a person, if it is one.
Reading = tuple[bytes, list[float]]


def is_on_device(tensor: torch.Tensor) -> bool:
    """True if the processor cannot read a tensor's memory by itself."""
    return not (tensor.is_cpu or tensor.is_meta)


def wait() -> None:
    """Until every CUDA device that is in use has done all that it was told to, on whatever stream."""
    if torch.cuda.is_initialized():
        for number in range(torch.cuda.device_count()):
            if torch._C._cuda_hasPrimaryContext(number):  # else asking would make one, of some hundred MB
                torch.cuda.synchronize(number)


def make_ready() -> None:
    """Have CUDA's libraries make what they make at their first use, for the threads that compute gradients too.

    No graph can be captured around that, and the warm-up of the script may lie behind the place where it goes on.
    """
    if not torch.cuda.is_initialized() or is_recording():
        return
    with unseen(), torch.inference_mode(False), torch.enable_grad():
        for number in range(torch.cuda.device_count()):
            if torch._C._cuda_hasPrimaryContext(number):
                one = torch.ones(1, 1, device=f"cuda:{number}", requires_grad=True)
                torch.autograd.Variable._execution_engine.run_backward(
                    (one @ one,), (one.detach(),), False, False, (), allow_unreachable=True, accumulate_grad=True
                )


def is_recording() -> bool:
    """True while operations are recorded into a CUDA graph instead of being done."""
    return torch.cuda.is_initialized() and bool(torch.cuda.is_current_stream_capturing())


def unseen() -> AbstractContextManager[Any]:
    """Operations in here are detrain's own: no mode of the script's sees them."""
    return _without_modes() if torch._C._len_torch_dispatch_stack() else torch._C.DisableTorchFunction()


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def fetch(tensor: torch.Tensor, start: int, end: int) -> memoryview:
    """Bytes `start` to `end` of a contiguous tensor's elements."""
    wait()
    start += tensor.storage_offset() * tensor.element_size()
    end += tensor.storage_offset() * tensor.element_size()
    with unseen():
        window = torch.empty(0, dtype=torch.uint8, device=tensor.device)
        return memoryview(window.set_(tensor.untyped_storage(), start, (end - start,)).cpu().numpy())


def copied(raw: torch.Tensor) -> torch.Tensor:
    """The bytes of a device's storage, in the processor's memory.

    That is page-locked if it can be: a device writes to it at the full speed of its bus, and torch keeps it for the next time.
    """
    if raw.is_cuda:
        with contextlib.suppress(RuntimeError):  # no more memory can be locked
            return torch.empty(raw.shape, dtype=raw.dtype, pin_memory=True).copy_(raw)
    return raw.cpu()


def read(loss: torch.Tensor) -> Reading:
    """A tensor of one element that nothing writes to any more."""
    with unseen():
        if is_on_device(loss):
            wait()
            loss = loss.cpu()
        bits = ctypes.string_at(loss.data_ptr(), loss.element_size())
        return bits, [loss.item()] if loss.is_floating_point() else []

"""How a tensor goes from one worker to another: in memory as it lies, for kernels may add in another order where it lies otherwise."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from detrain.adapters.torch.pipeline.shipping import order_of
from detrain.adapters.torch.pipeline.splitting import Crossing

_WORD = 8


def dim_of(crossing: Crossing) -> int:
    """The dimension that has the samples."""
    dim = crossing.shape.sample_dim
    assert dim is not None
    return dim


def part_of(crossing: Crossing, tensor: Tensor, span: tuple[int, int], order: Sequence[int]) -> Tensor:
    """Samples of a tensor; its dimensions in the order in which they lie in memory."""
    dim = crossing.shape.sample_dim
    if dim is None:
        return tensor.permute(order)
    each = crossing.shape.sizes[dim].per_sample
    return tensor.narrow(dim, span[0] * each, (span[1] - span[0]) * each).permute(order)


def standing(lying: Tensor, order: Sequence[int]) -> Tensor:
    """What `part_of` was taken of, with its dimensions in their own order."""
    return lying.permute([order.index(dim) for dim in range(len(order))])


def packed(crossing: Crossing, gradient: Tensor, span: tuple[int, int], *, is_there: bool) -> Tensor:
    """These samples of a gradient, and behind them how it lies, and whether there is one: an optimizer has to hear of it. Bytes."""
    order = order_of(gradient)
    part = part_of(crossing, gradient, span, order).contiguous()
    data = part.view(-1).view(torch.uint8)
    buffer = torch.empty(packed_size(crossing, span[1] - span[0]), dtype=torch.uint8, device=part.device)
    buffer[: len(data)].copy_(data)
    header = buffer[-_WORD * (1 + len(order)) :]
    buffer[len(data) : -len(header)].zero_()  # a checkpoint may hold it
    # In front it would take the samples to another alignment, which kernels may look at.
    header.view(torch.int64).copy_(torch.tensor([is_there, *order], dtype=torch.int64))
    return buffer


def packed_size(crossing: Crossing, num_samples: int) -> int:
    """Bytes of so many samples, packed."""
    num_bytes = _num_bytes(crossing, num_samples)
    return -(-num_bytes // _WORD) * _WORD + _WORD * (1 + len(crossing.shape.sizes))


def unpacked(crossing: Crossing, num_samples: int, buffer: Tensor) -> tuple[Tensor, bool]:
    """The gradient, and whether there is one."""
    shape = crossing.shape.of(num_samples)
    is_there, *order = buffer[-_WORD * (1 + len(shape)) :].view(torch.int64).tolist()
    data = buffer[: _num_bytes(crossing, num_samples)].view(crossing.shape.dtype)
    return standing(data.view([shape[dim] for dim in order]), order), bool(is_there)


def _num_bytes(crossing: Crossing, num_samples: int) -> int:
    return math.prod(crossing.shape.of(num_samples)) * int(crossing.shape.dtype.itemsize)

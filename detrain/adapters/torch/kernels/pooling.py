"""Pooling: gradients of average and maximum pooling, and the inverse of the latter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from detrain.adapters.torch.kernels import separable
from detrain.adapters.torch.kernels.segments import add_at, bounds, exact, rows_of, suggested


def _triple(values: Sequence[int]) -> list[int]:
    return list(values) * 3 if len(values) == 1 else list(values)


def average_pool3d_gradient(
    gradient: Tensor,
    features: Tensor,
    size: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    _ceil_mode: bool,  # it has decided on the number of outputs, which the gradient shows
    counts_padding: bool,
    divisor: int | None,
) -> Tensor | None:
    """`avg_pool3d_backward`: a window's size is a product over the dimensions, and so each can be gone back by itself."""
    if not gradient.numel() or not features.numel():
        return None
    size = _triple(size)
    windows = zip(size, _triple(stride) if len(stride) else size, _triple(padding), strict=True)
    divides = "none" if divisor else "padded" if counts_padding else "valid"
    dtype = exact(gradient.dtype)
    result = gradient.to(dtype) / divisor if divisor else gradient.to(dtype)
    for dim, window in enumerate(windows, gradient.dim() - 3):
        table = separable.pooled(features.shape[dim], gradient.shape[dim], window, divides, dtype, gradient.device)
        result = separable.gathered(result, dim, table)
    return result.to(gradient.dtype)


def adaptive_average_gradient(gradient: Tensor, features: Tensor, spatial: int) -> Tensor | None:
    """`_adaptive_avg_pool2d_backward`, `_adaptive_avg_pool3d_backward`."""
    if not gradient.numel() or not features.numel():
        return None
    dtype = exact(gradient.dtype)
    result = gradient.to(dtype)
    for dim in range(gradient.dim() - spatial, gradient.dim()):
        table = separable.adapted(features.shape[dim], gradient.shape[dim], dtype, gradient.device)
        result = separable.gathered(result, dim, table)
    form = suggested(features) if spatial == 2 else torch.contiguous_format
    return result.to(gradient.dtype).contiguous(memory_format=form)


def adaptive_average2d_gradient(gradient: Tensor, features: Tensor) -> Tensor | None:
    """`_adaptive_avg_pool2d_backward`."""
    return adaptive_average_gradient(gradient, features, 2)


def adaptive_average3d_gradient(gradient: Tensor, features: Tensor) -> Tensor | None:
    """`_adaptive_avg_pool3d_backward`."""
    return adaptive_average_gradient(gradient, features, 3)


def maximum_gradient(gradient: Tensor, features: Tensor, indices: Tensor, spatial: int) -> Tensor | None:
    """Gradients added up where the maxima were: `indices` count within a channel's plane or volume."""
    if not gradient.numel() or gradient.shape != indices.shape:
        return None
    cells = math.prod(features.shape[features.dim() - spatial :])
    places = rows_of(indices, spatial)
    places = places + torch.arange(0, len(places) * cells, cells, device=places.device).unsqueeze(1)
    total = add_at(features.numel(), places.reshape(-1), gradient.to(exact(gradient.dtype)).reshape(-1))
    return total.to(gradient.dtype).reshape(features.shape).contiguous(memory_format=suggested(features))


def adaptive_maximum2d_gradient(gradient: Tensor, features: Tensor, indices: Tensor) -> Tensor | None:
    """`adaptive_max_pool2d_backward`."""
    return maximum_gradient(gradient, features, indices, 2)


def adaptive_maximum3d_gradient(gradient: Tensor, features: Tensor, indices: Tensor) -> Tensor | None:
    """`adaptive_max_pool3d_backward`."""
    return maximum_gradient(gradient, features, indices, 3)


def fractional_maximum2d_gradient(
    gradient: Tensor, features: Tensor, _size: Any, _output: Any, indices: Tensor
) -> Tensor | None:
    """`fractional_max_pool2d_backward`."""
    return maximum_gradient(gradient, features, indices, 2)


def fractional_maximum3d_gradient(
    gradient: Tensor, features: Tensor, _size: Any, _output: Any, indices: Tensor
) -> Tensor | None:
    """`fractional_max_pool3d_backward`."""
    return maximum_gradient(gradient, features, indices, 3)


def maximum3d_gradient(gradient: Tensor, features: Tensor, *window_and_indices: Any) -> Tensor | None:
    """`max_pool3d_with_indices_backward`: kernel size, stride, padding, dilation and mode have decided on the indices."""
    return maximum_gradient(gradient, features, window_and_indices[-1], 3)


def unpooled(features: Tensor, indices: Tensor, output_size: Sequence[int], *_window: Any) -> Tensor | None:
    """`max_unpool2d` and `max_unpool3d`: of several values for one cell the last stays, as in torch's kernel with one thread."""
    spatial = len(output_size)
    cells = math.prod(output_size)
    is_right = features.shape == indices.shape and features.dim() in (spatial + 1, spatial + 2)
    if not is_right or not features.numel() or not cells or indices.dtype != torch.int64:
        return None
    if not indices.is_cuda:
        low, high = bounds(indices)
        if low < 0 or high >= cells:
            return None
    places = rows_of(indices, spatial)
    total = _last_at(places, rows_of(features, spatial), cells)
    total = total.reshape(*features.shape[: features.dim() - spatial], *output_size)
    return total.contiguous(memory_format=suggested(features)) if spatial == 2 else total


def _last_at(places: Tensor, values: Tensor, cells: int) -> Tensor:
    """Values (rows, n) put at places (rows, n) into zeros (rows, cells); where several go to one cell, the last of them."""
    if not places.is_cuda:
        return values.new_zeros((len(places), cells)).scatter_(1, places, values)  # in order
    number = torch.arange(places.shape[1], device=places.device).expand_as(places)
    last = number.new_full((len(places), cells), -1).scatter_reduce_(1, places, number, "amax")
    return torch.where(last >= 0, values.gather(1, last.clamp(min=0)), values.new_zeros(()))

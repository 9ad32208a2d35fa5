"""Order along a dimension: medians and k-th values with their places, running sums."""

from __future__ import annotations

import torch
from torch import Tensor

from detrain.adapters.torch.kernels.segments import running


def _picked(ordered: tuple[Tensor, Tensor], dim: int, keepdim: bool, place: Tensor) -> tuple[Tensor, Tensor]:
    """Values and indices at a place of the sorted dimension; among equal elements their order decides, as the sorting is stable."""
    value, index = (one.gather(dim, place) for one in ordered)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


def _ranked(ordered: tuple[Tensor, Tensor], dim: int, keepdim: bool, rank: int) -> tuple[Tensor, Tensor]:
    """As `_picked`, at a place that is the same everywhere. Copied, so that what is returned does not keep all that was sorted."""
    value, index = (one.narrow(dim, rank, 1).clone(memory_format=torch.contiguous_format) for one in ordered)
    return (value, index) if keepdim else (value.squeeze(dim), index.squeeze(dim))


def _sortable(values: Tensor) -> bool:
    return values.numel() > 0 and values.dtype != torch.bool and not values.is_complex()


def median(values: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor] | None:
    """`median` along a dimension: the lower of two in the middle; the first that is not a number, if one is not."""
    if not _sortable(values):
        return None
    if not values.dim():
        return values.clone(), torch.zeros((), dtype=torch.int64, device=values.device)
    dim %= values.dim()
    length = values.shape[dim]
    ordered = values.sort(dim=dim, stable=True)
    if not values.is_floating_point():
        return _ranked(ordered, dim, keepdim, (length - 1) // 2)
    numbers = (values == values).sum(
        dim, keepdim=True
    )  # what is not equal to itself is no number, and sorted to the end
    return _picked(ordered, dim, keepdim, torch.where(numbers < length, numbers, (length - 1) // 2))


def nanmedian(values: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor] | None:
    """`nanmedian` along a dimension: the lower of two in the middle of the numbers."""
    if not _sortable(values):
        return None
    if not values.dim():
        return values.clone(), torch.zeros((), dtype=torch.int64, device=values.device)
    dim %= values.dim()
    numbers = (values == values).sum(dim, keepdim=True)
    place = ((numbers - 1) // 2).clamp(min=0)
    return _picked(values.sort(dim=dim, stable=True), dim, keepdim, place)


def kth_value(values: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor] | None:
    """`kthvalue`."""
    if not _sortable(values) or not 1 <= k <= (values.shape[dim] if values.dim() else 1):
        return None
    if not values.dim():
        return values.clone(), torch.zeros((), dtype=torch.int64, device=values.device)
    dim %= values.dim()
    return _ranked(values.sort(dim=dim, stable=True), dim, keepdim, k - 1)


def running_sum(values: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor | None:
    """`cumsum` of floating-point and complex numbers; of whole numbers torch's is deterministic."""
    kind = values.dtype if dtype is None else dtype
    if not (kind.is_floating_point or kind.is_complex) or not values.numel():
        return None
    if not values.dim():
        return values.to(kind, copy=True)
    sums = torch.empty(values.shape, dtype=kind, device=values.device)
    running(values.to(kind).movedim(dim, -1), sums.movedim(dim, -1))
    return sums

"""Order along a dimension: medians and k-th values with their places, running sums."""

from __future__ import annotations

import torch
from torch import Tensor

from detrain.adapters.torch.kernels.segments import exact, running


def _picked(
    values: Tensor, dim: int, keepdim: bool, place: Tensor | int, ordered: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor]:
    """Values and indices at a place of the sorted dimension; among equal elements their order decides, as the sorting is stable."""
    shape = [*values.shape]
    shape[dim] = 1
    at = torch.as_tensor(place, device=values.device).expand(shape)
    value, index = ordered[0].gather(dim, at), ordered[1].gather(dim, at)
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
    missing = values.isnan().sum(dim, keepdim=True)
    place = torch.where(missing > 0, length - missing, (length - 1) // 2)  # what is not a number is sorted to the end
    return _picked(values, dim, keepdim, place, values.sort(dim=dim, stable=True))


def nanmedian(values: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor] | None:
    """`nanmedian` along a dimension: the lower of two in the middle of the numbers."""
    if not _sortable(values):
        return None
    if not values.dim():
        return values.clone(), torch.zeros((), dtype=torch.int64, device=values.device)
    dim %= values.dim()
    numbers = (~values.isnan()).sum(dim, keepdim=True)
    place = ((numbers - 1) // 2).clamp(min=0)
    return _picked(values, dim, keepdim, place, values.sort(dim=dim, stable=True))


def kth_value(values: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Tensor, Tensor] | None:
    """`kthvalue`."""
    if not _sortable(values) or not 1 <= k <= (values.shape[dim] if values.dim() else 1):
        return None
    if not values.dim():
        return values.clone(), torch.zeros((), dtype=torch.int64, device=values.device)
    dim %= values.dim()
    return _picked(values, dim, keepdim, k - 1, values.sort(dim=dim, stable=True))


def running_sum(values: Tensor, dim: int, *, dtype: torch.dtype | None = None) -> Tensor | None:
    """`cumsum` of floating-point and complex numbers; of whole numbers torch's is deterministic."""
    kind = values.dtype if dtype is None else dtype
    if not (kind.is_floating_point or kind.is_complex) or not values.numel():
        return None
    if not values.dim():
        return values.to(kind, copy=True)
    total = running(values.to(kind).to(exact(kind)).movedim(dim, -1)).to(kind)
    return total.movedim(-1, dim).contiguous()

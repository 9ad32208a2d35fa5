"""Padding: gradients of what was reflected or repeated at the edges, folded back dimension by dimension."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from detrain.adapters.torch.kernels.segments import exact


def _sides(gradient: Tensor, features: Tensor, padding: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """For each padded dimension: itself, the inputs in it, and the padding before and behind. Torch counts from the last."""
    for number in range(len(padding) // 2):
        dim = gradient.dim() - 1 - number
        yield dim, features.shape[dim], padding[2 * number], padding[2 * number + 1]


def _middle(gradient: Tensor, dim: int, inputs: int, before: int, behind: int) -> Tensor:
    """The gradient of the inputs themselves; negative padding has cut some off, and they get nothing."""
    cut_before, cut_behind = max(0, -before), max(0, -behind)
    length = inputs - cut_before - cut_behind
    inner = gradient.narrow(dim, max(0, before), length)
    if not cut_before and not cut_behind:
        return inner.clone(memory_format=torch.contiguous_format)
    shape = [*inner.shape[:dim], inputs, *inner.shape[dim + 1 :]]
    whole = inner.new_zeros(shape)
    whole.narrow(dim, cut_before, length).copy_(inner)
    return whole


def reflection_gradient(gradient: Tensor, features: Tensor, padding: Sequence[int]) -> Tensor | None:
    """`reflection_pad1d_backward`, 2d and 3d: the edge itself is not reflected, its neighbours are, in turned order."""

    def fold(into: Tensor, dim: int, before: Tensor | None, behind: Tensor | None) -> None:
        if before is not None:
            into.narrow(dim, 1, before.shape[dim]).add_(before.flip(dim))
        if behind is not None:
            length = behind.shape[dim]
            into.narrow(dim, into.shape[dim] - 1 - length, length).add_(behind.flip(dim))

    return _folded(gradient, features, padding, fold)


def replication_gradient(gradient: Tensor, features: Tensor, padding: Sequence[int]) -> Tensor | None:
    """`replication_pad1d_backward`, 2d and 3d: the edges get the sums of what repeats them."""

    def fold(into: Tensor, dim: int, before: Tensor | None, behind: Tensor | None) -> None:
        if before is not None:
            into.narrow(dim, 0, 1).add_(before.sum(dim, keepdim=True))
        if behind is not None:
            into.narrow(dim, into.shape[dim] - 1, 1).add_(behind.sum(dim, keepdim=True))

    return _folded(gradient, features, padding, fold)


def _folded(
    gradient: Tensor, features: Tensor, padding: Sequence[int],
    fold: Callable[[Tensor, int, Tensor | None, Tensor | None], None],
) -> Tensor | None:  # fmt: skip
    """The gradient of the middle, with what lies before and behind it folded in, side by side."""
    if not gradient.numel() or not features.numel():
        return None
    result = gradient.to(exact(gradient.dtype))
    for dim, inputs, before, behind in _sides(gradient, features, padding):
        folded = _middle(result, dim, inputs, before, behind)
        fold(
            folded, dim,
            result.narrow(dim, 0, before) if before > 0 else None,
            result.narrow(dim, result.shape[dim] - behind, behind) if behind > 0 else None,
        )  # fmt: skip
        result = folded
    return result.to(gradient.dtype)

"""Padding: gradients of what was reflected or repeated at the edges, folded back dimension by dimension."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

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
    if not gradient.numel() or not features.numel():
        return None
    result = gradient.to(exact(gradient.dtype))
    for dim, inputs, before, behind in _sides(gradient, features, padding):
        folded = _middle(result, dim, inputs, before, behind)
        if before > 0:
            folded.narrow(dim, 1, before).add_(result.narrow(dim, 0, before).flip(dim))
        if behind > 0:
            start = result.shape[dim] - behind
            folded.narrow(dim, inputs - 1 - behind, behind).add_(result.narrow(dim, start, behind).flip(dim))
        result = folded
    return result.to(gradient.dtype)


def replication_gradient(gradient: Tensor, features: Tensor, padding: Sequence[int]) -> Tensor | None:
    """`replication_pad1d_backward`, 2d and 3d: the edges get the sums of what repeats them."""
    if not gradient.numel() or not features.numel():
        return None
    result = gradient.to(exact(gradient.dtype))
    for dim, inputs, before, behind in _sides(gradient, features, padding):
        folded = _middle(result, dim, inputs, before, behind)
        if before > 0:
            folded.narrow(dim, 0, 1).add_(result.narrow(dim, 0, before).sum(dim, keepdim=True))
        if behind > 0:
            start = result.shape[dim] - behind
            folded.narrow(dim, inputs - 1, 1).add_(result.narrow(dim, start, behind).sum(dim, keepdim=True))
        result = folded
    return result.to(gradient.dtype)

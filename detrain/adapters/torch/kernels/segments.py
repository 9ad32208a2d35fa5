"""Sums at places that an index names, and sums along runs: the order of the additions is a function of the shapes alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Elements that one round of `running` adds up. 32: five steps inside, and few rounds.
RUN = 32


def exact(dtype: torch.dtype) -> torch.dtype:
    """The type to compute in: half precision is summed in single, as torch's kernels do."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype


def suggested(like: Tensor) -> torch.memory_format:
    """The memory format of a tensor's layout, as torch's kernels choose it for what they return."""
    for rank, form in ((4, torch.channels_last), (5, torch.channels_last_3d)):
        if like.dim() == rank and not like.is_contiguous() and like.is_contiguous(memory_format=form):
            return form
    return torch.contiguous_format


def add_at(size: int, index: Tensor, values: Tensor) -> Tensor:
    """Rows of `values` (n, …) added up at `index` (n) into (size, …).

    `index_put_` with `accumulate` sorts the indices on CUDA, stably, and adds each run in its order; on CPU it is serial in
    deterministic mode.
    """
    total = values.new_zeros((size, *values.shape[1:]))
    return total.index_put_((index,), values, accumulate=True)


def rows_of(tensor: Tensor, spatial: int) -> Tensor:
    """(…, *spatial) as (rows, cells): the last `spatial` dimensions flat, those before them flat."""
    cells = math.prod(tensor.shape[tensor.dim() - spatial :])
    return tensor.reshape(math.prod(tensor.shape[: tensor.dim() - spatial]), cells)


def running(values: Tensor) -> Tensor:
    """Sums along the last dimension, each with all before it: runs of `RUN` by doubling, then the runs' totals likewise."""
    length = values.shape[-1]
    if length <= RUN:
        return _doubled(values)
    runs = torch.constant_pad_nd(values, (0, -length % RUN)).unflatten(-1, (-1, RUN))
    inside = _doubled(runs)
    inside[..., 1:, :] += running(inside[..., -1])[..., :-1, None]
    return inside.flatten(-2)[..., :length]


def _doubled(values: Tensor) -> Tensor:
    step = 1
    while step < values.shape[-1]:
        values = torch.cat((values[..., :step], values[..., step:] + values[..., :-step]), -1)
        step *= 2
    return values


def run_products(keys: Tensor, values: Tensor) -> Tensor:
    """Along the last dimension, products of each element with all before it that have the same key; `keys` are sorted."""
    step = 1
    while step < values.shape[-1]:
        same = keys[..., step:] == keys[..., :-step]
        before = torch.where(same, values[..., :-step], torch.ones((), dtype=values.dtype, device=values.device))
        values = torch.cat((values[..., :step], values[..., step:] * before), -1)
        step *= 2
    return values

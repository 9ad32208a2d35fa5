"""Sums at places that an index names, and sums along runs: the order of the additions is a function of the shapes alone."""

from __future__ import annotations

import math

import torch
from torch import Tensor

#: Elements that one round of `running` adds up. 32: five steps inside, and few rounds.
RUN = 32

#: Elements that are made at once instead of step by step, even if the inputs have fewer. On CUDA fewer kernels are worth 16 MiB
#: in single precision; on CPU memory that the caches do not hold takes longer than the steps do.
AT_ONCE = {"cuda": 1 << 22, "cpu": 1 << 18}


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


def bounds(numbers: Tensor) -> tuple[int, int]:
    """The smallest and the largest of whole numbers, of which there must be some: one transfer from a device."""
    low, high = numbers.aminmax()
    if not numbers.is_cuda:
        return int(low), int(high)
    low, high = torch.stack((low, high)).tolist()
    return low, high


def running(values: Tensor, into: Tensor) -> None:
    """Sums along the last dimension, each with all before it, are written to `into`, of the same shape.

    Runs of `RUN` by doubling, then the runs' totals likewise.
    """
    length = values.shape[-1]
    run = min(length, RUN)
    num_whole, rest = divmod(length, run)
    # Step `s` adds to each element what lies `s` before it. -0.0 stands for what lies before a run, as it changes no number
    # that it is added to, 0.0 and -0.0 included: a step is one addition, from one buffer into the other. There is no such
    # complex number, as torch multiplies what it adds by 1 + 0i.
    reach = 0 if values.is_complex() else 1 << (run - 1).bit_length() >> 1
    shape = (2, *values.shape[:-1], num_whole + (rest > 0), reach + run)
    now, then = values.new_full(shape, -0.0, dtype=exact(values.dtype)).unbind(0)
    behind = num_whole * run
    now[..., :num_whole, reach:] = values[..., :behind].unflatten(-1, (num_whole, run))
    if rest:
        now[..., num_whole, reach : reach + rest] = values[..., behind:]
    step = 1
    while step < run:
        first = reach or step
        torch.add(now[..., first:], now[..., first - step : -step], out=then[..., first:])
        if not reach:
            then[..., :step] = now[..., :step]
        now, then = then, now
        step *= 2
    inside = now[..., reach:]
    if inside.shape[-2] > 1:
        totals = then[..., -1]  # of each run, with all before it
        running(inside[..., -1], totals)
        inside[..., 1:, :].add_(totals[..., :-1, None])
    into[..., :behind].unflatten(-1, (num_whole, run)).copy_(inside[..., :num_whole, :])
    if rest:
        into[..., behind:] = inside[..., num_whole, :rest]


def run_products(keys: Tensor, values: Tensor) -> Tensor:
    """Along the last dimension, products of each element with all before it that have the same key; `keys` are sorted.

    By doubling, until no run is longer than a step: to find that out costs less than the steps that would change nothing.
    A CUDA graph that is being captured goes through all of them, as there nothing can be found out.
    """
    step, one = 1, values.new_ones(())
    is_captured = values.is_cuda and torch.cuda.is_current_stream_capturing()
    while step < values.shape[-1]:
        same = keys[..., step:] == keys[..., :-step]
        if not is_captured and not bool(same.any()):
            break
        before = torch.where(same, values[..., :-step], one)
        values = torch.cat((values[..., :step], values[..., step:] * before), -1)
        step *= 2
    return values

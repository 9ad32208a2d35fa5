"""Writing and adding at indices: `put_`, counts, products, the maximum mode of embedding bags."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from detrain.adapters.torch.kernels.segments import add_at, bounds, exact, run_products

MAXIMUM = 2  # embedding_bag's number for its mode


def put(target: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor | None:
    """`put_`: as `index_put_`, which is deterministic; of several values for one element the last stays."""
    if accumulate and not target.is_cuda:
        return None  # torch's kernel is serial there in deterministic mode
    is_right = index.dtype == torch.int64 and source.dtype == target.dtype and source.numel() == index.numel()
    if not is_right or not index.numel() or not target.numel() or not target.device == index.device == source.device:
        return None
    flat = index.reshape(-1)
    size = target.numel()
    if not target.is_cuda:
        low, high = bounds(flat)
        if low < -size or high >= size:
            return None
    if target.is_contiguous():
        target.view(-1).index_put_((flat,), source.reshape(-1), accumulate)
        return target
    places = []
    flat = torch.where(flat < 0, flat + size, flat)
    for length in reversed(target.shape):
        places.append(flat % length)
        flat = flat.div(length, rounding_mode="floor")
    return target.index_put_(tuple(reversed(places)), source.reshape(-1), accumulate)


def counts(values: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor | None:
    """`bincount` with weights: a sum at indices."""
    is_right = weights is not None and values.dim() == 1 and weights.shape == values.shape and minlength >= 0
    if weights is None or not is_right or not values.numel() or values.is_floating_point():
        return None
    low, high = bounds(values)
    if low < 0:
        return None
    size = max(high + 1, minlength)
    # `long`: bytes as an index would be taken for a mask.
    return add_at(size, values.long(), weights if weights.dtype == torch.float32 else weights.double())


def histogram(values: Tensor, bins: int = 100, min: float = 0, max: float = 0) -> Tensor | None:  # noqa: A002 (torch's names)
    """`histc` of floating-point numbers: whole numbers are counted, and those need no order."""
    if not values.is_floating_point() or not values.numel() or bins <= 0 or values.dtype == torch.float16:
        return None
    flat = values.reshape(-1).to(exact(values.dtype))
    # Edges as the type has them, computed with here and not on the device.
    low, high = torch.tensor([min, max], dtype=flat.dtype).tolist()
    if min == max:
        low, high = torch.stack(flat.aminmax()).tolist()
        if low == high:
            low, high = torch.tensor([low - 1, high + 1], dtype=flat.dtype).tolist()
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        return None
    # On the device: there, to divide by a number is to multiply by its inverse, which gives other bits.
    width = torch.full((), high, dtype=flat.dtype, device=flat.device) - low
    is_inside = (flat >= low) & (flat <= high)
    number = torch.where(is_inside, (flat - low) * bins / width, -1).long().clamp(max=bins - 1) + 1
    return torch.bincount(number, minlength=bins + 1)[1:].to(values.dtype)


def product_at(
    target: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor | None:
    """`scatter_reduce` with `prod`: sorted by index, multiplied along each run, one write for each run's end."""
    if reduce != "prod" or not index.numel() or target.dim() != index.dim() or source.dim() != index.dim():
        return None
    if not target.dim():
        found = product_at(target.reshape(1), 0, index.reshape(1), source.reshape(1), reduce, include_self=include_self)
        return None if found is None else found.reshape(())
    keys, order = index.movedim(dim, -1).sort(dim=-1, stable=True)
    values = source[tuple(slice(length) for length in index.shape)].movedim(dim, -1).gather(-1, order)
    return _multiplied(target, dim, keys, values, include_self)


def _multiplied(target: Tensor, dim: int, keys: Tensor, values: Tensor, include_self: bool) -> Tensor:
    """`values` (…, n) multiplied along runs of equal `keys`, which are sorted, and each product put where its key says.

    `keys` are (…, n), or (n) where they are the same for all.
    """
    dtype = exact(target.dtype)
    size = target.shape[dim]
    values = run_products(keys, values.to(dtype))
    result = target.movedim(dim, -1).clone()
    # Only where the sources reach in the other dimensions. One place more takes what is not a run's end.
    part = result[tuple(slice(length) for length in values.shape[:-1])]
    is_end = keys[..., 1:] != keys[..., :-1]
    places = torch.cat((torch.where(is_end, keys[..., :-1], size), keys[..., -1:]), -1).expand_as(values)
    products = values.new_ones((*part.shape[:-1], size + 1)).scatter_(-1, places, values)[..., :size]
    if include_self:
        part.copy_(part.to(dtype) * products)  # by 1 where there is no source
    else:
        is_met = places.new_zeros((*part.shape[:-1], size + 1), dtype=torch.bool).scatter_(-1, places, True)
        part.copy_(torch.where(is_met[..., :size], products, part.to(dtype)))
    return result.movedim(-1, dim).contiguous()


def reduced_at(
    target: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor | None:
    """`index_reduce`: products as those of `scatter_reduce`, sorted but once; else as that, each of whose reductions is deterministic."""
    is_right = index.dim() == 1 and source.dtype == target.dtype and source.dim() == target.dim()
    if not is_right or not source.numel() or not -target.dim() <= dim < target.dim():
        return None
    dim %= target.dim()
    if source.shape != (*target.shape[:dim], len(index), *target.shape[dim + 1 :]):
        return None
    if reduce == "prod":
        keys, order = index.long().sort(stable=True)
        return _multiplied(target, dim, keys, source.index_select(dim, order).movedim(dim, -1), include_self)
    shape = [1] * source.dim()
    shape[dim] = -1
    index = index.long().reshape(shape).expand_as(source)
    return torch.scatter_reduce(target, dim, index, source, reduce, include_self=include_self)


def multiplied_at(target: Tensor, dim: int, index: Tensor, source: Tensor, *, reduce: str) -> Tensor | None:
    """`scatter` with the older argument `reduce`: "add" or "multiply"."""
    if reduce == "multiply":
        return product_at(target, dim, index, source, "prod")
    return torch.scatter_add(target, dim, index, source)


def embedding_maximum_gradient(
    gradient: Tensor,
    _indices: Tensor,
    _offset2bag: Tensor,
    bag_size: Tensor,
    maximum_indices: Tensor,
    num_weights: int,
    _scale_grad_by_freq: bool,
    mode: int,
    _per_sample_weights: Tensor | None,
    padding_idx: int = -1,
) -> Tensor | None:
    """`_embedding_bag_dense_backward` with mode "max": `maximum_indices` (bags, features) says which row each came from."""
    if mode != MAXIMUM or not gradient.numel():
        return None
    features = gradient.shape[1]
    is_met = (maximum_indices >= 0) & (bag_size != 0).unsqueeze(1)
    if padding_idx >= 0:
        is_met &= maximum_indices != padding_idx
    rows = torch.where(is_met, maximum_indices.long(), num_weights)  # one row more takes the bags without a maximum
    places = rows * features + torch.arange(features, device=gradient.device)
    total = add_at((num_weights + 1) * features, places.reshape(-1), gradient.to(exact(gradient.dtype)).reshape(-1))
    return total.reshape(num_weights + 1, features)[:num_weights].to(gradient.dtype).contiguous()

"""Resampling: gradients of interpolation to another size, and of sampling on a grid."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from detrain.adapters.torch.kernels import separable
from detrain.adapters.torch.kernels.segments import AT_ONCE, exact, suggested

# --- to another size -------------------------------------------------------------------------------------------------


def _resized_gradient(
    make_table: Callable[..., separable.Table],
    gradient: Tensor,
    output_size: Sequence[int],
    input_size: Sequence[int],
    aligned: bool,
    scales: Sequence[float | None],
) -> Tensor | None:
    """`scales` are those that the caller gave, None where the sizes decide; they stand as the dimensions do."""
    if not gradient.numel():
        return None
    dtype = exact(gradient.dtype)
    result = gradient.to(dtype)
    for number, inputs in enumerate(input_size[2:]):
        outputs, scale = output_size[number], scales[number] if number < len(scales) else None
        table = make_table(inputs, outputs, aligned, scale, dtype=dtype, device=gradient.device)
        result = separable.gathered(result, number + 2, table)
    return result.to(gradient.dtype).contiguous(memory_format=suggested(gradient))


def linear_gradient(
    gradient: Tensor, output_size: Sequence[int], input_size: Sequence[int], aligned: bool, *scales: float | None
) -> Tensor | None:
    """`upsample_linear1d_backward`, `upsample_bilinear2d_backward`, `upsample_trilinear3d_backward`."""
    return _resized_gradient(separable.linear, gradient, output_size, input_size, aligned, scales)


def cubic_gradient(
    gradient: Tensor, output_size: Sequence[int], input_size: Sequence[int], aligned: bool, *scales: float | None
) -> Tensor | None:
    """`upsample_bicubic2d_backward`."""
    return _resized_gradient(separable.bicubic, gradient, output_size, input_size, aligned, scales)


def smooth_linear_gradient(
    gradient: Tensor, output_size: Sequence[int], input_size: Sequence[int], aligned: bool, *scales: float | None
) -> Tensor | None:
    """`_upsample_bilinear2d_aa_backward`."""
    make_table = partial(separable.smoothed, cubed=False)
    return _resized_gradient(make_table, gradient, output_size, input_size, aligned, scales)


def smooth_cubic_gradient(
    gradient: Tensor, output_size: Sequence[int], input_size: Sequence[int], aligned: bool, *scales: float | None
) -> Tensor | None:
    """`_upsample_bicubic2d_aa_backward`."""
    make_table = partial(separable.smoothed, cubed=True)
    return _resized_gradient(make_table, gradient, output_size, input_size, aligned, scales)


# --- on a grid -------------------------------------------------------------------------------------------------------

BILINEAR, NEAREST, BICUBIC = 0, 1, 2
ZEROS, BORDER, REFLECTION = 0, 1, 2


@dataclass(frozen=True)
class Axis:
    """What the places of a grid take from one dimension of the input. Each (taps, batch, places)."""

    index: Tensor
    weight: Tensor
    slope: Tensor  # of the weight, by the grid's coordinate
    is_inside: Tensor  # outside there are zeros


def _stretched(coordinate: Tensor, size: int, aligned: bool) -> tuple[Tensor, float]:
    """From [-1, 1] to inputs, and the slope of that."""
    if aligned:
        return (coordinate + 1) / 2 * (size - 1), (size - 1) / 2
    return ((coordinate + 1) * size - 1) / 2, size / 2


def _clipped(place: Tensor, size: int) -> tuple[Tensor, Tensor]:
    slope = ((place > 0) & (place < size - 1)).to(place.dtype)
    # Not a number is 0, as in torch's kernels: `clamp` would keep it, and it cannot be an index.
    return place.nan_to_num(nan=0.0).clamp(0, size - 1), slope


def _reflected(place: Tensor, size: int, aligned: bool) -> tuple[Tensor, Tensor]:
    """Folded between the outermost inputs (aligned) or their outer edges, and the slope of that: 1, -1 or 0."""
    low, high = (0.0, float(size - 1)) if aligned else (-0.5, size - 0.5)
    if low == high:
        return torch.zeros_like(place), torch.zeros_like(place)
    sign = torch.where(place < low, -1.0, 1.0).to(place.dtype)
    beyond = (place - low).abs()
    flips = (beyond / (high - low)).floor()
    rest = beyond.fmod(high - low)
    is_even = flips.fmod(2) == 0
    return torch.where(is_even, rest + low, high - rest), torch.where(is_even, sign, -sign)


def _padded(place: Tensor, size: int, padding: int, aligned: bool) -> tuple[Tensor, Tensor]:
    """Where a place lies once what is beyond the edges is dealt with, and the slope of that."""
    if padding == BORDER:
        return _clipped(place, size)
    if padding == REFLECTION:
        place, folded = _reflected(place, size, aligned)
        place, slope = _clipped(place, size)
        return place, slope * folded
    # Far outside (or not a number): any place outside will do, and this one is an integer that fits.
    is_near = (place > -(2.0**30)) & (place < 2.0**30)
    return torch.where(is_near, place, -100.0), torch.ones_like(place)


def _axis(place: Tensor, weight: Tensor, slope: Tensor, size: int) -> Axis:
    is_inside = (place >= 0) & (place <= size - 1)
    return Axis(place.clamp(0, size - 1).long(), weight, slope, is_inside)


def _cubic_slopes(part: Tensor) -> Tensor:
    """Derivatives of `separable.cubic_weights(part, -0.75)` by `part`: (batch, places) to (4, batch, places)."""
    a = -0.75

    def near(x: Tensor) -> Tensor:
        return (3 * (a + 2) * x - 2 * (a + 3)) * x

    def far(x: Tensor) -> Tensor:
        return (3 * a * x - 10 * a) * x + 8 * a

    return torch.stack((far(part + 1), near(part), -near(1 - part), -far(2 - part)))


def _taken(coordinate: Tensor, size: int, mode: int, padding: int, aligned: bool) -> Axis:
    """One dimension of the grid (batch, places): which inputs a place takes, how much of each, with what slope."""
    place, stretch = _stretched(coordinate, size, aligned)
    if mode == BICUBIC:  # here it is the four inputs that are padded, not the place
        lower = _padded(place, size, ZEROS, aligned)[0].floor()
        part = torch.where((place - lower).abs() <= 1, place - lower, 0.0)
        weights, slopes = separable.cubic_weights(part, -0.75).movedim(-1, 0), _cubic_slopes(part) * stretch
        inputs = torch.stack((lower - 1, lower, lower + 1, lower + 2))
        # `round`: reflection about half-integers may leave an integer a hair off.
        return _axis(_padded(inputs, size, padding, aligned)[0].round(), weights, slopes, size)
    place, slope = _padded(place, size, padding, aligned)
    slope = slope * stretch
    if mode == NEAREST:
        place = place.round().unsqueeze(0)
        return _axis(place, torch.ones_like(place), torch.zeros_like(place), size)
    lower = place.floor()
    part = place - lower
    return _axis(torch.stack((lower, lower + 1)), torch.stack((1 - part, part)), torch.stack((-slope, slope)), size)


def grid_gradients(
    gradient: Tensor,
    features: Tensor,
    grid: Tensor,
    mode: int,
    padding: int,
    aligned: bool,
    wanted: Sequence[bool],
) -> tuple[Tensor | None, Tensor | None] | None:
    """`grid_sampler_2d_backward`, `grid_sampler_3d_backward`.

    A place takes a product of taps, one of each dimension: 1, 4 or 16 inputs of an image, 1 or 8 of a volume. What they give is
    added up in the order of the taps, and for each tap in that of the places, however many taps are gone through at once.
    """
    if not gradient.numel() or not features.numel():
        return None
    batch, channels, *sizes = features.shape
    dtype = exact(features.dtype)
    rows = gradient.to(dtype).flatten(2).transpose(1, 2).reshape(-1, channels)  # (batch × places, channels)
    places = grid.to(dtype).reshape(batch, -1, len(sizes))
    # The grid's last dimension is x, y, z: the input's dimensions from the last to the first.
    axes = [_taken(places[..., -1 - n], size, mode, padding, aligned) for n, size in enumerate(sizes)]
    cells = features[0, 0].numel()
    inputs = features.to(dtype).flatten(2).transpose(1, 2).reshape(-1, channels) if wanted[1] else None
    total = rows.new_zeros((batch * cells + 1, channels)) if wanted[0] else None  # the last row takes what lies outside
    slopes = torch.zeros_like(places)
    for some in _portions(axes, rows.numel(), AT_ONCE[rows.device.type]):
        index, is_inside, weight = _combined(some, sizes, cells)  # (taps, batch, places)
        if total is not None:
            at = torch.where(is_inside, index, batch * cells).flatten(1)  # (taps, batch × places)
            _add_taps(total, at, rows * weight.flatten(1).unsqueeze(2))
        if inputs is not None and mode != NEAREST:
            seen = inputs.index_select(0, index.reshape(-1)).reshape(len(index), *rows.shape)
            # Each tap summed by itself: on CUDA the order of a sum over channels depends on how many sums there are.
            product = torch.stack([(rows * one).sum(1) for one in seen]).reshape(index.shape)
            product = torch.where(is_inside, product, 0.0)
            for one in _sloped(product, some):
                slopes += one
    found = None
    if total is not None:
        found = (
            total[:-1]
            .reshape(batch, cells, channels)
            .transpose(1, 2)
            .to(features.dtype)
            .contiguous()
            .reshape(features.shape)
        )
    return found, slopes.reshape(grid.shape).to(grid.dtype) if wanted[1] else None


def _add_taps(total: Tensor, at: Tensor, values: Tensor) -> None:
    """Rows of `values` (taps, n, channels) added to rows of `total` at `at` (taps, n), tap after tap.

    All in one call, which sorts them once and adds up what goes to one row in that order, except for single channels: for these
    torch's kernel adds up what goes to one place before it adds it to what is there, and all taps at once would be another order.
    """
    if values.shape[2] > 1:
        at, values = at.reshape(1, -1), values.reshape(1, -1, values.shape[2])
    for places, rows in zip(at, values, strict=True):
        total.index_put_((places,), rows, accumulate=True)


def _portions(axes: list[Axis], row_elements: int, limit: int) -> Iterator[list[Axis]]:
    """The taps of all dimensions in their order: as many at once as give `limit` elements, of which one gives `row_elements`."""
    counts = [len(axis.index) for axis in axes]
    split = next((n for n, count in enumerate(counts) if count > 1), None)
    if split is None or math.prod(counts) * row_elements <= limit:
        yield axes
        return
    for tap in range(counts[split]):
        axis = axes[split]
        one = Axis(*(part[tap : tap + 1] for part in (axis.index, axis.weight, axis.slope, axis.is_inside)))
        yield from _portions([*axes[:split], one, *axes[split + 1 :]], row_elements, limit)


def _outer(factors: Sequence[Tensor], combine: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """One (taps, batch, places) of each dimension, combined tap with tap: (product of the taps, batch, places)."""
    result = factors[0]
    for factor in factors[1:]:
        result = combine(result.unsqueeze(1), factor).flatten(0, 1)
    return result


def _combined(axes: Sequence[Axis], sizes: Sequence[int], cells: int) -> tuple[Tensor, Tensor, Tensor]:
    """Taps of all dimensions as one: where in the batch's inputs, whether inside, and how much. Each (taps, batch, places)."""
    batch = axes[0].index.shape[1]
    index = axes[0].index
    for axis, size in zip(axes[1:], sizes[1:], strict=True):
        index = (index * size).unsqueeze(1).add(axis.index).flatten(0, 1)
    is_inside = _outer([axis.is_inside for axis in axes], torch.bitwise_and)
    weight = _outer([axis.weight for axis in axes], torch.mul)
    return index + torch.arange(0, batch * cells, cells, device=index.device).unsqueeze(1), is_inside, weight


def _sloped(product: Tensor, axes: Sequence[Axis]) -> Iterator[Tensor]:
    """What each tap gives to the grid's gradient: (batch, places, dimensions), for a product (taps, batch, places)."""
    counts = [len(axis.index) for axis in axes]
    slopes = []
    for number, axis in enumerate(axes):
        slope = axis.slope.reshape(*(n if d == number else 1 for d, n in enumerate(counts)), *product.shape[1:])
        for other, tap in enumerate(axes):  # always in this order: a product of three is not the same in another
            if other != number:
                shape = [n if d == other else 1 for d, n in enumerate(counts)]
                slope = slope * tap.weight.reshape(*shape, *product.shape[1:])
        slopes.append(product * slope.flatten(0, len(counts) - 1))
    return iter(torch.stack(slopes[::-1], -1).unbind(0))


def cudnn_grid_gradients(
    features: Tensor, grid: Tensor, gradient: Tensor
) -> tuple[Tensor | None, Tensor | None] | None:
    """`cudnn_grid_sampler_backward`: what torch takes for bilinear, zeros, aligned corners. It adds with atomics, unsaid."""
    return grid_gradients(gradient, features, grid, BILINEAR, ZEROS, True, (True, True))

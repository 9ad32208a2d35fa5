"""Resampling: gradients of interpolation to another size, and of sampling on a grid."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from detrain.adapters.torch.kernels import separable
from detrain.adapters.torch.kernels.segments import exact, suggested

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
    """What the places of a grid take from one dimension of the input. Per tap: (batch, places)."""

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
    return torch.where(is_near, place, torch.full_like(place, -100.0)), torch.ones_like(place)


def _tap(place: Tensor, weight: Tensor, slope: Tensor, size: int) -> Axis:
    is_inside = (place >= 0) & (place <= size - 1)
    return Axis(place.clamp(0, size - 1).long(), weight, slope, is_inside)


def _cubic_slopes(part: Tensor) -> Tensor:
    """Derivatives of `separable.cubic_weights(part, -0.75)` by `part`; (…, 4)."""
    a = -0.75

    def near(x: Tensor) -> Tensor:
        return (3 * (a + 2) * x - 2 * (a + 3)) * x

    def far(x: Tensor) -> Tensor:
        return (3 * a * x - 10 * a) * x + 8 * a

    return torch.stack((far(part + 1), near(part), -near(1 - part), -far(2 - part)), -1)


def _taps(coordinate: Tensor, size: int, mode: int, padding: int, aligned: bool) -> list[Axis]:
    """One dimension of the grid (batch, places): for each input that a place takes, which, how much, with what slope."""
    place, stretch = _stretched(coordinate, size, aligned)
    if mode == BICUBIC:  # here it is the four inputs that are padded, not the place
        lower = _padded(place, size, ZEROS, aligned)[0].floor()
        part = torch.where((place - lower).abs() <= 1, place - lower, torch.zeros_like(place))
        weights, slopes = separable.cubic_weights(part, -0.75), _cubic_slopes(part) * stretch
        inputs = [_padded(lower + n - 1, size, padding, aligned)[0] for n in range(4)]
        # `round`: reflection about half-integers may leave an integer a hair off.
        return [_tap(one.round(), weights[..., n], slopes[..., n], size) for n, one in enumerate(inputs)]
    place, slope = _padded(place, size, padding, aligned)
    slope = slope * stretch
    if mode == NEAREST:
        return [_tap(place.round(), torch.ones_like(place), torch.zeros_like(place), size)]
    lower = place.floor()
    part = place - lower
    return [_tap(lower, 1 - part, -slope, size), _tap(lower + 1, part, slope, size)]


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

    A place takes a product of taps, one of each dimension: 1, 4 or 16 inputs of an image, 1 or 8 of a volume. They are gone
    through one after the other, and each is a row-wise sum at indices.
    """
    if not gradient.numel() or not features.numel():
        return None
    batch, channels, *sizes = features.shape
    dtype = exact(features.dtype)
    rows = gradient.to(dtype).flatten(2).transpose(1, 2).reshape(-1, channels)  # (batch × places, channels)
    places = grid.to(dtype).reshape(batch, -1, len(sizes))
    # The grid's last dimension is x, y, z: the input's dimensions from the last to the first.
    axes = [_taps(places[..., -1 - n], size, mode, padding, aligned) for n, size in enumerate(sizes)]
    cells = features[0, 0].numel()
    inputs = features.to(dtype).flatten(2).transpose(1, 2).reshape(-1, channels) if wanted[1] else None
    total = rows.new_zeros((batch * cells + 1, channels)) if wanted[0] else None  # the last row takes what lies outside
    slopes = torch.zeros_like(places)
    for taps in itertools.product(*axes):
        index, is_inside, weight = _combined(taps, sizes, cells)
        if total is not None:
            at = torch.where(is_inside, index, batch * cells).reshape(-1)
            total.index_put_((at,), rows * weight.reshape(-1, 1), accumulate=True)
        if inputs is not None and mode != NEAREST:
            product = (rows * inputs.index_select(0, index.reshape(-1))).sum(1).reshape(index.shape)
            product = torch.where(is_inside, product, torch.zeros_like(product))
            for number in range(len(taps)):
                slopes[..., -1 - number] += product * _slope(taps, number)
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


def _combined(taps: Sequence[Axis], sizes: Sequence[int], cells: int) -> tuple[Tensor, Tensor, Tensor]:
    """Taps of all dimensions as one: where in the batch's inputs, whether inside, and how much. Each (batch, places)."""
    batch = taps[0].index.shape[0]
    index = torch.zeros_like(taps[0].index)
    is_inside, weight = torch.ones_like(taps[0].is_inside), torch.ones_like(taps[0].weight)
    for tap, size in zip(taps, sizes, strict=True):
        index = index * size + tap.index
        is_inside = is_inside & tap.is_inside
        weight = weight * tap.weight
    return index + torch.arange(batch, device=index.device).unsqueeze(1) * cells, is_inside, weight


def _slope(taps: Sequence[Axis], number: int) -> Tensor:
    """The slope of the taps' common weight by one coordinate."""
    slope = taps[number].slope
    for other, tap in enumerate(taps):
        if other != number:
            slope = slope * tap.weight
    return slope


def cudnn_grid_gradients(
    features: Tensor, grid: Tensor, gradient: Tensor
) -> tuple[Tensor | None, Tensor | None] | None:
    """`cudnn_grid_sampler_backward`: what torch takes for bilinear, zeros, aligned corners. It adds with atomics, unsaid."""
    return grid_gradients(gradient, features, grid, BILINEAR, ZEROS, True, (True, True))

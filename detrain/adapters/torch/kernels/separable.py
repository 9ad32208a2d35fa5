"""Backward passes of linear maps that act on each dimension by itself: average pooling, interpolation.

Forward, output `o` takes inputs `i` with weights. Torch's kernels go backward from the outputs and add to inputs with atomics.
Here the map of each dimension is a small table, turned over once so that every input knows its outputs, and every input gathers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from detrain.adapters.torch.kernels.segments import AT_ONCE

#: Tables kept. A model has a few for each of its layers of this kind.
KEPT = 512


@dataclass(frozen=True)
class Taps:
    """Forward: output o is the sum over j of `weights[o, j] * input[sources[o, j]]`. Both are (outputs, taps), on CPU."""

    sources: Tensor
    weights: Tensor
    is_used: Tensor


@dataclass(frozen=True)
class Part:
    """Columns of a table that are gathered alike: `weights` (groups, inputs, width), and which outputs, flat and in that order."""

    outputs: Tensor
    weights: Tensor


@dataclass(frozen=True)
class Table:
    """Backward: input i gets the sum over columns k of `weights[i, k] * gradient[outputs[i, k]]`.

    The order of the additions is fixed: the columns of a group by `sum`, then the groups one after the other.
    """

    parts: tuple[Part, ...]
    unused: Tensor | None  # inputs that no output takes
    #: Each output is taken by so many inputs that follow each other, and each input by one output; 0: it is otherwise.
    repeats: int


def turned(taps: Taps, inputs: int, device: torch.device) -> Table:
    """The table of a map, on a device."""
    used, rows = taps.is_used.flatten(), taps.sources.shape[0]
    output = torch.arange(rows).unsqueeze(1).expand_as(taps.sources).flatten()[used]
    source, order = taps.sources.flatten()[used].sort(stable=True)
    output, weight = output[order], taps.weights.flatten()[used][order]
    counts = torch.bincount(source, minlength=inputs)
    first = counts.cumsum(0) - counts
    place = torch.arange(len(source)) - first[source]
    most = max(int(counts.max()), 1)
    # A row that is not full repeats its first output with weight 0: what is not finite there is in the sum already.
    start = first.clamp(max=max(len(output) - 1, 0))
    outputs = (output[start] if len(output) else torch.zeros_like(start)).unsqueeze(1).repeat(1, most)
    weights = torch.zeros(inputs, most, dtype=taps.weights.dtype)
    outputs[source, place] = output
    weights[source, place] = weight
    unused = (counts == 0).nonzero().flatten()
    # A group has no more elements than there are outputs, so that it takes no more memory than the gradient.
    width = max(1, rows // inputs)
    whole = most - most % width
    parts = [_part(outputs[:, of], weights[:, of], at, device)
             for of, at in ((slice(whole), width), (slice(whole, most), most - whole)) if outputs[:, of].numel()]  # fmt: skip
    repeats = inputs // rows
    if most > 1 or len(unused) or not torch.equal(outputs[:, 0], torch.arange(inputs) // max(repeats, 1)):
        repeats = 0
    return Table(tuple(parts), unused.to(device) if len(unused) else None, repeats)


def _part(outputs: Tensor, weights: Tensor, width: int, device: torch.device) -> Part:
    """Some columns of a table (inputs, columns), in groups of `width`."""
    outputs, weights = (one.unflatten(1, (-1, width)).transpose(0, 1).contiguous() for one in (outputs, weights))
    return Part(outputs.reshape(-1).to(device), weights.to(device))


def _selected(gradient: Tensor, dim: int, outputs: Tensor) -> Tensor:
    """`gradient.index_select(dim, outputs)`. Of elements that lie side by side, `gather` takes single ones faster."""
    if dim < gradient.dim() - 1:
        return gradient.index_select(dim, outputs)
    return gradient.gather(dim, outputs.expand(*gradient.shape[:-1], -1))


def gathered(gradient: Tensor, dim: int, table: Table) -> Tensor:
    """One dimension's backward pass: (…, outputs, …) to (…, inputs, …).

    All groups of columns at once if they are small, and else so many that a step needs no more memory than the gradient has.
    """
    behind = [1] * (gradient.dim() - dim - 1)
    if table.repeats:
        weights = table.parts[0].weights.reshape(-1, table.repeats, *behind)
        return (gradient.unsqueeze(dim + 1) * weights).flatten(dim, dim + 1)
    total, is_own = None, False
    for part in table.parts:
        groups, inputs, width = part.weights.shape
        size = inputs * width
        most = max(AT_ONCE[gradient.device.type], gradient.numel())  # elements
        at_once = max(1, most * gradient.shape[dim] // (gradient.numel() * size))  # groups
        for start in range(0, groups, at_once):
            outputs = part.outputs[start * size : (start + at_once) * size]
            weights = part.weights[start : start + at_once]
            found = _selected(gradient, dim, outputs).unflatten(dim, tuple(weights.shape))
            found.mul_(weights.reshape(*weights.shape, *behind))
            found = found.squeeze(dim + 2) if width == 1 else found.sum(dim + 2)
            for one in found.unbind(dim):
                if total is None:
                    total = one
                else:  # not in place the first time: what is returned must not be a view of several groups
                    total, is_own = (total.add_(one) if is_own else total + one), True
    assert total is not None  # a table has at least one column
    return total if table.unused is None else total.index_fill_(dim, table.unused, 0)


# --- windows of average pooling --------------------------------------------------------------------------------------


def _windows(start: Tensor, end: Tensor, weights: Tensor) -> Taps:
    """Outputs that take all inputs from `start` to `end` (outputs), each with the output's weight."""
    widest = max(int((end - start).max()), 1)
    offset = torch.arange(widest)
    sources = start.unsqueeze(1) + offset
    is_used = sources < end.unsqueeze(1)
    return Taps(sources, weights.unsqueeze(1).expand_as(sources), is_used)


@lru_cache(KEPT)
def pooled(
    inputs: int, outputs: int, window: tuple[int, int, int], divides: str, dtype: torch.dtype, device: torch.device
) -> Table:
    """Average pooling. `window` is (size, stride, padding); `divides` is "padded", "valid" or, for plain sums, "none"."""
    size, stride, padding = window
    start = torch.arange(outputs) * stride - padding
    end = (start + size).clamp(max=inputs + padding)
    padded = end - start
    start, end = start.clamp(min=0), end.clamp(max=inputs)
    lengths = {"padded": padded, "valid": end - start, "none": torch.ones_like(padded)}[divides]
    return turned(_windows(start, end, 1 / lengths.to(dtype)), inputs, device)


@lru_cache(KEPT)
def adapted(inputs: int, outputs: int, dtype: torch.dtype, device: torch.device) -> Table:
    """Adaptive average pooling: output o takes floor(o I / O) up to ceil((o + 1) I / O)."""
    output = torch.arange(outputs)
    start, end = output * inputs // outputs, -(-(output + 1) * inputs // outputs)
    return turned(_windows(start, end, 1 / (end - start).to(dtype)), inputs, device)


# --- interpolation ---------------------------------------------------------------------------------------------------


def _step(inputs: int, outputs: int, aligned: bool, scale: float | None, dtype: torch.dtype) -> Tensor:
    """Inputs per output, in the precision in which torch computes it: far from the origin its rounding moves the weights."""
    if aligned:
        return torch.tensor((inputs - 1) if outputs > 1 else 0, dtype=dtype) / max(outputs - 1, 1)
    if scale is not None and scale > 0:
        return torch.tensor(1 / scale, dtype=dtype)
    return torch.tensor(inputs, dtype=dtype) / outputs


@lru_cache(KEPT)
def linear(
    inputs: int, outputs: int, aligned: bool, scale: float | None, dtype: torch.dtype, device: torch.device
) -> Table:
    """Linear interpolation between the two nearest inputs."""
    step, output = _step(inputs, outputs, aligned, scale, dtype), torch.arange(outputs, dtype=dtype)
    place = step * output if aligned else (step * (output + 0.5) - 0.5).clamp(min=0)
    lower = place.long().clamp(max=inputs - 1)
    upper = (lower + 1).clamp(max=inputs - 1)
    part = (place - lower).clamp(0, 1)
    taps = Taps(
        torch.stack((lower, upper), 1), torch.stack((1 - part, part), 1), torch.ones(outputs, 2, dtype=torch.bool)
    )
    return turned(taps, inputs, device)


def cubic_weights(part: Tensor, sharpness: float) -> Tensor:
    """Weights of the four inputs around a place, by Keys (1981): `part` (…) is how far it is beyond the second; (…, 4)."""
    distances = torch.stack((part + 1, part, 1 - part, 2 - part), -1)
    return cubic(distances, sharpness)


def cubic(distance: Tensor, sharpness: float) -> Tensor:
    """Keys' cubic convolution kernel; `sharpness` is its parameter a."""
    near = ((sharpness + 2) * distance - (sharpness + 3)) * distance * distance + 1
    far = ((distance - 5) * distance + 8) * distance * sharpness - 4 * sharpness
    return torch.where(distance <= 1, near, torch.where(distance < 2, far, 0.0))


@lru_cache(KEPT)
def bicubic(
    inputs: int, outputs: int, aligned: bool, scale: float | None, dtype: torch.dtype, device: torch.device
) -> Table:
    """Cubic interpolation between the four nearest inputs; those beyond the edge are the edge."""
    step, output = _step(inputs, outputs, aligned, scale, dtype), torch.arange(outputs, dtype=dtype)
    place = step * output if aligned else step * (output + 0.5) - 0.5
    lower = place.floor()
    sources = (lower.long().unsqueeze(1) + torch.arange(-1, 3)).clamp(0, inputs - 1)
    weights = cubic_weights((place - lower).clamp(0, 1), -0.75)
    return turned(Taps(sources, weights, torch.ones(outputs, 4, dtype=torch.bool)), inputs, device)


@lru_cache(KEPT)
def smoothed(
    inputs: int, outputs: int, aligned: bool, scale: float | None, cubed: bool, dtype: torch.dtype, device: torch.device
) -> Table:
    """Interpolation with antialiasing: the kernel is as wide as a step, and its weights are made to sum to one."""
    step, output = _step(inputs, outputs, aligned, scale, dtype), torch.arange(outputs, dtype=dtype)
    widening = step.clamp(min=1)
    reach = (2 if cubed else 1) * widening
    centre = step * (output + 0.5)
    start = (centre - reach + 0.5).long().clamp(min=0)
    end = (centre + reach + 0.5).long().clamp(max=inputs)
    most = math.ceil(float(reach)) * 2 + 1
    sources = start.unsqueeze(1) + torch.arange(most)
    is_used = sources < end.unsqueeze(1)
    distance = ((sources - centre.unsqueeze(1) + 0.5) / widening).abs()
    weights = cubic(distance, -0.5) if cubed else (1 - distance).clamp(min=0)
    weights = torch.where(is_used, weights, torch.zeros_like(weights))
    return turned(Taps(sources, weights / weights.sum(1, keepdim=True), is_used), inputs, device)

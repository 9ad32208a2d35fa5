"""Dropout whose numbers depend on nothing but the seed, the step, the sample and the operator's place in the model.

So it does not matter which rank works on a sample, in which micro-batch, and where the model is cut. The numbers come from the mixing
function of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014), counted through the elements of each sample.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

_GOLDEN, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = 1 << 64


@dataclass(frozen=True, slots=True)
class Key:
    """What the numbers of one piece of a batch hang on."""

    seed: int
    step: int
    #: Of the piece in the batch.
    first_sample: int


def _signed(number: int) -> int:
    number %= _WORD
    return number - _WORD if number >= _WORD // 2 else number


def _shifted(words: Tensor, places: int) -> Tensor:
    """To the right, without the sign."""
    return (words >> places) & ((1 << (64 - places)) - 1)


def _mixed(words: Tensor) -> Tensor:
    words = (words ^ _shifted(words, 30)) * _signed(_FIRST)
    words = (words ^ _shifted(words, 27)) * _signed(_SECOND)
    return words ^ _shifted(words, 31)


def _mixed_number(number: int) -> int:
    number %= _WORD
    number = (number ^ (number >> 30)) * _FIRST % _WORD
    number = (number ^ (number >> 27)) * _SECOND % _WORD
    return number ^ (number >> 31)


def uniform(shape: tuple[int, ...], key: Key, operator: int, sample_dim: int | None, device: torch.device) -> Tensor:
    """Numbers from 0 to below 1, of 24 bits; float32, of this shape.

    `sample_dim`: along which the samples lie, each so many places as there are for one; None: there are none, and all are the same.
    """
    base = _mixed_number(_mixed_number(key.seed + key.step * _GOLDEN) + operator * _GOLDEN)
    if sample_dim is None:
        count = torch.Size(shape).numel()
        words = _mixed(torch.arange(count, device=device) * _signed(_GOLDEN) + _signed(base))
        return (_shifted(words, 40).to(torch.float32) * 2.0**-24).view(shape)
    rows = shape[sample_dim]
    rest = torch.Size(shape[:sample_dim] + shape[sample_dim + 1 :]).numel()
    samples = torch.arange(key.first_sample + 1, key.first_sample + rows + 1, device=device)
    bases = _mixed(samples * _signed(_GOLDEN) + _signed(base))
    words = _mixed(bases[:, None] + torch.arange(rest, device=device) * _signed(_GOLDEN))
    drawn = (_shifted(words, 40).to(torch.float32) * 2.0**-24).view(rows, *shape[:sample_dim], *shape[sample_dim + 1 :])
    return drawn.movedim(0, sample_dim)


def dropout(x: Tensor, p: float, key: Key, operator: int, sample_dim: int | None, per_sample: int) -> Tensor:
    """As `torch.nn.functional.dropout` in training. `per_sample`: places along `sample_dim` that one sample has."""
    if p == 0.0:
        return x
    if p == 1.0:
        return x * torch.zeros_like(x)
    own = key if per_sample == 1 else Key(key.seed, key.step, key.first_sample * per_sample)
    kept = uniform(tuple(x.shape), own, operator, sample_dim, x.device) >= p
    return x * (kept.to(x.dtype) / (1.0 - p))


def attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, p: float, is_causal: bool, scale: float | None,
    key: Key, operator: int, sample_dim: int | None, per_sample: int,
) -> Tensor:  # fmt: skip
    """As `scaled_dot_product_attention` with dropout, by its definition."""
    scores = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).tril()
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf")) if mask.dtype == torch.bool else scores + mask
    weights = F.softmax(scores, -1)
    if mask is not None:  # a row that may look at nothing is zero, as in PyTorch
        weights = weights.masked_fill((scores == float("-inf")).all(-1, keepdim=True), 0.0)
    return dropout(weights, p, key, operator, sample_dim, per_sample) @ v

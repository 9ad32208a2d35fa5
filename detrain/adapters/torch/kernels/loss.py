"""Losses: the negative log likelihood of images, and the gradient of connectionist temporal classification."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from detrain.adapters.torch.kernels.segments import exact

NONE, MEAN = 0, 1


def nll2d(
    scores: Tensor, target: Tensor, weight: Tensor | None, reduction: int, ignored: int
) -> tuple[Tensor, Tensor] | None:
    """`nll_loss2d_forward`: gathered, then summed. Its gradient writes each cell once and needs no replacement."""
    is_right = scores.dim() == 4 and target.shape == (scores.shape[0], *scores.shape[2:])
    if reduction == NONE or not is_right or not scores.numel():
        return None
    dtype = exact(scores.dtype)
    is_counted = target != ignored
    classes = torch.where(is_counted, target, 0).long()
    picked = scores.gather(1, classes.unsqueeze(1)).squeeze(1).to(dtype)
    if weight is None:
        factors = is_counted.to(dtype)
    else:
        factors = torch.where(is_counted, weight.to(dtype)[classes], 0)
    # An ignored cell counts nothing even where its score is infinite.
    losses = torch.where(is_counted, -picked * factors, 0)
    total, summed = factors.sum(), losses.sum()
    return (summed / total if reduction == MEAN else summed).to(scores.dtype), total.to(scores.dtype)


def _as_list(lengths: Sequence[int] | Tensor) -> list[int]:
    return lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)


def _in_rows(targets: Tensor, lengths: list[int], longest: int) -> Tensor:
    """Targets, concatenated or already in rows, as (batch, longest). What stands behind a target's end does not matter."""
    if targets.dim() > 1:
        return targets[:, :longest]
    rows = targets.new_zeros((len(lengths), longest))
    start = 0
    for row, length in zip(rows, lengths, strict=True):
        row[:length] = targets[start : start + length]
        start += length
    return rows


def _backwards(values: Tensor, lengths: Tensor, dim: int) -> Tensor:
    """(batch, …) with the first `lengths[n]` entries of each row along `dim` in turned order."""
    place = torch.arange(values.shape[dim], device=values.device)
    turned = (lengths.unsqueeze(1) - 1 - place).clamp(min=0)  # (batch, entries)
    shape = [1] * values.dim()
    shape[0], shape[dim] = turned.shape
    return values.gather(dim, turned.reshape(shape).expand_as(values))


def ctc_gradient(
    gradient: Tensor,
    log_probs: Tensor,
    targets: Tensor,
    input_lengths: Sequence[int] | Tensor,
    target_lengths: Sequence[int] | Tensor,
    losses: Tensor,
    log_alpha: Tensor,
    blank: int,
    zero_infinity: bool = False,
) -> Tensor | None:
    """`_ctc_loss_backward`, after Graves et al. (2006).

    The backward variables are the forward variables of the sequence read from its end, and for those torch has a deterministic
    kernel. The rest is the probability that the path is at a label at a time, added up over the labels of a class.
    `log_probs` is (times, batch, classes), `log_alpha` (batch, times, 2 longest + 1).
    """
    steps, batch, _ = log_probs.shape
    longest = (log_alpha.shape[2] - 1) // 2
    inputs, lengths = _as_list(input_lengths), _as_list(target_lengths)
    if not log_probs.numel() or len(inputs) != batch or len(lengths) != batch or longest < max(lengths, default=0):
        return None
    device = log_probs.device
    ends, sizes = torch.tensor(inputs, device=device), torch.tensor(lengths, device=device)
    labels = _in_rows(targets.to(device), lengths, longest)
    scores = log_probs.transpose(0, 1)  # (batch, times, classes)
    log_beta = _log_beta(scores, labels, inputs, lengths, ends, sizes, blank)

    path = torch.full((batch, 2 * longest + 1), blank, dtype=torch.int64, device=device)
    path[:, 1::2] = torch.where(torch.arange(longest, device=device) < sizes.unsqueeze(1), labels.long(), blank)
    at_path = scores.gather(2, path.unsqueeze(1).expand(-1, steps, -1))
    joint = log_alpha + log_beta - at_path + losses.reshape(batch, 1, 1)
    is_time = torch.arange(steps, device=device) < ends.unsqueeze(1)  # (batch, times)
    is_place = torch.arange(2 * longest + 1, device=device) < 2 * sizes.unsqueeze(1) + 1
    is_possible = is_time.unsqueeze(2) & is_place.unsqueeze(1) & (joint < torch.inf)  # not a number is neither
    occupied = torch.where(is_possible, joint, -torch.inf).exp()

    expected = _by_class(occupied, path, scores.shape, blank)
    result = (scores.exp() - expected) * gradient.reshape(batch, 1, 1)
    impossible = 0.0 if zero_infinity else torch.nan
    result = torch.where((losses == torch.inf).reshape(-1, 1, 1), impossible, result)
    return torch.where(is_time.unsqueeze(2), result, 0).transpose(0, 1).contiguous()


def _log_beta(
    scores: Tensor, labels: Tensor, inputs: list[int], lengths: list[int], ends: Tensor, sizes: Tensor, blank: int
) -> Tensor:
    """The backward variables (batch, times, 2 longest + 1): forward ones of the turned sequences, turned back."""
    turned_scores = _backwards(scores, ends, 1).transpose(0, 1)
    turned_labels = _backwards(labels, sizes, 1) if labels.shape[1] else labels
    _, found = torch.ops.aten._ctc_loss.default(turned_scores, turned_labels, inputs, lengths, blank)
    return _backwards(_backwards(found, ends, 1), 2 * sizes + 1, 2)


def _by_class(occupied: Tensor, path: Tensor, shape: torch.Size, blank: int) -> Tensor:
    """Path probabilities (batch, times, 2 longest + 1) added up by class: (batch, times, classes)."""
    batch, steps, classes = shape
    total = occupied.new_zeros((batch * steps * classes,))
    labels = path[:, 1::2].unsqueeze(1).expand(-1, steps, -1)
    cells = torch.arange(batch * steps, device=path.device).reshape(batch, steps, 1) * classes
    total.index_put_(((cells + labels).reshape(-1),), occupied[..., 1::2].reshape(-1), accumulate=True)
    total = total.reshape(batch, steps, classes)
    total[..., blank].add_(occupied[..., 0::2].sum(2))  # about half of the path: no sorting for these
    return total

"""The best stages on a row of blocks, by dynamic programming from the last stage to the first.

What is made least is, for M micro-batches, what a synchronous 1F1B pipeline takes without gaps,

    (M - 1) x slowest + (each stage's time and twice what it sends) + longest all-reduce,

where *slowest* is the longest that any stage takes, or any boundary to send, for one micro-batch. Whatever the slowest may
be at most, and the longest all-reduce, the rest is a sum; so the sum is made least under each pair of such limits. A stage's
memory counts the micro-batches that the stages behind it hold back; therefore the way is from the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numba import njit
from numpy.typing import NDArray

from detrain.pipeline.planners.layouts import Blocks
from detrain.pipeline.pricing import Pricing
from detrain.pipeline.states import Bools, Floats, States

Ints = NDArray[np.int16]
#: Compute of the forward pass, of the backward pass, parameters, activations: by state, cumulative, of one sample; and what crosses.
Tables = tuple[Floats, Floats, Floats, Floats, Floats]
#: By block: samples, most samples, memory, rate and lag of an all-reduce.
Squares = tuple[Floats, Floats, Floats, Floats, Floats]


@dataclass(frozen=True)
class Split:
    """Stages as the dynamic programming finds them."""

    #: By stage the number of its last state, where its block begins and ends, and if it is recomputed.
    states: tuple[int, ...]
    begins: tuple[int, ...]
    ends: tuple[int, ...]
    is_recomputed: tuple[bool, ...]
    #: What is made least.
    step_s: float = 0.0


@dataclass(frozen=True, eq=False)
class Problem:
    """What the stages are chosen from. `below` has the empty state in front: [k, j] are states k - 1 and j - 1."""

    tables: Tables
    below: Bools
    blocks: Blocks
    num_micro_batches: int
    micro_batch: int
    state_factor: float
    is_recomputing: bool = True


def problem(pricing: Pricing, states: States, blocks: Blocks, *, is_recomputing: bool = True) -> Problem:
    """Of a pricing's workload, cut at these states only."""
    batch = pricing.workload.profile_batch

    def table(values: Floats) -> Floats:
        return np.concatenate(([0.0], values))

    crossing = np.array([pricing.crossing_bytes(bits) for bits in states.members])
    tables = (
        table(states.forward_s / batch), table((states.compute_s - states.forward_s) / batch), table(states.parameter_bytes),
        table(states.activation_bytes / batch), table(crossing),
    )  # fmt: skip
    below = np.zeros((len(states.members) + 1,) * 2, np.bool_)
    below[0, 1:] = True
    below[1:, 1:] = states.below
    return Problem(
        tables, below, blocks, *pricing.workload.portions(blocks.layout.replication), pricing.workload.state_factor, is_recomputing
    )  # fmt: skip


def all_limits(asked: Problem) -> tuple[list[float], list[float]]:
    """All values that the slowest and the longest all-reduce can have: with these, `splits` has the least of all."""
    forward, backward, parameters, _, crossing = asked.tables
    begin, end = np.argwhere(asked.below).T
    work, again = (table[end] - table[begin] for table in (forward + backward, 2 * forward + backward))
    size = parameters[end] - parameters[begin]
    times, reduces = [], []
    blocks = asked.blocks
    for a, b in np.argwhere(np.isfinite(blocks.samples)):
        times += [work * blocks.samples[a, b], again * blocks.samples[a, b]]
        reduces.append(np.where(size > 0, blocks.all_reduce_lag_s[a, b] + blocks.all_reduce_rate[a, b] * size, 0.0))
    for a, b, c in np.argwhere(np.isfinite(blocks.transfer_rate)):
        sent = blocks.transfer_lag_s[a, b, c] + blocks.transfer_rate[a, b, c] * crossing * asked.micro_batch
        times.append(np.where(crossing > 0, sent, 0.0))
    return _distinct(times), _distinct(reduces)


def _distinct(rows: Sequence[Floats]) -> list[float]:
    """From the smallest on; of those that only rounding tells apart the largest, and a little more.

    Sums in another order differ in their last digits, and who is at a limit keeps to it.
    """
    thresholds = np.unique(np.concatenate(rows))
    is_last = np.append(thresholds[1:] > thresholds[:-1] * (1 + _ROUNDING), True)
    limits: list[float] = (thresholds[is_last] * (1 + _ROUNDING)).tolist()
    return limits


_ROUNDING = 1e-12


def few_limits(asked: Problem) -> tuple[list[float], list[float]]:
    """Of the slowest some from what no split goes below on; of the longest all-reduce some shares of the largest, and any."""
    forward, backward, parameters, _, _ = asked.tables
    blocks = asked.blocks
    least_s = float(forward[-1] + backward[-1])
    least_s *= asked.micro_batch / blocks.layout.num_positions
    rate = float(blocks.all_reduce_rate[0, -1])
    return [least_s * share for share in _OVER_LEAST] + [np.inf], [
        share * rate * float(parameters[-1]) for share in _OF_REDUCE
    ] + [np.inf]


_OVER_LEAST = (1.01, 1.05, 1.12, 1.25, 1.5, 2.0, 4.0)
_OF_REDUCE = (0.0, 0.1, 0.4)


def splits(asked: Problem, slowest_s: Sequence[float], longest_all_reduce_s: Sequence[float]) -> list[Split]:
    """For each pair of limits and each number of stages and of blocks used the split with the least sum; the best first."""
    count, num_ends = len(asked.below), len(asked.blocks.ends)
    num_stages = min(num_ends - 1, count - 1)
    shape = (num_stages + 1, count, num_ends, num_ends)
    values, chosen = np.empty(shape), np.empty((*shape, 3), np.int16)
    blocks = asked.blocks
    squares = blocks.samples, blocks.most, blocks.memory_bytes, blocks.all_reduce_rate, blocks.all_reduce_lag_s
    cubes = blocks.transfer_rate, blocks.transfer_lag_s
    numbers = (
        float(asked.num_micro_batches),
        float(asked.micro_batch),
        asked.state_factor,
        float(asked.is_recomputing),
    )
    seen = set()
    for limit_s in slowest_s:
        for all_reduce_s in longest_all_reduce_s:
            _solve(asked.tables, asked.below, squares, cubes, numbers, (limit_s, all_reduce_s), values, chosen)
            for stages, end in np.argwhere(np.isfinite(values[:, 0, 0])):
                seen.add(_trace(chosen, int(stages), int(end)))
    priced = [replace(split, step_s=step_s(asked, split)) for split in seen]
    return sorted(priced, key=lambda split: (split.step_s, split.states, split.ends))


def step_s(asked: Problem, split: Split) -> float:
    """What is made least, of one split."""
    forward, backward, parameters, _, crossing = asked.tables
    blocks = asked.blocks
    slowest_s = sum_s = longest_s = 0.0
    before = 0
    rows = zip(split.states, split.begins, split.ends, split.is_recomputed, (*split.ends[1:], 0), strict=True)
    for state, a, b, is_again, c in rows:
        after = state + 1
        work = forward[after] - forward[before]
        taken = (work + work * is_again + backward[after] - backward[before]) * blocks.samples[a, b]
        size = parameters[after] - parameters[before]
        if size > 0:
            longest_s = max(longest_s, blocks.all_reduce_lag_s[a, b] + blocks.all_reduce_rate[a, b] * size)
        sent = 0.0
        if c and crossing[after] > 0:
            sent = blocks.transfer_lag_s[a, b, c] + blocks.transfer_rate[a, b, c] * crossing[after] * asked.micro_batch
        slowest_s, sum_s, before = max(slowest_s, taken, sent), sum_s + taken + 2 * sent, after
    return float((asked.num_micro_batches - 1) * slowest_s + sum_s + longest_s)


def _trace(chosen: Ints, stages: int, end: int) -> Split:
    states, begins, ends, again = [], [], [], []
    state, begin = 0, 0
    for left in range(stages, 0, -1):
        following, further, is_again = (int(index) for index in chosen[left, state, begin, end])
        states.append(following - 1)
        begins.append(begin)
        ends.append(end)
        again.append(bool(is_again))
        state, begin, end = following, end, further
    return Split(tuple(states), tuple(begins), tuple(ends), tuple(again))


@njit(cache=True)
def _solve(
    tables: Tables, below: Bools, squares: Squares, cubes: tuple[Floats, Floats], numbers: tuple[float, float, float, float],
    limits_s: tuple[float, float], values: Floats, chosen: Ints,
) -> None:  # fmt: skip
    """[q, k, a, b]: least sum of q stages from state k on to the end, the first of them on block a, b; ties to the first found."""
    forward, backward, parameters, activations, crossing = tables
    samples, most, memory, reduce_rate, reduce_lag = squares
    send_rate, send_lag = cubes
    micro_batches, micro_batch, state_factor, is_recomputing = numbers
    limit_s, longest_s = limits_s
    num_stages, count, num_ends = values.shape[0] - 1, values.shape[1], values.shape[2]
    last = count - 1
    values[:] = np.inf
    for q in range(1, num_stages + 1):
        held = min(float(q), micro_batches)
        for k in range(count - 1):
            for j in range(k + 1, count):
                if not below[k, j] or (q == 1) != (j == last):
                    continue
                work = forward[j] - forward[k] + backward[j] - backward[k]
                size, kept = parameters[j] - parameters[k], activations[j] - activations[k]
                for a in range(num_ends - 1):
                    for b in range(a + 1, num_ends):
                        taken = work * samples[a, b]
                        if taken > limit_s or (size > 0 and reduce_lag[a, b] + reduce_rate[a, b] * size > longest_s):
                            continue
                        is_again = 0
                        needed = size * state_factor + held * (kept + crossing[k]) * most[a, b]
                        if needed > memory[a, b]:
                            needed = size * state_factor + (held * crossing[k] + kept) * most[a, b]
                            taken += (forward[j] - forward[k]) * samples[a, b]
                            is_again = 1
                            if not is_recomputing or needed > memory[a, b] or taken > limit_s:
                                continue
                        if q == 1:
                            if taken < values[q, k, a, b]:
                                values[q, k, a, b] = taken
                                chosen[q, k, a, b, 0], chosen[q, k, a, b, 1], chosen[q, k, a, b, 2] = j, b, is_again
                            continue
                        for c in range(b + 1, num_ends):
                            if values[q - 1, j, b, c] == np.inf:
                                continue
                            sent = 0.0
                            if crossing[j] > 0:
                                sent = send_lag[a, b, c] + send_rate[a, b, c] * crossing[j] * micro_batch
                            if sent > limit_s:
                                continue
                            value = taken + 2 * sent + values[q - 1, j, b, c]
                            if value < values[q, k, a, b]:
                                values[q, k, a, b] = value
                                chosen[q, k, a, b, 0], chosen[q, k, a, b, 1], chosen[q, k, a, b, 2] = j, c, is_again

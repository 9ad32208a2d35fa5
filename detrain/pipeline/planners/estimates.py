"""DAPPLE's estimate of the time of a step: transfers, all-reduces, and a synchronous pipeline in closed form.

Fan et al., "DAPPLE: A Pipelined Data Parallel Approach for Training Large Models" (PPoPP 2021), and its published planner,
whose formulas these are. Amounts may be numbers, or arrays with an entry for each plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from detrain.pipeline.planners.placement import Cluster, Devices
from detrain.pipeline.states import Floats

Amount = float | Floats


def split_concat_terms(cluster: Cluster, senders: Devices, receivers: Devices) -> tuple[int, int, float]:
    """Senders, those of them whose part crosses, and bytes a second: a size over the first, by the second, over the third.

    Receivers of one machine take the parts of senders on other machines one after the other; it is a collective if they are
    on several.
    """
    if cluster.is_one_machine(receivers):
        machine = cluster.machine_of[receivers[0]]
        crossing = sum(cluster.machine_of[sender] != machine for sender in senders)
        return (len(senders), crossing, cluster.across) if crossing else (1, 1, cluster.inside)
    return 1, 1, cluster.across_collective


def split_concat_s(cluster: Cluster, senders: Devices, receivers: Devices, size_bytes: Amount) -> Amount:
    """Time to send what the senders have in equal parts to receivers who want equal parts of it."""
    num_senders, num_crossing, bandwidth = split_concat_terms(cluster, senders, receivers)
    return size_bytes / num_senders * num_crossing / bandwidth


def all_reduce_s(cluster: Cluster, devices: Devices, size_bytes: Amount) -> Amount:
    """Seconds of an all-reduce of so many bytes on each device. Inside a machine, half as many rings as devices share the work."""
    count = len(devices)
    if count == 1:
        return size_bytes * 0.0
    carried = size_bytes * 2.0 * ((count - 1) / count)
    if cluster.is_one_machine(devices):
        return carried / cluster.inside_collective / (count // 2)
    return carried / cluster.across_collective


@dataclass(frozen=True, slots=True)
class Share:
    """One stage in an estimate; amounts are of a whole step: of all micro-batches and of all copies of the pipeline."""

    #: Of one device, if it did it all.
    compute_s: Amount
    parameter_bytes: Amount
    #: What crosses the cut behind it; of the last stage nobody asks.
    output_bytes: Amount
    #: In each copy of the pipeline: how much quicker they are than one device; with whole samples that may be less than their number.
    replicas: float
    #: Of all copies.
    devices: Devices


@dataclass(frozen=True, slots=True)
class Copies:
    """How a step is divided: among copies of the pipeline, and in each of them into micro-batches."""

    replication: int
    num_micro_batches: int


def pipeline_s(cluster: Cluster, shares: Sequence[Share], copies: Copies, block_s: Amount, fill_s: Amount) -> Amount:
    """A step of a synchronous pipeline, 1F1B with a flush; the closed form of the published planner.

    `block_s` is what the slowest stage or transfer takes for a micro-batch, `fill_s` what one takes through all stages (`through_s`). The
    all-reduce of stage i, counted from 0, hides i blocks of it behind what the stages before it still have to do.
    """
    total_s = block_s * (copies.num_micro_batches - 1) + fill_s
    for share, after in pairwise(shares):
        crossing = share.output_bytes / copies.replication / copies.num_micro_batches
        total_s = total_s + split_concat_s(cluster, share.devices, after.devices, crossing)
    left: Amount = 0.0
    for number, share in enumerate(shares):
        reduced_s = all_reduce_s(cluster, share.devices, share.parameter_bytes)
        left = np.maximum(left, reduced_s - number * block_s)
    return total_s + left


def through_s(shares: Sequence[Share], copies: Copies) -> Amount:
    """One micro-batch, forward and backward, through all stages of a copy, each on its replicas."""
    total_s: Amount = 0.0
    for share in shares:
        total_s = total_s + share.compute_s / share.replicas / copies.replication / copies.num_micro_batches
    return total_s


def recursive_s(cluster: Cluster, shares: Sequence[Share], copies: Copies) -> float:
    """The same step, event by event: each transfer is a stage of its own, and a stage waits for what 1F1B lets it begin.

    As published: forward and backward take half of a stage's time each; of S stages, transfers included, stage x has up to
    S - x micro-batches in flight; backward passes at a stage do not wait for each other once there is no forward pass left; and a
    transfer is not divided among the copies. Shares are of numbers.
    """
    pieces: list[float] = []
    for number, share in enumerate(shares):
        parts = share.replicas * copies.replication * copies.num_micro_batches
        pieces.append(_number(share.compute_s) / parts / 2.0)
        if number < len(shares) - 1:
            size_bytes = _number(share.output_bytes) / copies.num_micro_batches
            pieces.append(_number(split_concat_s(cluster, share.devices, shares[number + 1].devices, size_bytes)))
    ends = _last_backward_ends_s(pieces, copies.num_micro_batches)
    for number, share in enumerate(shares):
        ends[2 * number] += _number(all_reduce_s(cluster, share.devices, share.parameter_bytes))
    return max(ends)


def _number(amount: Amount) -> float:
    return float(np.asarray(amount).item())


def _last_backward_ends_s(pieces: Sequence[float], num_micro_batches: int) -> list[float]:
    """By piece, when the last micro-batch has gone back through it; a piece takes the same both ways."""
    depth = len(pieces)
    forward = [0.0] * depth
    backward = [[0.0] * (depth + 1) for _ in range(num_micro_batches)]
    # Forward i at piece x comes behind backward i - (depth - x), and backward j there behind forward j + depth - x - 1.
    for i in range(num_micro_batches + depth - 1):
        is_forward = i < num_micro_batches
        if is_forward:
            reached = 0.0
            for x, piece in enumerate(pieces):
                waits_for = backward[i - depth + x][x] if i - depth + x >= 0 else 0.0
                reached = forward[x] = max(reached, forward[x], waits_for) + piece
        for x, piece in enumerate(pieces):
            j = i - depth + x + 1
            if 0 <= j < num_micro_batches:
                backward[j][x] = max(backward[j][x + 1], forward[x] if is_forward else 0.0) + piece
    return backward[-1][:depth]


def strong_scaling(num_devices: int, compute_s: float, reduced_s: float) -> float:
    """Speed-up of data parallelism where the batch stays: `compute_s` of one device, and the all-reduce after it."""
    return compute_s / (compute_s / num_devices + reduced_s)


def weak_scaling(num_devices: int, compute_s: float, reduced_s: float) -> float:
    """Speed-up of data parallelism where each device has a batch that takes `compute_s`, and the all-reduce after it."""
    return num_devices * (compute_s / (compute_s + reduced_s))

"""Data parallelism as DAPPLE's planner reckons it: what a pipeline has to beat.

The batch stays the same; each device takes its part of it. The all-reduce of the gradients comes after the backward pass, or is
overlapped with it, layer by layer, and with the next step's forward pass as in Jayarajan et al., "Priority-based Parameter
Propagation for Distributed DNN Training" (P3, 2019). Where a batch does not fit, gradients are accumulated over several
iterations, and only the last one's backward pass can hide them.

No contention is reckoned with: with P3 a speed-up may come out as that of no communication at all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from detrain.pipeline.plan import Workload
from detrain.pipeline.planners.estimates import all_reduce_s, strong_scaling
from detrain.pipeline.planners.placement import Cluster
from detrain.pipeline.states import States
from detrain.plans.errors import NoPlanError


@dataclass(frozen=True, slots=True)
class Baselines:
    """Speed-ups over one device. `current` iterations are equal parts of the batch, `optimal` ones as large as they can be."""

    no_overlap: float
    #: All of a step overlaps with its all-reduce, and with the next step.
    p3: float
    #: Accumulating, with and without overlap with the next step.
    current_p3: float
    optimal_p3: float
    current_inner: float
    optimal_inner: float


def baselines(states: States, workload: Workload, cluster: Cluster, activation_bytes: float | None = None) -> Baselines:
    """All of them. For `activation_bytes` see `largest_batch`, whose errors are raised."""
    current = current_iteration(states, workload, cluster, activation_bytes)
    optimal = optimal_iteration(states, workload, cluster, activation_bytes)
    return Baselines(
        no_overlap(states, workload, cluster),
        *(
            overlapped(states, workload, cluster, iteration, crosses_steps=crosses_steps)
            for iteration, crosses_steps in (
                (workload.batch, True), (current, True), (optimal, True), (current, False), (optimal, False),
            )
        ),
    )  # fmt: skip


def no_overlap(states: States, workload: Workload, cluster: Cluster) -> float:
    """Speed-up where the all-reduce begins when the backward pass has ended."""
    reduced_s = all_reduce_s(cluster, tuple(range(cluster.num_devices)), float(states.parameter_bytes[-1]))
    return _speedup(states, workload, cluster, float(reduced_s))


def _speedup(states: States, workload: Workload, cluster: Cluster, left_s: float) -> float:
    compute_s = float(states.compute_s[-1]) * workload.batch / workload.profile_batch
    # A model that takes no time leaves nothing to divide.
    return strong_scaling(cluster.num_devices, compute_s, left_s) if compute_s + left_s else 1.0


def overlapped(states: States, workload: Workload, cluster: Cluster, iteration: int, *, crosses_steps: bool) -> float:
    """Speed-up where the last iteration, of so many samples, hides what it can of the all-reduce.

    As published: half of a layer's time is its backward pass. Gradients of the first layer hide behind nothing; going from it to
    the last, what one layer's time leaves over the next one's may use. With `crosses_steps` a layer's gradients hide behind
    a forward pass too, but of the layer that is as far from the other end.
    """
    share = iteration / workload.batch
    devices = tuple(range(cluster.num_devices))
    scale = workload.batch / workload.profile_batch * share / 2.0
    half_s = (np.diff(states.compute_s, prepend=0.0) * scale).tolist()
    reduced_s = [
        float(all_reduce_s(cluster, devices, size)) for size in np.diff(states.parameter_bytes, prepend=0.0).tolist()
    ]
    left_s, spare_s = reduced_s[0], 0.0
    for layer in range(1, len(half_s)):
        # The backward pass of the layer before it comes next; the forward pass is counted from the wrong end.
        hidden_s = half_s[layer - 1] + (half_s[len(half_s) - layer] if crosses_steps else 0.0)
        spare_s += hidden_s - reduced_s[layer]
        if spare_s <= 0:
            left_s -= spare_s
            spare_s = 0.0
    return _speedup(states, workload, cluster, left_s)


def largest_batch(states: States, workload: Workload, cluster: Cluster, activation_bytes: float | None = None) -> int:
    """Samples that fit beside the parameters and their state on one device, no more than the batch.

    `activation_bytes` is what one sample takes at its peak; without it, the outputs of all layers. Raises `NoPlanError` if none
    fits.
    """
    if activation_bytes is None:
        activation_bytes = float(states.activation_bytes[-1]) / workload.profile_batch
    state_bytes = float(states.parameter_bytes[-1]) * workload.state_factor
    room = cluster.memory_bytes - state_bytes
    fitting = room / activation_bytes if activation_bytes else math.copysign(math.inf, room)
    if fitting < 1:
        raise NoPlanError(
            f"data parallelism does not fit: {state_bytes:,.0f} bytes of parameters and their state, and {activation_bytes:,.0f} "
            f"of a sample's activations, are more than the {cluster.memory_bytes:,.0f} of a device"
        )
    return int(min(fitting, workload.batch))


def current_iteration(
    states: States, workload: Workload, cluster: Cluster, activation_bytes: float | None = None
) -> int:
    """Samples of an iteration: equal parts of the batch, as few as can be but at most so many that halves are left."""
    largest, batch = largest_batch(states, workload, cluster, activation_bytes), workload.batch
    iterations = -(-batch // largest)
    while iterations < batch // 2 + 1 and batch % iterations:
        iterations += 1
    return batch // iterations


def optimal_iteration(
    states: States, workload: Workload, cluster: Cluster, activation_bytes: float | None = None
) -> int:
    """Samples of an iteration: as many as fit, or two halves of the batch where they do."""
    largest, batch = largest_batch(states, workload, cluster, activation_bytes), workload.batch
    if largest == batch:
        return batch
    return batch // 2 if largest * 2 >= batch else largest

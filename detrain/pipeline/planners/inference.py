"""PipeDream's optimizer for inference: the split with the least latency that takes in one input every so often.

Only the forward pass counts. Of the states of the whole profile, inputs included, as published.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from detrain.errors import GraphError
from detrain.pipeline.layers import Profile
from detrain.pipeline.plan import Plan, Stage
from detrain.pipeline.states import Bools, Floats, published
from detrain.plans.errors import NoPlanError

Ints = NDArray[np.int32]


@dataclass(frozen=True)
class Options:
    """PipeDream's."""

    num_machines: int
    time_between_inputs_s: float
    bandwidth: float = 1e9
    memory_bytes: float = 16e9
    is_straight: bool = False
    uses_memory_constraint: bool = False
    uses_fewer_machines: bool = False
    #: Activations cost nothing on the network.
    has_free_transfers: bool = False
    #: Machines of the first stage.
    num_machines_first: int | None = None

    def __post_init__(self) -> None:
        if self.num_machines < 1:
            raise GraphError(f"inference takes at least one machine, not {self.num_machines}")
        if not self.bandwidth > 0 or not self.memory_bytes > 0 or not self.time_between_inputs_s > 0:
            raise GraphError(
                f"bandwidth, memory and the time between inputs are above zero, not {self.bandwidth:g}, {self.memory_bytes:g} "
                f"and {self.time_between_inputs_s:g}"
            )
        if self.num_machines_first is not None and not 1 <= self.num_machines_first <= self.num_machines:
            raise GraphError(f"the first stage has 1 to {self.num_machines} machines, not {self.num_machines_first}")


@dataclass(frozen=True)
class Found:
    """A plan, and the time from one input to its output."""

    plan: Plan
    latency_s: float


def plan(profile: Profile, options: Options) -> Found:
    """The split with the least latency. Raises `NoPlanError` if none takes in an input every `options.time_between_inputs_s`."""
    began_s = time.perf_counter()
    states = published(profile)
    if states is None:
        raise NoPlanError(f"{profile.name} has too many states")
    shape = (len(states.members), options.num_machines)
    times, latencies = np.full(shape, np.inf), np.full(shape, np.inf)
    cuts, rests, used = (np.full(shape, -1, np.int32) for _ in range(3))
    _solve(
        states.forward_s, states.activation_bytes + states.parameter_bytes,
        states.output_bytes * (0.0 if options.has_free_transfers else 1.0), states.below, float(options.bandwidth),
        (float(options.time_between_inputs_s), float(options.memory_bytes) if options.uses_memory_constraint else np.inf),
        (options.is_straight, options.uses_fewer_machines, options.num_machines_first or 0), times, latencies, cuts, rests, used,
    )  # fmt: skip
    if not np.isfinite(times[-1, -1]):
        raise NoPlanError(_why_none(options, len(states.members)))
    stages: list[Stage] = []
    state, rest, last = len(states.members) - 1, options.num_machines - 1, options.num_machines
    while state >= 0:
        cut, machines = int(cuts[state, rest]), int(used[state, rest])
        devices = tuple(range(last - machines, last))
        stages.append(Stage(cut + 1, state + 1, states.layers_between(cut, state), machines, devices))
        state, rest, last = cut, int(rests[state, rest]), last - machines
    total_s, bottleneck_s = float(states.forward_s[-1]), float(times[-1, -1])
    planned = Plan(
        "pipedream-inference", tuple(reversed(stages)), 1, bottleneck_s, total_s / bottleneck_s if bottleneck_s else 1.0,
        float(options.num_machines), time.perf_counter() - began_s,
    )  # fmt: skip
    return Found(planned, float(latencies[-1, -1]))


def _why_none(options: Options, num_states: int) -> str:
    reason = f"no split on {options.num_machines} machines"
    if options.is_straight:
        reason += f", with one for each stage and {num_states} places for stages to end,"
    reason += f" takes in an input every {options.time_between_inputs_s:g} s"
    return f"{reason} and keeps to {options.memory_bytes:,.0f} bytes" if options.uses_memory_constraint else reason


@njit(cache=True)
def _solve(
    forward: Floats, sizes: Floats, outputs: Floats, below: Bools, bandwidth: float, limits: tuple[float, float],
    flags: tuple[bool, bool, int], times: Floats, latencies: Floats, cuts: Ints, rests: Ints, used: Ints,
) -> None:  # fmt: skip
    """[i, m]: for the layers of state i on m + 1 machines. Of equal latencies the one that takes in inputs more often."""
    is_straight, uses_fewer, first = flags
    longest, memory = limits
    count, machines = times.shape
    for i in range(count):
        for m in range(1 if is_straight else machines):
            if sizes[i] <= memory and (not first or m == first - 1) and forward[i] / (m + 1) < longest:
                times[i, m], latencies[i, m], used[i, m] = forward[i] / (m + 1), forward[i], m + 1
    for m in range(max(first, 1), machines):
        for i in range(1, count):
            if uses_fewer and times[i, m - 1] < times[i, m]:
                times[i, m], latencies[i, m] = times[i, m - 1], latencies[i, m - 1]
                cuts[i, m], rests[i, m], used[i, m] = cuts[i, m - 1], rests[i, m - 1], used[i, m - 1]
            for j in range(i - 1, -1, -1):
                if not below[j, i] or sizes[i] - sizes[j] > memory:
                    continue
                for last in range(1, 2 if is_straight else m + 1):
                    if times[j, m - last] == np.inf:
                        continue
                    into = outputs[j] / (bandwidth * last)
                    out = outputs[i] / (bandwidth * last) if i < count - 1 else 0.0
                    stage = (forward[i] - forward[j]) / last
                    slowest = max(times[j, m - last], stage, into, out)
                    latency = latencies[j, m - last] + (stage + into + out) * last
                    # Sums in another order differ in the last digits.
                    is_less = latency < latencies[i, m] * (1 - 1e-12)
                    is_tie = latency <= latencies[i, m] * (1 + 1e-12) and slowest < times[i, m]
                    if slowest <= longest and (is_less or is_tie):
                        times[i, m], latencies[i, m] = slowest, latency
                        cuts[i, m], rests[i, m], used[i, m] = j, m - last, last

"""PipeDream's optimizer: the split whose slowest stage is quickest, by dynamic programming, level by level.

Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training" (SOSP 2019). A stage on m machines takes its
layers' time and the all-reduce of its parameters, one after the other, over m; between stages the activations go one way
and the gradients back. The innermost level is solved for every pair of states; what it finds there is the time of one
machine at the next level.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from detrain.errors import GraphError
from detrain.pipeline.branches import merge_branches
from detrain.pipeline.compression import states_of
from detrain.pipeline.layers import Profile
from detrain.pipeline.plan import Plan, Stage
from detrain.pipeline.states import Bools, Floats, States, published
from detrain.plans.errors import NoPlanError

Ints = NDArray[np.int32]
_NONE = -1
#: Cuts that a note names.
_MOST_CUTS = 12
#: Of sizes that are sent; below it they are no numbers any more.
_LEAST_RATIO = 1e-9


@dataclass(frozen=True)
class Options:
    """PipeDream's, under its names where it has one."""

    #: Machines of each level, the innermost first, and the bytes a second between them.
    num_machines: tuple[int, ...]
    bandwidths: tuple[float, ...]
    memory_bytes: float = 16e9
    #: No stage on more than one machine.
    is_straight: bool = False
    uses_memory_constraint: bool = False
    uses_fewer_machines: bool = False
    #: Activations go over the network this many times smaller; None: they cost nothing.
    compression_ratio: float | None = None
    #: As published: its numbering of states, its memory check (which asks nothing of the last stages), and its transfers of
    #: layers that have been used up.
    is_compat: bool = False

    def __post_init__(self) -> None:
        if not self.num_machines or len(self.num_machines) != len(self.bandwidths):
            raise GraphError(
                f"each level has its bandwidth: there are {len(self.num_machines)} levels of machines and {len(self.bandwidths)} bandwidths"
            )
        if min(self.num_machines) < 1:
            raise GraphError(f"a level has at least one machine, not {min(self.num_machines)}")
        for bandwidth in self.bandwidths:
            if not bandwidth > 0:
                raise GraphError(f"a bandwidth is above zero bytes a second, not {bandwidth:g}")
        if self.compression_ratio is not None and not self.compression_ratio >= _LEAST_RATIO:
            raise GraphError(f"a compression ratio is {_LEAST_RATIO:g} or more, not {self.compression_ratio:g}")
        if not self.memory_bytes > 0:
            raise GraphError(f"a machine has more than {self.memory_bytes:g} bytes of memory")


@dataclass(frozen=True)
class _Table:
    """Of one level. [i, j, m]: for the layers of state j beyond state i - 1, on m + 1 machines."""

    times_s: Floats
    #: State and machines - 1 before the last stage, -1 where there is one stage.
    cuts: Ints
    rests: Ints
    #: Machines of the last stage.
    used: Ints


@dataclass(frozen=True)
class Part:
    """A stage of one level: states from `start` up to before `end`, on `machines` groups of the level below."""

    start: int
    end: int
    machines: int


def plan(profile: Profile, options: Options) -> Plan:
    """Raises `NoPlanError` if no split keeps to the memory."""
    began_s = time.perf_counter()
    states, stands_for = _states(profile, is_compat=options.is_compat)
    tables = _solve_levels(states, options)
    bottleneck_s = float(tables[-1].times_s[0, -1, -1])
    levels = _levels(tables, options, len(states.members))
    total_s = float(states.compute_s[-1])
    return Plan(
        "pipedream", tuple(_stages(states, stands_for, levels, options)), 1, bottleneck_s, _ratio(total_s, bottleneck_s),
        _ratio(total_s, data_parallel_s(states, options)), time.perf_counter() - began_s, note=_note(states, options, tables),
    )  # fmt: skip


def _note(states: States, options: Options, tables: Sequence[_Table]) -> str:
    """Says where else the last stage of the outermost level may begin without being slower; "" where nowhere else."""
    cuts = _equal_cuts(states, options, tables)
    if len(cuts) < 2:
        return ""
    taken = int(tables[-1].cuts[0, -1, -1]) + 1
    named = ", ".join(map(str, cuts[:_MOST_CUTS])) + (
        f" and {len(cuts) - _MOST_CUTS} more" if len(cuts) > _MOST_CUTS else ""
    )
    return (
        f"other plans are as quick by the closed form: the last stage may begin at state {named}; here it begins at {taken}. Which of "
        "them the published planner prints differs from run to run"
    )


def _equal_cuts(states: States, options: Options, tables: Sequence[_Table]) -> list[int]:
    """First states of last stages with which the whole is as quick as the best, in order; [] if the best plan is one stage."""
    table, machines, bandwidth = tables[-1], options.num_machines[-1], options.bandwidths[-1]
    if table.cuts[0, -1, -1] == _NONE:
        return []
    compute_s = _between(states.compute_s) if len(tables) == 1 else tables[-2].times_s[:, :, -1]
    before = np.flatnonzero(states.below[:, -1])
    size = states.parameter_bytes[-1] - states.parameter_bytes[before]
    fits = np.full(len(before), True)
    if options.uses_memory_constraint and not options.is_compat:
        fits = states.activation_bytes[-1] - states.activation_bytes[before] + size <= options.memory_bytes
    sent = states.output_bytes[before] / (options.compression_ratio or np.inf)
    equal: set[int] = set()
    for last in range(1, 2 if options.is_straight else machines):
        time_s = (compute_s[before + 1, -1] + 4 * (last - 1) * size / (bandwidth * last)) / last
        time_s = np.maximum(
            np.maximum(time_s, table.times_s[0, before, machines - 1 - last]), 2.0 * sent / (bandwidth * last)
        )
        equal.update((before[fits & (time_s <= table.times_s[0, -1, -1] * _MORE)] + 1).tolist())
    return sorted(equal)


def least_bottleneck_s(states: States, options: Options) -> float:
    """Time of the slowest stage of the best split. Raises `NoPlanError` if none keeps to the memory."""
    return float(_solve_levels(states, options)[-1].times_s[0, -1, -1])


def _why_none(states: States, options: Options) -> str:
    machines, layers = math.prod(options.num_machines), len(states.profile.layers)
    if options.is_straight and (layers < machines or not options.uses_memory_constraint):
        return (
            f"a straight pipeline has a stage on each of {machines} machines, and {states.profile.name or 'the profile'} with its "
            f"{layers} layers cannot be cut into so many"
        )
    for layer in states.profile.layers:
        if options.uses_memory_constraint and layer.activation_bytes + layer.parameter_bytes > options.memory_bytes:
            return (
                f"layer {layer.name} ({layer.description}) takes {layer.activation_bytes + layer.parameter_bytes:,.0f} bytes, and a "
                f"machine has {options.memory_bytes:,.0f}"
            )
    return f"no split keeps to {options.memory_bytes:,.0f} bytes on {machines} machines" + (
        " with a stage on each" if options.is_straight else ""
    )


def _states(profile: Profile, *, is_compat: bool) -> tuple[States, dict[str, tuple[str, ...]]]:
    """As published, a network with too many states has its branches merged before; with what merged layers stand for."""
    if not is_compat:
        return states_of(profile.to_plan()), {}
    if (states := published(profile.to_plan())) is not None:
        return states, {}
    merged, stands_for = merge_branches(profile)
    if (states := published(merged.to_plan())) is None:
        raise NoPlanError(
            f"{profile.name} has too many states for the published planner, also with its branches merged"
        )
    return states, stands_for


def _ratio(total_s: float, part_s: float) -> float:
    return total_s / part_s if part_s else 1.0


def data_parallel_s(states: States, options: Options) -> float:
    """Time of a mini-batch on all machines in data parallelism, as PipeDream reckons it: nothing overlaps."""
    step_s, within = float(states.compute_s[-1]), 1
    for machines, bandwidth in zip(options.num_machines, options.bandwidths, strict=True):
        step_s += 4 * (machines - 1) * float(states.parameter_bytes[-1]) / (bandwidth * machines) / within
        step_s /= machines
        within = machines
    return step_s


def _solve_levels(states: States, options: Options) -> list[_Table]:
    count = len(states.members)
    compute_s = _between(states.compute_s)
    tables: list[_Table] = []
    within = 1
    order = np.argsort(-states.compute_s, kind="stable").astype(np.int32)
    inside = np.ascontiguousarray(states.below.T)
    inner = np.concatenate([order[row[order]] for row in inside])
    first = np.concatenate(([0], inside.sum(axis=1).cumsum()))
    for level, (machines, bandwidth) in enumerate(zip(options.num_machines, options.bandwidths, strict=True)):
        rows = 1 if level == len(options.num_machines) - 1 else count
        if rows * count * machines > _MOST_CELLS:
            raise NoPlanError(
                f"{count:,} states on {machines} machines within a level are too many; give the machines as one level"
            )
        table = _Table(
            np.full((rows, count, machines), np.inf), np.full((rows, count, machines), _NONE, np.int32),
            np.full((rows, count, machines), _NONE, np.int32), np.zeros((rows, count, machines), np.int32),
        )  # fmt: skip
        memory = options.memory_bytes if options.uses_memory_constraint else np.inf
        ratio = np.inf if options.compression_ratio is None else options.compression_ratio
        flags = options.is_straight, options.uses_fewer_machines, options.is_compat, level == 0
        _solve(
            compute_s, (states.activation_bytes, states.parameter_bytes, states.output_bytes / ratio), (inside, first, inner),
            (bandwidth, float(within), memory), flags, table.times_s, table.cuts, table.rests, table.used,
        )  # fmt: skip
        tables.append(table)
        within = machines
        compute_s = table.times_s[:, :, -1]
    if not np.isfinite(tables[-1].times_s[0, -1, -1]):
        raise NoPlanError(_why_none(states, options))
    return tables


#: A level's table of this many cells takes 2 GB.
_MOST_CELLS = 100_000_000


def _between(cumulative: Floats) -> Floats:
    """[i, j]: of state j without what the state before i has; infinite where i comes behind j."""
    earlier = np.concatenate(([0.0], cumulative[:-1]))
    between = cumulative[None, :] - earlier[:, None]
    between[np.tril_indices(len(cumulative), -1)] = np.inf
    return between


#: For sums that round.
_MORE = 1 + 1e-9


@njit(cache=True)
def _fill_one_stage(
    compute_s: float, sizes: tuple[float, float], limits: tuple[float, float, float], flags: tuple[bool, bool, bool, bool],
    times: Floats, used: Ints,
) -> None:  # fmt: skip
    """By machines less one, the time of a single stage on all of them."""
    activations, parameters = sizes
    bandwidth, within, memory = limits
    is_straight, _, is_compat, _ = flags
    machines = len(times)
    for m in range(1 if is_straight else machines):
        stashed = np.ceil((machines - (m + 1)) / (m + 1)) + (0 if is_compat else 1)
        if stashed * (activations + parameters) <= memory:
            times[m] = (compute_s + 4 * m * parameters / (bandwidth * (m + 1)) / within) / (m + 1)
            used[m] = m + 1


@njit(cache=True)
def _list_cuts(i: int, inner: Ints, inside: Bools, is_compat: bool, cuts: Ints) -> int:
    """Of what lies within a state, where a stage that begins behind state i - 1 may end; as published, also beside that."""
    count = 0
    for k in inner:
        if k >= i and (not i or (not inside[i - 1, k] if is_compat else inside[k, i - 1])):
            cuts[count] = k
            count += 1
    return count


@njit(cache=True)
def _solve(
    compute_s: Floats, sizes: tuple[Floats, Floats, Floats], order: tuple[Bools, Ints, Ints], limits: tuple[float, float, float],
    flags: tuple[bool, bool, bool, bool], times: Floats, cuts: Ints, rests: Ints, used: Ints,
) -> None:  # fmt: skip
    """Fill a level's table. Ties go to one stage, then to the cut that sends least, the most even last two, the latest.

    The published one goes through the cuts in the order of a set of objects, so its ties differ from run to run. `order`
    has what lies within each state: as [j, k], and as lists from those with most compute on.
    """
    activations, parameters, outputs = sizes
    inside, first, inner = order
    bandwidth, _, memory = limits
    is_straight, uses_fewer, is_compat, is_additive = flags
    rows, count, machines = times.shape
    earlier, lasts_s = np.empty(count, np.int32), np.empty(count)
    for i in range(rows):
        activations_before = activations[i - 1] if i else 0.0
        parameters_before = parameters[i - 1] if i else 0.0
        for j in range(i, count):
            if i and not is_compat and not inside[j, i - 1]:
                continue
            _fill_one_stage(
                compute_s[i, j], (activations[j] - activations_before, parameters[j] - parameters_before), limits, flags,
                times[i, j], used[i, j],
            )  # fmt: skip
            num_earlier = _list_cuts(i, inner[first[j] : first[j + 1]], inside, is_compat, earlier)
            for number in range(num_earlier):
                lasts_s[number] = compute_s[earlier[number] + 1, j]
            for m in range(1, machines):
                # As published, a single state is not done by fewer machines.
                if uses_fewer and not (is_compat and i == j) and times[i, j, m - 1] < times[i, j, m]:
                    times[i, j, m], used[i, j, m] = times[i, j, m - 1], used[i, j, m - 1]
                    cuts[i, j, m], rests[i, j, m] = cuts[i, j, m - 1], rests[i, j, m - 1]
                least, cut, best = times[i, j, m], _NONE, (np.inf, 0, 0)
                for last in range(1, 2 if is_straight else m + 1):
                    begin, end = 0, num_earlier
                    if is_additive:
                        # On n machines no stages are quicker than an n-th of their times, which add up: the last one must
                        # not have too much, nor leave too much.
                        begin = np.searchsorted(lasts_s[:end], compute_s[i, j] - (m + 1 - last) * least * _MORE)
                        end = np.searchsorted(lasts_s[:end], last * least * _MORE)
                    stashed = np.ceil((machines - (m + 1)) / last) + (0 if is_compat else 1)
                    for number in range(begin, end):
                        k = earlier[number]
                        size = parameters[j] - parameters[k]
                        if stashed * (activations[j] - activations[k] + size) > memory:
                            continue
                        time_s = (lasts_s[number] + 4 * (last - 1) * size / (bandwidth * last)) / last
                        time_s = max(time_s, times[i, k, m - last], 2.0 * outputs[k] / (bandwidth * last))
                        if j < count - 1:
                            time_s = max(time_s, 2.0 * outputs[j] / (bandwidth * last))
                        if time_s > least or (time_s == least and cut == _NONE):
                            continue
                        before = cuts[i, k, m - last] + 1 if cuts[i, k, m - last] != _NONE else i
                        unevenness = abs((k + 1 - before) - (j - k))
                        rank = outputs[k], unevenness, -k
                        if time_s < least or rank < best:
                            least, cut, best = time_s, k, rank
                            times[i, j, m], used[i, j, m] = time_s, last
                            cuts[i, j, m], rests[i, j, m] = k, m - last


def _levels(tables: Sequence[_Table], options: Options, count: int) -> list[list[tuple[Part, ...]]]:
    """By level, the outermost first, how each stage of the level around it is split."""
    levels: list[list[tuple[Part, ...]]] = []
    around = [(0, count)]
    for table, machines in zip(reversed(tables), reversed(options.num_machines), strict=True):
        levels.append([_parts(table, start, end, machines) for start, end in around])
        around = [(part.start, part.end) for parts in levels[-1] for part in parts]
    return levels


def _parts(table: _Table, start: int, end: int, machines: int) -> tuple[Part, ...]:
    parts: list[Part] = []
    state, rest = end - 1, machines - 1
    while True:
        cut, used = int(table.cuts[start, state, rest]), int(table.used[start, state, rest])
        parts.append(Part(start if cut == _NONE else cut + 1, state + 1, used))
        if cut == _NONE:
            return tuple(reversed(parts))
        state, rest = cut, int(table.rests[start, state, rest])


def _stages(
    states: States,
    stands_for: dict[str, tuple[str, ...]],
    levels: Sequence[Sequence[tuple[Part, ...]]],
    options: Options,
) -> Iterator[Stage]:
    """The innermost level's parts, each on its share of the machines of the parts around it."""
    groups: list[tuple[int, ...]] = [(0,)]
    parts: list[Part] = []
    for level, splits in enumerate(levels):
        machines = options.num_machines[len(levels) - 1 - level]
        inner: list[tuple[int, ...]] = []
        for within, split in zip(groups, splits, strict=True):
            first = 0
            for part in split:
                inner.append(
                    tuple(
                        group * machines + machine
                        for group in within
                        for machine in range(first, first + part.machines)
                    )
                )
                first += part.machines
        groups, parts = inner, [part for split in splits for part in split]
    done = 0
    for part, devices in zip(parts, groups, strict=True):
        # As published: what an earlier stage has is not given to a later one, though states need not lie within each other.
        bits = states.members[part.end - 1] & ~done
        done |= bits
        layers = tuple(name for merged in states.names(bits) for name in stands_for.get(merged, (merged,)))
        yield Stage(part.start, part.end, layers, len(devices), devices)

"""Compiled loops: a topological order of tasks, their times, and the memory of their workers."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from detrain.pipeline.schedules import Kind

Ints = NDArray[np.int32]
Floats = NDArray[np.float64]

_FORWARD, _ALL_REDUCE = int(Kind.FORWARD), int(Kind.ALL_REDUCE)


@njit(cache=True)
def sort_tasks(waiting: Ints, user_first: Ints, users: Ints, tasks: Ints, order: Ints) -> int:
    """Writes a topological order into `order` and returns its length. `waiting` counts the dependencies of each task and is used up."""
    count = 0
    for task in tasks:
        if waiting[task] == 0:
            order[count] = task
            count += 1
    at = 0
    while at < count:
        for place in range(user_first[order[at]], user_first[order[at] + 1]):
            user = users[place]
            waiting[user] -= 1
            if waiting[user] == 0:
                order[count] = user
                count += 1
        at += 1
    return count


@njit(cache=True)
def fill_times(dep_first: Ints, deps: Ints, slots: Ints, table: Floats, starts: Floats, ends: Floats) -> None:
    """Each task begins when all that it waits for is done; an all-reduce, its lead before the last backward is.

    `table` has a row for each kind and the leads in the last one, by stage; tasks are in an order in which they can be done.
    """
    times, num_stages = table.ravel(), table.shape[1]
    first_all_reduce = _ALL_REDUCE * num_stages
    for task in range(len(slots)):
        slot, start = slots[task], 0.0
        lead = times[slot + num_stages] if slot >= first_all_reduce else 0.0
        for place in range(dep_first[task], dep_first[task + 1]):
            dep = deps[place]
            end = ends[dep] - lead if lead > 0.0 and slots[dep] < first_all_reduce else ends[dep]
            if end > start:
                start = end
        starts[task] = start
        ends[task] = start + times[slot]


@njit(cache=True)
def last_end_s(dep_first: Ints, deps: Ints, slots: Ints, table: Floats) -> float:
    """Seconds until the last task ends."""
    starts, ends = np.empty(len(slots)), np.empty(len(slots))
    fill_times(dep_first, deps, slots, table, starts, ends)
    return float(ends.max())


@njit(cache=True)
def steady_s(dep_first: Ints, deps: Ints, slots: Ints, table: Floats, first: int, last: int, num_steps: int) -> float:
    """Seconds a step, from the ends of the tasks `first` and `last`, which lie `num_steps` steps apart."""
    starts, ends = np.empty(len(slots)), np.empty(len(slots))
    fill_times(dep_first, deps, slots, table, starts, ends)
    return float((ends[last] - ends[first]) / num_steps)


@njit(cache=True)
def fill_usage(
    sequence: Ints, slots: Ints, versions: Ints, sizes: Floats, num_workers: int, releasing: int, usage: Floats, held: Ints,
) -> None:  # fmt: skip
    """Bytes of its worker while each task of `sequence` is done, and by stage the most micro-batches whose activations are kept.

    `sizes` has by stage: one version of the weights, what is always there, what a micro-batch keeps, what work takes. The
    stages of a worker are `num_workers` apart, or it has one. A task of the kind `releasing` gives a micro-batch back.
    """
    num_stages = sizes.shape[1]
    now = np.zeros(num_stages, np.int32)
    for place in range(len(sequence)):
        kind, stage = divmod(slots[sequence[place]], num_stages)
        if kind == _FORWARD:
            now[stage] += 1
            held[stage] = max(held[stage], now[stage])
        used = sizes[3, stage] + (versions[place] - 1) * sizes[0, stage]
        chunk = stage % num_workers
        while chunk < num_stages:
            used += sizes[1, chunk] + now[chunk] * sizes[2, chunk]
            chunk += num_workers
        usage[place] = used
        if kind == releasing:
            now[stage] -= 1

"""The runtime: computes, makes again, evicts. What it does at each command is that of the published simulator, without its recursion."""

from __future__ import annotations

import numpy as np
from numba import njit

from detrain.remat.online.regions import enter_classes, enter_regions, leave_classes, leave_regions, note_views
from detrain.remat.online.scores import ABOVE, CLASSES, NEIGHBOURHOOD, Heuristic, choose
from detrain.remat.online.state import (
    AGAIN,
    BOTTLENECK,
    CLOCK,
    COMPUTED,
    DONE,
    EVICTIONS,
    FINE,
    FULL,
    MODEL,
    NODES,
    NUM_AGAIN,
    OUT_OF_MEMORY,
    PEAK,
    THRASH,
    USED,
    Ints,
    Shape,
    State,
    record,
)  # fmt: skip

#: Operators that take no time could be done again for ever.
_MOST_TIMES = 50


@njit(cache=True)
def enter_pool(state: State, storage: int) -> None:
    """A storage can be evicted; it stands last, if it did not stand in the pool."""
    if not state.is_in_pool[storage]:
        end = len(state.after) - 1
        last = state.before[end]
        state.after[last], state.before[storage] = storage, last
        state.after[storage], state.before[end] = end, storage
        state.is_in_pool[storage] = 1


@njit(cache=True)
def leave_pool(state: State, storage: int) -> None:
    """A storage cannot be evicted now."""
    if state.is_in_pool[storage]:
        state.after[state.before[storage]] = state.after[storage]
        state.before[state.after[storage]] = state.before[storage]
        state.is_in_pool[storage] = 0


@njit(cache=True)
def lock(state: State, storage: int) -> None:
    """One more that needs a storage."""
    leave_pool(state, storage)
    state.locks[storage] += 1


@njit(cache=True)
def unlock(state: State, storage: int) -> None:
    """One less."""
    state.locks[storage] -= 1
    if state.locks[storage] == 0:
        enter_pool(state, storage)


@njit(cache=True)
def pin(state: State, storage: int) -> None:
    """It is never evicted from here on."""
    if not state.is_pinned[storage]:
        lock(state, storage)
        state.is_pinned[storage] = 1


@njit(cache=True)
def let_go(shape: Shape, state: State, storage: int) -> None:
    """The memory of a storage is free."""
    record(state, 1, shape.root[storage])
    state.is_material[storage] = 0
    state.counters[USED] -= shape.storage_size[storage]
    state.counters[EVICTIONS] += 1
    leave_pool(state, storage)


@njit(cache=True)
def evict(shape: Shape, state: State, heuristic: Heuristic, storage: int, scratch: Ints, ring: Ints) -> int:
    """Throw a storage away, and all that looks into it."""
    let_go(shape, state, storage)
    for view in range(shape.view_first[storage], shape.view_first[storage + 1]):
        state.is_defined[shape.views[view]] = 0
    if heuristic.cost == NEIGHBOURHOOD or heuristic.cost == ABOVE:
        leave_regions(state, storage, ring, scratch)
    if heuristic.cost == CLASSES and not leave_classes(shape, state, storage):
        return FULL
    return FINE


@njit(cache=True)
def give_up(shape: Shape, state: State, depth: int) -> None:
    """An operator that waits for inputs unlocks those in memory: they may be evicted, and are computed again when its turn comes."""
    operator = shape.maker[state.stack[depth]]
    first, last = state.waiting_first[depth], state.waiting_first[depth + 1]
    for place in range(shape.input_first[operator], shape.input_first[operator + 1]):
        was_missing = False
        for waiting in range(first, last):
            was_missing |= state.waiting[waiting] == shape.inputs[place]
        if not was_missing:
            unlock(state, shape.storage[shape.inputs[place]])
    for waiting in range(first, state.position[depth]):  # missing then, made since
        unlock(state, shape.storage[state.waiting[waiting]])
    state.has_given_up[depth] = 1
    state.tries[depth] += 1


@njit(cache=True)
def make_room(
    shape: Shape, state: State, heuristic: Heuristic, size: int, budget: int, depth: int, scratch: Ints, ring: Ints
) -> int:
    """Evict until so many bytes are free. If nothing can be evicted, those that wait below `depth` give up, the lowest first."""
    lowest = 0
    while state.counters[USED] + size > budget:
        storage = choose(shape, state, heuristic, scratch)
        if storage < 0:
            while lowest < depth and state.has_given_up[lowest]:
                lowest += 1
            if lowest >= depth:
                return OUT_OF_MEMORY
            give_up(shape, state, lowest)
            continue
        status = evict(shape, state, heuristic, storage, scratch, ring)
        if status != FINE:
            return status
    return FINE


@njit(cache=True)
def do(shape: Shape, state: State, tensor: int, fresh: Ints) -> int:
    """Do the operator of a tensor. What of its outputs was there already is made a second time and thrown away.

    Returns how many storages are new in memory, which are written into `fresh`.
    """
    operator, num_fresh = shape.maker[tensor], 0
    record(state, 0, operator)
    state.counters[CLOCK] += shape.cost[operator]
    state.counters[USED] += shape.total[operator]
    state.counters[PEAK] = max(state.counters[PEAK], state.counters[USED])
    first, last = shape.output_first[operator], shape.output_first[operator + 1]
    for turn in range(2):  # the tensor that is asked for enters the pool behind its siblings
        for output in range(first, last):
            if (output == tensor) == (turn == 1) and not state.is_material[shape.storage[output]]:
                fresh[num_fresh] = shape.storage[output]
                num_fresh += 1
    for output in range(first, last):
        if state.is_defined[output]:
            state.counters[USED] -= shape.size[output]
        else:
            state.is_material[shape.storage[output]] = 1
            state.is_defined[output] = 1
    for place in range(num_fresh):
        enter_pool(state, fresh[place])
    return num_fresh


@njit(cache=True)
def compute(
    shape: Shape, state: State, heuristic: Heuristic, tensor: int, scratch: Ints, ring: Ints, fresh: Ints
) -> None:
    """Do the operator of a tensor, and keep the neighbourhoods up to date."""
    num_fresh = do(shape, state, tensor, fresh)
    if heuristic.cost == NEIGHBOURHOOD or heuristic.cost == ABOVE:
        enter_regions(shape, state, fresh, num_fresh, ring, scratch)
    if heuristic.cost == CLASSES:
        enter_classes(state, fresh, num_fresh)


@njit(cache=True)
def prepare(shape: Shape, state: State, tensor: int, depth: int) -> None:
    """Lock the inputs that are there, and record those that are not."""
    operator = shape.maker[tensor]
    first, last = shape.input_first[operator], shape.input_first[operator + 1]
    waiting = state.waiting_first[depth]
    state.has_given_up[depth] = 0
    for place in range(first, last):
        state.accessed[shape.storage[shape.inputs[place]]] = state.counters[CLOCK]
    for place in range(first, last):
        if state.is_defined[shape.inputs[place]]:
            lock(state, shape.storage[shape.inputs[place]])
        else:
            state.waiting[waiting] = shape.inputs[place]
            waiting += 1
    if state.tries[depth] % 2:  # what was made last may have thrown out what was made first: the other way round
        begin = state.waiting_first[depth]
        state.waiting[begin:waiting] = state.waiting[begin:waiting][::-1].copy()
    state.stack[depth], state.position[depth], state.waiting_first[depth + 1] = (
        tensor,
        state.waiting_first[depth],
        waiting,
    )


@njit(cache=True)
def materialize(
    shape: Shape, state: State, heuristic: Heuristic, tensor: int, is_again: bool, is_compat: bool, budget: int, limit: int,
    scratch: Ints, ring: Ints, fresh: Ints,
) -> int:  # fmt: skip
    """Have a tensor in memory, and first whatever it is made of. `is_compat`: nobody gives up what it has locked."""
    depth = 0
    state.tries[0] = 0
    prepare(shape, state, tensor, depth)
    while depth >= 0:
        if state.has_given_up[depth]:
            prepare(shape, state, state.stack[depth], depth)
        place = state.position[depth]
        if place < state.waiting_first[depth + 1]:
            missing = state.waiting[place]
            if state.is_defined[missing]:  # made now, or by the way with a sibling
                lock(state, shape.storage[missing])
                state.position[depth] += 1
            else:
                depth += 1
                state.tries[depth] = 0
                prepare(shape, state, missing, depth)
            continue
        top = state.stack[depth]
        operator = shape.maker[top]
        status = make_room(
            shape, state, heuristic, shape.total[operator], budget, 0 if is_compat else depth, scratch, ring
        )
        if status != FINE:
            return status
        compute(shape, state, heuristic, top, scratch, ring, fresh)
        if depth or is_again:
            state.counters[AGAIN] += shape.cost[operator]
            state.counters[NUM_AGAIN] += 1
        else:
            state.counters[MODEL] += shape.cost[operator]
        needed = shape.total[operator]
        for input_ in range(shape.input_first[operator], shape.input_first[operator + 1]):
            unlock(state, shape.storage[shape.inputs[input_]])
            needed += shape.size[shape.inputs[input_]]
        state.counters[COMPUTED] += 1
        if state.counters[AGAIN] > limit or (
            not is_compat and state.counters[COMPUTED] > _MOST_TIMES * len(shape.cost)
        ):
            return THRASH
        state.counters[BOTTLENECK] = max(state.counters[BOTTLENECK], needed)
        depth -= 1
    return FINE


@njit(cache=True)
def introduce(shape: Shape, state: State, heuristic: Heuristic, operator: int) -> int:
    """The outputs of an operator are known from now on."""
    state.counters[DONE] = operator + 1
    for output in range(shape.output_first[operator], shape.output_first[operator + 1]):
        storage = shape.storage[output]
        state.references[storage] += 1
        if state.last_operator[storage] != operator:
            state.last_operator[storage] = operator
            state.cost[storage] += shape.cost[operator]
        if heuristic.cost == CLASSES and shape.root[storage] == output:
            node = state.counters[NODES]
            if node >= len(state.parent):
                return FULL
            state.counters[NODES] += 1
            state.parent[node], state.value[node], state.node[storage] = node, 0, node
    if heuristic.cost == NEIGHBOURHOOD or heuristic.cost == ABOVE:
        note_views(shape, state, operator)
    return FINE


@njit(cache=True)
def run(
    shape: Shape, state: State, heuristic: Heuristic, kinds: Ints, targets: Ints, is_eager: bool, is_compat: bool, budget: int, limit: int,
) -> tuple[int, int]:  # fmt: skip
    """All commands of a program. Returns how it ended, and at which command."""
    num_storages = len(shape.root)
    scratch = np.zeros(num_storages + len(shape.inputs) + len(shape.maker) * 4 + 64, np.int64)
    ring, fresh = np.zeros(num_storages + 64, np.int64), np.zeros(len(shape.maker), np.int64)
    for place in range(len(kinds)):
        kind, target = kinds[place], targets[place]
        status = FINE
        if kind == 0:
            status = introduce(shape, state, heuristic, target)
            if status == FINE:
                status = materialize(
                    shape,
                    state,
                    heuristic,
                    shape.output_first[target],
                    False,
                    is_compat,
                    budget,
                    limit,
                    scratch,
                    ring,
                    fresh,
                )
            for output in range(shape.output_first[target], shape.output_first[target + 1]):
                state.accessed[shape.storage[output]] = state.counters[CLOCK]
        elif kind == 1:
            state.references[shape.storage[target]] += 1
        elif kind == 2:
            if not state.is_defined[target]:
                status = materialize(
                    shape, state, heuristic, target, True, is_compat, budget, limit, scratch, ring, fresh
                )
            if status == FINE:
                pin(state, shape.storage[target])
        else:
            storage = shape.storage[target]
            state.references[storage] -= 1
            if (
                is_eager
                and state.references[storage] == 0
                and state.is_material[storage]
                and not state.is_pinned[storage]
            ):
                status = evict(shape, state, heuristic, storage, scratch, ring)
        if status != FINE:
            return status, place
    return FINE, len(kinds)

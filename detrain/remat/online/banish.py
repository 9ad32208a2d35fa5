"""The runtime that banishes: a storage that nobody refers to and no evicted one depends on is thrown away for good.

What is made of a banished storage cannot be made again, so it is pinned. As in the published simulator, a loop over
the inputs of what has just been made goes on by position while banishing takes inputs from the list, so that every
second of those that are banished there stays locked.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from detrain.remat.online.regions import clear_bit, has_bit, set_bit
from detrain.remat.online.runtime import do, introduce, let_go, lock, pin, unlock
from detrain.remat.online.scores import NEIGHBOURHOOD, ONE, RANDOM, Heuristic, choose_any, score
from detrain.remat.online.state import (
    AGAIN,
    BOTTLENECK,
    CLOCK,
    DONE,
    FINE,
    LOOKS,
    MODEL,
    NUM_AGAIN,
    OUT_OF_MEMORY,
    THRASH,
    USED,
    Bits,
    Flags,
    Ints,
    Shape,
    State,
)  # fmt: skip


class Links(NamedTuple):
    """Parents and children of the tensors that have not been banished: lists that become shorter, and for children longer first."""

    parent_first: Ints  # of a tensor
    num_parents: Ints
    parents: Ints
    child_first: Ints
    num_children: Ints
    children: Ints
    #: Of a storage: tensors that are made of it and are evicted.
    dependents: Bits
    reached: Bits  # scratch
    stack: Ints


def links_of(shape: Shape) -> Links:
    """Before the first command: all parents, no children yet."""
    num_tensors, num_storages = len(shape.maker), len(shape.root)
    num_inputs = np.diff(shape.input_first)[shape.maker]
    num_outputs = np.diff(shape.output_first)
    parent_first = np.concatenate([[0], np.cumsum(num_inputs)])
    parents = [shape.inputs[shape.input_first[operator] : shape.input_first[operator + 1]] for operator in shape.maker]
    room = np.array(
        [
            num_outputs[shape.users[shape.user_first[tensor] : shape.user_first[tensor + 1]]].sum()
            for tensor in range(num_tensors)
        ],
        np.int64,
    )
    return Links(
        parent_first, num_inputs.astype(np.int64), np.concatenate([*parents, np.zeros(0, np.int64)]).astype(np.int64),
        np.concatenate([[0], np.cumsum(room)]), np.zeros(num_tensors, np.int64), np.zeros(room.sum(), np.int64),
        np.zeros((num_storages, -(-num_tensors // 64)), np.uint64), np.zeros((3, -(-num_storages // 64)), np.uint64),
        np.zeros(num_storages + 1, np.int64),
    )  # fmt: skip


@njit(cache=True)
def _remove(first: int, counts: Ints, values: Ints, owner: int, value: int) -> None:
    """The first of this value from a list."""
    end = first + counts[owner]
    for place in range(first, end):
        if values[place] == value:
            for later in range(place, end - 1):
                values[later] = values[later + 1]
            counts[owner] -= 1
            return


@njit(cache=True)
def _add(shape: Shape, links: Links, operator: int) -> None:
    """The outputs of an operator are children of its inputs from now on, and depend on them."""
    first, last = shape.output_first[operator], shape.output_first[operator + 1]
    for place in range(shape.input_first[operator], shape.input_first[operator + 1]):
        parent = shape.inputs[place]
        for output in range(first, last):
            links.children[links.child_first[parent] + links.num_children[parent]] = output
            links.num_children[parent] += 1
            if shape.storage[output] != shape.storage[parent]:
                set_bit(links.dependents[shape.storage[parent]], output)


@njit(cache=True)
def _reach(shape: Shape, state: State, links: Links, base: int, is_up: bool) -> None:
    """Add the evicted storages that are reached from a storage in one direction to `reached[0]`."""
    seen = links.reached[1]
    seen[:] = 0
    links.stack[0], depth = base, 1
    while depth:
        depth -= 1
        storage = links.stack[depth]
        for view in range(shape.view_first[storage], shape.view_first[storage + 1]):
            tensor = shape.views[view]
            if shape.maker[tensor] >= state.counters[DONE]:
                break
            first = links.parent_first[tensor] if is_up else links.child_first[tensor]
            count = links.num_parents[tensor] if is_up else links.num_children[tensor]
            for place in range(first, first + count):
                other = shape.storage[links.parents[place] if is_up else links.children[place]]
                if not state.is_material[other] and not has_bit(seen, other):
                    set_bit(seen, other)
                    set_bit(links.reached[0], other)
                    links.stack[depth] = other
                    depth += 1


@njit(cache=True)
def _score(shape: Shape, state: State, links: Links, heuristic: Heuristic, storage: int) -> float:
    """With the neighbourhood as old as what in it was used last."""
    state.counters[LOOKS] += 1
    above, accessed = 1 if heuristic.cost == ONE else state.cost[storage], state.accessed[storage]
    if heuristic.cost == NEIGHBOURHOOD:
        links.reached[0] = 0
        _reach(shape, state, links, storage, False)
        _reach(shape, state, links, storage, True)
        for word in range(links.reached.shape[1]):
            if links.reached[0, word]:
                for neighbour in range(word * 64, min(word * 64 + 64, len(shape.root))):
                    if has_bit(links.reached[0], neighbour):
                        above += state.cost[neighbour]
                        accessed = max(accessed, state.accessed[neighbour])
    return score(
        heuristic.cost, heuristic.has_size, heuristic.has_staleness, above, shape.storage_size[storage], accessed, state.counters[CLOCK]
    )  # fmt: skip


@njit(cache=True)
def _choose(shape: Shape, state: State, links: Links, heuristic: Heuristic) -> int:
    end = len(shape.root)
    best, best_score, storage = -1, np.inf, state.after[end]
    if heuristic.cost == RANDOM:
        return choose_any(state.after, storage, end)
    while storage != end:
        current = _score(shape, state, links, heuristic, storage)
        if current <= best_score:
            best, best_score = storage, current
        if current == 0:
            break
        storage = state.after[storage]
    return best


@njit(cache=True)
def _evict(shape: Shape, state: State, links: Links, storage: int) -> None:
    let_go(shape, state, storage)
    for view in range(shape.view_first[storage], shape.view_first[storage + 1]):
        tensor = shape.views[view]
        if shape.maker[tensor] >= state.counters[DONE]:
            break
        state.is_defined[tensor] = 0
        for place in range(links.parent_first[tensor], links.parent_first[tensor] + links.num_parents[tensor]):
            parent = shape.storage[links.parents[place]]
            if parent != storage:
                set_bit(links.dependents[parent], tensor)


@njit(cache=True)
def _banish(shape: Shape, state: State, links: Links, storage: int) -> None:
    """For good, if nobody refers to it and nothing evicted depends on it."""
    if state.references[storage] > 0:
        return
    for word in links.dependents[storage]:
        if word:
            return
    if state.is_material[storage]:
        state.locks[storage] = 0
        _evict(shape, state, links, storage)
    for view in range(shape.view_first[storage], shape.view_first[storage + 1]):
        tensor = shape.views[view]
        if shape.maker[tensor] >= state.counters[DONE]:
            break
        first = links.parent_first[tensor]
        for place in range(first, first + links.num_parents[tensor]):
            parent = links.parents[place]
            if shape.storage[parent] != storage:
                clear_bit(links.dependents[shape.storage[parent]], tensor)
                _remove(links.child_first[parent], links.num_children, links.children, parent, tensor)
        first = links.child_first[tensor]
        for place in range(first, first + links.num_children[tensor]):
            child = links.children[place]
            if shape.storage[child] != storage:
                _remove(links.parent_first[child], links.num_parents, links.parents, child, tensor)
                pin(state, shape.storage[child])


@njit(cache=True)
def _prepare(shape: Shape, state: State, links: Links, tensor: int, depth: int) -> None:
    first = links.parent_first[tensor]
    waiting = state.waiting_first[depth]
    for place in range(first, first + links.num_parents[tensor]):
        storage = shape.storage[links.parents[place]]
        if state.references[storage] > 0:
            state.accessed[storage] = state.counters[CLOCK]
    for place in range(first, first + links.num_parents[tensor]):
        parent = links.parents[place]
        if state.is_defined[parent]:
            lock(state, shape.storage[parent])
        else:
            state.waiting[waiting] = parent
            waiting += 1
    state.stack[depth], state.position[depth], state.waiting_first[depth + 1] = (
        tensor,
        state.waiting_first[depth],
        waiting,
    )


@njit(cache=True)
def _finish(shape: Shape, state: State, links: Links, tensor: int, was_defined: Flags) -> int:
    """Give the inputs back; returns the bytes that they took. `was_defined`: which outputs had been there before."""
    operator, needed, place = shape.maker[tensor], 0, 0
    while place < links.num_parents[tensor]:
        parent = links.parents[links.parent_first[tensor] + place]
        storage = shape.storage[parent]
        needed += shape.size[parent]
        unlock(state, storage)
        first = shape.output_first[operator]
        for output in range(first, shape.output_first[operator + 1]):
            if not was_defined[output - first] and shape.storage[output] != storage:
                clear_bit(links.dependents[storage], output)
        _banish(shape, state, links, storage)
        place += 1
    return needed


@njit(cache=True)
def _materialize(
    shape: Shape, state: State, links: Links, heuristic: Heuristic, tensor: int, is_again: bool, budget: int, limit: int,
) -> int:  # fmt: skip
    depth = 0
    _prepare(shape, state, links, tensor, depth)
    while depth >= 0:
        place = state.position[depth]
        if place < state.waiting_first[depth + 1]:
            missing = state.waiting[place]
            if state.is_defined[missing]:
                lock(state, shape.storage[missing])
                state.position[depth] += 1
            else:
                depth += 1
                _prepare(shape, state, links, missing, depth)
            continue
        top = state.stack[depth]
        operator = shape.maker[top]
        while state.counters[USED] + shape.total[operator] > budget:
            storage = _choose(shape, state, links, heuristic)
            if storage < 0:
                return OUT_OF_MEMORY
            _evict(shape, state, links, storage)
        first, last = shape.output_first[operator], shape.output_first[operator + 1]
        was_defined = state.is_defined[first:last].copy()
        do(shape, state, top, np.zeros(last - first, np.int64))
        if depth or is_again:
            state.counters[AGAIN] += shape.cost[operator]
            state.counters[NUM_AGAIN] += 1
        else:
            state.counters[MODEL] += shape.cost[operator]
        needed = shape.total[operator] + _finish(shape, state, links, top, was_defined)
        if state.counters[AGAIN] > limit:
            return THRASH
        state.counters[BOTTLENECK] = max(state.counters[BOTTLENECK], needed)
        depth -= 1
    return FINE


@njit(cache=True)
def run(
    shape: Shape, state: State, links: Links, heuristic: Heuristic, kinds: Ints, targets: Ints, budget: int, limit: int,
) -> tuple[int, int]:  # fmt: skip
    """All commands of a program. Returns how it ended, and at which command."""
    for place in range(len(kinds)):
        kind, target = kinds[place], targets[place]
        status = FINE
        if kind == 0:
            introduce(shape, state, heuristic, target)
            _add(shape, links, target)
            status = _materialize(shape, state, links, heuristic, shape.output_first[target], False, budget, limit)
            for output in range(shape.output_first[target], shape.output_first[target + 1]):
                state.accessed[shape.storage[output]] = state.counters[CLOCK]
        elif kind == 1:
            state.references[shape.storage[target]] += 1
        elif kind == 2:
            if not state.is_defined[target]:
                status = _materialize(shape, state, links, heuristic, target, True, budget, limit)
            if status == FINE:
                pin(state, shape.storage[target])
        else:
            storage = shape.storage[target]
            state.references[storage] -= 1
            if state.references[storage] == 0:
                _banish(shape, state, links, storage)
        if status != FINE:
            return status, place
    return FINE, len(kinds)

"""Evicted neighbourhoods: exact, as sets that are kept up to date, and roughly, as classes of a union-find forest.

What a storage's eviction or return changes is told to those at the edge of its neighbourhoods and to nobody else, so
that a neighbourhood's cost is read and not searched for. As in the published simulator, a new alias tells nobody:
neighbourhoods learn of it when they are built anew.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from detrain.remat.online.state import DONE, DOWN, NODES, UP, Bits, Ints, Shape, State

_ONE = np.uint64(1)


@njit(cache=True)
def set_bit(row: Bits, place: int) -> None:
    """Add to a set."""
    row[place >> 6] |= _ONE << np.uint64(place & 63)


@njit(cache=True)
def clear_bit(row: Bits, place: int) -> None:
    """Take from a set."""
    row[place >> 6] &= ~(_ONE << np.uint64(place & 63))


@njit(cache=True)
def has_bit(row: Bits, place: int) -> bool:
    """True if it is in the set."""
    return (row[place >> 6] >> np.uint64(place & 63)) & _ONE != 0


@njit(cache=True)
def members(row: Bits, found: Ints) -> int:
    """What is in a set, written into `found`; returns how many."""
    count = 0
    for word in range(len(row)):
        rest = row[word]
        while rest:
            lowest = rest & (~rest + _ONE)
            place, bits = 0, lowest
            for step in (32, 16, 8, 4, 2, 1):
                if bits >> np.uint64(step):
                    bits >>= np.uint64(step)
                    place += step
            found[count] = word * 64 + place
            count += 1
            rest &= rest - _ONE
    return count


@njit(cache=True)
def rebuild(shape: Shape, state: State, direction: int, base: int, stack: Ints) -> None:
    """Search the neighbourhood of a material storage anew."""
    inside, edge = state.inside[direction, base], state.edge[direction, base]
    inside[:] = 0
    edge[:] = 0
    cost, depth = 0, 1
    stack[0] = base
    num_done = state.count[DONE]
    while depth:
        depth -= 1
        storage = stack[depth]
        for view in range(shape.view_first[storage], shape.view_first[storage + 1]):
            tensor = shape.views[view]
            if shape.maker[tensor] >= num_done:
                break  # not made yet, nor are those after it
            if direction == UP:
                first, last = shape.input_first[shape.maker[tensor]], shape.input_first[shape.maker[tensor] + 1]
            else:
                first, last = shape.user_first[tensor], shape.user_first[tensor + 1]
            for place in range(first, last):
                if direction == UP:
                    begin, end = shape.inputs[place], shape.inputs[place] + 1
                elif shape.users[place] >= num_done:
                    break
                else:
                    begin, end = shape.output_first[shape.users[place]], shape.output_first[shape.users[place] + 1]
                for other in range(begin, end):
                    found = shape.storage[other]
                    if state.is_material[found]:
                        if found != base:
                            set_bit(edge, found)
                    elif not has_bit(inside, found):
                        set_bit(inside, found)
                        cost += state.cost[found]
                        stack[depth] = found
                        depth += 1
    state.inside_cost[direction, base] = cost


@njit(cache=True)
def absorb(state: State, direction: int, base: int, storage: int, found: Ints) -> None:
    """A storage at the edge of a neighbourhood has been evicted: it and what is behind it are inside now."""
    inside, theirs = state.inside[direction, base], state.inside[direction, storage]
    edge, behind = state.edge[direction, base], state.edge[direction, storage]
    clear_bit(edge, storage)
    for word in range(len(edge)):
        edge[word] |= behind[word]
    new = theirs & ~inside
    set_bit(new, storage)
    for one in range(members(new, found)):
        state.inside_cost[direction, base] += state.cost[found[one]]
    for word in range(len(inside)):
        inside[word] |= new[word]


@njit(cache=True)
def leave_regions(state: State, storage: int, ring: Ints, found: Ints) -> None:
    """A storage has been evicted."""
    for direction in (DOWN, UP):
        # Those above have it below them, and the other way round.
        for one in range(members(state.edge[1 - direction, storage], ring)):
            absorb(state, direction, ring[one], storage, found)
    for direction in (DOWN, UP):
        state.inside[direction, storage] = 0
        state.edge[direction, storage] = 0
        state.inside_cost[direction, storage] = 0


@njit(cache=True)
def enter_regions(shape: Shape, state: State, storages: Ints, num_storages: int, ring: Ints, stack: Ints) -> None:
    """Storages are in memory again, or for the first time."""
    words = state.edge.shape[2]
    affected = np.zeros((2, words), np.uint64)
    for one in range(num_storages):
        storage = storages[one]
        rebuild(shape, state, DOWN, storage, stack)
        rebuild(shape, state, UP, storage, stack)
        for direction in (DOWN, UP):
            for word in range(words):
                affected[direction, word] |= state.edge[1 - direction, storage, word]
    for direction in (DOWN, UP):
        for one in range(members(affected[direction], ring)):
            rebuild(shape, state, direction, ring[one], stack)


# --- classes -------------------------------------------------------------------------------------------------------------------


@njit(cache=True)
def find(state: State, node: int) -> int:
    """The root of a node; paths are made short."""
    root = node
    while state.parent[root] != root:
        root = state.parent[root]
    while state.parent[node] != root:
        state.parent[node], node = root, state.parent[node]
    return root


@njit(cache=True)
def evicted_neighbours(shape: Shape, state: State, storage: int, found: Ints) -> int:
    """Evicted storages next to this one, some more than once; written into `found`, returns how many."""
    count, num_done = 0, state.count[DONE]
    for view in range(shape.view_first[storage], shape.view_first[storage + 1]):
        tensor = shape.views[view]
        operator = shape.maker[tensor]
        if operator >= num_done:
            break
        for place in range(shape.input_first[operator], shape.input_first[operator + 1]):
            other = shape.storage[shape.inputs[place]]
            if not state.is_material[other] and other != storage:
                found[count] = other
                count += 1
        for place in range(shape.user_first[tensor], shape.user_first[tensor + 1]):
            user = shape.users[place]
            if user >= num_done:
                break
            for output in range(shape.output_first[user], shape.output_first[user + 1]):
                other = shape.storage[output]
                if not state.is_material[other] and other != storage:
                    found[count] = other
                    count += 1
    return count


@njit(cache=True)
def leave_classes(shape: Shape, state: State, storage: int, found: Ints) -> bool:
    """A storage has been evicted: its class and those of its evicted neighbours are one. False if there is no room for another node."""
    node = state.count[NODES]
    if node >= len(state.parent):
        return False
    state.count[NODES] += 1
    state.parent[node], state.value[node], state.node[storage] = node, state.cost[storage], node
    for one in range(evicted_neighbours(shape, state, storage, found)):
        other = find(state, state.node[found[one]])
        root = find(state, node)
        if other != root:
            state.parent[other] = root
            state.value[root] += state.value[other]
    return True


@njit(cache=True)
def enter_classes(state: State, storages: Ints, num_storages: int) -> None:
    """Storages are in memory again: their cost goes, but what they have joined stays so."""
    for one in range(num_storages):
        storage = storages[one]
        if state.node[storage] >= 0:
            state.value[find(state, state.node[storage])] -= state.cost[storage]
            state.node[storage] = -1


@njit(cache=True)
def class_cost(shape: Shape, state: State, storage: int, found: Ints) -> int:
    """Cost of the classes around a storage, each once."""
    count, cost, roots = evicted_neighbours(shape, state, storage, found), 0, 0
    for one in range(count):
        root = find(state, state.node[found[one]])
        is_new = True
        for earlier in range(roots):
            if found[earlier] == root:
                is_new = False
                break
        if is_new:
            found[roots] = root
            roots += 1
            cost += state.value[root]
    return cost

"""Evicted neighbourhoods: exact, as sets that are kept up to date, and roughly, as classes of a union-find forest.

What a storage's eviction or return changes is told to those at the edge of its neighbourhoods and to nobody else, so
that a neighbourhood's cost is read and not searched for. What is pinned is never evicted, so nobody asks for its own.
As in the published simulator, a new alias tells nobody: neighbourhoods learn of it when they are built anew. Until then
those that it concerns are *stale*, and are built anew where others only hear of one neighbour more.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from detrain.remat.online.state import DONE, DOWN, NODES, UP, Bits, Flags, Ints, Shape, State

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
    return bool((row[place >> 6] >> np.uint64(place & 63)) & _ONE)


@njit(cache=True)
def members(row: Bits, into: Ints) -> int:
    """What is in a set, written into `into`; returns how many."""
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
            into[count] = word * 64 + place
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
    num_storages, num_done = len(shape.root), state.counters[DONE]
    while depth:
        depth -= 1
        row = direction * num_storages + stack[depth]
        for place in range(shape.link_first[row], shape.link_first[row + 1]):
            if shape.linked_by[place] >= num_done:
                break  # not so yet, nor are those after it
            neighbour = shape.links[place]
            if state.is_material[neighbour]:
                if neighbour != base and not state.is_pinned[neighbour]:
                    set_bit(edge, neighbour)
            elif not has_bit(inside, neighbour):
                set_bit(inside, neighbour)
                cost += state.cost[neighbour]
                stack[depth] = neighbour
                depth += 1
    state.inside_cost[direction, base] = cost
    state.is_stale[direction, base] = 0


@njit(cache=True)
def absorb(state: State, direction: int, base: int, storage: int, scratch: Ints) -> None:
    """A storage at the edge of a neighbourhood has been evicted: it and what is behind it are inside now."""
    inside, theirs = state.inside[direction, base], state.inside[direction, storage]
    edge, behind = state.edge[direction, base], state.edge[direction, storage]
    clear_bit(edge, storage)
    for word in range(len(edge)):
        edge[word] |= behind[word]
    new = theirs & ~inside
    set_bit(new, storage)
    for place in range(members(new, scratch)):
        state.inside_cost[direction, base] += state.cost[scratch[place]]
    for word in range(len(inside)):
        inside[word] |= new[word]


@njit(cache=True)
def leave_regions(state: State, storage: int, ring: Ints, scratch: Ints) -> None:
    """A storage has been evicted."""
    for direction in (DOWN, UP):
        # Those above have it below them, and the other way round.
        for place in range(members(state.edge[1 - direction, storage], ring)):
            if not state.is_pinned[ring[place]]:
                absorb(state, direction, ring[place], storage, scratch)
                state.is_stale[direction, ring[place]] |= state.is_stale[direction, storage]
        if state.is_stale[1 - direction, storage]:
            state.is_stale[direction] = 1  # there may be others that have not been told
    for direction in (DOWN, UP):
        state.inside[direction, storage] = 0
        state.edge[direction, storage] = 0
        state.inside_cost[direction, storage] = 0


@njit(cache=True)
def note_views(shape: Shape, state: State, operator: int) -> None:
    """An operator makes views of something that was there, of other things as well: neighbourhoods do not hear of that."""
    for output in range(shape.output_first[operator], shape.output_first[operator + 1]):
        viewed = shape.storage[output]
        if shape.root[viewed] == output:
            continue
        for place in range(shape.input_first[operator], shape.input_first[operator + 1]):
            other = shape.storage[shape.inputs[place]]
            if other != viewed:
                state.is_stale[UP, viewed] = state.is_stale[DOWN, other] = 1


@njit(cache=True)
def enter_regions(shape: Shape, state: State, storages: Ints, num_storages: int, ring: Ints, stack: Ints) -> None:
    """Storages are in memory again, or for the first time."""
    words = state.edge.shape[2]
    affected = np.zeros((2, words), np.uint64)
    for place in range(num_storages):
        storage = storages[place]
        if state.accessed[storage] == 0:
            _enter_first(shape, state, storage, stack)
            continue
        rebuild(shape, state, DOWN, storage, stack)
        rebuild(shape, state, UP, storage, stack)
        for direction in (DOWN, UP):
            for word in range(words):
                affected[direction, word] |= state.edge[1 - direction, storage, word]
    for direction in (DOWN, UP):
        for place in range(members(affected[direction], ring)):
            if not state.is_pinned[ring[place]]:
                rebuild(shape, state, direction, ring[place], stack)


@njit(cache=True)
def _enter_first(shape: Shape, state: State, storage: int, stack: Ints) -> None:
    """Nothing is made of it yet, and what it was made of is in memory: its neighbours have one more at their edges."""
    row = UP * len(shape.root) + storage
    for place in range(shape.link_first[row], shape.link_first[row + 1]):
        if shape.linked_by[place] >= state.counters[DONE]:
            break
        other = shape.links[place]
        if state.is_pinned[other]:
            continue
        set_bit(state.edge[UP, storage], other)
        if state.is_stale[DOWN, other] or has_bit(state.inside[DOWN, other], storage):
            rebuild(shape, state, DOWN, other, stack)
        else:
            set_bit(state.edge[DOWN, other], storage)


# --- classes -------------------------------------------------------------------------------------------------------------------


@njit(cache=True)
def find(parent: Ints, node: int) -> int:
    """The root of a node; paths are made short."""
    root = node
    while parent[root] != root:
        root = parent[root]
    while parent[node] != root:
        parent[node], node = root, parent[node]
    return root


@njit(cache=True)
def leave_classes(shape: Shape, state: State, storage: int) -> bool:
    """A storage has been evicted: its class and those of its evicted neighbours are one. False if there is no room for another node."""
    node, parent, num_done = state.counters[NODES], state.parent, state.counters[DONE]
    if node >= len(parent):
        return False
    state.counters[NODES] += 1
    parent[node], state.value[node], state.node[storage] = node, state.cost[storage], node
    for row in (UP * len(shape.root) + storage, DOWN * len(shape.root) + storage):
        for place in range(shape.link_first[row], shape.link_first[row + 1]):
            if shape.linked_by[place] >= num_done:
                break
            if not state.is_material[shape.links[place]]:
                other, root = find(parent, state.node[shape.links[place]]), find(parent, node)
                if other != root:
                    parent[other] = root
                    state.value[root] += state.value[other]
    return True


@njit(cache=True)
def enter_classes(state: State, storages: Ints, num_storages: int) -> None:
    """Storages are in memory again: their cost goes, but what they have joined stays so."""
    for place in range(num_storages):
        storage = storages[place]
        if state.node[storage] >= 0:
            state.value[find(state.parent, state.node[storage])] -= state.cost[storage]
            state.node[storage] = -1


@njit(cache=True)
def class_cost(
    link_first: Ints, links: Ints, linked_by: Ints, is_material: Flags, node: Ints, parent: Ints, value: Ints, num_done: int, storage: int,
    roots: Ints,
) -> int:  # fmt: skip
    """Cost of the classes around a storage, each once. Arrays one by one: numba hands a tuple of many over slowly."""
    cost, count, num_storages = 0, 0, len(is_material)
    for row in (UP * num_storages + storage, DOWN * num_storages + storage):
        for place in range(link_first[row], link_first[row + 1]):
            if linked_by[place] >= num_done:
                break
            if is_material[links[place]]:
                continue
            root = find(parent, node[links[place]])
            is_new = True
            for earlier in range(count):
                if roots[earlier] == root:
                    is_new = False
                    break
            if is_new:
                roots[count] = root
                count += 1
                cost += value[root]
    return cost

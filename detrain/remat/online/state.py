"""The state of a runtime: flat arrays, indexed by the numbers of operators, tensors and storages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from detrain.remat.graph import Graph

Ints = NDArray[np.int64]
Flags = NDArray[np.uint8]
Bits = NDArray[np.uint64]

#: Places in `State.counters`.
CLOCK, USED, PEAK, MODEL, AGAIN, BOTTLENECK, LOOKS, NUM_AGAIN, EVICTIONS, NODES, DONE, TRACED, COMPUTED = range(13)
_COUNTERS = 13
#: How a command ended.
FINE, OUT_OF_MEMORY, THRASH, FULL = range(4)
#: Directions of a neighbourhood.
DOWN, UP = 0, 1


class Shape(NamedTuple):
    """The graph, which does not change. `x_first[i]:x_first[i + 1]` is where the list of `i` stands in `x`."""

    cost: Ints  # of an operator, ns
    total: Ints  # bytes that an operator needs for its outputs
    input_first: Ints  # of an operator
    inputs: Ints  # tensors
    output_first: Ints  # of an operator; outputs have consecutive numbers
    maker: Ints  # of a tensor: operator
    size: Ints  # of a tensor: bytes of its own
    storage: Ints  # of a tensor
    root: Ints  # of a storage: its first tensor
    user_first: Ints  # of a tensor
    users: Ints  # operators
    view_first: Ints  # of a storage
    views: Ints  # tensors, in the order in which they are made
    storage_size: Ints  # bytes
    link_first: Ints  # of `direction * number of storages + storage`
    links: Ints  # storages one operator away, each once, by the operator that made it so
    linked_by: Ints  # that operator


class State(NamedTuple):
    """What changes while the program runs."""

    counters: Ints
    is_material: Flags  # of a storage
    is_defined: Flags  # of a tensor: an alias is undefined until its own operator is done again
    locks: Ints  # of a storage
    references: Ints  # of a storage, the program's
    is_pinned: Flags
    accessed: Ints  # of a storage: the clock when it was used last
    cost: Ints  # of a storage: of the operators whose outputs look into it
    last_operator: Ints  # of a storage: the last that was counted
    after: Ints  # the pool of what can be evicted, in the order of entry: a ring with its end at index -1
    before: Ints
    is_in_pool: Flags
    inside: Bits  # of a direction and a storage: evicted storages that are reached through evicted ones
    edge: Bits  # the material ones that are met first
    inside_cost: Ints
    is_stale: Flags  # of a direction and a storage: the neighbourhood may differ from what a search would find
    node: Ints  # of a storage: in the forest of evicted neighbourhoods, or -1
    parent: Ints  # of a node
    value: Ints
    stack: Ints  # tensors that are being made
    waiting_first: Ints
    waiting: Ints  # inputs that were missing
    position: Ints
    tries: Ints  # of a place in the stack: how often its inputs have been given up for the sake of those above it
    has_given_up: Flags
    #: What was done (row 0: 0 for an operator, 1 for a storage that was thrown away) and to what (row 1); no columns if nobody asks.
    trace: Ints


@njit(cache=True)
def record(state: State, kind: int, target: int) -> None:
    """Append to the trace that an operator was done (`kind` 0) or a storage evicted (1), if there is room; it is counted in any case."""
    place = state.counters[TRACED]
    if place < state.trace.shape[1]:
        state.trace[0, place], state.trace[1, place] = kind, target
    state.counters[TRACED] += 1


def shape_of(graph: Graph) -> Shape:
    """The arrays of a graph."""
    tensors, operators = graph.tensors, graph.operators
    roots = [number for number, tensor in enumerate(tensors) if tensor.base == number]
    numbers = {root: number for number, root in enumerate(roots)}
    storage = [numbers[tensor.base] for tensor in tensors]
    users: list[list[int]] = [[] for _ in tensors]
    for number, operator in enumerate(operators):
        for source in operator.inputs:
            users[source].append(number)
    views: list[list[int]] = [[] for _ in roots]
    for number, base in enumerate(storage):
        views[base].append(number)
    input_first, inputs = _lists([list(operator.inputs) for operator in operators])
    user_first, user = _lists(users)
    view_first, view = _lists(views)
    link_first, link = _lists(_links(graph, storage, len(roots)))
    sizes = _ints([tensor.size_bytes for tensor in tensors])
    return Shape(
        cost=_ints([operator.cost_ns for operator in operators]),
        total=_ints([sum(tensors[output].size_bytes for output in operator.outputs) for operator in operators]),
        input_first=input_first, inputs=inputs,
        output_first=_ints([*(operator.outputs[0] for operator in operators), len(tensors)]),
        maker=_ints([tensor.operator for tensor in tensors]), size=sizes, storage=_ints(storage), root=_ints(roots),
        user_first=user_first, users=user, view_first=view_first, views=view, storage_size=sizes[roots],
        link_first=link_first, links=link // len(operators), linked_by=link % len(operators),
    )  # fmt: skip


def _links(graph: Graph, storage: list[int], num_storages: int) -> list[list[int]]:
    """What is one operator below each storage, then what is one above, as `storage * number of operators + operator`."""
    made_by: list[dict[int, int]] = [{} for _ in range(2 * num_storages)]
    for number, operator in enumerate(graph.operators):
        above, below = {storage[tensor] for tensor in operator.inputs}, {storage[output] for output in operator.outputs}
        for upper in above:
            for lower in below - {upper}:
                made_by[DOWN * num_storages + upper].setdefault(lower, number)
                made_by[UP * num_storages + lower].setdefault(upper, number)
    return [[other * len(graph.operators) + number for other, number in links.items()] for links in made_by]


def state_of(shape: Shape, *, has_regions: bool, num_nodes: int, trace: int = 0) -> State:
    """Before the first command."""
    num_storages, num_tensors = len(shape.root), len(shape.maker)
    words = -(-num_storages // 64) if has_regions else 0
    rows = num_storages if has_regions else 0
    ring = np.full(num_storages + 1, num_storages, np.int64)
    counters = np.zeros(_COUNTERS, np.int64)
    counters[CLOCK] = 1  # as in the published simulator
    return State(
        counters=counters,
        is_material=np.zeros(num_storages, np.uint8), is_defined=np.zeros(num_tensors, np.uint8),
        locks=np.zeros(num_storages, np.int64), references=np.zeros(num_storages, np.int64),
        is_pinned=np.zeros(num_storages, np.uint8), accessed=np.zeros(num_storages, np.int64),
        cost=np.zeros(num_storages, np.int64), last_operator=np.full(num_storages, -1, np.int64),
        after=ring, before=ring.copy(), is_in_pool=np.zeros(num_storages, np.uint8),
        inside=np.zeros((2, rows, words), np.uint64), edge=np.zeros((2, rows, words), np.uint64),
        inside_cost=np.zeros((2, num_storages), np.int64), is_stale=np.zeros((2, num_storages), np.uint8),
        node=np.full(num_storages, -1, np.int64), parent=np.zeros(num_nodes, np.int64), value=np.zeros(num_nodes, np.int64),
        stack=np.zeros(num_tensors + 1, np.int64), waiting_first=np.zeros(num_tensors + 2, np.int64),
        waiting=np.zeros(len(shape.inputs) + 1, np.int64), position=np.zeros(num_tensors + 1, np.int64),
        tries=np.zeros(num_tensors + 1, np.int64), has_given_up=np.zeros(num_tensors + 1, np.uint8),
        trace=np.zeros((2, trace), np.int64),
    )  # fmt: skip


def _ints(values: Sequence[int]) -> Ints:
    return np.array(values, np.int64)


def _lists(lists: list[list[int]]) -> tuple[Ints, Ints]:
    first = np.zeros(len(lists) + 1, np.int64)
    np.cumsum([len(values) for values in lists], out=first[1:])
    return first, _ints([value for values in lists for value in values])

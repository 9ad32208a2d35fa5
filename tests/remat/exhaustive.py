"""The least time of all schedules of a small step, by trying them all (Dijkstra's algorithm over what is in memory)."""

import heapq

from detrain.remat.graph import Kind


def least_ns(graph, budget_bytes):
    """Of schedules that do the operators for the first time in the program's order and keep the constants; None if there is none."""
    order = [command.target for command in graph.program if command.kind == Kind.COMPUTE]
    views = {}
    for number, tensor in enumerate(graph.tensors):
        views.setdefault(tensor.base, set()).add(number)
    size = [tensor.size_bytes for tensor in graph.tensors]
    constant = {one for operator in graph.operators if operator.is_constant for one in operator.outputs}
    best, queue = {(0, frozenset()): 0}, [(0, 0, 0, frozenset())]
    count = 0
    while queue:
        cost, _, done, there = heapq.heappop(queue)
        if best[done, there] < cost:
            continue
        if done == len(order) and there.issuperset(graph.outputs):
            return cost
        moves = [(0, done, there - views[base]) for base in there if base in views and base not in constant]
        for place, number in enumerate(order[: done + 1]):
            operator = graph.operators[number]
            if (
                not there.issuperset(operator.inputs)
                or there.issuperset(operator.outputs)
                or (operator.is_constant and place < done)
            ):
                continue
            if sum(size[one] for one in there) + sum(size[one] for one in operator.outputs) <= budget_bytes:
                moves.append((operator.cost_ns, max(done, place + 1), there.union(operator.outputs)))
        for more, new_done, new_there in moves:
            state = (new_done, frozenset(new_there))
            if cost + more < best.get(state, cost + more + 1):
                best[state] = cost + more
                count += 1
                heapq.heappush(queue, (cost + more, count, *state))
    return None

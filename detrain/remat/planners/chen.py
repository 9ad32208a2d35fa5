"""Chen, Xu, Zhang, Guestrin, "Training Deep Nets with Sublinear Memory Cost" (2016): keep every so-many-th storage of the forward pass."""

from __future__ import annotations

import math
from collections.abc import Iterator

from detrain.remat.graph import Graph
from detrain.remat.planners import kept
from detrain.remat.schedule import Schedule


def sqrt(graph: Graph, budget_bytes: int | None = None) -> Schedule:
    """Keeps every √n-th of n forward storages. The budget is only written into the schedule."""
    storages = kept.candidates(graph)
    step = max(1, math.isqrt(len(storages)))
    return kept.schedule(graph, set(storages[step - 1 :: step]), "chen-sqrt", budget_bytes)


def greedy(graph: Graph, budget_bytes: int | None = None) -> Iterator[Schedule]:
    """For each of many bounds: a storage is kept when what came since the last one is more than the bound. From much memory to little."""
    storages = kept.candidates(graph)
    sizes = [graph.tensors[tensor].size_bytes for tensor in storages]
    seen: set[frozenset[int]] = set()
    for share in range(_BOUNDS + 1):
        bound, since, chosen = int(sum(sizes) * (share / _BOUNDS) ** 2), 0, set()
        for tensor, size in zip(storages, sizes, strict=True):
            since += size
            if since > bound:
                chosen.add(tensor)
                since = 0
        if frozenset(chosen) not in seen:
            seen.add(frozenset(chosen))
            yield kept.schedule(graph, chosen, "chen-greedy", budget_bytes)


_BOUNDS = 60

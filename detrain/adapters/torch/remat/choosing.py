"""Which cells are to be evicted: DTR's heuristic (Kirisame et al., ICLR 2021, `h_DTR_eq`) on a sample of those that can be."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from detrain.adapters.torch.remat.cells import NOTHING_BYTES, Cell

#: So many cells are looked at and so many of them compared, evenly spread over all; so many of these go before they are compared again.
_MOST_LOOKED_AT, _MOST_COMPARED, _MOST_AT_ONCE = 1024, 128, 4
#: What is smaller than this share of the largest candidate is passed over.
_SMALLEST = 0.01


def best_to_evict(
    makeable: Collection[Cell], clock: int, kept_kinds: Collection[Any], *, is_timed: bool, is_last_resort: bool
) -> list[Cell]:
    """The best few, the best first; none if none can go.

    `is_timed`: what it takes to make them again counts; else their sizes and staleness alone, which are the same in each run.
    `is_last_resort`: gradients can go, and results of the calls of `kept_kinds`, which had to be made again because what they are made of
    was changed.
    """
    cells = list(makeable)
    stride = -(-len(cells) // _MOST_LOOKED_AT) or 1
    if is_last_resort:
        wanted = [cell for cell in cells if cell.is_evictable]
    else:
        wanted = _wanted(cells[clock % stride :: stride], kept_kinds) or _wanted(cells, kept_kinds)
    if not wanted:
        return []
    least = max(cell.nbytes for cell in wanted) * _SMALLEST
    large = [cell for cell in wanted if cell.nbytes >= least]
    stride = -(-len(large) // _MOST_COMPARED)
    compared = large[clock % stride :: stride]
    return sorted(compared, key=lambda cell: _score(cell, clock, is_timed=is_timed))[:_MOST_AT_ONCE]


def _wanted(cells: Collection[Cell], kept_kinds: Collection[Any]) -> list[Cell]:
    # `is_evictable` without a call: this is done for a thousand cells whenever there is no room.
    return [
        cell
        for cell in cells
        if cell.is_there
        and cell.calls
        and not (cell.is_gradient or cell.is_pinned or cell.is_blank or cell.num_locks)
        and cell.nbytes > NOTHING_BYTES
        and cell.kind not in kept_kinds
    ]


def _score(cell: Cell, clock: int, *, is_timed: bool) -> float:
    """Cost over size and staleness; the cost is that of the cell and of what around it is not there, or the same for all."""
    cost_ns, seen = cell.cost_ns if is_timed else 1, set()
    for neighbour in cell.neighbours() if is_timed else ():
        if neighbour.group is not None:
            root = neighbour.group.root()
            if id(root) not in seen:
                seen.add(id(root))
                cost_ns += root.cost_ns
    return cost_ns / (cell.nbytes * (clock - cell.last_used + 1))


def why_not(cells: Iterable[Cell], nbytes: int, used_bytes: int, budget_bytes: int, what: str) -> str:
    """What is said where nothing can go and `what` needs `nbytes`: what all those are that have to be there."""
    there = [cell for cell in cells if cell.is_there]
    kept = sum(cell.nbytes for cell in there if not cell.calls)
    looked_at = sum(cell.nbytes for cell in there if cell.calls and (cell.is_pinned or cell.is_blank))
    running = used_bytes - kept - looked_at  # nothing else could not go
    return (
        f"{what} needs {nbytes:,} bytes beside {used_bytes:,} that have to be there: {used_bytes + nbytes:,} in all, and the "
        f"memory budget is {budget_bytes:,}. {kept:,} of them cannot be made again: parameters, gradients, the optimizer's state, "
        f"the batch; {running:,} are what it reads, or what is made again for it is made of; {looked_at:,} were handed out or not "
        "written to yet"
    )

"""Keeps nothing of the forward pass: before each operator of the backward pass all of its inputs are computed again."""

from __future__ import annotations

from detrain.remat.graph import Graph
from detrain.remat.planners.blocks import Chain, needed_for

#: What takes more steps is not followed to its end.
_MOST_STEPS = 500_000


def order(graph: Graph) -> list[int] | None:
    """Operators in the order in which they are done; None if there would be more than `_MOST_STEPS`.

    Alone it takes about a hundred times as long as the step, and about the least memory that is possible. `polish` makes it quicker
    where memory allows, so that there is a schedule where no other planner finds one.
    """
    chain = Chain(graph, most_blocks=1)
    (block,) = chain.blocks
    made = {output for number in block.forward for output in graph.operators[number].outputs}
    operators = [*chain.constants, *block.forward]
    for number in block.backward:
        operators += needed_for(graph, block.forward, made.intersection(graph.operators[number].inputs))
        operators.append(number)
        if len(operators) > _MOST_STEPS:
            return None
    return operators

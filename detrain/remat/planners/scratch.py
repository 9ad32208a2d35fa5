"""Nothing of the way forward is kept: each operator of the way back makes all that it asks for again, from the constants on."""

from __future__ import annotations

from detrain.remat.graph import Graph
from detrain.remat.planners.blocks import Chain, needed_for

#: What takes more steps is not followed to its end.
_MOST_STEPS = 500_000


def order(graph: Graph) -> list[int] | None:
    """Operators in the order in which they are done; None if there would be too many.

    Of itself it takes a hundred times the time of the step and about the least memory there is; made quicker as far as
    there is room (`polish`), it is a schedule where nothing else is.
    """
    chain = Chain(graph, most_blocks=1)
    (block,) = chain.blocks
    made = {output for number in block.forward for output in graph.operators[number].outputs}
    found = [*chain.constants, *block.forward]
    for number in block.backward:
        found += needed_for(graph, block.forward, made.intersection(graph.operators[number].inputs))
        found.append(number)
        if len(found) > _MOST_STEPS:
            return None
    return found

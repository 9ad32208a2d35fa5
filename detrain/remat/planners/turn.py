"""Where a step turns from the way forward to the way back."""

from __future__ import annotations

from collections.abc import Sequence

from detrain.remat.graph import Graph
from detrain.remat.schedule import Action, keep_all
from detrain.remat.simulator import simulate


def turn(graph: Graph, order: Sequence[int]) -> int:
    """The place in this order of the operator at which the step, when it keeps everything, has the most in memory.

    What was made before it waits there for its gradients. Names and flags are not believed: logs call some operators of
    the way forward backward, and a step that trains two models in turn has several ways back.
    """
    place_of = {number: place for place, number in enumerate(order)}
    schedule = keep_all(graph)
    usage = [
        (used_bytes, -place_of[step.target])
        for step, used_bytes in zip(schedule.steps, simulate(graph, schedule).usage_bytes, strict=True)
        if step.action == Action.COMPUTE and step.target in place_of
    ]
    # The way forward has one operator at least.
    return max(-max(usage)[1], 1) if usage else 0

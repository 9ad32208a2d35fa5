"""Where a step turns from the forward pass to the backward pass."""

from __future__ import annotations

from collections.abc import Sequence

from detrain.remat.graph import Graph
from detrain.remat.schedule import Action, keep_all
from detrain.remat.simulator import simulate


def first_backward_index(graph: Graph, order: Sequence[int]) -> int:
    """The index in `order` (operators) at which the memory of the step peaks when everything is kept: there the backward pass begins.

    Names and `is_backward` are not used: logs call some operators of the forward pass backward, and a step that trains two models in
    turn has several backward passes.
    """
    place_of = {number: place for place, number in enumerate(order)}
    schedule = keep_all(graph)
    usage = [
        (used_bytes, -place_of[step.target])
        for step, used_bytes in zip(schedule.steps, simulate(graph, schedule).usage_bytes, strict=True)
        if step.action == Action.COMPUTE and step.target in place_of
    ]
    # The forward pass has one operator at least.
    return max(-max(usage)[1], 1) if usage else 0

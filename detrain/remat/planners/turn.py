"""Where a step turns from the way forward to the way back."""

from __future__ import annotations

from collections.abc import Sequence

from detrain.remat.graph import Graph
from detrain.remat.schedule import Action, keep_all


def turn(graph: Graph, order: Sequence[int]) -> int:
    """The place in this order of the operator at which the step, when it keeps everything, has the most in memory.

    What was made before it waits there for its gradients. Names and flags are not believed: logs call some operators of
    the way forward backward, and a step that trains two models in turn has several ways back.
    """
    place_of = {number: place for place, number in enumerate(order)}
    used_bytes = most_bytes = 0
    found = len(order)
    for step in keep_all(graph).steps:
        if step.action == Action.FREE:
            used_bytes -= graph.tensors[step.target].size_bytes
            continue
        used_bytes += sum(graph.tensors[one].size_bytes for one in graph.operators[step.target].outputs)
        if used_bytes > most_bytes and step.target in place_of:
            most_bytes, found = used_bytes, place_of[step.target]
    return found

"""Rematerialization inside a stage: what is kept of a micro-batch between its forward pass and its backward pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

from detrain.errors import GraphError
from detrain.pipeline.layers import Profile
from detrain.pipeline.states import numbers_of
from detrain.plans.errors import NoPlanError
from detrain.remat.graph import Graph
from detrain.remat.schedule import Action, Schedule
from detrain.remat.simulator import peak_bytes, simulate


@dataclass(frozen=True, slots=True)
class Kept:
    """For one sample."""

    #: From the forward pass to the backward pass, beyond what enters the stage.
    bytes: float
    #: Beyond it, while the backward pass is done.
    working_bytes: float
    #: Seconds of what is done again.
    again_s: float


def recompute(profile: Profile, layers: int, how: str, profile_batch: int) -> Kept:
    """What a stage of `layers` (bits) keeps and recomputes for a sample; `how` is as in `Stage.recompute`. Raises `GraphError`."""
    inside = [profile.layers[number] for number in numbers_of(layers)]
    activation_bytes = sum(layer.activation_bytes for layer in inside) / profile_batch
    if not how:
        return Kept(activation_bytes, 0.0, 0.0)
    if how == "all":
        again = sum(layer.forward_ms for layer in inside) / 1000.0 / profile_batch
        return Kept(0.0, activation_bytes, again)
    planner, _, share = how.partition("@")
    try:
        budget = float(share)
    except ValueError:
        budget = 0.0
    if not 0 < budget < math.inf:
        raise GraphError(f'a stage recomputes "", "all" or as PLANNER@SHARE says, not {how!r}')
    # Loads compilers and solvers; most plans need none of them.
    from detrain.pipeline.steps import to_graph
    from detrain.remat.planners.registry import plan as plan_within

    part = profile.without(set(range(len(profile.layers))) - set(numbers_of(layers)))
    graph = to_graph(part)
    beyond = budget * (peak_bytes(graph) - graph.constant_bytes)
    try:
        schedule = plan_within(graph, graph.constant_bytes + int(beyond), planner).schedule
    except NoPlanError as error:
        # Wrong is the pipeline's plan, which asks for it; the planner of the pipeline may have others.
        raise GraphError(str(error)) from None
    return _of_schedule(graph, schedule, profile_batch)


def _of_schedule(graph: Graph, schedule: Schedule, profile_batch: int) -> Kept:
    """Kept is what is in use when the last operator of the forward pass has been done first.

    Constants do not count, nor do the outputs, the gradients of the weights: both are in what a device always holds.
    """
    outcome = simulate(graph, schedule, None)
    lasting = {graph.tensors[output].base for output in graph.outputs}
    seen: set[int] = set()
    turn, held = 0, graph.constant_bytes
    used = []
    for place, step in enumerate(schedule.steps):
        if step.action == Action.COMPUTE and step.target not in seen:
            seen.add(step.target)
            made = {graph.tensors[output].base for output in graph.operators[step.target].outputs}
            held += sum(graph.tensors[base].size_bytes for base in made & lasting)
            if not graph.operators[step.target].is_backward:
                turn = place
        used.append(max(outcome.usage_bytes[place] - held, 0))
    working_bytes = max(used[turn:]) - used[turn]
    again_s = (outcome.overhead - 1.0) * graph.cost_ns / 1e9
    return Kept(used[turn] / profile_batch, working_bytes / profile_batch, again_s / profile_batch)

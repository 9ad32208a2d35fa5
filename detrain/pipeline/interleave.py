"""A plan's stages cut smaller, several to each device, for the interleaved schedule (Narayanan et al. 2021)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from detrain.errors import GraphError
from detrain.pipeline.compression import states_of
from detrain.pipeline.layers import Profile
from detrain.pipeline.plan import Plan, Stage
from detrain.pipeline.states import Floats, States
from detrain.plans.errors import NoPlanError


def interleaved(plan: Plan, profile: Profile, chunks: int) -> Plan:
    """The layers over the same devices, each of which has `chunks` stages: of p stages, stage s is on those of stage s mod p.

    The cuts make the slowest stage quickest, replicas counted. Raises `NoPlanError` where there are fewer layers than stages.
    """
    if chunks < 2:
        raise GraphError(f"interleaved stages are two or more to a device, not {chunks}")
    states = states_of(profile)
    depth = len(plan.stages)
    wanted = [plan.stages[number % depth] for number in range(depth * chunks)]
    ends = _cuts(states, [stage.replicas for stage in wanted])
    if ends is None:
        raise NoPlanError(f"{len(wanted)} stages take as many layers, and {profile.name} has {len(profile.layers)}")
    starts = [-1, *ends[:-1]]
    stages = tuple(
        Stage(start + 1, end + 1, states.layers_between(start, end), stage.replicas, stage.devices, stage.recompute)
        for start, end, stage in zip(starts, ends, wanted, strict=True)
    )
    return replace(plan, stages=stages)


def _cuts(states: States, replicas: list[int]) -> list[int] | None:
    """The last state of each stage, so that the slowest is quickest; of equals the earliest cuts."""
    count = len(states.members)
    best = states.compute_s / replicas[0]
    came: list[Floats] = []
    for number in replicas[1:]:
        spans = (states.compute_s[None, :] - states.compute_s[:, None]) / number
        through = np.where(states.below, np.maximum(best[:, None], spans), np.inf)
        came.append(through.argmin(axis=0))
        best = through.min(axis=0)
    if not np.isfinite(best[-1]):
        return None
    cuts = [count - 1]
    for earlier in reversed(came):
        cuts.append(int(earlier[cuts[-1]]))
    return cuts[::-1]

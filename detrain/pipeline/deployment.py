"""PipeDream's `*_conf.json`: which module is in which stage, and which ranks run it.

A model is a list of modules, the last of which is the criterion. With a generated model the others are the stages of the
plan that it was generated of, in the order of their `stage_id`s.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate, pairwise
from pathlib import Path

from detrain.errors import GraphError
from detrain.pipeline.layers import Profile
from detrain.pipeline.plan import Plan, Stage
from detrain.plans.documents import Fields, errors_naming, parsed

_MODULES, _RANKS, _DEPTHS = "module_to_stage_map", "stage_to_rank_map", "stage_to_depth_map"


@dataclass(frozen=True)
class Deployment:
    """Raises `GraphError` naming the key where the maps do not agree."""

    #: By module: its stage. It never goes back, and the criterion is in the last one.
    stage_of: tuple[int, ...]
    #: By stage. A stage's mini-batches go round its ranks in this order.
    ranks: tuple[tuple[int, ...], ...]
    #: By stage: mini-batches that go forward before the first comes back; None leaves it to the runtime.
    depths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if self.stage_of[:1] != (0,):
            raise GraphError(
                f"{_MODULES} begins with stage {self.stage_of[0] if self.stage_of else 'none'}, not with 0"
            )
        for before, behind in pairwise(self.stage_of):
            if not before <= behind <= before + 1:
                how = "back" if behind < before else "on"
                raise GraphError(f"{_MODULES} goes {how} from stage {before} to stage {behind}")
        for key, num_stages in ((_RANKS, len(self.ranks)), (_DEPTHS, len(self.depths or ()))):
            if num_stages != self.num_stages and (key == _RANKS or self.depths is not None):
                raise GraphError(f"{key} has {num_stages} stages, and {_MODULES} has {self.num_stages}")
        at: dict[int, int] = {}
        for stage, ranks in enumerate(self.ranks):
            if not ranks:
                raise GraphError(f"{_RANKS}: stage {stage} has no ranks")
            for rank in ranks:
                if rank in at:
                    where = (
                        f"in stage {stage} and in stage {at[rank]}" if at[rank] != stage else f"twice in stage {stage}"
                    )
                    raise GraphError(f"{_RANKS}: rank {rank} is {where}")
                at[rank] = stage
        if sorted(at) != list(range(len(at))):
            missing = min(set(range(len(at))) - set(at))
            raise GraphError(f"{_RANKS}: ranks count from 0 on, and {missing} of {len(at)} is missing")
        if min(self.depths or (0,)) < 0:
            raise GraphError(f"{_DEPTHS}: a depth is {min(self.depths or ())}")

    @property
    def num_stages(self) -> int:
        """Of the module map."""
        return self.stage_of[-1] + 1

    @property
    def num_ranks(self) -> int:
        """Of all stages."""
        return sum(map(len, self.ranks))

    def warmups(self) -> tuple[int, ...]:
        """By stage: the depths; where there are none, as PipeDream's runtime reckons them.

        That is the ranks of this stage and of those behind it, but for one, over those of this stage, rounded down.
        """
        if self.depths is not None:
            return self.depths
        before = accumulate((len(ranks) for ranks in self.ranks[:-1]), initial=0)
        return tuple((self.num_ranks - 1 - gone) // len(ranks) for gone, ranks in zip(before, self.ranks, strict=True))


def read(path: Path) -> Deployment:
    """Raises `GraphError` naming file and key, or `OSError`."""
    document = parsed(path, "JSON", lambda text: json.loads(text, object_pairs_hook=_without_repeats))
    fields = Fields(document, str(path), (_MODULES, _RANKS, _DEPTHS))
    stage_of = fields.wholes(_MODULES)
    num_stages = max(stage_of, default=-1) + 1
    ranks = fields.table(_RANKS)
    _check_stages(ranks, num_stages)
    depths = None
    if fields.has(_DEPTHS):
        table = fields.table(_DEPTHS)
        _check_stages(table, num_stages)
        depths = tuple(table.whole(str(stage)) for stage in range(num_stages))
    with errors_naming(path):
        return Deployment(stage_of, tuple(ranks.wholes(str(stage)) for stage in range(num_stages)), depths)


def _without_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands there twice")
    return table


def _check_stages(table: Fields, num_stages: int) -> None:
    for name in table.names():
        if not (name.isascii() and name.isdigit() and str(int(name)) == name and int(name) < num_stages):
            raise GraphError(f"{table.place} has a stage {name!r}, and {_MODULES} has none of that number")


def write(path: Path, deployment: Deployment) -> None:
    """In the spelling of PipeDream's own files. Raises `OSError`."""
    document: dict[str, object] = {_MODULES: list(deployment.stage_of), _RANKS: _by_stage(map(list, deployment.ranks))}
    if deployment.depths is not None:
        document[_DEPTHS] = _by_stage(deployment.depths)
    lines = (f'    "{name}": {json.dumps(value)}' for name, value in document.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8", newline="\n")


def _by_stage(values: Iterable[object]) -> dict[str, object]:
    return {str(stage): value for stage, value in enumerate(values)}


def of_plan(plan: Plan) -> Deployment:
    """A module for each stage, the criterion with the last; ranks are the plan's devices, counted from 0 on.

    All copies of the pipeline make one. Raises `GraphError` for a device that runs several stages: a rank has one.
    """
    devices = sorted({device for stage in plan.stages for device in stage.devices})
    rank_of = {device: rank for rank, device in enumerate(devices)}
    ranks = tuple(tuple(rank_of[device] for device in stage.devices) for stage in plan.stages)
    return Deployment((*range(len(ranks)), len(ranks) - 1), ranks)


def stages_of(deployment: Deployment, profile: Profile) -> tuple[Stage, ...]:
    """The stages of a profile whose layers say of which module they are (`stage_id`); without, they all are of one.

    What a planner leaves out is left out. A stage's `start` and `end` count the layers. Raises `GraphError` if profile and
    deployment do not belong together.
    """
    planned = profile.to_plan()
    bare = [layer for layer in planned.layers if layer.stage is None]
    if bare and len(bare) < len(planned.layers):
        raise GraphError(f"layer {bare[0].name} says no stage_id, and others do")
    modules = {stage: number for number, stage in enumerate(sorted({layer.stage or 0 for layer in planned.layers}))}
    if len(modules) != len(deployment.stage_of) - 1:
        raise GraphError(
            f"the profile's layers are of {len(modules)} modules, and {_MODULES} has {len(deployment.stage_of) - 1} and the criterion"
        )
    layers_of: list[list[str]] = [[] for _ in deployment.ranks]
    stages = {layer.name: deployment.stage_of[modules[layer.stage or 0]] for layer in planned.layers}
    _check_order(planned, stages)
    for layer in planned.layers:
        layers_of[stages[layer.name]].append(layer.name)
    ends = list(accumulate(map(len, layers_of)))
    return tuple(
        Stage(end - len(names), end, tuple(names), len(ranks), ranks)
        for end, names, ranks in zip(ends, layers_of, deployment.ranks, strict=True)
    )


def _check_order(profile: Profile, stages: Mapping[str, int]) -> None:
    layers = profile.layers
    for begin, end in profile.edges:
        if stages[layers[begin].name] > stages[layers[end].name]:
            raise GraphError(
                f"layer {layers[end].name} is in stage {stages[layers[end].name]} and takes what {layers[begin].name} makes "
                f"in stage {stages[layers[begin].name]}"
            )

"""From one of the files around pipelines to another: profiles, operator graphs, plans, PipeDream's conf."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from detrain.errors import GraphError
from detrain.pipeline import csvprofile, deployment, dot, graphtext, opgraph, planfile
from detrain.pipeline.plan import Plan
from detrain.pipeline.planfile import Planned
from detrain.pipeline.profile import Profile
from detrain.pipeline.topologyfile import of_levels
from detrain.remat import dtrlog, graphfile

#: What can be written.
KINDS = ("profile", "graph", "plan", "conf", "dot")


def read_profile(path: Path) -> Profile:
    """Of `graph.txt`, an old table of layers, an operator graph, or a log of the DTR prototype.

    What it is, its first line says. Raises `GraphError` naming the place, or `OSError`.
    """
    with open(path, encoding="utf-8", errors="replace") as file:
        first = file.readline(4096)
    if '"INSTRUCTION"' in first:
        return opgraph.from_graph(dtrlog.read(path))
    if first.lstrip().startswith("{"):
        return opgraph.from_graph(graphfile.read(path))
    if first.startswith("Layer Type,"):
        return csvprofile.read(path)
    return graphtext.read(path)


def convert(source: Path, target: Path, kind: str, profile: Path | None = None) -> str:
    """Write the target as `kind`, or as what its suffix says ("" ); returns which. `profile`: the layers that a conf divides.

    Raises `GraphError` for what cannot become what, or `OSError`.
    """
    read = _document_kind(source)
    kind = kind or _kind_of(target, read)
    if read == planfile.KIND:
        planned = planfile.read(source)
        _write_planned(target, kind, planned)
    elif read == "conf":
        if profile is None:
            raise GraphError(f"{source} says which stage has which ranks; say --profile, whose layers have stages")
        _write_planned(target, kind, _deployed(deployment.read(source), read_profile(profile)))
    else:
        _write_profile(target, kind, read_profile(source))
    return kind


def _document_kind(path: Path) -> str:
    """The kind that a JSON document says, `conf`, or nothing for what is no JSON."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return ""
    if type(document) is not dict:
        return ""
    return "conf" if "module_to_stage_map" in document else str(document.get("kind", ""))


def _kind_of(target: Path, read: str) -> str:
    by_suffix = {".txt": "profile", ".dot": "dot", ".json": {planfile.KIND: "conf", "conf": "plan"}.get(read, "graph")}
    if target.suffix not in by_suffix:
        raise GraphError(f"{target} could be anything: say --to, which is one of {', '.join(KINDS)}")
    return by_suffix[target.suffix]


def _deployed(read: deployment.Deployment, profile: Profile) -> Planned:
    """A plan of a conf: ranks as devices, all alike, as PipeDream's optimizer has them if it is told nothing."""
    stages = deployment.stages_of(read, profile)
    plan = Plan("conf", stages, 1, 0.0, 0.0, 0.0)
    return Planned(plan, profile, of_levels([read.num_ranks]))


def _write_planned(target: Path, kind: str, planned: Planned) -> None:
    write: dict[str, Callable[[], Any]] = {
        "plan": lambda: planfile.write(target, planned),
        "conf": lambda: deployment.write(target, deployment.of_plan(planned.plan)),
    }
    if kind in write:
        write[kind]()
    else:
        stages = {name: number for number, stage in enumerate(planned.plan.stages) for name in stage.layers}
        # Inputs are where they are used first.
        stages |= {layer.name: 0 for layer in planned.profile.layers if layer.is_input}
        _write_profile(target, kind, planned.profile.in_stages(stages))


def _write_profile(target: Path, kind: str, profile: Profile) -> None:
    write: dict[str, Callable[[], Any]] = {
        "profile": lambda: graphtext.write(target, profile), "dot": lambda: dot.write(target, profile),
        "graph": lambda: graphfile.write(target, opgraph.to_graph(profile)),
    }  # fmt: skip
    if kind not in write:
        raise GraphError(f"a profile alone has no stages: it can become {', '.join(write)}, not {kind}")
    write[kind]()

"""Converts files: profiles, operator graphs, plans, PipeDream's conf."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from detrain.errors import GraphError
from detrain.pipeline import csvprofile, deployment, dot, graphtext, modules, planfile, steps
from detrain.pipeline.layers import Profile
from detrain.pipeline.plan import Plan
from detrain.pipeline.planfile import Planned
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
        return steps.from_graph(dtrlog.read(path))
    if first.lstrip().startswith("{"):
        _check_no_plan(path)
        return steps.from_graph(graphfile.read(path))
    if first.startswith("Layer Type,"):
        return csvprofile.read(path)
    return graphtext.read(path)


def _check_no_plan(path: Path) -> None:
    kind = _document_kind(path)
    if kind == planfile.DOCUMENT.kind:
        raise GraphError(
            f"{path} is a plan, not a profile; `detrain pipeline convert {path} graph.txt` takes its profile out"
        )
    if kind == "conf":
        raise GraphError(f"{path} is a conf of PipeDream, which has no layers; a profile has them")


@dataclass(frozen=True)
class Read:
    """What a file holds."""

    content: Profile | Planned
    #: What it becomes in a `.json` file, unless something else is said.
    json_kind: str


def read(path: Path, profile: Path | None = None, modules_in: str = "") -> Read:
    """A profile, a plan, or a conf with the layers of `profile`; `modules_in` says which of them are in which of its modules.

    That is a folder with the generated `stageK.py`, or the first layer of each module (`node2,node19`). Without it, modules are the
    stages that the profile's layers name; those of a plan, if `profile` is one; those of the `stageK.py` beside the conf; or single
    layers, if there are as many. Raises `GraphError` naming file and place, or `OSError`.
    """
    kind = _document_kind(path)
    if kind == planfile.DOCUMENT.kind:
        return Read(planfile.read(path), "conf")
    if kind != "conf":
        return Read(read_profile(path), "graph")
    deployed = deployment.read(path)
    if profile is None:
        raise GraphError(f"{path} only assigns ranks to stages; give --profile, whose layers have stages")
    try:
        return Read(_deployed(deployed, _in_modules(path, deployed, profile, modules_in)), "plan")
    except GraphError as error:
        is_named = str(error).startswith((str(profile), str(path.parent / "stage"), modules_in or str(profile)))
        raise error if is_named else GraphError(f"{path} and {profile}: {error}") from None


def _in_modules(conf: Path, deployed: deployment.Deployment, path: Path, modules_in: str) -> Profile:
    """The profile at `path`, with the module of each layer as its stage."""
    num_modules = len(deployed.stage_of) - 1
    if _document_kind(path) == planfile.DOCUMENT.kind:
        planned = planfile.read(path)
        profile = planned.profile.in_stages(
            {name: number for number, stage in enumerate(planned.plan.stages) for name in stage.layers}
        )
    else:
        profile = read_profile(path)
    if modules_in:
        if Path(modules_in).is_dir():
            return profile.in_stages(modules.of_code(Path(modules_in), num_modules, profile))
        names = modules_in.split(",")
        if len(names) != num_modules:
            raise GraphError(
                f"--modules names the first layers of {len(names)} modules, and the conf has {num_modules}"
            )
        return profile.in_stages(modules.of_first_layers(names, profile))
    rest = profile.to_plan()
    if num_modules == 1 or any(layer.stage is not None for layer in rest.layers):
        return profile
    if num_modules == len(rest.layers):
        return profile.in_stages(modules.of_first_layers([rest.layers[number].name for number in rest.order], profile))
    if all((conf.parent / f"stage{module}.py").is_file() for module in range(num_modules)):
        return profile.in_stages(modules.of_code(conf.parent, num_modules, profile))
    raise GraphError(
        f"the conf has {num_modules} modules, and the profile does not say which layers are in which. Give as --profile one whose layers "
        "have a stage_id (PipeDream's gpus=N.txt), or a plan with a stage for each module; or give with --modules the folder of the "
        "generated stage0.py, stage1.py, …, or the first layer of each module, as in node2,node19"
    )


def write(path: Path, kind: str, read: Read) -> str:
    """Writes it as `kind`, or as the suffix says if that is ""; returns the kind. Raises `GraphError` if it cannot, or `OSError`."""
    kind = kind or _kind_of(path, read)
    if isinstance(read.content, Planned):
        _write_planned(path, kind, read.content)
    else:
        _write_profile(path, kind, read.content)
    return kind


def is_conf(path: Path) -> bool:
    """True for a conf of PipeDream, which has no layers. Raises `OSError`."""
    return _document_kind(path) == "conf"


def _document_kind(path: Path) -> str:
    """The kind that a JSON document says, `conf`, or nothing for what is no JSON."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        return ""
    if type(document) is not dict:
        return ""
    return "conf" if "module_to_stage_map" in document else str(document.get("kind", ""))


def _kind_of(target: Path, read: Read) -> str:
    by_suffix = {".txt": "profile", ".dot": "dot", ".json": read.json_kind}
    if target.suffix not in by_suffix:
        raise GraphError(f"{target} has no known suffix: give --to, which is one of {', '.join(KINDS)}")
    return by_suffix[target.suffix]


def _deployed(read: deployment.Deployment, profile: Profile) -> Planned:
    """A plan from a conf: ranks become devices, all alike, with the defaults of PipeDream's optimizer."""
    stages = deployment.stages_of(read, profile)
    plan = Plan("conf", stages, 1, 0.0, 0.0, 0.0)
    return Planned(plan, profile, of_levels([read.num_ranks]))


def _write_planned(target: Path, kind: str, planned: Planned) -> None:
    write: dict[str, Callable[[], None]] = {
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
    write: dict[str, Callable[[], None]] = {
        "profile": lambda: graphtext.write(target, profile), "dot": lambda: dot.write(target, profile),
        "graph": lambda: graphfile.write(target, steps.to_graph(profile)),
    }  # fmt: skip
    if kind not in write:
        raise GraphError(f"a profile alone has no stages: it can become {', '.join(write)}, not {kind}")
    write[kind]()

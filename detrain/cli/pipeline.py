"""`detrain pipeline`: which devices do which layers, and what that takes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from detrain.cli.files import FILE, check_folder, needs_plan, read_file, write_file
from detrain.cli.look import as_json_option
from detrain.errors import GraphError, UsageError

if TYPE_CHECKING:
    from detrain.pipeline.plan import Workload
    from detrain.pipeline.planfile import Planned
    from detrain.pipeline.planners.registry import Request
    from detrain.pipeline.schedules import Schedule
    from detrain.pipeline.topology import Topology

_Command = Callable[..., Any]
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?([kKMGT]?i?(B|bit)/s)?")
_PIPEDREAM, _INFERENCE, _DAPPLE, _OWN = PLANNERS = ("pipedream", "pipedream-inference", "dapple", "detrain")
#: What a timeline is written as; without a suffix it is a picture.
_TIMELINES = (".svg", ".png", ".pdf", ".json", "")
#: Options that some planners have; the others would say nothing, and do something else than was asked.
_OWNERS = {
    "straight": (_PIPEDREAM, _INFERENCE), "use_memory_constraint": (_PIPEDREAM, _INFERENCE),
    "use_fewer_machines": (_PIPEDREAM, _INFERENCE), "activation_compression_ratio": (_PIPEDREAM,), "time_between_inputs": (_INFERENCE,),
    "compat": (_PIPEDREAM, _INFERENCE, _DAPPLE), "no_recompute": (_OWN,), "time_limit": (_OWN,), "schedule": (_OWN,),
    "warmup": (_OWN,), "vertical_sync": (_OWN,),
}  # fmt: skip
#: Options of which one at most may stand, and what they say.
_ONE_OF = {
    "which devices there are": {"topology": "--topology", "devices": "--devices", "num_machines": "-n"},
    "how fast the links are": {"topology": "--topology", "bandwidth": "--bandwidth", "network_bandwidths": "-b"},
    "how much memory a device has": {"memory": "--memory", "memory_size": "-s"},
}


class _Rows(click.Command):
    """Options of several numbers, as PipeDream's are written: `-n 4 4 -b 1e10 1.25e9`; `-n 4,4` is the same."""

    _names = ("-n", "--num-machines", "--all-num-machines", "--all_num_machines", "-b", "--network-bandwidths", "--network_bandwidths",
              "--bandwidth")  # fmt: skip

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """With the numbers behind such an option as one word."""
        found: list[str] = []
        for word in args:
            if len(found) > 1 and found[-2] in self._names and _NUMBER.fullmatch(word) and _NUMBER.match(found[-1]):
                found[-1] += f",{word}"
            else:
                found.append(word)
        return super().parse_args(ctx, found)


class _Number(click.FloatRange):
    """A number within bounds; `nan` would be within any, and `inf` is none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        found = float(super().convert(value, param, ctx))
        return found if math.isfinite(found) else self.fail(f"{value} is no number.", param, ctx)


_ABOVE_ZERO = _Number(min=0, min_open=True)


def _options(*options: _Command) -> _Command:
    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_device_options = _options(
    click.option(
        "--devices", metavar="D", help="Devices at which machines end (8,16), or machines x devices (2x8); links as in DAPPLE's planner."
    ),
    click.option("--topology", type=FILE, metavar="FILE", help="TOML file with devices and links."),
    click.option("--bandwidth", metavar="B,B,…", help="Bandwidth of each level, innermost first, as in 25GB/s,1GB/s."),
    click.option("--memory", metavar="BYTES", help="Memory of each device, as in 16GiB."),
)  # fmt: skip
_batch_option = click.option(
    "--batch", type=click.IntRange(min=1), metavar="N", help="Samples per step, over all devices."
)
_profile_batch_option = click.option(
    "--profile-batch",
    type=click.IntRange(min=1),
    metavar="N",
    help="Samples per mini-batch in the profile (default: a micro-batch).",
)
_micro_batch_option = click.option(
    "--micro-batch", metavar="N",
    help="Samples per micro-batch; `plan --planner detrain` chooses from several (4,8).",
)  # fmt: skip
_state_factor_option = click.option(
    "--state-factor", type=_Number(min=1), metavar="F",
    help="Bytes on a device per byte of parameters: weights, gradients, optimizer state. [default: 4; 1 with --compat]",
)  # fmt: skip
_schedule_options = _options(
    click.option(
        "--schedule", default="1f1b", show_default=True, metavar="NAME",
        help="One of gpipe, 1f1b, 1f1b-async, 2bw, interleaved, zb-h1.",
    ),
    click.option(
        "--warmup", type=click.Choice(["pa", "pb"]), default="pa", show_default=True,
        help="For 1f1b: with pb, more micro-batches run ahead, which hides transfers.",
    ),
    click.option("--vertical-sync", is_flag=True, help="For 1f1b-async: use the same version of the weights in every stage."),
)  # fmt: skip


@click.group()
def pipeline() -> None:
    """Plan and simulate pipeline parallelism for a profiled model."""


@pipeline.command(cls=_Rows)
@click.argument("profile", type=FILE)
@click.option(
    "--planner", required=True, type=click.Choice(PLANNERS), metavar="NAME", help=f"One of {', '.join(PLANNERS)}."
)
@_device_options
@_batch_option
@_micro_batch_option
@_profile_batch_option
@_state_factor_option
@_schedule_options
@click.option(
    "-n",
    "--num-machines",
    "--all-num-machines",
    "--all_num_machines",
    metavar="N…",
    help="Machines in each level, as in PipeDream.",
)
@click.option(
    "-b",
    "--network-bandwidths",
    "--network_bandwidths",
    metavar="B…",
    help="Bytes per second of each of these levels. [default: 1e9]",
)
@click.option(
    "-s", "--memory-size", "--memory_size", type=_ABOVE_ZERO, metavar="BYTES", help="Memory of each of these machines."
)
@click.option(
    "--straight",
    "--straight-pipeline",
    "--straight_pipeline",
    is_flag=True,
    help="For PipeDream: one machine per stage.",
)
@click.option(
    "--use-memory-constraint",
    "--use_memory_constraint",
    is_flag=True,
    help="For PipeDream: respect the machines' memory.",
)
@click.option(
    "--use-fewer-machines",
    "--use_fewer_machines",
    is_flag=True,
    help="For PipeDream: leave machines unused where that is faster.",
)
@click.option(
    "--activation-compression-ratio",
    "--activation_compression_ratio",
    type=_ABOVE_ZERO,
    metavar="R",
    help="For PipeDream: activations are sent R times smaller; without this option, sending them costs nothing.",
)
@click.option(
    "--time-between-inputs",
    "--time_between_inputs",
    type=_ABOVE_ZERO,
    metavar="S",
    help="For pipedream-inference: seconds between two inputs.",
)
@click.option("--no-recompute", is_flag=True, help="For detrain: keep all activations.")
@click.option(
    "--time-limit",
    type=_ABOVE_ZERO,
    default=25.0,
    show_default=True,
    metavar="S",
    help="For detrain: seconds after which the best plan so far is used.",
)
@click.option("--compat", is_flag=True, help="Reproduce the published planner, including its defects.")
@as_json_option
@click.option("-o", "output", type=click.Path(dir_okay=False, path_type=Path), metavar="PLAN.json", help="Output file.")
@needs_plan
def plan(profile: Path, planner: str, output: Path | None, as_json: bool, **asked: Any) -> int:
    """Divide the layers of a profile into pipeline stages.

    Exit status: 1 if no plan is found.
    """
    from detrain.pipeline import planfile, text
    from detrain.pipeline.plan import NoPlanError

    _check_owners(planner)
    check_folder(output)
    try:
        planned, more = _planned(profile, planner, asked)
    except NoPlanError as error:
        click.echo(f"detrain: {planner}: {error}", err=True)
        return 1
    if output is not None:
        write_file(output, lambda path: planfile.write(path, planned))
    summary = {**planfile.summary(planned.plan), **more}
    lines = [text.plan_text(planned), *(f"{name.removesuffix('_s')} {value:.6g} s" for name, value in more.items())]
    click.echo(json.dumps(summary) if as_json else "\n".join(lines))
    return 0


def _check_owners(planner: str) -> None:
    """Raises `UsageError` for an option on the command line that is another planner's."""
    context = click.get_current_context()
    for option in context.command.params:
        owners = _OWNERS.get(option.name or "", PLANNERS)
        if planner not in owners and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            raise UsageError(f"{option.opts[0]} is an option of {', '.join(owners)}, not of {planner}")


def _planned(path: Path, planner: str, asked: dict[str, Any]) -> tuple[Planned, dict[str, float]]:
    """A plan, and what more there is to say of it: seconds by name."""
    from detrain.cli.waiting import planning
    from detrain.pipeline.planfile import Planned
    from detrain.pipeline.planners import inference, registry

    if planner == _INFERENCE:
        profile = _profile(path)
        found = inference.plan(profile, _inference_options(asked))
        return Planned(found.plan, profile, _topology(asked)), {"latency_s": found.latency_s}
    request = _request(path, planner, asked)
    with planning(planner, asked["time_limit"]) if planner == _OWN else nullcontext():
        plan = registry.plan(planner, request)
    # PipeDream's planner knows of no batches; the simulator does.
    plan = replace(plan, workload=plan.workload or request.workload)
    return Planned(plan, request.profile, request.topology), {}


def _request(path: Path, planner: str, asked: dict[str, Any]) -> Request:
    from detrain.pipeline.planners.registry import Request

    topology, micro_batches = _topology(asked), _wholes(asked["micro_batch"], "--micro-batch")
    if len(micro_batches) > 1 and planner != _OWN:
        raise UsageError(f"--micro-batch: {planner} plans for one size, not for {asked['micro_batch']}")
    if asked["schedule"] == "interleaved":
        raise UsageError(
            "--schedule interleaved: a plan has one stage per device. Plan for 1f1b; then `detrain pipeline simulate PLAN --schedule "
            "interleaved` divides its stages"
        )
    return Request(
        _profile(path), topology, _workload(asked, micro_batches),
        _pipedream_options(asked, topology) if planner == _PIPEDREAM else None, asked["compat"], _schedule(asked),
        micro_batches, not asked["no_recompute"], asked["time_limit"],
    )  # fmt: skip


def _profile(path: Path) -> Any:
    from detrain.pipeline import conversion

    return read_file(path, conversion.read_profile)


def _numbers(text: str | None, option: str) -> list[float] | None:
    if text is None:
        return None
    from detrain.plans.units import parse_rate

    try:
        return [parse_rate(one) for one in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _topology(asked: dict[str, Any]) -> Topology:
    """Of whatever says which devices there are. Raises `UsageError` for options that say the same thing twice."""
    from detrain.pipeline import topologyfile

    for what, options in _ONE_OF.items():
        given = [option for name, option in options.items() if asked.get(name) is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} both give {what}: leave one out")
    found = read_file(asked["topology"], topologyfile.read) if asked["topology"] else _devices(asked)
    if asked["memory"] is not None:
        return found.with_memory(topologyfile.memory_of(asked["memory"], "--memory"))
    return found if asked.get("memory_size") is None else found.with_memory(asked["memory_size"])


def _devices(asked: dict[str, Any]) -> Topology:
    """Of a short way to write them."""
    from detrain.pipeline import topologyfile

    bandwidths = _numbers(asked["bandwidth"], "--bandwidth") or _numbers(asked.get("network_bandwidths"), "-b")
    devices, machines = asked["devices"], asked.get("num_machines")
    if devices is None and machines is None:
        raise UsageError("no devices given: use --devices 8,16, --devices 2x8, --topology FILE, or -n 4")
    try:
        if machines is not None:
            return topologyfile.of_levels(_wholes(machines, "-n"), bandwidths)
        links = topologyfile.preset("dapple")
        if "x" in devices:
            return topologyfile.of_shape(devices, bandwidths, links)
        return topologyfile.of_machines(devices, links, bandwidths)
    except GraphError as error:
        raise UsageError(f"{'--devices' if machines is None else '-n'}: {error}") from None


def _wholes(text: str | None, option: str) -> tuple[int, ...]:
    if text is None:
        return ()
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text, re.ASCII):
        raise UsageError(f"{option}: these are whole numbers above zero, as in 8,16, not {text!r}")
    return tuple(map(int, text.split(",")))


def _one(text: str | None, option: str) -> int | None:
    found = _wholes(text, option)
    if len(found) > 1:
        raise UsageError(f"{option}: this is one number, not {text}")
    return found[0] if found else None


def _workload(asked: dict[str, Any], micro_batches: tuple[int, ...]) -> Workload | None:
    """Micro-batches of the profile's size, or a profile of one micro-batch, if one of them is said; None if nothing at all is."""
    from detrain.pipeline.plan import Workload

    if asked["batch"] is None:
        return None
    measured = asked["profile_batch"] or (micro_batches[0] if len(micro_batches) == 1 else None)
    if measured is None:
        raise UsageError("--batch counts samples: give with --profile-batch the number of samples in the profile")
    return Workload(
        measured, asked["batch"], max(micro_batches, default=min(measured, asked["batch"])), _state_factor(asked)
    )


def _state_factor(asked: dict[str, Any]) -> float:
    # The published planners count parameters once.
    return float(asked["state_factor"] or (1.0 if asked["compat"] else 4.0))


def _pipedream_options(asked: dict[str, Any], topology: Topology) -> Any:
    from detrain.pipeline.planners.registry import options_of

    return replace(
        options_of(topology), is_straight=asked["straight"], uses_memory_constraint=asked["use_memory_constraint"],
        uses_fewer_machines=asked["use_fewer_machines"], compression_ratio=asked["activation_compression_ratio"],
    )  # fmt: skip


def _inference_options(asked: dict[str, Any]) -> Any:
    from detrain.pipeline.planners.inference import Options

    if asked["time_between_inputs"] is None:
        raise UsageError("pipedream-inference: give --time-between-inputs, in seconds")
    topology = _topology(asked)
    if len(topology.levels) != 1:
        raise UsageError("pipedream-inference: machines must be one level, as in -n 4 -b 1e9")
    return Options(
        topology.num_devices, asked["time_between_inputs"], topology.levels[-1].bandwidth, topology.devices[0].memory_bytes,
        asked["straight"], asked["use_memory_constraint"], asked["use_fewer_machines"],
    )  # fmt: skip


def _schedule(asked: dict[str, Any]) -> Schedule:
    from detrain.pipeline.judge import kind_of

    chunks = asked.get("chunks")
    if chunks is not None and asked["schedule"] != "interleaved":
        raise UsageError(f"--chunks is an option of interleaved, not of {asked['schedule']}")
    return kind_of(asked["schedule"], warmup=asked["warmup"], vertical_sync=asked["vertical_sync"], chunks=chunks or 2)


@pipeline.command()
@click.argument("plan", type=FILE)
@_schedule_options
@click.option(
    "--chunks", type=click.IntRange(min=2), metavar="N", help="For interleaved: stages per device. [default: 2]"
)
@_batch_option
@click.option("--micro-batch", metavar="N", help="Samples per micro-batch.")
@_profile_batch_option
@click.option("--state-factor", type=_Number(min=1), metavar="F", help="Bytes on a device per byte of parameters.")
@as_json_option
@click.option(
    "-o", "output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write the timeline, as a picture (.svg, .png, .pdf) or as a trace for Perfetto and Chrome (.json).",
)  # fmt: skip
@needs_plan
def simulate(plan: Path, output: Path | None, as_json: bool, **asked: Any) -> int:
    """Simulate a plan under a schedule: step time and memory.

    The batch sizes are those for which the plan was made, unless options give others. Exit status: 1 if a device has too little memory.
    """
    from detrain.pipeline import judge, picture, planfile, text, timeline

    if output is not None and output.suffix not in _TIMELINES:
        raise UsageError(f"-o {output}: a timeline is one of {', '.join(filter(None, _TIMELINES))}")
    check_folder(output)
    planned = read_file(plan, planfile.read)
    kind = _schedule(asked)
    planned, workload = judge.prepared(
        planned, kind, profile_batch=asked["profile_batch"], batch=asked["batch"],
        micro_batch=_one(asked["micro_batch"], "--micro-batch"), state_factor=asked["state_factor"],
    )  # fmt: skip
    judged = judge.judge(planned.plan, planned.profile.to_plan(), planned.topology, workload, kind)
    if output is not None and output.suffix == ".json":
        trace = json.dumps(timeline.chrome_trace(judged.timeline))
        write_file(output, lambda path: path.write_text(trace + "\n", encoding="utf-8"))
    elif output is not None:
        write_file(output, lambda path: picture.draw(path, judged.timeline))
    document = text.simulation_document(judged, planned, workload)
    click.echo(json.dumps(document) if as_json else text.simulation_text(judged, planned))
    return 0 if judged.fits else 1


@pipeline.command(cls=_Rows)
@click.argument("profile", type=FILE)
@click.option("--batches", required=True, metavar="N,N,…", help="Batch sizes: samples per step, over all devices.")
@click.option(
    "--devices",
    "many_devices",
    required=True,
    multiple=True,
    metavar="D",
    help="Devices, as for plan; may be given several times.",
)
@click.option("--planners", default="dapple", show_default=True, metavar="NAME,NAME,…", help="Planners, as for plan.")
@click.option("--bandwidth", metavar="B,B,…", help="Bandwidths, as for plan.")
@click.option("--memory", metavar="BYTES", help="Memory of each device, as in 16GiB.")
@_micro_batch_option
@_profile_batch_option
@_state_factor_option
@_schedule_options
@click.option("--compat", is_flag=True, help="Reproduce the published planners, including their defects.")
@click.option(
    "--processes", type=click.IntRange(min=1), metavar="N", help="Plans to compute in parallel. [default: one per processor]"
)  # fmt: skip
@click.option(
    "-o",
    "output",
    type=click.Path(file_okay=False, path_type=Path),
    required=True,
    metavar="DIR",
    help="Output folder.",
)
@needs_plan
def sweep(profile: Path, batches: str, many_devices: tuple[str, ...], planners: str, output: Path, **asked: Any) -> int:
    """Compare planners over batch sizes and devices.

    Writes sweep.csv and speedup.svg, which also show data parallelism. The simulator judges all plans under the same schedule.
    """
    from detrain.cli.waiting import counting
    from detrain.pipeline import sweep as sweeping
    from detrain.pipeline.plan import Workload
    from detrain.pipeline.planners.registry import PLANNERS as SWEPT
    from detrain.pipeline.planners.registry import Request

    names = tuple(dict.fromkeys(planners.split(",")))
    if unknown := [name for name in names if name not in SWEPT]:
        raise UsageError(f"--planners: there is no planner {unknown[0]!r}: it is one of {', '.join(SWEPT)}")
    micro_batch = _one(asked["micro_batch"], "--micro-batch") or asked["profile_batch"]
    if micro_batch is None:
        raise UsageError("a sweep counts samples: give with --profile-batch the number of samples in the profile")
    sizes = _wholes(batches, "--batches")
    topologies = {devices: _topology({"topology": None, **asked, "devices": devices}) for devices in many_devices}
    cells = [
        sweeping.Cell(devices, topology, size)
        for devices, topology in topologies.items()
        for size in dict.fromkeys(sizes)
    ]
    workload = Workload(
        asked["profile_batch"] or micro_batch, max(*sizes, micro_batch), micro_batch, _state_factor(asked)
    )
    request = Request(_profile(profile), cells[0].topology, workload, None, asked["compat"], _schedule(asked))
    write_file(output, lambda path: path.mkdir(parents=True, exist_ok=True))
    with counting(len(cells) * len(names)) as told:
        rows = sweeping.sweep(request, cells, names, lambda one: told(sweeping.row_text(one)), asked["processes"])
    write_file(output / "sweep.csv", lambda path: sweeping.write_table(path, rows))
    write_file(output / "speedup.svg", lambda path: sweeping.draw(path, request.profile.name, rows))
    return 0


@pipeline.command()
@click.argument("source", type=FILE, metavar="IN")
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path), metavar="OUT")
@click.option(
    "--to",
    "kind",
    default="",
    metavar="KIND",
    help="One of profile, graph, plan, conf, dot (default: by the suffix of OUT).",
)
@click.option("--profile", type=FILE, metavar="FILE", help="The profile, with stages, to which a conf belongs.")
@needs_plan
def convert(source: Path, target: Path, kind: str, profile: Path | None) -> int:
    """Convert between profiles, operator graphs, plans and PipeDream confs."""
    from detrain.pipeline import conversion

    if kind and kind not in conversion.KINDS:
        raise UsageError(f"--to is one of {', '.join(conversion.KINDS)}, not {kind}")
    read = read_file(source, lambda path: conversion.read(path, profile))
    made = write_file(target, lambda path: conversion.write(path, kind, read))
    click.echo(f"{target}: a {made}", err=True)
    return 0

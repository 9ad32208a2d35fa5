"""`detrain pipeline`: which devices do which layers, and what that takes."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar, Unpack

import click
from click.core import ParameterSource

from detrain.cli import pipeline_drive, pipeline_script
from detrain.cli.files import FILE, check_folder, needs_plan, read_file, write_file
from detrain.cli.look import as_json_option
from detrain.cli.pipeline_options import (
    DeviceOptions,
    PlanOptions,
    SimulateOptions,
    SweepOptions,
    batch_sizes,
    bytes_of,
    device_options,
    inference_options,
    profile_of,
    request_of,
    schedule_of,
    state_factor_of,
    topology_of,
    whole_number,
)  # fmt: skip
from detrain.errors import UsageError
from detrain.pipeline.planners import catalogue

if TYPE_CHECKING:
    from detrain.pipeline.picture import StageDevices
    from detrain.pipeline.planfile import Planned

_Command = TypeVar("_Command", bound="Callable[..., object] | click.Command")
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?([kKMGT]?i?(B|bit)/s)?")
#: What a timeline is written as; without a suffix it is a picture.
_TIMELINES = (".svg", ".png", ".pdf", ".json", "")


class _Rows(click.Command):
    """Options of several numbers, as PipeDream's are written: `-n 4 4 -b 1e10 1.25e9`; `-n 4,4` is the same."""

    _names = ("-n", "--num-machines", "--all-num-machines", "--all_num_machines", "-b", "--network-bandwidths", "--network_bandwidths",
              "--bandwidth")  # fmt: skip

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """With the numbers behind such an option as one word."""
        joined: list[str] = []
        for word in args:
            if len(joined) > 1 and joined[-2] in self._names and _NUMBER.fullmatch(word) and _NUMBER.match(joined[-1]):
                joined[-1] += f",{word}"
            else:
                joined.append(word)
        return super().parse_args(ctx, joined)


class _Number(click.FloatRange):
    """A number within bounds; `nan` would be within any, and `inf` is none."""

    def convert(self, value: float, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number."""
        number = float(super().convert(value, param, ctx))
        return number if math.isfinite(number) else self.fail(f"{value} is no number.", param, ctx)


_ABOVE_ZERO = _Number(min=0, min_open=True)


class _Decorator(Protocol):
    """What `click.option` gives."""

    def __call__(self, command: _Command, /) -> _Command:
        """The command with one option more."""


def _options(*options: _Decorator) -> _Decorator:
    """Several options as one decorator; in the help they stand in this order."""

    def decorate(command: _Command, /) -> _Command:
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


_time_limit_option = click.option(
    "--time-limit",
    type=_ABOVE_ZERO,
    default=25.0,
    show_default=True,
    metavar="S",
    help="For detrain: seconds after which the best plan so far is used.",
)


@click.group()
def pipeline() -> None:
    """Plan and simulate pipeline parallelism for a profiled model."""


@pipeline.command(cls=_Rows)
@click.argument("profile", type=FILE)
@click.option(
    "--planner",
    type=click.Choice(catalogue.NAMES),
    default=catalogue.DETRAIN,
    show_default=True,
    metavar="NAME",
    help=f"One of {', '.join(catalogue.NAMES)}.",
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
@_time_limit_option
@click.option("--compat", is_flag=True, help="Reproduce the published planner, including its defects.")
@as_json_option
@click.option("-o", "output", type=click.Path(dir_okay=False, path_type=Path), metavar="PLAN.json", help="Output file.")
@needs_plan
def plan(profile: Path, planner: str, output: Path | None, as_json: bool, **options: Unpack[PlanOptions]) -> int:
    """Divide the layers of a profile into pipeline stages.

    Exit status: 1 if no plan is found.
    """
    from detrain.pipeline import planfile, text, verdict
    from detrain.plans.errors import NoPlanError

    _check_owners(planner)
    check_folder(output)
    try:
        planned, more = _planned(profile, planner, options)
    except NoPlanError as error:
        click.echo(f"detrain: {planner}: {error}", err=True)
        return 1
    if output is not None:
        write_file(output, lambda path: planfile.write(path, planned))
    summary = {**planfile.summary(planned.plan), **more}
    lines = [
        text.plan_text(planned),
        *(f"closed form: {name.removesuffix('_s')} {value:.6g} s" for name, value in more.items()),
    ]
    if planner == catalogue.INFERENCE:
        inferred = verdict.inference_verdict(planned)
        summary["simulated"] = asdict(inferred)
        lines.append(
            f"simulated: latency {inferred.latency_s:.6g} s, an output every {inferred.between_outputs_s:.6g} s when full"
        )
    else:
        kind = verdict.schedule_for(planned.plan, schedule_of(options))
        judged = verdict.verdict(planned, kind)
        summary["simulated"] = verdict.document(judged)
        lines.append(verdict.text(judged))
    click.echo(json.dumps(summary) if as_json else "\n".join(lines))
    return 0


def _check_owners(planner: str) -> None:
    """Raises `UsageError` for an option on the command line that is another planner's."""
    context = click.get_current_context()
    for option in context.command.params:
        owners = catalogue.owners(option.name or "")
        if planner not in owners and context.get_parameter_source(option.name or "") is ParameterSource.COMMANDLINE:
            raise UsageError(f"{option.opts[0]} is an option of {', '.join(owners)}, not of {planner}")


def _planned(path: Path, planner: str, options: PlanOptions) -> tuple[Planned, dict[str, float]]:
    """A plan, and what more there is to say of it: seconds by name."""
    from detrain.cli.waiting import planning
    from detrain.pipeline.planfile import Planned
    from detrain.pipeline.planners import inference, registry

    if planner == catalogue.INFERENCE:
        profile = profile_of(path)
        inferred = inference.plan(profile, inference_options(options))
        return Planned(inferred.plan, profile, topology_of(device_options(options))), {"latency_s": inferred.latency_s}
    request = request_of(path, planner, options)
    with planning(planner, options["time_limit"]) if planner == catalogue.DETRAIN else nullcontext():
        plan = registry.plan(planner, request)
    # PipeDream's planner knows of no batches; the simulator does.
    plan = replace(plan, workload=plan.workload or request.workload)
    return Planned(plan, request.profile, request.topology), {}


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
def simulate(plan: Path, output: Path | None, as_json: bool, **options: Unpack[SimulateOptions]) -> int:
    """Simulate a plan under a schedule: step time and memory.

    The batch sizes are those for which the plan was made, unless options give others. Exit status: 1 if a device has too little memory.
    """
    from detrain.pipeline import judge, picture, planfile, text, timeline

    if output is not None and output.suffix not in _TIMELINES:
        raise UsageError(f"-o {output}: a timeline is one of {', '.join(filter(None, _TIMELINES))}")
    check_folder(output)
    planned = read_file(plan, planfile.read)
    kind = schedule_of(options, options["chunks"])
    planned, workload = judge.prepared(
        planned, kind, profile_batch=options["profile_batch"], batch=options["batch"],
        micro_batch=whole_number(options["micro_batch"], "--micro-batch"), state_factor=options["state_factor"],
    )  # fmt: skip
    judged = judge.judge(planned.plan, planned.profile.to_plan(), planned.topology, workload, kind)
    if output is not None and output.suffix == ".json":
        trace = json.dumps(timeline.chrome_trace(judged.timeline))
        write_file(output, lambda path: path.write_text(trace + "\n", encoding="utf-8"))
    elif output is not None:
        write_file(output, lambda path: picture.draw(path, judged.timeline, _stage_devices(planned)))
    document = text.simulation_document(judged, planned, workload)
    click.echo(json.dumps(document) if as_json else text.simulation_text(judged, planned))
    return 0 if judged.fits else 1


def _stage_devices(planned: Planned) -> list[StageDevices]:
    from detrain.pipeline.picture import StageDevices

    devices = planned.topology.devices
    return [
        StageDevices(stage.devices, min(devices[device].memory_bytes for device in stage.devices))
        for stage in planned.plan.stages
    ]


@pipeline.command(cls=_Rows)
@click.argument("profile", type=FILE)
@click.option(
    "--batches",
    required=True,
    metavar="N,N,…",
    help="Batch sizes: samples per step, over all devices; 64:4096:64 are all from 64 to 4096 in steps of 64.",
)
@click.option(
    "--devices",
    "many_devices",
    required=True,
    multiple=True,
    metavar="D",
    help="Devices, as for plan; may be given several times.",
)
@click.option(
    "--planners", metavar="NAME,NAME,…",
    help="Planners, as for plan. [default: detrain, which is the best under the simulator; dapple with --compat]",
)  # fmt: skip
@click.option("--bandwidth", metavar="B,B,…", help="Bandwidths, as for plan.")
@click.option("--memory", metavar="BYTES", help="Memory of each device, as in 16GiB.")
@_micro_batch_option
@_profile_batch_option
@_state_factor_option
@_schedule_options
@_time_limit_option
@click.option(
    "--peak-activation", metavar="BYTES",
    help="Bytes that a sample's activations take at their peak, for the closed forms of data parallelism. [default: all outputs]",
)  # fmt: skip
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
def sweep(
    profile: Path, batches: str, many_devices: tuple[str, ...], planners: str | None, output: Path, **options: Unpack[SweepOptions]
) -> int:  # fmt: skip
    """Compare planners over batch sizes and devices.

    Writes sweep.csv and speedup.svg. The simulator judges all plans, and data parallelism, under the same schedule; closed forms stand
    beside its figures.
    """
    from detrain.cli.waiting import counting
    from detrain.pipeline import sweep as sweeping
    from detrain.pipeline.plan import Workload
    from detrain.pipeline.planners.registry import PLANNERS as SWEPT
    from detrain.pipeline.planners.registry import Request

    chosen = planners or (catalogue.DAPPLE if options["compat"] else catalogue.DETRAIN)
    names = tuple(dict.fromkeys(chosen.split(",")))
    if unknown := [name for name in names if name not in SWEPT]:
        raise UsageError(f"--planners: there is no planner {unknown[0]!r}: it is one of {', '.join(SWEPT)}")
    micro_batch = whole_number(options["micro_batch"], "--micro-batch") or options["profile_batch"]
    if micro_batch is None:
        raise UsageError("a sweep counts samples: give with --profile-batch the number of samples in the profile")
    sizes = batch_sizes(batches)
    topologies = {
        devices: topology_of(DeviceOptions(devices, bandwidth=options["bandwidth"], memory=options["memory"]))
        for devices in many_devices
    }
    cells = [sweeping.Cell(devices, topology, size) for devices, topology in topologies.items() for size in sizes]
    state_factor = state_factor_of(options["state_factor"], is_compat=options["compat"])
    workload = Workload(options["profile_batch"] or micro_batch, max(*sizes, micro_batch), micro_batch, state_factor)
    request = Request(
        profile_of(profile), cells[0].topology, workload, None, options["compat"], schedule_of(options),
        time_limit_s=options["time_limit"], peak_activation_bytes=bytes_of(options["peak_activation"], "--peak-activation"),
    )  # fmt: skip
    write_file(output, lambda path: path.mkdir(parents=True, exist_ok=True))
    with counting(len(cells) * len(names)) as report:
        rows = sweeping.sweep(
            request, cells, names, lambda row: report(sweeping.row_text(row)), options["processes"]
        )  # fmt: skip
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
@click.option(
    "--profile",
    type=FILE,
    metavar="FILE",
    help="The profile to which a conf belongs, or a plan with a stage per module.",
)
@click.option(
    "--modules", "modules_in", default="", metavar="DIR|LAYERS",
    help="Which layers are in which module of a conf: the folder of the generated stageK.py, or the first layer of each module "
    "(node2,node19). [default: the profile's stages, or the stageK.py beside the conf]",
)  # fmt: skip
@needs_plan
def convert(source: Path, target: Path, kind: str, profile: Path | None, modules_in: str) -> int:
    """Convert between profiles, operator graphs, plans and PipeDream confs."""
    from detrain.pipeline import conversion

    if kind and kind not in conversion.KINDS:
        raise UsageError(f"--to is one of {', '.join(conversion.KINDS)}, not {kind}")
    read = read_file(source, lambda path: conversion.read(path, profile, modules_in))
    made = write_file(target, lambda path: conversion.write(path, kind, read))
    click.echo(f"{target}: a {made}", err=True)
    return 0


for _command in (pipeline_script.profile, pipeline_script.auto, pipeline_drive.drive):
    pipeline.add_command(_command)

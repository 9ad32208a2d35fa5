"""`detrain pipeline`: which devices do which layers, and what that takes."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detrain.cli.files import FILE, needs_plan, read_file, write_file
from detrain.cli.look import as_json_option
from detrain.errors import UsageError

if TYPE_CHECKING:
    from detrain.pipeline.plan import Workload
    from detrain.pipeline.planfile import Planned
    from detrain.pipeline.planners.registry import Request
    from detrain.pipeline.schedules import Schedule
    from detrain.pipeline.topology import Topology

_Command = Callable[..., Any]
_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")


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


def _options(*options: _Command) -> _Command:
    def decorate(command: _Command) -> _Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


_device_options = _options(
    click.option(
        "--devices", metavar="D",
        help="Where machines end (8,16), or machines by devices (2x8); as DAPPLE's planner knows their links.",
    ),
    click.option("--topology", type=FILE, metavar="FILE", help="Devices and links, as TOML."),
    click.option("--bandwidth", metavar="B,B,…", help="Bytes a second of each level, the innermost first."),
    click.option("--memory", metavar="BYTES", help="Of each device (16GiB)."),
)  # fmt: skip
_batch_options = _options(
    click.option("--profile-batch", type=click.IntRange(min=1), metavar="N", help="Samples that the profile was measured with."),
    click.option(
        "--micro-batch", metavar="N", help="Samples that a copy of the pipeline takes at a time. detrain chooses among several (4,8)."
    ),
    click.option(
        "--state-factor", type=click.FloatRange(min=1), metavar="F",
        help="Bytes on a device for each byte of parameters: weights, gradients, optimizer state. [default: 4; 1 with --compat]",
    ),
)  # fmt: skip
_schedule_options = _options(
    click.option("--schedule", default="1f1b", show_default=True, metavar="NAME", help="gpipe, 1f1b, 1f1b-async, 2bw, interleaved, zb-h1."),
    click.option("--warmup", type=click.Choice(["pa", "pb"]), default="pa", show_default=True, help="1f1b: micro-batches ahead."),
    click.option("--vertical-sync", is_flag=True, help="1f1b-async: the same version of the weights at every stage."),
)  # fmt: skip


@click.group()
def pipeline() -> None:
    """Plan and simulate pipelines: which devices do which layers of a profiled model."""


@pipeline.command(cls=_Rows)
@click.argument("profile", type=FILE)
@click.option("--planner", required=True, metavar="NAME", help="pipedream, pipedream-inference, dapple, detrain.")
@_device_options
@_batch_options
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Samples of a step over all devices.")
@_schedule_options
@click.option(
    "-n",
    "--num-machines",
    "--all-num-machines",
    "--all_num_machines",
    metavar="N…",
    help="PipeDream: machines of each level.",
)
@click.option(
    "-b", "--network-bandwidths", "--network_bandwidths", metavar="B…", help="PipeDream: bytes a second of each level."
)
@click.option("-s", "--memory-size", "--memory_size", type=float, metavar="BYTES", help="PipeDream: of each machine.")
@click.option(
    "--straight", "--straight-pipeline", "--straight_pipeline", is_flag=True, help="PipeDream: one machine a stage."
)
@click.option("--use-memory-constraint", "--use_memory_constraint", is_flag=True, help="PipeDream: keep to the memory.")
@click.option(
    "--use-fewer-machines",
    "--use_fewer_machines",
    is_flag=True,
    help="PipeDream: leave machines out where that is quicker.",
)
@click.option(
    "--activation-compression-ratio", "--activation_compression_ratio", type=float, metavar="R",
    help="PipeDream: activations go R times smaller; without it they cost nothing.",
)  # fmt: skip
@click.option(
    "--time-between-inputs", "--time_between_inputs", type=float, metavar="S", help="pipedream-inference: seconds."
)
@click.option("--no-recompute", is_flag=True, help="detrain: keep all activations.")
@click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    default=25.0,
    show_default=True,
    metavar="S",
    help="detrain.",
)
@click.option("--compat", is_flag=True, help="The published planner's answer, with its faults.")
@as_json_option
@click.option("-o", "output", type=click.Path(dir_okay=False, path_type=Path), metavar="PLAN.json", help="Where to.")
@needs_plan
def plan(profile: Path, planner: str, output: Path | None, as_json: bool, **asked: Any) -> int:
    """Divide a profile's layers into stages. Exit status 1 if no plan is found."""
    from detrain.pipeline import planfile, report
    from detrain.pipeline.plan import NoPlanError

    try:
        planned, more = _planned(profile, planner, asked)
    except NoPlanError as error:
        click.echo(f"detrain: {planner}: {error}", err=True)
        return 1
    if output is not None:
        write_file(output, lambda path: planfile.write(path, planned))
    summary = {**planfile.summary(planned.plan), **more}
    text = "\n".join(
        [report.plan_text(planned), *(f"{name.replace('_', ' ')}: {value:.6g}" for name, value in more.items())]
    )
    click.echo(json.dumps(summary) if as_json else text)
    return 0


def _planned(path: Path, planner: str, asked: dict[str, Any]) -> tuple[Planned, dict[str, float]]:
    from detrain.pipeline.planfile import Planned
    from detrain.pipeline.planners import inference, registry

    if planner == "pipedream-inference":
        profile = _profile(path)
        found = inference.plan(profile, _inference_options(asked))
        return Planned(found.plan, profile, _topology(asked, planner)), {"latency_s": found.latency_s}
    request = _request(path, planner, asked)
    return Planned(registry.plan(planner, request), request.profile, request.topology), {}


def _request(path: Path, planner: str, asked: dict[str, Any]) -> Request:
    from detrain.pipeline.planners.registry import Request

    topology, micro_batches = _topology(asked, planner), _wholes(asked["micro_batch"], "--micro-batch")
    if len(micro_batches) > 1 and planner != "detrain":
        raise UsageError(f"--micro-batch: {planner} plans for one size, not for {asked['micro_batch']}")
    return Request(
        _profile(path), topology, _workload(asked, micro_batches),
        _pipedream_options(asked, topology) if planner == "pipedream" else None, asked["compat"], _schedule(asked),
        micro_batches, not asked["no_recompute"], asked["time_limit"],
    )  # fmt: skip


def _profile(path: Path) -> Any:
    from detrain.pipeline import conversion

    return read_file(path, conversion.read_profile)


def _numbers(text: str | None, option: str) -> list[float] | None:
    if text is None:
        return None
    from detrain.units import parse_rate

    try:
        return [parse_rate(one) for one in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def _topology(asked: dict[str, Any], planner: str) -> Topology:
    """Of whatever says which devices there are."""
    from detrain.pipeline import topologyfile

    bandwidths = _numbers(asked["bandwidth"] or asked.get("network_bandwidths"), "bandwidth")
    links = topologyfile.preset("pipedream" if planner.startswith("pipedream") else "dapple")
    if asked["topology"] is not None:
        found = read_file(asked["topology"], topologyfile.read)
    elif asked.get("num_machines"):
        found = topologyfile.of_levels(_wholes(asked["num_machines"], "-n"), bandwidths, links)
    elif asked["devices"] is None:
        raise UsageError("say which devices there are: --devices 8,16, --devices 2x8, --topology FILE, or -n 4")
    elif "x" in asked["devices"]:
        found = topologyfile.of_shape(asked["devices"], bandwidths, links)
    else:
        found = topologyfile.of_machines(asked["devices"], topologyfile.preset("dapple"), bandwidths)
    memory = asked["memory"] or (f"{asked['memory_size']:.0f}" if asked.get("memory_size") else None)
    return found if memory is None else found.with_memory(topologyfile.memory_of(memory))


def _wholes(text: str | None, option: str) -> tuple[int, ...]:
    if text is None:
        return ()
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text, re.ASCII):
        raise UsageError(f"{option}: these are whole numbers above zero, as in 8,16, not {text}")
    return tuple(map(int, text.split(",")))


def _one(text: str | None, option: str) -> int | None:
    found = _wholes(text, option)
    if len(found) > 1:
        raise UsageError(f"{option}: this is one number, not {text}")
    return found[0] if found else None


def _workload(asked: dict[str, Any], micro_batches: tuple[int, ...]) -> Workload | None:
    """Micro-batches of the profile's size, if nothing else is said; None if nothing at all is."""
    from detrain.pipeline.plan import Workload

    if asked["batch"] is None:
        return None
    if asked["profile_batch"] is None:
        raise UsageError("--batch counts samples: say with --profile-batch how many the profile was measured with")
    micro_batch = max(micro_batches, default=min(asked["profile_batch"], asked["batch"]))
    return Workload(asked["profile_batch"], asked["batch"], micro_batch, _state_factor(asked))


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
        raise UsageError("pipedream-inference: say --time-between-inputs, in seconds")
    topology = _topology(asked, "pipedream")
    if len(topology.levels) != 1:
        raise UsageError("pipedream-inference: machines are one level, as in -n 4 -b 1e9")
    return Options(
        topology.num_devices, asked["time_between_inputs"], topology.levels[-1].bandwidth, topology.devices[0].memory_bytes,
        asked["straight"], asked["use_memory_constraint"], asked["use_fewer_machines"],
    )  # fmt: skip


def _schedule(asked: dict[str, Any], **more: Any) -> Schedule:
    from detrain.pipeline.judge import kind_of

    return kind_of(asked["schedule"], warmup=asked["warmup"], vertical_sync=asked["vertical_sync"], **more)


@pipeline.command()
@click.argument("plan", type=FILE)
@_schedule_options
@_batch_options
@click.option("--batch", type=click.IntRange(min=1), metavar="N", help="Samples of a step over all devices.")
@click.option(
    "--chunks",
    type=click.IntRange(min=2),
    default=2,
    show_default=True,
    metavar="N",
    help="interleaved: stages a device.",
)
@as_json_option
@click.option(
    "-o", "output", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="timeline.svg: a picture; trace.json: for Perfetto and Chrome's tracing.",
)  # fmt: skip
@needs_plan
def simulate(plan: Path, output: Path | None, as_json: bool, **asked: Any) -> int:
    """What a plan takes under a schedule, event by event. Exit status 1 if a device has not the memory."""
    from detrain.pipeline import judge, picture, planfile, report, timeline

    planned = read_file(plan, planfile.read)
    kind = _schedule(asked, chunks=asked["chunks"])
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
    document = report.simulation_document(judged, planned, workload)
    click.echo(json.dumps(document) if as_json else report.simulation_text(judged, planned))
    return 0 if judged.fits else 1


@pipeline.command()
@click.argument("profile", type=FILE)
@click.option("--batches", required=True, metavar="N,N,…", help="Samples of a step.")
@click.option(
    "--devices", "many_devices", required=True, multiple=True, metavar="D", help="As for plan; may stand several times."
)
@click.option("--planners", default="dapple", show_default=True, metavar="NAME,NAME,…", help="As for plan.")
@_batch_options
@_schedule_options
@click.option("--memory", metavar="BYTES", help="Of each device (16GiB).")
@click.option("--compat", is_flag=True, help="The published planners' answers.")
@click.option(
    "--processes", type=click.IntRange(min=1), metavar="N", help="At the same time; as many as there are processors."
)
@click.option(
    "-o", "output", type=click.Path(file_okay=False, path_type=Path), required=True, metavar="DIR", help="Where to."
)
@needs_plan
def sweep(profile: Path, batches: str, many_devices: tuple[str, ...], planners: str, output: Path, **asked: Any) -> int:
    """Planners over batches and devices, beside data parallelism: sweep.csv and speedup.svg."""
    from detrain.cli.waiting import counting
    from detrain.pipeline import sweep as sweeping
    from detrain.pipeline.plan import Workload
    from detrain.pipeline.planners.registry import Request

    asked = {"topology": None, "bandwidth": None, **asked}
    if asked["profile_batch"] is None:
        raise UsageError("a sweep counts samples: say with --profile-batch how many the profile was measured with")
    sizes = _wholes(batches, "--batches")
    topologies = {devices: _topology({**asked, "devices": devices}, "dapple") for devices in many_devices}
    cells = [sweeping.Cell(devices, topology, batch) for devices, topology in topologies.items() for batch in sizes]
    micro_batch = _one(asked["micro_batch"], "--micro-batch") or asked["profile_batch"]
    workload = Workload(asked["profile_batch"], max([*sizes, micro_batch]), micro_batch, _state_factor(asked))
    request = Request(_profile(profile), cells[0].topology, workload, None, asked["compat"], _schedule(asked))
    names = planners.split(",")
    with counting(len(cells) * len(names)) as told:
        rows = sweeping.sweep(request, cells, names, lambda one: told(sweeping.row_text(one)), asked["processes"])
    write_file(output, lambda path: path.mkdir(parents=True, exist_ok=True))
    write_file(output / "sweep.csv", lambda path: sweeping.write_table(path, rows))
    write_file(output / "speedup.svg", lambda path: sweeping.draw(path, request.profile.name, rows))
    return 0


@pipeline.command()
@click.argument("source", type=FILE, metavar="IN")
@click.argument("target", type=click.Path(dir_okay=False, path_type=Path), metavar="OUT")
@click.option(
    "--to", "kind", default="", metavar="KIND", help="profile, graph, plan, conf, dot; else OUT's suffix says."
)
@click.option("--profile", type=FILE, metavar="FILE", help="Whose layers have stages, for a conf.")
@needs_plan
def convert(source: Path, target: Path, kind: str, profile: Path | None) -> int:
    """Turn profiles, operator graphs, plans and PipeDream's conf into each other."""
    from detrain.pipeline import conversion

    if kind and kind not in conversion.KINDS:
        raise UsageError(f"--to is one of {', '.join(conversion.KINDS)}, not {kind}")
    made = read_file(source, lambda path: conversion.convert(path, target, kind, profile))
    click.echo(f"{target}: a {made}", err=True)
    return 0

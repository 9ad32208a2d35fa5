"""`detrain pipeline profile` and `detrain pipeline auto`: a script's model, without a change to the script."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detrain.cli.files import needs_plan, read_file, write_file
from detrain.cli.options import ScriptCommand
from detrain.cli.pipeline_options import DeviceOptions, topology_of
from detrain.cli.requests import request_of, start_of
from detrain.cli.run import module_option, seed_option, words_argument
from detrain.errors import GraphError, UsageError
from detrain.messages import say
from detrain.pipeline.planners import catalogue

if TYPE_CHECKING:
    from detrain.pipeline.plan import Plan, Stage
    from detrain.pipeline.topology import Topology
    from detrain.proof.steps import ModelProfile

_model_option = click.option(
    "--model",
    "model",
    default="",
    metavar="CLASS",
    help="The model's class. [default: of those that the first batch calls, the one with most parameters]",
)
_rounds_option = click.option(
    "--rounds", "num_rounds", type=click.IntRange(1), default=7, show_default=True, metavar="N",
    help="Each layer is run so often; the median counts.",
)  # fmt: skip


@click.command(cls=ScriptCommand, context_settings={"allow_interspersed_args": False})
@click.option(
    "-o",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Output file: graph.txt in PipeDream's format, or GRAPH.json (default: the script's name with .graph.txt).",
)
@_model_option
@_rounds_option
@seed_option
@module_option
@words_argument
def profile(
    output: Path | None, model: str, num_rounds: int, seed: int, module: str | None, words: tuple[str, ...]
) -> int:
    """Profile the layers of a script's model: times, activations, parameters.

    The script runs without network until its first batch has called the model, and everything that it writes is discarded.
    """
    from detrain.pipeline import conversion, graphtext
    from detrain.proof import steps

    request = request_of(module, words, {"ckpt_dir": None, "seed": seed})
    measured = steps.profile(request, num_rounds, model)
    found, num_samples = measured.profile, measured.num_samples
    target = output or Path(f"{request.name.rpartition('.')[2]}.graph.txt")
    if target.suffix == ".json":
        write_file(target, lambda path: conversion.write(path, "graph", conversion.Read(found, "graph")))
    else:
        write_file(target, lambda path: graphtext.write(path, found))
    forward_ms = sum(layer.forward_ms for layer in found.layers)
    backward_ms = sum(layer.backward_ms for layer in found.layers)
    parameter_bytes = sum(layer.parameter_bytes for layer in found.layers)
    click.echo(
        f"{target}: {len(found.layers)} layers, {num_samples} samples: {forward_ms:,.3f} ms forward, {backward_ms:,.3f} ms backward, "
        f"{parameter_bytes:,.0f} bytes of parameters. Next: detrain pipeline plan {target} --devices 1xN --profile-batch {num_samples} "
        f"--batch {num_samples} --micro-batch {max(num_samples // 4, 1)} --schedule gpipe -o PLAN.json",
        err=True,
    )
    return 0


@click.command(cls=ScriptCommand, context_settings={"allow_interspersed_args": False})
@click.option("--devices", metavar="D", help="Devices at which machines end (8,16), or machines x devices (1x4).")
@click.option(
    "--topology",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="TOML file with devices and links.",
)
@click.option("--memory", metavar="BYTES", help="Memory of each device, as in 16GiB.")
@click.option(
    "--micro-batches",
    type=click.IntRange(1),
    default=4,
    show_default=True,
    metavar="N",
    help="Parts of each batch.",
)
@click.option("--ckpt-dir", metavar="DIR", help="Run directory (default .detrain/<script>-<arguments>).")
@click.option(
    "--every", default="auto", show_default=True, metavar="WHEN", help="When to write a checkpoint, as for run."
)
@click.option("--emulate", is_flag=True, help="One process plays all devices, with the same bits.")
@_model_option
@_rounds_option
@seed_option
@module_option
@words_argument
@needs_plan
def auto(
    devices: str | None, topology: Path | None, memory: str | None, micro_batches: int, ckpt_dir: str | None, every: str, emulate: bool,
    model: str, num_rounds: int, seed: int, module: str | None, words: tuple[str, ...],
) -> Callable[[], int]:  # fmt: skip
    """Profile a script's model, plan it over devices, and train.

    Profile and plan are written beside the run directory, and taken from there by the same command, which resumes the run. Delete them to
    have them made anew.
    """
    from detrain.pipeline import graphtext, planfile
    from detrain.proof import steps

    if devices is None and topology is None:
        raise UsageError("no devices given: use --devices 1x4 or --topology FILE")
    places = topology_of(DeviceOptions(devices, topology=topology, memory=memory))
    request = request_of(
        module,
        words,
        {"ckpt_dir": ckpt_dir, "every": every, "seed": seed, "emulate": emulate},
    )
    graph, target = Path(f"{request.ckpt_dir}.graph.txt"), Path(f"{request.ckpt_dir}.plan.json")
    if target.exists():
        known = read_file(target, planfile.read)
        if known.topology != places:
            raise UsageError(f"{target} is a plan for other devices: delete it to plan anew, or give --ckpt-dir")
        if known.plan.workload is not None:
            micro_batches = known.plan.workload.portions(1)[0]
    else:
        say("pipeline: profiling the model")
        measured = steps.profile(request, num_rounds, model)
        os.makedirs(target.parent, exist_ok=True)
        write_file(graph, lambda path: graphtext.write(path, measured.profile))
        if not measured.is_splittable:
            say(
                "pipeline: the model returns what has no samples in it (a loss, it may be): one micro-batch, one device a stage"
            )
            micro_batches = 1
        plan = _planned(measured, places, micro_batches)
        write_file(target, lambda path: planfile.write(path, planfile.Planned(plan, measured.profile, places)))
        say(f"pipeline: {target}: {'; '.join(map(_stage_text, plan.stages))}")
    request.pipeline, request.micro_batches = str(target), micro_batches
    return start_of(request)


def _planned(measured: ModelProfile, places: Topology, micro_batches: int) -> Plan:
    """For batches as the profile's; with one device a stage, where what the model returns cannot be put together from parts."""
    from detrain.cli.waiting import planning
    from detrain.pipeline.plan import Workload
    from detrain.pipeline.planners import registry
    from detrain.pipeline.schedules import Schedule

    count = measured.num_samples
    if count < micro_batches:
        raise GraphError(f"a batch of {count} samples cannot be split into {micro_batches} micro-batches")
    workload = Workload(count, count, -(-count // micro_batches))
    name, options = catalogue.DETRAIN, None
    if not measured.is_splittable:
        name, options = catalogue.PIPEDREAM, replace(registry.options_of(places), is_straight=True)
    asked = registry.Request(measured.profile, places, workload, options, schedule=Schedule("gpipe", micro_batches))
    with planning(name, asked.time_limit_s):
        return replace(registry.plan(name, asked), workload=workload)


def _stage_text(stage: Stage) -> str:
    numbers = ", ".join(map(str, stage.devices))
    return f"{stage.layers[0]} to {stage.layers[-1]} on device{'s' if len(stage.devices) > 1 else ''} {numbers}"

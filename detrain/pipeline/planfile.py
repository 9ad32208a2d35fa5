"""Plans as JSON: one document with profile and topology in it, versioned, so that it can be simulated and shown alone."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from detrain.errors import GraphError
from detrain.pipeline.layers import Layer, Profile
from detrain.pipeline.plan import Plan, Stage, Workload
from detrain.pipeline.topology import Device, Level, Topology
from detrain.plans.documents import DocumentKind, Fields, errors_naming, number

DOCUMENT = DocumentKind("detrain pipeline plan", 1, "a plan")


@dataclass(frozen=True)
class Planned:
    """What a file holds."""

    plan: Plan
    profile: Profile
    topology: Topology


def write(path: Path, planned: Planned) -> None:
    """Writes a plan with its profile and topology; `read` gives the same again. Raises `OSError`."""
    profile, topology = _encode_profile(planned.profile), _encode_topology(planned.topology)
    DOCUMENT.write(path, {**summary(planned.plan), "profile": profile, "topology": topology})


def summary(plan: Plan) -> dict[str, object]:
    """The figures of a plan. Times in seconds; states, devices and layers as in `Stage`."""
    stages = [
        {
            "start": int(stage.start), "end": int(stage.end), "replicas": int(stage.replicas), "devices": list(map(int, stage.devices)),
            "recompute": stage.recompute, "layers": list(stage.layers),
        }
        for stage in plan.stages
    ]  # fmt: skip
    workload = plan.workload and {
        "profile_batch": plan.workload.profile_batch, "batch": plan.workload.batch, "micro_batch": plan.workload.micro_batch,
        "state_factor": plan.workload.state_factor,
    }  # fmt: skip
    return {
        "stages": stages, "replication": int(plan.replication), "bottleneck_s": float(plan.bottleneck_s), "speedup": float(plan.speedup),
        "data_parallel_speedup": float(plan.data_parallel_speedup), "seconds": plan.seconds, "planner": plan.planner,
        "workload": workload, "note": plan.note,
    }  # fmt: skip


def _encode_profile(profile: Profile) -> dict[str, object]:
    layers = [
        {
            "name": layer.name, "description": layer.description, "forward_ms": layer.forward_ms, "backward_ms": layer.backward_ms,
            "output_bytes": list(layer.output_bytes), "parameter_bytes": layer.parameter_bytes,
            **({} if layer.stage is None else {"stage": layer.stage}),
        }
        for layer in profile.layers
    ]  # fmt: skip
    return {"name": profile.name, "layers": layers, "edges": [list(edge) for edge in profile.edges]}


def _encode_topology(topology: Topology) -> dict[str, object]:
    levels = [
        {
            "bandwidth": level.bandwidth, "groups": list(level.groups), "latency_s": level.latency_s,
            **({} if level.collective_bandwidth is None else {"collective_bandwidth": level.collective_bandwidth}),
        }
        for level in topology.levels
    ]  # fmt: skip
    devices = [{"memory_bytes": device.memory_bytes, "speed": device.speed} for device in topology.devices]
    return {
        "name": topology.name, "devices": devices, "levels": levels, "bandwidths": list(map(list, topology.bandwidths)),
        "latencies_s": list(map(list, topology.latencies_s)),
    }  # fmt: skip


def read(path: Path) -> Planned:
    """Reads a plan. Raises `GraphError` naming file and place for anything else and for parts that do not match, or `OSError`."""
    fields = Fields(DOCUMENT.read(path), str(path))
    with errors_naming(path):
        profile, topology = _profile(fields.table("profile")), _topology(fields.table("topology"))
        plan = _plan(fields)
        check(plan, profile, topology)
    return Planned(plan, profile, topology)


def _plan(fields: Fields) -> Plan:
    workload = None
    if fields.has("workload"):
        table = fields.table("workload")
        workload = Workload(
            table.whole("profile_batch", 1), table.whole("batch", 1), table.whole("micro_batch", 1),
            table.number("state_factor"),
        )  # fmt: skip
    return Plan(
        fields.text("planner"), tuple(map(_stage, fields.tables("stages"))), fields.whole("replication", 1),
        fields.number("bottleneck_s"), fields.number("speedup"), fields.number("data_parallel_speedup"), fields.number("seconds"),
        workload, fields.text("note") if fields.has("note") else "",
    )  # fmt: skip


def _stage(fields: Fields) -> Stage:
    recompute = fields.text("recompute")
    if not re.fullmatch(r"(all|[a-z][a-z0-9-]*@\d*\.?\d+)?", recompute, re.ASCII):
        fields.wrong("recompute", 'not "", "all" or PLANNER@SHARE')
    start = fields.whole("start")
    return Stage(
        start, fields.whole("end", start), fields.texts("layers"), fields.whole("replicas", 1), fields.wholes("devices"), recompute,
    )  # fmt: skip


def _profile(fields: Fields) -> Profile:
    layers = tuple(
        Layer(
            layer.text("name"), layer.text("description"), layer.number("forward_ms"), layer.number("backward_ms"),
            _numbers(layer.list("output_bytes"), f"{layer.place}: output_bytes"), layer.number("parameter_bytes"),
            layer.whole("stage") if layer.has("stage") else None,
        )
        for layer in fields.tables("layers")
    )  # fmt: skip
    edges = []
    for place, edge in enumerate(fields.list("edges")):
        if type(edge) is not list or len(edge) != 2 or any(type(end) is not int for end in edge):
            raise GraphError(f"{fields.place}: edges[{place}] is {str(edge)[:60]}, not [from, to]")
        edges.append((edge[0], edge[1]))
    try:
        return Profile(layers, tuple(edges), fields.text("name"))
    except GraphError as error:
        raise GraphError(f"{fields.place}: {error}") from None


def _topology(fields: Fields) -> Topology:
    devices = tuple(
        Device(device.number("memory_bytes", is_above_zero=True), device.number("speed", is_above_zero=True))
        for device in fields.tables("devices")
    )
    levels = tuple(
        Level(
            level.number("bandwidth", is_above_zero=True), level.wholes("groups"),
            level.number("collective_bandwidth", is_above_zero=True) if level.has("collective_bandwidth") else None,
            level.number("latency_s"),
        )
        for level in fields.tables("levels")
    )  # fmt: skip
    bandwidths, latencies_s = (_rows(fields, name) for name in ("bandwidths", "latencies_s"))
    try:
        return Topology(devices, levels, bandwidths, latencies_s, fields.text("name"))
    except GraphError as error:
        raise GraphError(f"{fields.place}: {error}") from None


def _rows(fields: Fields, name: str) -> tuple[tuple[float, ...], ...]:
    rows = []
    for place, row in enumerate(fields.list(name)):
        if type(row) is not list:
            raise GraphError(f"{fields.place}: {name}[{place}] is {str(row)[:60]}, not a list")
        rows.append(_numbers(row, f"{fields.place}: {name}[{place}]"))
    return tuple(rows)


def _numbers(values: Iterable[object], place: str) -> tuple[float, ...]:
    return tuple(number(value, f"{place}[{at}]") for at, value in enumerate(values))


def check(plan: Plan, profile: Profile, topology: Topology) -> None:
    """Raises `GraphError` naming the stage where plan, profile and topology do not belong together.

    All layers that are planned are in one stage each, none takes what a later stage makes, and stages share all their devices
    (as chunks of the same ones) or none.
    """
    if not plan.stages:
        raise GraphError("stages is empty")
    _check_layers(plan, profile)
    for at, stage in enumerate(plan.stages):
        _check_devices(at, stage, plan.replication, topology.num_devices)
        for earlier, other in enumerate(plan.stages[:at]):
            shared = set(stage.devices) & set(other.devices)
            if shared and stage.devices != other.devices:
                raise GraphError(
                    f"stages[{at}] and stages[{earlier}] share device {min(shared)}, and have other devices besides"
                )


def _check_layers(plan: Plan, profile: Profile) -> None:
    known = {layer.name for layer in profile.layers}
    stage_of: dict[str, int] = {}
    for at, stage in enumerate(plan.stages):
        for name in stage.layers:
            if name not in known:
                raise GraphError(f"stages[{at}] has a layer {name[:60]}, and the profile has none of that name")
            if name in stage_of:
                raise GraphError(f"stages[{at}] has layer {name[:60]}, and so has stages[{stage_of[name]}]")
            stage_of[name] = at
    for layer in profile.to_plan().layers:
        if layer.name not in stage_of:
            raise GraphError(f"layer {layer.name[:60]} is in no stage")
    for begin, end in profile.edges:
        maker, taker = profile.layers[begin].name, profile.layers[end].name
        if stage_of.get(maker, 0) > stage_of.get(taker, len(plan.stages)):
            raise GraphError(
                f"layer {taker[:60]} in stages[{stage_of[taker]}] takes what {maker[:60]} makes in stages[{stage_of[maker]}]"
            )


def _check_devices(at: int, stage: Stage, replication: int, num_devices: int) -> None:
    if len(stage.devices) != stage.replicas * replication:
        raise GraphError(
            f"stages[{at}] has {len(stage.devices)} devices, not {stage.replicas} for each of {replication} copies"
        )
    if len(set(stage.devices)) < len(stage.devices):
        raise GraphError(f"stages[{at}] has a device twice: {str(list(stage.devices))[:60]}")
    if not all(0 <= device < num_devices for device in stage.devices):
        raise GraphError(f"stages[{at}] has device {max(stage.devices)}, and the topology has {num_devices}")

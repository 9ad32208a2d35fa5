"""What the options of `detrain pipeline` say: topologies, batches, schedules, requests to planners."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from detrain.cli.files import read_file
from detrain.errors import GraphError, UsageError
from detrain.pipeline.planners.catalogue import DETRAIN, PIPEDREAM

if TYPE_CHECKING:
    from detrain.pipeline.layers import Profile
    from detrain.pipeline.plan import Workload
    from detrain.pipeline.planners import inference, pipedream
    from detrain.pipeline.planners.registry import Request
    from detrain.pipeline.schedules import Schedule
    from detrain.pipeline.topology import Topology

#: Batches of a sweep; more are a slip of the pen.
_MOST_BATCHES = 10_000
#: Options of which one at most may stand, and what they say.
_ONE_OF = {
    "which devices there are": {"topology": "--topology", "devices": "--devices", "num_machines": "-n"},
    "how fast the links are": {"topology": "--topology", "bandwidth": "--bandwidth", "network_bandwidths": "-b"},
    "how much memory a device has": {"memory": "--memory", "memory_size": "-s"},
}


class ScheduleOptions(TypedDict):
    """Of all commands that simulate."""

    schedule: str
    warmup: str
    vertical_sync: bool


class PlanOptions(ScheduleOptions):
    """Of `plan`, beside its files."""

    devices: str | None
    topology: Path | None
    bandwidth: str | None
    memory: str | None
    num_machines: str | None
    network_bandwidths: str | None
    memory_size: float | None
    batch: int | None
    micro_batch: str | None
    profile_batch: int | None
    state_factor: float | None
    straight: bool
    use_memory_constraint: bool
    use_fewer_machines: bool
    activation_compression_ratio: float | None
    time_between_inputs: float | None
    no_recompute: bool
    time_limit: float
    compat: bool


class SimulateOptions(ScheduleOptions):
    """Of `simulate`, beside its files."""

    chunks: int | None
    batch: int | None
    micro_batch: str | None
    profile_batch: int | None
    state_factor: float | None


class SweepOptions(ScheduleOptions):
    """Of `sweep`, beside what is swept over and its files."""

    bandwidth: str | None
    memory: str | None
    micro_batch: str | None
    profile_batch: int | None
    state_factor: float | None
    time_limit: float
    peak_activation: str | None
    compat: bool
    processes: int | None


@dataclass(frozen=True)
class DeviceOptions:
    """The options that say which devices there are, and how fast their links are; None where an option is not given."""

    devices: str | None = None
    topology: Path | None = None
    bandwidth: str | None = None
    memory: str | None = None
    num_machines: str | None = None
    network_bandwidths: str | None = None
    #: Bytes.
    memory_size: float | None = None


def device_options(options: PlanOptions) -> DeviceOptions:
    """Those of `plan`."""
    return DeviceOptions(
        options["devices"], options["topology"], options["bandwidth"], options["memory"], options["num_machines"],
        options["network_bandwidths"], options["memory_size"],
    )  # fmt: skip


def topology_of(options: DeviceOptions) -> Topology:
    """Of whatever says which devices there are. Raises `UsageError` for options that say the same thing twice."""
    from detrain.pipeline import topologyfile

    for what, names in _ONE_OF.items():
        given = [option for name, option in names.items() if getattr(options, name) is not None]
        if len(given) > 1:
            raise UsageError(f"{' and '.join(given)} both give {what}: leave one out")
    topology = read_file(options.topology, topologyfile.read) if options.topology else _from_text(options)
    if options.memory is not None:
        return topology.with_memory(topologyfile.memory_of(options.memory, "--memory"))
    return topology if options.memory_size is None else topology.with_memory(options.memory_size)


def _from_text(options: DeviceOptions) -> Topology:
    """Of a short way to write them."""
    from detrain.pipeline import topologyfile

    bandwidths = _rates(options.bandwidth, "--bandwidth") or _rates(options.network_bandwidths, "-b")
    devices, machines = options.devices, options.num_machines
    try:
        if machines is not None:
            return topologyfile.of_levels(whole_numbers(machines, "-n"), bandwidths)
        if devices is None:
            raise UsageError("no devices given: use --devices 8,16, --devices 2x8, --topology FILE, or -n 4")
        links = topologyfile.preset("dapple")
        if "x" in devices:
            return topologyfile.of_shape(devices, bandwidths, links)
        return topologyfile.of_machines(devices, links, bandwidths)
    except GraphError as error:
        raise UsageError(f"{'--devices' if machines is None else '-n'}: {error}") from None


def _rates(text: str | None, option: str) -> list[float] | None:
    """Bytes a second."""
    if text is None:
        return None
    from detrain.plans.units import parse_rate

    try:
        return [parse_rate(rate) for rate in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def whole_numbers(text: str | None, option: str) -> tuple[int, ...]:
    """Of `4,8`; none where the option is not given. Raises `UsageError`."""
    if text is None:
        return ()
    if not re.fullmatch(r"[1-9]\d*(,[1-9]\d*)*", text, re.ASCII):
        raise UsageError(f"{option}: these are whole numbers above zero, as in 8,16, not {text!r}")
    return tuple(map(int, text.split(",")))


def batch_sizes(text: str) -> tuple[int, ...]:
    """Of `32,64:4096:64`: 32, and from 64 to 4096 in steps of 64. Raises `UsageError`."""
    sizes: list[int] = []
    for part in text.split(",") if ":" in text else (text,):
        numbers = part.split(":")
        if len(numbers) == 1:
            sizes += whole_numbers(part, "--batches")
            continue
        if len(numbers) != 3 or not re.fullmatch(r"[1-9]\d{0,8}(:[1-9]\d{0,8}){2}", part, re.ASCII):
            raise UsageError(f"--batches: a range is FIRST:LAST:STEP, as in 64:4096:64, not {part!r}")
        first, last, step = map(int, numbers)
        sizes += range(first, last + 1, step)
    if not sizes:
        raise UsageError(f"--batches: {text} has no sizes")
    if len(sizes) > _MOST_BATCHES:
        raise UsageError(f"--batches: {len(sizes):,} sizes are more than {_MOST_BATCHES:,}")
    return tuple(dict.fromkeys(sizes))


def bytes_of(text: str | None, option: str) -> float | None:
    """Of `70MB`; None where the option is not given. Raises `UsageError`."""
    from detrain.plans.units import parse_bytes

    try:
        return None if text is None else parse_bytes(text)[0]
    except ValueError as error:
        raise UsageError(f"{option}: {error}") from None


def whole_number(text: str | None, option: str) -> int | None:
    """Of `4`; None where the option is not given. Raises `UsageError`, also for several numbers."""
    numbers = whole_numbers(text, option)
    if len(numbers) > 1:
        raise UsageError(f"{option}: this is one number, not {text}")
    return numbers[0] if numbers else None


def schedule_of(options: ScheduleOptions, chunks: int | None = None) -> Schedule:
    """The schedule with its options. Raises `UsageError` for chunks of another than interleaved, or `GraphError`."""
    from detrain.pipeline.judge import kind_of

    name = options["schedule"]
    if chunks is not None and name != "interleaved":
        raise UsageError(f"--chunks is an option of interleaved, not of {name}")
    return kind_of(name, warmup=options["warmup"], vertical_sync=options["vertical_sync"], chunks=chunks or 2)


def state_factor_of(state_factor: float | None, *, is_compat: bool) -> float:
    """Bytes on a device for each byte of parameters. The published planners count parameters once."""
    return float(state_factor or (1.0 if is_compat else 4.0))


def profile_of(path: Path) -> Profile:
    """Of a file in any of the formats. Raises `UsageError` if it cannot be read, or `GraphError`."""
    from detrain.pipeline import conversion

    return read_file(path, conversion.read_profile)


def request_of(path: Path, planner: str, options: PlanOptions) -> Request:
    """What a planner is asked, for the profile at `path`. Raises `UsageError` for options that the planner does not take."""
    from detrain.pipeline.planners.registry import Request

    topology = topology_of(device_options(options))
    micro_batches = whole_numbers(options["micro_batch"], "--micro-batch")
    if len(micro_batches) > 1 and planner != DETRAIN:
        raise UsageError(f"--micro-batch: {planner} plans for one size, not for {options['micro_batch']}")
    if options["schedule"] == "interleaved":
        raise UsageError(
            "--schedule interleaved: a plan has one stage per device. Plan for 1f1b; then `detrain pipeline simulate PLAN --schedule "
            "interleaved` divides its stages"
        )
    return Request(
        profile_of(path), topology, _workload(options, micro_batches),
        _pipedream_options(options, topology) if planner == PIPEDREAM else None, options["compat"], schedule_of(options),
        micro_batches, not options["no_recompute"], options["time_limit"],
    )  # fmt: skip


def _workload(options: PlanOptions, micro_batches: Sequence[int]) -> Workload | None:
    """Micro-batches of the profile's size, or a profile of one micro-batch, if one of them is said; None if nothing at all is."""
    from detrain.pipeline.plan import Workload

    batch = options["batch"]
    if batch is None:
        return None
    measured = options["profile_batch"] or (micro_batches[0] if len(micro_batches) == 1 else None)
    if measured is None:
        raise UsageError("--batch counts samples: give with --profile-batch the number of samples in the profile")
    state_factor = state_factor_of(options["state_factor"], is_compat=options["compat"])
    return Workload(measured, batch, max(micro_batches, default=min(measured, batch)), state_factor)


def _pipedream_options(options: PlanOptions, topology: Topology) -> pipedream.Options:
    from detrain.pipeline.planners.registry import options_of

    return replace(
        options_of(topology), is_straight=options["straight"], uses_memory_constraint=options["use_memory_constraint"],
        uses_fewer_machines=options["use_fewer_machines"], compression_ratio=options["activation_compression_ratio"],
    )  # fmt: skip


def inference_options(options: PlanOptions) -> inference.Options:
    """Those of PipeDream's planner for inference. Raises `UsageError` where the time between inputs is missing."""
    from detrain.pipeline.planners.inference import Options

    if options["time_between_inputs"] is None:
        raise UsageError("pipedream-inference: give --time-between-inputs, in seconds")
    topology = topology_of(device_options(options))
    if len(topology.levels) != 1:
        raise UsageError("pipedream-inference: machines must be one level, as in -n 4 -b 1e9")
    return Options(
        topology.num_devices, options["time_between_inputs"], topology.levels[-1].bandwidth, topology.devices[0].memory_bytes,
        options["straight"], options["use_memory_constraint"], options["use_fewer_machines"],
    )  # fmt: skip

"""The YAML of PipeDream's driver: which machines run a model, and with what options."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from detrain.errors import GraphError
from detrain.pipeline.deployment import Deployment
from detrain.pipeline.topology import Device, Level, Topology
from detrain.plans.documents import Fields, parsed

#: By type: what the published files say beside their machines.
TEXTS = (
    "log_directory",
    "module",
    "data_dir",
    "container",
    "model_type",
    "distributed_backend",
    "config_file",
    "learning_rate_policy",
    "launcher",
)
#: Without these, and a container, the published driver does not begin.
REQUIRED = ("log_directory", "module", "data_dir", "model_type", "distributed_backend")
WHOLES = ("batch_size", "epochs", "print_frequency", "verbose_frequency")
NUMBERS = ("learning_rate", "weight_decay")
FLAGS = (
    "compress_activations", "compress_in_gpu", "lr_warmup", "macrobatch", "no_input_pipelining", "recompute", "synthetic_data",
    "translation_model",
)  # fmt: skip


#: What the driver gives the training program, in this order, under the names of PipeDream's `main_with_runtime.py`.
SCRIPT_OPTIONS = {
    "data_dir": "--data_dir", "module": "--module", "distributed_backend": "--distributed_backend", "batch_size": "-b",
    "learning_rate": "--lr", "learning_rate_policy": "--lr_policy", "weight_decay": "--weight-decay", "epochs": "--epochs",
    "print_frequency": "--print-freq", "no_input_pipelining": "--no_input_pipelining", "verbose_frequency": "-v",
    "lr_warmup": "--lr_warmup", "synthetic_data": "--synthetic_data", "recompute": "--recompute", "macrobatch": "--macrobatch",
}  # fmt: skip

Option = str | float | bool  # a whole number is a float, too


@dataclass(frozen=True)
class Driver:
    """Raises `GraphError` for machines that cannot be."""

    #: By rank: host, and number of its device.
    machines: tuple[tuple[str, int], ...]
    #: All else, by name, in the order of the file.
    options: Mapping[str, Option] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.machines:
            raise GraphError("machines is empty")
        for rank, machine in enumerate(self.machines):
            if machine in self.machines[:rank]:
                raise GraphError(f"machines has {machine[0]}:{machine[1]} twice")

    def hosts(self) -> tuple[int, ...]:
        """By rank: the number of its host, in the order in which they are named."""
        numbers: dict[str, int] = {}
        return tuple(numbers.setdefault(host, len(numbers)) for host, _ in self.machines)


def read(path: Path) -> Driver:
    """Raises `GraphError` naming file and key, or `OSError`."""
    fields = Fields(parsed(path, "YAML", _load), str(path), ("machines", *TEXTS, *WHOLES, *NUMBERS, *FLAGS))
    for name in REQUIRED:
        fields.text(name)
    options = {name: _option(fields, name) for name in fields.names() if name != "machines"}
    machines = tuple(
        _machine(machine, f"{path}: machines[{at}]") for at, machine in enumerate(fields.texts("machines"))
    )
    try:
        return Driver(machines, options)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None


def script_options(driver: Driver, plan: str) -> list[str]:
    """The words between a training program's name and the user's own arguments.

    A flag stands there if it is true. `plan` is the file of the plan, in the place of PipeDream's conf.
    """
    words: list[str] = []
    for name, option in SCRIPT_OPTIONS.items():
        value = driver.options.get(name, False)
        if value is True:
            words.append(option)
        elif value is not False:
            words += [option, str(value)]
    return [*words, "--config_path", plan]


def find(named: str, config: Path, model_type: str) -> Path | None:
    """The file that a configuration names: None if there is none.

    Looked for in the working directory and in its folder `model_type`, as PipeDream's driver does; then in the folder of the configuration
    and in the one above, beside which the published configurations have their models.
    """
    for folder in (Path(), Path(model_type), config.parent, config.parent.parent):
        if (folder / named).is_file():
            return folder / named
    return None


def _load(text: str) -> object:
    try:
        document: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(" ".join(str(error).split())) from None
    return document


def _option(fields: Fields, name: str) -> Option:
    if name in TEXTS:
        return fields.text(name)
    if name in WHOLES:
        return fields.whole(name)
    return fields.number(name) if name in NUMBERS else fields.flag(name)


def _machine(text: str, place: str) -> tuple[str, int]:
    host, _, device = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    is_host = host and not host.startswith("-") and (":" not in host or _is_address(host))
    if not is_host or not (device.isascii() and device.isdigit()):
        raise GraphError(f"{place} is {text[:60]!r}, not host:device")
    return host, int(device)


def _is_address(host: str) -> bool:
    try:
        ipaddress.IPv6Address(host)
    except ValueError:
        return False
    return True


def write(path: Path, driver: Driver) -> None:
    """What is read of it again is the same. Raises `OSError`."""
    document = {**driver.options, "machines": [f"{host}:{device}" for host, device in driver.machines]}
    path.write_text(yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=140), encoding="utf-8")


def topology_of(
    driver: Driver, deployment: Deployment | None, inside: float, across: float, memory_bytes: float
) -> Topology:
    """The driver's machines as a topology, a rank for a device: `inside` a host and `across` hosts, in bytes a second.

    Raises `GraphError` if the deployment has ranks that no machine has; machines beyond its ranks have nothing to do.
    """
    if deployment is not None and deployment.num_ranks > len(driver.machines):
        raise GraphError(f"there are {deployment.num_ranks} ranks and {len(driver.machines)} machines")
    hosts = driver.hosts()
    levels = [Level(inside, hosts)]
    if len(set(hosts)) > 1:
        levels.append(Level(across, (0,) * len(hosts)))
    return Topology((Device(memory_bytes),) * len(hosts), tuple(levels))

"""PipeDream's `graph.txt`, and DAPPLE's looser spelling of it, in and out; `docs/pipeline.md` has the format."""

from __future__ import annotations

import re
from pathlib import Path

from detrain.errors import GraphError
from detrain.pipeline.profile import Layer, Profile

_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")


def read(path: Path) -> Profile:
    """A profile. Raises `GraphError` naming file, line and field, or `OSError`."""
    return parse(path.read_text(encoding="utf-8"), str(path))


def parse(text: str, path: str = "the profile") -> Profile:
    """The profile of a text. Lines that begin with a space or a tab are edges; the others are layers, or empty."""
    layers: list[Layer] = []
    numbers: dict[str, int] = {}
    edges: list[tuple[int, int, int]] = []
    for line_number, line in enumerate(text.splitlines(), 1):
        where = f"{path}, line {line_number}"
        if not line.strip():
            continue
        parts = line.strip().split(" -- ")
        if line[0] not in " \t":
            layer = _layer(parts, where)
            if layer.name in numbers:
                raise GraphError(f"{where}: there is a {layer.name} before it")
            numbers[layer.name] = len(layers)
            layers.append(layer)
            continue
        if len(parts) != 2:
            raise GraphError(f"{where}: an edge is `FROM -- TO`, not {line.strip()[:80]}")
        unknown = [name for name in parts if name not in numbers]
        if unknown:
            raise GraphError(f"{where}: the edge names {unknown[0]}, and no line before it is a layer of that name")
        edges.append((numbers[parts[0]], numbers[parts[1]], line_number))
    if not layers:
        raise GraphError(f"{path} has no layers")
    try:
        return Profile(tuple(layers), tuple(edge[:2] for edge in edges), Path(path).stem)
    except GraphError as error:
        raise GraphError(f"{path}: {error}") from None


def _layer(parts: list[str], where: str) -> Layer:
    if not 3 <= len(parts) <= 4:
        raise GraphError(
            f"{where}: a layer is `NAME -- DESCRIPTION -- {_FIELDS[0]}=…, …`, not {' -- '.join(parts)[:80]}"
        )
    found = dict(part.partition("=")[::2] for part in parts[2].split(", "))
    for name in _FIELDS:
        if name not in found:
            raise GraphError(f"{where}: layer {parts[0]} has no {name}")
    for name in found:
        if name not in _FIELDS:
            raise GraphError(f"{where}: layer {parts[0]} has a field {name}, which is none of {', '.join(_FIELDS)}")
    stage = None
    if len(parts) == 4:
        if not re.fullmatch(r"stage_id=\d+", parts[3]):
            raise GraphError(f"{where}: layer {parts[0]} ends with {parts[3][:40]}, not with stage_id=NUMBER")
        stage = int(parts[3].partition("=")[2])
    sizes = found["activation_size"].strip()
    is_list = sizes.startswith("[") and sizes.endswith("]")
    outputs = [
        _number(one, parts[0], "activation_size", where) for one in (sizes[1:-1].split("; ") if is_list else [sizes])
    ]
    forward_ms, backward_ms, parameter_bytes = (
        _number(found[name], parts[0], name, where) for name in (*_FIELDS[:2], _FIELDS[3])
    )
    return Layer(parts[0], parts[1], forward_ms, backward_ms, tuple(outputs), parameter_bytes, stage)


def _number(text: str, layer: str, field: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise GraphError(f"{where}: layer {layer} has {field}={text[:40]}, no number of zero or more")
    return number


def write(path: Path, profile: Profile) -> None:
    """What is read of it again is the same profile. Raises `OSError`."""
    path.write_text(render(profile), encoding="utf-8")


def render(profile: Profile) -> str:
    """The text, in PipeDream's spelling; layers and edges keep their order."""
    lines = []
    for layer in profile.layers:
        sizes = "; ".join(f"{size:.3f}" for size in layer.output_bytes)
        line = (
            f"{layer.name} -- {layer.description} -- forward_compute_time={_time(layer.forward_ms)}, "
            f"backward_compute_time={_time(layer.backward_ms)}, "
            f"activation_size={sizes if len(layer.output_bytes) == 1 else f'[{sizes}]'}, parameter_size={layer.parameter_bytes:.3f}"
        )
        lines.append(line if layer.stage is None else f"{line} -- stage_id={layer.stage}")
    lines += [f"\t{profile.layers[begin].name} -- {profile.layers[end].name}" for begin, end in profile.edges]
    return "\n".join(lines) + "\n"


def _time(milliseconds: float) -> str:
    """Three decimals, as PipeDream writes them, where nothing is lost."""
    short = f"{milliseconds:.3f}"
    return short if float(short) == milliseconds else repr(milliseconds)

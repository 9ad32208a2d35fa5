"""PipeDream's `graph.txt`, and DAPPLE's looser spelling of it, in and out; `docs/pipeline.md` has the format."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from detrain.errors import GraphError
from detrain.pipeline.layers import Layer, Profile
from detrain.plans.documents import read_text

_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_SHAPE = f"NAME -- DESCRIPTION -- {_FIELDS[0]}=…, {_FIELDS[1]}=…, {_FIELDS[2]}=…, {_FIELDS[3]}=…"


def read(path: Path) -> Profile:
    """A profile. Raises `GraphError` naming file, line and field, or `OSError`."""
    return parse(read_text(path), str(path))


def parse(text: str, path: str = "the profile") -> Profile:
    """The profile of a text. Lines that begin with a space or a tab are edges; the others are layers, or empty."""
    layers: list[Layer] = []
    numbers: dict[str, int] = {}
    edges: list[tuple[int, int]] = []
    lines: list[int] = []
    for line_number, line in enumerate(text.split("\n"), 1):
        where = f"{path}, line {line_number}"
        if not line.strip():
            continue
        if line[0] in " \t":
            edges.append(_edge(line, numbers, where))
            lines.append(line_number)
            continue
        layer = _layer(line.strip().split(" -- "), where)
        if layer.name in numbers:
            raise GraphError(f"{where}: there is a {layer.name} before it")
        numbers[layer.name] = len(layers)
        layers.append(layer)
    if not layers:
        raise GraphError(f"{path} has no layers")
    try:
        return Profile(tuple(layers), tuple(edges), Path(path).stem)
    except GraphError as error:
        # All but the edges has been looked at already: they have a circle.
        place = f"{path}, line {lines[_closes_circle(layers, edges)]}"
        raise GraphError(f"{place}: {error}") from None


def _closes_circle(layers: Sequence[Layer], edges: Sequence[tuple[int, int]]) -> int:
    """The first edge that closes a circle with those before it."""
    low, high = 0, len(edges) - 1
    while low < high:
        middle = (low + high) // 2
        try:
            Profile(tuple(layers), tuple(edges[: middle + 1]))
            low = middle + 1
        except GraphError:
            high = middle
    return low


def _edge(line: str, numbers: dict[str, int], where: str) -> tuple[int, int]:
    parts = line.strip().split(" -- ")
    if len(parts) != 2:
        raise GraphError(f"{where}: an edge is `FROM -- TO`, not {line.strip()[:80]}")
    for name in parts:
        if name not in numbers:
            raise GraphError(f"{where}: the edge names {name[:40]}, and no line before it is a layer of that name")
    return numbers[parts[0]], numbers[parts[1]]


def _layer(parts: list[str], where: str) -> Layer:
    stage = None
    if len(parts) > 3 and re.fullmatch(r"stage_id=\d+", parts[-1]):
        stage = int(parts.pop().partition("=")[2])
    if len(parts) > 3:
        if parts[2].startswith(f"{_FIELDS[0]}="):
            raise GraphError(f"{where}: layer {parts[0]} ends with {parts[-1][:40]}, not with stage_id=NUMBER")
        raise GraphError(f"{where}: layer {parts[0]} has ` -- ` in its description: {' -- '.join(parts[1:-1])[:80]}")
    if len(parts) < 3:
        raise GraphError(f"{where}: a layer is `{_SHAPE}`, not {' -- '.join(parts)[:80]}")
    fields = _fields(parts[2], f"{where}: layer {parts[0]}")
    sizes = fields["activation_size"]
    is_list = sizes.startswith("[") and sizes.endswith("]")
    outputs = (
        _number(text.strip(), parts[0], "activation_size", where)
        for text in (sizes[1:-1].split(";") if is_list else [sizes])
    )
    forward_ms, backward_ms, parameter_bytes = (
        _number(fields[name], parts[0], name, where) for name in (*_FIELDS[:2], _FIELDS[3])
    )
    return Layer(parts[0], parts[1], forward_ms, backward_ms, tuple(outputs), parameter_bytes, stage)


def _fields(text: str, layer: str) -> dict[str, str]:
    fields: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = part.strip().partition("=")
        if name not in _FIELDS or name in fields:
            why = "stands there twice" if name in fields else f"is none of {', '.join(_FIELDS)}"
            raise GraphError(f"{layer} has a field {name[:40]}, which {why}")
        fields[name] = value.strip()
    for name in _FIELDS:
        if name not in fields:
            raise GraphError(f"{layer} has no {name}")
    return fields


def _number(text: str, layer: str, field: str, where: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise GraphError(f"{where}: layer {layer} has {field}={text[:40]}, no number of zero or more")
    return number


def write(path: Path, profile: Profile) -> None:
    """What is read of it again is the same profile. Raises `GraphError` for what `render` refuses, or `OSError`."""
    path.write_text(render(profile), encoding="utf-8", newline="\n")


def render(profile: Profile) -> str:
    """The text as PipeDream writes it, without a newline at its end; layers and edges keep their order.

    Raises `GraphError` for a name or a description that would be read as something else.
    """
    lines = []
    for layer in profile.layers:
        _check_words(layer)
        sizes = "; ".join(_decimal(size) for size in layer.output_bytes)
        line = (
            f"{layer.name} -- {layer.description} -- forward_compute_time={_decimal(layer.forward_ms)}, "
            f"backward_compute_time={_decimal(layer.backward_ms)}, "
            f"activation_size={sizes if len(layer.output_bytes) == 1 else f'[{sizes}]'}, parameter_size={_decimal(layer.parameter_bytes)}"
        )
        lines.append(line if layer.stage is None else f"{line} -- stage_id={layer.stage}")
    lines += [f"\t{profile.layers[begin].name} -- {profile.layers[end].name}" for begin, end in profile.edges]
    return "\n".join(lines)


def _check_words(layer: Layer) -> None:
    for what, text in (("name", layer.name), ("description", layer.description)):
        if text != text.strip() or not text or " -- " in f" {text} " or re.search("[\r\n\ud800-\udfff]", text):
            raise GraphError(
                f"layer {layer.name!r}: graph.txt cannot have the {what} {text[:80]!r}: it is empty, begins or ends with a space, "
                "or has ` -- ` or a new line in it"
            )
    if not layer.output_bytes:
        raise GraphError(f"layer {layer.name}: graph.txt cannot have a layer without outputs")


def _decimal(number: float) -> str:
    """Three decimals, as PipeDream writes them, where nothing is lost."""
    short = f"{number:.3f}"
    return short if float(short) == number else repr(float(number))

"""A profile in Graphviz' language, stages in colours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from detrain.pipeline.layers import Profile

_COLORS = ("#bfdbfe", "#bbf7d0", "#e5e7eb", "#fecaca", "#fde68a", "#fdba74", "#ddd6fe", "#99f6e4")


def write(path: Path, profile: Profile) -> None:
    """The graph as text. Raises `OSError`."""
    path.write_text("\n".join(_lines(profile)) + "\n", encoding="utf-8")


def _lines(profile: Profile) -> Iterator[str]:
    yield "digraph profile {"
    yield '  node [shape=box, style=filled, fontname="sans-serif", fontsize=10, color="#9ca3af", fillcolor="#ffffff"];'
    for number, layer in enumerate(profile.layers):
        label = (
            f"{layer.name}: {layer.description}\n{layer.forward_ms:g} + {layer.backward_ms:g} ms\n"
            f"{layer.activation_bytes:,.0f} bytes out, {layer.parameter_bytes:,.0f} of parameters"
        )
        color = ""
        if layer.stage is not None:
            label = f"{label}\nstage {layer.stage}"
            color = f", fillcolor={json.dumps(_COLORS[layer.stage % len(_COLORS)])}"
        yield f"  {number} [label={json.dumps(label, ensure_ascii=False)}{color}];"
    for begin, end in profile.edges:
        yield f"  {begin} -> {end};"
    yield "}"

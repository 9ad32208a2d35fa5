"""An operator graph in Graphviz' language; operators that a plan does several times are coloured, with their counts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from detrain.remat.planfile import Planned
from detrain.remat.simulator import simulate


def write(path: Path, planned: Planned) -> None:
    """The graph as text. Raises `OSError`."""
    path.write_text("\n".join(_lines(planned)) + "\n", encoding="utf-8")


def _lines(planned: Planned) -> Iterator[str]:
    graph = planned.graph
    counts = simulate(graph, planned.schedule, planned.schedule.budget_bytes).counts
    yield "digraph step {"
    yield '  node [shape=box, style=filled, fontname="sans-serif", fontsize=10, color="#9ca3af"];'
    for number, operator in enumerate(graph.operators):
        size_bytes = sum(graph.tensors[tensor].size_bytes for tensor in operator.outputs)
        label = f"{operator.name}\n{size_bytes:,} bytes\n{operator.cost_ns:,} ns"
        color = "#e5e7eb" if operator.is_constant else "#dbeafe"
        if counts[number] > 1:
            label, color = f"{label}\n{counts[number]} times", "#fdba74"
        yield f"  {number} [label={json.dumps(label, ensure_ascii=False)}, fillcolor={json.dumps(color)}];"
    for number, operator in enumerate(graph.operators):
        for maker in dict.fromkeys(graph.tensors[tensor].operator for tensor in operator.inputs):
            yield f"  {maker} -> {number};"
    yield "}"

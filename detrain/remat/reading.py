"""A step of a file, whichever of the three kinds it is: an operator graph, a log of the DTR prototype, or a plan."""

from __future__ import annotations

import json
from pathlib import Path

from detrain.errors import GraphError
from detrain.plans.documents import parsed
from detrain.remat import dtrlog, graphfile, planfile
from detrain.remat.graph import Graph
from detrain.remat.planfile import Planned
from detrain.remat.schedule import keep_all


def read(path: Path) -> Graph:
    """The graph of a graph or a log. Raises `GraphError`, or `OSError`."""
    return dtrlog.read(path) if _is_log(path) else graphfile.read(path)


def read_planned(path: Path) -> Planned:
    """A plan; of a graph or a log that of keeping everything. Raises `GraphError`, or `OSError`."""
    if _is_log(path):
        graph = dtrlog.read(path)
        return Planned(graph, keep_all(graph))
    document = parsed(path, "JSON", json.loads)
    kind = document.get("kind") if type(document) is dict else None
    if kind == planfile.DOCUMENT.kind:
        return planfile.decode(planfile.DOCUMENT.check(document, str(path)), path)
    if kind == graphfile.DOCUMENT.kind:
        graph = graphfile.decode(document, name=path.stem)
        return Planned(graph, keep_all(graph))
    raise GraphError(
        f"{path} is neither {planfile.DOCUMENT.called} nor {graphfile.DOCUMENT.called} nor a log of the DTR prototype"
    )


def _is_log(path: Path) -> bool:
    """A graph is one JSON document, and the first line of a log is an instruction."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return '"INSTRUCTION"' in file.readline(4096)

"""A step of a file, whichever of the two kinds it is: an operator graph, or a log of the DTR prototype."""

from __future__ import annotations

from pathlib import Path

from detrain.remat import dtrlog, graphfile
from detrain.remat.graph import Graph


def read(path: Path) -> Graph:
    """The graph. A graph is one JSON document, and the first line of a log is an instruction. Raises `GraphError`, or `OSError`."""
    with open(path, encoding="utf-8", errors="replace") as file:
        is_log = '"INSTRUCTION"' in file.readline(4096)
    return dtrlog.read(path) if is_log else graphfile.read(path)

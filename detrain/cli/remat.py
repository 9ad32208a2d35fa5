"""`detrain remat`: planning what is thrown away and made again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detrain.cli.look import as_json_option
from detrain.errors import UsageError

if TYPE_CHECKING:
    from detrain.remat.graph import Graph

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
def remat() -> None:
    """Plan a training step within a memory budget: what is kept, what is thrown away and made again."""


@remat.command()
@click.argument("log", type=_FILE)
@click.option(
    "-o",
    "output",
    type=click.Path(dir_okay=False, path_type=Path),
    required=True,
    metavar="GRAPH.json",
    help="Where to.",
)
@click.option("--whole", is_flag=True, help="From the log's first line, not from its last START.")
def convert(log: Path, output: Path, whole: bool) -> int:
    """Turn a log of the DTR prototype into an operator graph."""
    from detrain.remat import dtrlog, graphfile

    graph = _of_file(log, lambda path: dtrlog.read(path, is_whole=whole))
    try:
        graphfile.write(output, graph)
    except OSError as error:
        raise UsageError(f"{output} cannot be written: {error}") from None
    click.echo(
        f"{output}: {len(graph.operators):,} operators, {len(graph.tensors):,} tensors, {graph.cost_ns:,} ns", err=True
    )
    return 0


@remat.command()
@click.argument("graph", type=_FILE)
@click.option(
    "--budget", required=True, metavar="B", help="A share of the peak of keeping everything (0.4), or bytes (4GiB)."
)
@click.option(
    "--policy", "policy_name", default="dtr:eager", show_default=True, metavar="P", help="HEURISTIC:DEALLOCATION."
)
@click.option("--compat", is_flag=True, help="As the published simulator does it, to the last digit.")
@click.option(
    "--trace", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="Write what was done, a line each."
)
@as_json_option
def simulate(graph: Path, budget: str, policy_name: str, compat: bool, trace: Path | None, as_json: bool) -> int:
    """Run an online policy over a graph, or over a log of the DTR prototype. Exit status 1 if it runs out of memory or thrashes."""
    from detrain.remat import report
    from detrain.remat.online import policy

    asked = policy.parse(policy_name)
    found = report.simulate(_graph_of(graph), budget, asked, is_compat=compat)
    if trace is not None:
        trace.write_text(report.trace_lines(found), encoding="utf-8")
    document: dict[str, Any] = report.document(found)
    click.echo(json.dumps(document) if as_json else report.text(found))
    return 0 if document["status"] == "ok" else 1


def _graph_of(path: Path) -> Graph:
    """A graph's document is one JSON object; a log begins with one on a line of its own."""
    from detrain.remat import dtrlog, graphfile

    with open(path, encoding="utf-8", errors="replace") as file:
        is_log = '"INSTRUCTION"' in file.readline(4096)
    return _of_file(path, dtrlog.read if is_log else graphfile.read)


def _of_file(path: Path, read: Any) -> Graph:
    try:
        found: Graph = read(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from None
    return found

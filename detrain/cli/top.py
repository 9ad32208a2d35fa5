"""`detrain top`: where runs are, while they run."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detrain.cli.files import check_runs_folder
from detrain.cli.look import as_json_option
from detrain.cli.requests import DURATION

if TYPE_CHECKING:
    from rich.table import Table

    from detrain.report.now import Now, Watched


#: Characters: of a run's name at least, and between two columns.
_SHORTEST_NAME, _BETWEEN = 12, 2


@click.command(short_help="Show where runs are, while they run.")
@click.argument("folder", default=".detrain", metavar="[DIR]", type=click.Path(path_type=Path))
@click.option("--once", is_flag=True, help="Print once, and end.")
@click.option(
    "--every", type=DURATION, default=2.0, show_default=True, metavar="TIME", help="Look again after so many seconds."
)
@as_json_option
def top(folder: Path, once: bool, every: float, as_json: bool) -> int:
    """Show where runs are: epoch, batch, batches a second, loss, the last checkpoint, the time that is left.

    DIR is a run directory or a folder of run directories (default .detrain). On a terminal the table is drawn again until Ctrl-C. It reads
    what the run has left on disk, and costs the run nothing. In brackets the number of the attempt; loss: that of the last batch on
    record; wait: the share of the time that the training has waited for checkpoints, of which the first ones take longest; left: the
    time to the end of the loops, where their lengths are known.
    """
    from detrain.report.now import Watched
    from detrain.store import listing

    check_runs_folder(folder)
    watched: dict[Path, Watched] = {}

    def look() -> list[Now]:
        for path in listing.find_runs(folder):
            watched.setdefault(path, Watched(path))
        found = [one.look() for path, one in watched.items() if path.is_dir()]
        return sorted(found, key=lambda one: (one.state != "running", one.path))

    if as_json:
        click.echo(json.dumps([asdict(one) for one in look()], indent=1))
    elif once or not sys.stdout.isatty():
        _print(look(), folder)
    else:
        _live(look, every)
    return 0


def _print(found: list[Now], folder: Path) -> None:
    for one in found:
        click.echo(one.path)
        click.echo(
            "  " + ", ".join(f"{name} {value}" if name else value for name, value in one.cells().items() if value)
        )
    if not found:
        click.echo(f"no runs in {folder}")


def _live(look: Callable[[], list[Now]], every_s: float) -> None:
    from rich.console import Console
    from rich.live import Live

    console = Console()
    with Live(_table(look(), console.width), console=console, refresh_per_second=4) as live:
        try:
            while True:
                time.sleep(every_s)
                live.update(_table(look(), console.width))
        except KeyboardInterrupt:
            pass


def _table(found: list[Now], width: int) -> Table:
    """`width`: of the terminal; a narrow one shows fewer columns, and long names in part."""
    from rich import box
    from rich.table import Table

    from detrain.report.now import BY_WEIGHT, COLUMNS

    rows = [(Path(one.path).name, one.cells(), one.state == "running") for one in found]

    def width_of(name: str) -> int:
        return max([len(name), *(len(cells[name]) for _, cells, _ in rows)]) + _BETWEEN

    state_width = max([len("state"), *(len(cells[""]) for _, cells, _ in rows)]) + _BETWEEN
    room = width - _SHORTEST_NAME - state_width - 2 * _BETWEEN  # of the name, and of the edges
    shown = set()
    for name in BY_WEIGHT:
        if (room := room - width_of(name)) < 0:
            break
        shown.add(name)
    headings = [name for name in COLUMNS if name in shown]
    name_width = max(width - state_width - sum(map(width_of, headings)) - 2 * _BETWEEN, _SHORTEST_NAME)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("run", no_wrap=True, overflow="ellipsis", max_width=name_width)
    table.add_column("state", no_wrap=True)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, cells, is_running in rows:
        table.add_row(name, cells[""], *(cells[heading] for heading in headings), style="" if is_running else "dim")
    return table

"""A bar on standard error while something is planned; where standard error is no terminal there is none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeElapsedColumn
from rich.progress_bar import ProgressBar

from detrain.remat.planners.plan import reporting_best
from detrain.remat.simulator import Outcome


class _TimeGoneBy(ProgressColumn):
    """The part of the time limit that has passed."""

    def render(self, task: Task) -> ProgressBar:
        limit_s = task.total or 1.0
        return ProgressBar(total=limit_s, completed=min(task.elapsed or 0.0, limit_s), width=30)


@contextmanager
def planning(planner: str, time_limit_s: float) -> Iterator[None]:
    """While one plan is made: the time that has passed of `time_limit_s`, and the best overhead so far. Ctrl-C ends with that plan."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    columns = (TextColumn(planner), _TimeGoneBy(), TimeElapsedColumn(), TextColumn("{task.fields[best]}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(planner, total=time_limit_s, best="")

        def show_best(outcome: Outcome) -> None:
            progress.update(task, best=f"best so far {outcome.overhead:.4f}")

        with reporting_best(show_best):
            yield


@contextmanager
def counting(total: int) -> Iterator[Callable[[str], None]]:
    """While `total` plans are made: gives a function to be called with a line of text about each, as it is made."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    columns = (BarColumn(30), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=total)

        def report(line: str) -> None:
            console.print(line, markup=False)
            progress.advance(task)

        yield report

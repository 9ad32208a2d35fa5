"""Plans of several planners for several budgets: a table, and the Pareto front of time over memory with the impossible region shaded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from detrain.plans import tables
from detrain.plans.errors import NoPlanError
from detrain.remat.graph import Graph
from detrain.remat.planners.registry import pareto
from detrain.remat.simulator import floor_bytes, peak_bytes


@dataclass(frozen=True)
class Row:
    """One planner and budget; without a plan `overhead` is None and `why` says why."""

    planner: str
    budget_bytes: int
    overhead: float | None
    peak_bytes: int | None
    num_rematerialized: int | None
    is_optimal: bool
    seconds: float | None
    why: str = ""


def sweep(
    graph: Graph, budgets_bytes: Sequence[int], planners: Iterable[str], time_limit_s: float,
    on_row: Callable[[Row], None] = lambda _: None,
) -> list[Row]:  # fmt: skip
    """A row for each planner and budget; `on_row` is called with each as soon as it is there. `time_limit_s` is for one plan."""
    rows = []
    for planner in planners:
        for budget_bytes, planned in pareto(graph, budgets_bytes, planner, time_limit_s):
            if isinstance(planned, NoPlanError):
                row = Row(planner, budget_bytes, None, None, None, is_optimal=False, seconds=None, why=str(planned))
            else:
                outcome = planned.outcome
                row = Row(
                    planner, budget_bytes, outcome.overhead, outcome.peak_bytes, outcome.num_again, is_optimal=planned.is_optimal,
                    seconds=round(planned.seconds, 3),
                )  # fmt: skip
            rows.append(row)
            on_row(row)
    return rows


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Comma-separated values with a header. Raises `OSError`."""
    tables.write(path, Row, rows)


def draw(path: Path, graph: Graph, rows: Sequence[Row]) -> None:
    """Overhead over the share of the peak, as SVG. Red: less than the constants, and less than the floor. Raises `OSError`."""
    from matplotlib.figure import Figure

    peak = peak_bytes(graph)
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    axes = figure.subplots()
    for planner in dict.fromkeys(row.planner for row in rows):
        points = sorted(
            (row.budget_bytes / peak, row.overhead)
            for row in rows
            if row.planner == planner and row.overhead is not None
        )
        if points:
            axes.plot(*zip(*points, strict=True), marker="o", markersize=3.5, linewidth=1.2, label=planner)
    constants, floor = graph.constant_bytes / peak, floor_bytes(graph) / peak
    axes.axvspan(0, constants, color="#dc2626", alpha=0.25, linewidth=0, label="constants")
    axes.axvspan(constants, floor, color="#dc2626", alpha=0.12, linewidth=0, label="largest operator")
    axes.set(
        xlim=(0, max([1.0, *(row.budget_bytes / peak for row in rows)]) * 1.02),
        xlabel="budget over the peak of keeping all",
    )
    axes.set(ylabel="time over the step's, each operator once", title=graph.name)
    axes.grid(visible=True, linewidth=0.3)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8)
    figure.savefig(path, format="svg", metadata={"Date": None})

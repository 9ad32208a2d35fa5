"""Pictures of results, one for each experiment, as SVG: a panel for each model, budget or divisor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from detrain.remat.experiments import bounds
from detrain.remat.experiments.config import COSTS, DIVISORS
from detrain.remat.experiments.results import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: Okabe and Ito's colours, which differ for everybody, and two more.
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000", "#7c3aed", "#84cc16")
_DASHES = ("-", "--", ":", "-.")
_RED = "#dc2626"
_WIDTH, _HEIGHT = 4.6, 3.4  # of a panel, in inches
_MOST_COLUMNS = 3
_TICKS = (0, 0.25, 0.5, 0.75, *(digit * 10**power for power in range(6) for digit in (1, 2, 5)))
_SHARE = "budget over the peak of keeping all"


class _Style(NamedTuple):
    label: str
    color: str
    dashes: str = "-"


def draw(path: Path, rows: Sequence[Row]) -> None:
    """The picture of one experiment, whose rows these are; at least one. Raises `OSError`."""
    figure = _DRAWN[rows[0].kind](rows)
    figure.suptitle(rows[0].experiment)
    figure.savefig(path, format="svg", metadata={"Date": None})


def _pareto(rows: Sequence[Row]) -> Figure:
    styles = _one_each(_unique(row.planner for row in rows))
    return _by_model(rows, [styles], lambda _: "")


def _ablation(rows: Sequence[Row]) -> Figure:
    """Beside each other what stands below the line; the colours are what stands above."""
    columns = [
        {f"{cost}{divisor}:eager": _Style(_above(cost), color) for cost, color in zip(COSTS, _COLORS, strict=False)}
        for divisor in DIVISORS
    ]
    below = {"-size-stale": "size × staleness", "-size": "size", "-stale": "staleness", "": "1"}
    return _by_model(rows, columns, lambda column: f", over {below[DIVISORS[column]]}")


def _above(cost: str) -> str:
    return {"e*": "neighbourhood", "eq": "classes", "local": "own cost", "none": "1"}[cost]


def _banishing(rows: Sequence[Row]) -> Figure:
    """A colour for each deallocation, dashes for each heuristic."""
    heuristics = _unique(row.planner.partition(":")[0] for row in rows)
    freed = _unique(row.planner.partition(":")[2] for row in rows)
    styles = {
        f"{heuristic}:{deallocation}": _Style(
            f"{heuristic}:{deallocation}", _COLORS[place], _DASHES[number % len(_DASHES)]
        )
        for number, heuristic in enumerate(heuristics)
        for place, deallocation in enumerate(freed)
    }
    return _by_model(rows, [styles], lambda _: "")


def _accesses(rows: Sequence[Row]) -> Figure:
    models = _unique(row.model for row in rows)
    styles = _one_each(_unique(row.planner for row in rows))
    figure, panels = _panels(len(models))
    for axes, model in zip(panels, models, strict=True):
        own = [row for row in rows if row.model == model]
        for planner, style in styles.items():
            points = sorted(
                (row.share, row.num_accesses) for row in own
                if row.planner == planner and row.status == "ok" and row.num_accesses
            )  # fmt: skip
            _line(axes, points, style)
        _zones(axes, own)
        axes.set_yscale("log")
        axes.set_title(model)
    figure.supxlabel(_SHARE, fontsize=9)
    figure.supylabel("metadata accesses", fontsize=9)
    return _with_legend(figure, panels)


def _linear(rows: Sequence[Row]) -> Figure:
    """A panel for each budget: how often a layer is done again on average, over the length; dashed what theory says."""
    budgets = _unique(row.budget for row in rows)
    styles = _one_each(_unique(row.planner for row in rows))
    figure, panels = _panels(len(budgets))
    for axes, budget in zip(panels, budgets, strict=True):
        own = [row for row in rows if row.budget == budget]
        lengths = sorted({_length(row) for row in own})
        for planner, style in styles.items():
            points = sorted(
                (_length(row), row.num_rematerialized / _length(row)) for row in own
                if row.planner == planner and row.num_rematerialized is not None
            )  # fmt: skip
            _line(axes, points, style)
        for style, again in (
            (_Style("at least (Griewank, 1992)", "#6b7280", "--"), bounds.least_again),
            (_Style("√n segments (Chen, 2016)", "#6b7280", ":"), bounds.chen_again),
        ):
            counts = [(length, again(length, bounds.budget_within(budget, length))) for length in lengths]
            _line(axes, [(length, count / length) for length, count in counts if count is not None], style, marker="")
        axes.set_xscale("log", base=2)
        axes.set_yscale("symlog", linthresh=1)  # as it is up to once again, then by powers of ten
        axes.set_title(f"budget {budget}")
        top = max(1.0, axes.get_ylim()[1])
        ticks = [tick for tick in _TICKS if tick <= top]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.set_yticks([], minor=True)
        axes.set_ylim(0, top * 1.05)
    figure.supxlabel("layers", fontsize=9)
    figure.supylabel("layers done again, over all layers", fontsize=9)
    return _with_legend(figure, panels)


def _length(row: Row) -> int:
    """Of a linear network, which has as many operators forward as backward."""
    return row.num_operators // 2


def _measured(rows: Sequence[Row]) -> Figure:
    """A panel for each script: the time of its batches over the budget."""
    styles = _one_each(_unique(row.planner for row in rows))
    models = _unique(row.model for row in rows)
    figure, panels = _panels(len(models))
    for axes, model in zip(panels, models, strict=True):
        own = [row for row in rows if row.model == model]
        for planner, style in styles.items():
            points = sorted(
                (row.share, row.overhead) for row in own if row.planner == planner and row.overhead is not None
            )
            _line(axes, points, style)
        _crosses(axes, own, styles)
        axes.set_xlim(0, max([1.0, *(row.share for row in own)]) * 1.02)
        axes.set_title(model)
    figure.supxlabel("budget over the peak without one", fontsize=9)
    figure.supylabel("time of a batch over that without a budget", fontsize=9)
    return _with_legend(figure, panels, "×: no room")


_DRAWN: dict[str, Callable[[Sequence[Row]], Figure]] = {
    "pareto": _pareto, "ablation": _ablation, "banishing": _banishing, "accesses": _accesses, "linear": _linear,
    "measured": _measured,
}  # fmt: skip


def _by_model(rows: Sequence[Row], columns: Sequence[dict[str, _Style]], title: Callable[[int], str]) -> Figure:
    """The overhead over the budget: for each model a panel for each column, which says whose lines stand there and how."""
    models = _unique(row.model for row in rows)
    figure, panels = _panels(len(models) * len(columns), len(columns) if len(columns) > 1 else _MOST_COLUMNS)
    for place, axes in enumerate(panels):
        model, column = models[place // len(columns)], place % len(columns)
        own = [row for row in rows if row.model == model]
        for planner, style in columns[column].items():
            points = sorted(
                (row.share, row.overhead) for row in own if row.planner == planner and row.overhead is not None
            )
            _line(axes, points, style)
        _crosses(axes, own, columns[column])
        _zones(axes, own)
        axes.set_title(f"{model}{title(column)}")
    figure.supxlabel(_SHARE, fontsize=9)
    figure.supylabel("time over the step's, each operator once", fontsize=9)
    return _with_legend(figure, panels, "×: no plan")


def _crosses(axes: Axes, rows: Sequence[Row], styles: dict[str, _Style]) -> None:
    """Above the lines, where there is no plan: a row of crosses for each planner."""
    height = min(0.035, 0.3 / len(styles))
    for number, (planner, style) in enumerate(styles.items()):
        failed = [row.share for row in rows if row.planner == planner and row.overhead is None]
        heights = [0.97 - height * number] * len(failed)
        axes.plot(failed, heights, "x", color=style.color, markersize=3.5, transform=axes.get_xaxis_transform())
    low, high = axes.get_ylim()
    axes.set_ylim(low, low + (high - low) / (0.97 - height * len(styles)))


def _one_each(planners: Sequence[str]) -> dict[str, _Style]:
    return {
        planner: _Style(planner, _COLORS[place % len(_COLORS)], _DASHES[place // len(_COLORS) % len(_DASHES)])
        for place, planner in enumerate(planners)
    }


def _unique(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _panels(count: int, most_columns: int = _MOST_COLUMNS) -> tuple[Figure, list[Axes]]:
    """A figure with so many panels in rows; what is left of the last row is empty."""
    from matplotlib.figure import Figure

    num_columns = min(count, most_columns)
    num_rows = math.ceil(count / num_columns)
    figure = Figure(figsize=(_WIDTH * num_columns + 1.6, _HEIGHT * num_rows + 0.4), layout="constrained")
    panels = [figure.add_subplot(num_rows, num_columns, place + 1) for place in range(count)]
    for axes in panels:
        axes.grid(visible=True, linewidth=0.3)
        axes.title.set_fontsize(9)
    return figure, panels


def _line(axes: Axes, points: Sequence[tuple[float, float]], style: _Style, marker: str = "o") -> None:
    if points:
        axes.plot(
            *zip(*points, strict=True), marker=marker, markersize=3.5, linewidth=1.2, color=style.color,
            linestyle=style.dashes, label=style.label,
        )  # fmt: skip


def _zones(axes: Axes, rows: Sequence[Row]) -> None:
    """Red: budgets below the constants, and below what the largest operator needs with them, for which no plan exists."""
    row = rows[0]
    constants, floor = (size / max(row.keep_all_bytes, 1) for size in (row.constant_bytes, row.floor_bytes))
    axes.axvspan(0, constants, color=_RED, alpha=0.25, linewidth=0, label="constants")
    axes.axvspan(constants, floor, color=_RED, alpha=0.12, linewidth=0, label="largest operator")
    axes.set_xlim(0, max([1.0, *(row.share for row in rows)]) * 1.02)


def _with_legend(figure: Figure, panels: Sequence[Axes], note: str = "") -> Figure:
    """One for all panels, beside them: a line stands in it once, though it is in several."""
    handles = {
        label: handle for axes in panels for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    if handles:
        figure.legend(
            handles.values(), handles.keys(), loc="outside right upper", fontsize=8, title=note, title_fontsize=8
        )
    return figure

"""The page's pictures, drawn by plotly."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from detrain.pipeline.schedules import Kind
from detrain.pipeline.timeline import Timeline
from detrain.report.history import History
from detrain.report.metrics import BATCHES, Series

_COLORS = ("#2563eb", "#d97706", "#059669", "#db2777", "#7c3aed", "#0891b2")
_KILL = "#dc2626"
#: Ranks whose losses are drawn.
_MOST_RANKS = 16
#: Metrics that get a picture; the others are named.
MOST_METRICS = 24
#: Of a pipeline: what a task is called, and its colour.
_TASKS = {
    Kind.FORWARD: ("forward", "#2563eb"), Kind.BACKWARD: ("backward", "#059669"), Kind.WEIGHT: ("gradients of weights", "#d97706"),
    Kind.ALL_REDUCE: ("sum over replicas", "#7c3aed"),
}  # fmt: skip
#: More points than this are thinned for the page.
_MOST_POINTS = 5000


def losses(history: History) -> go.Figure | None:
    """The losses that gradients were computed of, over batches; None if none is on record."""
    by_number: dict[int, list[tuple[int, float]]] = {}
    for (batches, number), value in sorted(history.ledger.losses.items()):
        by_number.setdefault(number, []).append((batches, value))
    if not by_number:
        return None
    figure = go.Figure()
    for number, points in by_number.items():
        x, y = zip(*_thinned(points), strict=True)
        name = "loss" if len(by_number) == 1 else f"loss {number + 1} of the batch"
        figure.add_scatter(
            x=x, y=y, name=name, mode="lines", line={"color": _COLORS[number % len(_COLORS)], "width": 1.2}
        )
    _mark_resumes(figure, history)
    return _styled(figure, "batches", "loss")


def losses_by_rank(ranks: dict[int, History]) -> go.Figure | None:
    """The first loss of each batch, of each rank; None if fewer than two ranks have any on record."""
    figure = go.Figure()
    for count, (number, history) in enumerate(ranks.items()):
        points = [(batches, value) for (batches, which), value in sorted(history.ledger.losses.items()) if which == 0]
        if points and count < _MOST_RANKS:
            x, y = zip(*_thinned(points), strict=True)
            line = {"color": _COLORS[count % len(_COLORS)], "width": 1.2}
            figure.add_scatter(x=x, y=y, name=f"rank {number}", mode="lines", line=line)
    return _styled(figure, "batches", "loss") if len(figure.data) > 1 else None


def metric(series: Series, history: History) -> go.Figure:
    """One metric that the script printed or wrote down."""
    points = _thinned(list(zip(series.x, series.values, strict=True)))
    x, y = zip(*points, strict=True)
    mode = "lines+markers" if len(points) < 80 else "lines"
    figure = go.Figure(go.Scatter(x=x, y=y, mode=mode, name=series.name, line={"color": _COLORS[0], "width": 1.5}))
    if series.over == BATCHES:
        _mark_resumes(figure, history)
    return _styled(figure, series.over, "", height=230)


def life(history: History) -> go.Figure | None:
    """How far the run was when: attempts, kills, resumes, checkpoints."""
    if not history.attempts:
        return None
    figure = go.Figure()
    for number, one in enumerate(history.attempts):
        at, batches = zip(*_thinned(one.points), strict=True)
        color = _COLORS[number % len(_COLORS)]
        figure.add_scatter(
            x=_dates(at), y=batches, mode="lines", name=f"attempt {one.number}", line={"color": color, "width": 2},
            showlegend=len(history.attempts) <= len(_COLORS),
        )  # fmt: skip
    saved = [one for one in history.ledger.saved if "at" in one]
    figure.add_scatter(
        x=_dates([one["at"] for one in saved]), y=[one["batches"] for one in saved], mode="markers", name="checkpoint",
        text=[one["name"] for one in saved], marker={"symbol": "diamond-open", "size": 8, "color": "#374151"},
    )  # fmt: skip
    ended = history.attempts[:-1] if history.is_last_alive else history.attempts
    figure.add_scatter(
        x=_dates([one.points[-1][0] for one in ended]), y=[one.end for one in ended], mode="markers",
        name="last seen before it was killed", marker={"symbol": "x", "size": 10, "color": _KILL},
    )  # fmt: skip
    return _styled(figure, "time", "batches")


def checkpoints(history: History) -> dict[str, go.Figure]:
    """By name: what each checkpoint made the training wait, and its size. Empty if none is on record."""
    saved = [one for one in history.ledger.saved if "stall_s" in one]
    if not saved:
        return {}
    x, names = [one["batches"] for one in saved], [one["name"] for one in saved]
    values = {
        "the training waited (ms)": [one["stall_s"] * 1e3 for one in saved],
        "size (MB)": [one["bytes"] / 1e6 for one in saved],
    }
    found = {}
    for number, (name, y) in enumerate(values.items()):
        marker = {"size": 7, "color": _COLORS[number]}
        figure = go.Figure(go.Scatter(x=x, y=y, text=names, mode="markers", marker=marker))
        found[name] = _styled(figure.update_yaxes(rangemode="tozero"), "batches", "", height=230)
    return found


def memory(use: dict[str, Any]) -> go.Figure:
    """Memory over the operators of one step, beside the budget. `use`: of a checkpoint's record, with its curve."""
    curve = [one / 2**20 for one in use["curve_bytes"]]
    x = [100 * number / len(curve) for number in range(len(curve))]
    figure = go.Figure(
        go.Scatter(x=x, y=curve, mode="lines", line={"color": _COLORS[0], "shape": "hv"}, fill="tozeroy")
    )
    if use["budget_bytes"]:
        figure.add_hline(y=use["budget_bytes"] / 2**20, line={"color": _KILL, "width": 1}, annotation_text="budget")
    return _styled(figure.update_yaxes(rangemode="tozero"), "% of the step's operators", "MiB", height=260)


def _mark_resumes(figure: go.Figure, history: History) -> None:
    for one in history.attempts[1:]:
        figure.add_vline(x=one.begin, line={"color": _KILL, "width": 1, "dash": "dot"})


def _thinned(points: list[Any]) -> list[Any]:
    """Every n-th, and the last: for the eye."""
    step = -(-len(points) // _MOST_POINTS)
    return points if step <= 1 else [*points[::step], points[-1]]


def _dates(seconds: Any) -> list[datetime]:
    return [datetime.fromtimestamp(one, UTC).astimezone().replace(tzinfo=None) for one in seconds]


def timelines(measured: Timeline, simulated: Timeline) -> go.Figure:
    """Two timelines, one above the other, over milliseconds: a row for each worker."""
    figure = make_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.08)
    shown: set[Kind] = set()
    for row, timeline in enumerate((measured, simulated), 1):
        bars: dict[Kind, list[tuple[str, float, float, str]]] = {}
        for task in timeline.tasks():
            if task.kind in _TASKS and task.end_s > task.start_s:
                bars.setdefault(task.kind, []).extend(
                    (timeline.worker_name(worker), task.start_s * 1e3, (task.end_s - task.start_s) * 1e3, str(task.micro_batch))
                    for worker in timeline.doers(task)
                )  # fmt: skip
        for kind, rows in sorted(bars.items()):
            names, starts, lengths, labels = zip(*rows, strict=True)
            called, color = _TASKS[kind]
            figure.add_bar(
                y=names, base=starts, x=lengths, text=labels, orientation="h", name=called, marker_color=color, textposition="inside",
                insidetextanchor="middle", textangle=0, legendgroup=called, showlegend=kind not in shown, row=row, col=1,
                hovertemplate=f"{called} %{{text}}: %{{base:.3f}} ms, for %{{x:.3f}} ms<extra></extra>",
            )  # fmt: skip
            shown.add(kind)
        figure.update_yaxes(
            autorange="reversed", title_text="measured" if row == 1 else "simulated", row=row, col=1,
            categoryorder="array", categoryarray=[timeline.worker_name(worker) for worker in range(timeline.num_workers)],
        )  # fmt: skip
    figure.update_layout(barmode="overlay", bargap=0.25, uniformtext={"minsize": 7, "mode": "hide"})
    styled = _styled(figure, "", "", height=150 + 60 * measured.num_workers)
    styled.update_xaxes(title_text="ms", row=2, col=1)
    return styled


def _styled(figure: go.Figure, x: str, y: str, height: int = 360) -> go.Figure:
    figure.update_layout(
        template="plotly_white", height=height, margin={"l": 60 if y else 45, "r": 20, "t": 15, "b": 45}, hovermode="closest",
        font={"family": "system-ui, sans-serif", "size": 12},
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom"},  # above the picture, however many lines it takes
    )  # fmt: skip
    figure.update_xaxes(title_text=x)
    if y:
        figure.update_yaxes(title_text=y)
    return figure

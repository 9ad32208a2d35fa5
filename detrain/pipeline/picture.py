"""A timeline as a picture: what each worker does, what is sent below it, and what its device holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from detrain.pipeline.schedules import Kind
from detrain.pipeline.timeline import Timeline

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_COLORS = {
    Kind.FORWARD: "#2563eb", Kind.BACKWARD: "#059669", Kind.WEIGHT: "#d97706", Kind.SEND: "#93c5fd", Kind.SEND_BACK: "#6ee7b7",
    Kind.ALL_REDUCE: "#7c3aed",
}  # fmt: skip
_NAMES = {
    Kind.FORWARD: "forward", Kind.BACKWARD: "backward", Kind.WEIGHT: "gradients of weights", Kind.SEND: "sent", Kind.SEND_BACK: "sent back",
    Kind.ALL_REDUCE: "all-reduce",
}  # fmt: skip
#: Bottom and height of a bar within its row, which is one high.
_BARS = {Kind.SEND: (0.12, 0.08), Kind.SEND_BACK: (0.03, 0.08), Kind.ALL_REDUCE: (0.03, 0.17)}
_WORK = (0.23, 0.65)
#: Numbers are written into bars if there are no more of them, and into none that is narrower than this part of the whole.
_MOST_LABELS, _NARROWEST = 600, 0.012


def draw(path: Path, timeline: Timeline) -> None:
    """Rows of workers over time, and a strip of memory if there are sizes. As SVG, or as PNG if the path ends so. Raises `OSError`."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    unit, name = next(
        ((unit, name) for unit, name in ((1.0, "s"), (1e3, "ms")) if timeline.makespan_s * unit >= 1), (1e6, "µs")
    )
    has_memory = max(timeline.peak_bytes) > 0
    height = 1.4 + 0.42 * timeline.num_workers
    figure = Figure(figsize=(11, height + (1.3 if has_memory else 0)), layout="constrained")
    rows: Axes
    if has_memory:
        rows, strip = figure.subplots(2, 1, sharex=True, height_ratios=[height, 1.3])
        _draw_memory(strip, timeline, unit)
        strip.set_xlabel(name)
    else:
        rows = figure.subplots()
        rows.set_xlabel(name)
    _draw_rows(rows, timeline, unit)
    shown = sorted({Kind(kind) for kind in timeline.kinds[timeline.ends_s > timeline.starts_s].tolist()})
    figure.legend(
        handles=[Patch(color=_COLORS[kind], label=_NAMES[kind]) for kind in shown], fontsize=8, ncols=6, frameon=False,
        loc="outside lower center",
    )  # fmt: skip
    what = "a mini-batch every" if timeline.schedule.is_asynchronous else "a step of"
    rows.set_title(
        f"{timeline.schedule.name}: {what} {timeline.step_s * unit:.4g} {name}, bubble {timeline.bubble_share:.1%}",
        fontsize=10,
    )
    is_svg = path.suffix in ("", ".svg")
    with rc_context({"svg.hashsalt": "detrain"}):  # the same picture each time
        figure.savefig(path, format="svg" if is_svg else None, metadata={"Date": None} if is_svg else None)


def _draw_rows(axes: Axes, timeline: Timeline, unit: float) -> None:
    count = timeline.num_workers
    spans: dict[tuple[Kind, int], list[tuple[float, float]]] = {}
    labels = 0
    for task in timeline.tasks():
        length = task.end_s - task.start_s
        if not length > 0:
            continue
        for worker in timeline.doers(task):
            spans.setdefault((task.kind, worker), []).append((task.start_s * unit, length * unit))
        if task.kind <= Kind.WEIGHT and labels < _MOST_LABELS and length > _NARROWEST * timeline.makespan_s:
            labels += 1
            center = count - 1 - task.worker + _WORK[0] + _WORK[1] / 2
            axes.text(
                (task.start_s + length / 2) * unit, center, str(task.micro_batch), fontsize=6, color="white", ha="center",
                va="center_baseline", clip_on=True,
            )  # fmt: skip
    for (kind, worker), bars in spans.items():
        bottom, height = _BARS.get(kind, _WORK)
        axes.broken_barh(
            bars, (count - 1 - worker + bottom, height), facecolor=_COLORS[kind], edgecolor="white", linewidth=0.3
        )
    axes.set(
        yticks=[count - 0.5 - worker for worker in range(count)], ylim=(0, count), xlim=(0, max(timeline.makespan_s * unit, 1e-9)),
        yticklabels=[timeline.worker_name(worker) for worker in range(count)],
    )  # fmt: skip
    axes.tick_params(labelsize=8)


def _draw_memory(axes: Axes, timeline: Timeline, unit: float) -> None:
    """What each worker holds, the first light, the last dark."""
    has_bytes = ~np.isnan(timeline.used_bytes)
    for worker in range(timeline.num_workers):
        own = np.flatnonzero(has_bytes & (timeline.workers == worker))
        shade = str(0.75 - 0.75 * worker / max(timeline.num_workers, 2))
        times, held = np.append(timeline.starts_s[own], timeline.ends_s[own[-1:]]), timeline.used_bytes[own]
        axes.step(times * unit, np.append(held, held[-1:]) / 1e9, where="post", linewidth=0.8, color=shade)
    axes.set(ylabel="GB held", ylim=(0, 1.1 * max(timeline.peak_bytes) / 1e9))
    axes.tick_params(labelsize=8)

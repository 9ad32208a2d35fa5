"""A timeline as a picture: what each worker does, what is sent below it, and what its device holds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from detrain.pipeline.schedules import Kind
from detrain.pipeline.text import ranges
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
#: Lines of memory that the legend names: those with the highest peaks. Colours of lines, which begin again with other dashes.
_MOST_NAMED = 16
_LINES = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#be185d", "#4b5563")
_DASHES = ("-", "--", ":", "-.")
_GIB = 2.0**30


@dataclass(frozen=True)
class StageDevices:
    """Where a stage runs, for the labels of a picture."""

    devices: tuple[int, ...]
    #: Of the smallest of them.
    memory_bytes: float


def draw(path: Path, timeline: Timeline, stage_devices: Sequence[StageDevices] = ()) -> None:
    """Rows of workers over time, and a strip of memory if there are sizes. As SVG, or as PNG if the path ends so. Raises `OSError`.

    `stage_devices`, by stage: the legend of the strip then names devices, and how much of their memory the peak is.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    unit, name = next(
        ((unit, name) for unit, name in ((1.0, "s"), (1e3, "ms")) if timeline.makespan_s * unit >= 1), (1e6, "µs")
    )
    has_memory = max(timeline.peak_bytes) > 0
    height = 1.4 + 0.42 * timeline.num_workers
    strip_height = 1.3 + 0.15 * min(timeline.num_workers, _MOST_NAMED)
    figure = Figure(
        figsize=(13 if has_memory else 11, height + (strip_height if has_memory else 0)), layout="constrained"
    )
    rows: Axes
    if has_memory:
        rows, strip = figure.subplots(2, 1, sharex=True, height_ratios=[height, strip_height])
        _draw_memory(strip, timeline, unit, stage_devices)
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


def _draw_memory(axes: Axes, timeline: Timeline, unit: float, stage_devices: Sequence[StageDevices]) -> None:
    """What each worker holds, a line for each, with a dot at its peak; the legend has the figures. Dashed: what a device has.

    That is drawn where all have the same, and something comes near it.
    """
    has_bytes = ~np.isnan(timeline.used_bytes)
    peaks: list[float] = []
    for worker in range(timeline.num_workers):
        own = np.flatnonzero(has_bytes & (timeline.workers == worker))
        times, held = np.append(timeline.starts_s[own], timeline.ends_s[own[-1:]]), timeline.used_bytes[own]
        color, dashes = _LINES[worker % len(_LINES)], _DASHES[worker // len(_LINES) % len(_DASHES)]
        top = int(np.argmax(held))
        peaks.append(float(held[top]))
        axes.step(times * unit, np.append(held, held[-1:]) / _GIB, where="post", linewidth=1.0, color=color, linestyle=dashes,
                  label=_memory_label(timeline, worker, peaks[-1], stage_devices))  # fmt: skip
        axes.plot(times[top] * unit, peaks[-1] / _GIB, "o", markersize=3, color=color)
    limits = {stage.memory_bytes for stage in stage_devices}
    if len(limits) == 1 and max(peaks) > 0.5 * min(limits):
        axes.axhline(
            min(limits) / _GIB, color="#111827", linestyle=(0, (4, 3)), linewidth=0.8, label="memory of a device"
        )
    axes.set(
        ylabel="memory held (GiB)",
        ylim=(0, 1.1 * max([*peaks, *(limits if max(peaks) > 0.5 * min(limits, default=np.inf) else ())]) / _GIB),
    )
    axes.tick_params(labelsize=8)
    handles, labels = axes.get_legend_handles_labels()
    named = sorted(sorted(range(len(peaks)), key=lambda worker: -peaks[worker])[:_MOST_NAMED])
    shown = [*named, *range(len(peaks), len(handles))]
    title = f"{len(named)} highest of {len(peaks)}" if len(named) < len(peaks) else None
    axes.legend(
        [handles[number] for number in shown], [labels[number] for number in shown], fontsize=7, title=title, title_fontsize=7,
        frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0),
    )  # fmt: skip


def _memory_label(timeline: Timeline, worker: int, peak_bytes: float, stage_devices: Sequence[StageDevices]) -> str:
    """Such as `stage 2 (devices 4-7, each): peak 3.21 of 16.00 GiB`."""
    label = timeline.worker_name(worker)
    stages = timeline.worker_stages[worker]
    if not stage_devices:
        return f"{label}: peak {peak_bytes / _GIB:.3g} GiB"
    own, memory_bytes = stage_devices[stages[0]].devices, min(stage_devices[stage].memory_bytes for stage in stages)
    same = [number for number, theirs in enumerate(timeline.worker_stages) if theirs == stages]
    if len(same) == len(own):
        own = (own[worker - same[0]],)  # replicas that mini-batches are dealt to have rows of their own
    called = f"devices {ranges(own)}, each" if len(own) > 1 else f"device {own[0]}"
    over = " — too much" if peak_bytes > memory_bytes else ""
    return f"{label} ({called}): peak {peak_bytes / _GIB:.3g} of {memory_bytes / _GIB:.3g} GiB{over}"

"""Plans of several planners over batches and devices, beside data parallelism: a table as in DAPPLE's reproduction."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from detrain.errors import DetrainError, GraphError
from detrain.pipeline.judge import SYNCHRONOUS, Judge, data_parallel, judge, prepared
from detrain.pipeline.plan import Plan, Workload
from detrain.pipeline.planfile import Planned
from detrain.pipeline.planners import registry
from detrain.pipeline.planners.baselines import baselines
from detrain.pipeline.planners.dapple import in_published_order
from detrain.pipeline.planners.placement import cluster_of
from detrain.pipeline.topology import Topology
from detrain.plans import tables

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BASELINES = {
    "dp_no_overlap": ("data parallel, no overlap (closed form)", ":"),
    "dp_overlap": ("data parallel, overlap (closed form)", "--"), "dp_p3": ("data parallel, P3 (closed form)", "-."),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One batch on one topology."""

    devices: str
    topology: Topology
    batch: int


@dataclass(frozen=True)
class Row:
    """Speed-ups over one device; None where there is none, and `why`.

    `dp_simulated` and `simulated` are comparable: the simulator's, under one schedule. The others are closed forms, and may be far above.
    """

    devices: str
    batch: int
    planner: str
    #: Data parallelism as DAPPLE's authors reckon it, with nothing, with little and with everything overlapped.
    dp_no_overlap: float | None = None
    dp_p3: float | None = None
    dp_overlap: float | None = None
    #: As the planner reckons, and as the simulator judges.
    hybrid: float | None = None
    simulated: float | None = None
    fits: bool | None = None
    seconds: float | None = None
    plan: str = ""
    why: str = ""
    #: Data parallelism under the simulator, and whether it fits, with micro-batches as this plan has them.
    dp_simulated: float | None = None
    dp_fits: bool | None = None
    #: Samples of a micro-batch in the plan, and what the planner says of its choice.
    micro_batch: int | None = None
    note: str = ""


def sweep(
    request: registry.Request, cells: Sequence[Cell], planners: Sequence[str], on_row: Callable[[Row], None] = lambda _: None,
    num_processes: int | None = None,
) -> list[Row]:  # fmt: skip
    """A row for each cell and planner, in processes side by side; `on_row` is called with each as soon as it is there.

    Raises `DetrainError` if one of the processes is ended by somebody else. Ctrl-C ends them all.
    """
    if request.workload is None:
        raise GraphError("a sweep needs a micro-batch and the profile's batch")
    wanted = [(replace(request, topology=cell.topology), cell, planner) for cell in cells for planner in planners]
    rows: dict[int, Row] = {}
    with _processes(min(num_processes or multiprocessing.cpu_count(), len(wanted))) as pool:
        with _unheard(signal.SIGINT):
            waiting = {pool.submit(row, *arguments): number for number, arguments in enumerate(wanted)}
        try:
            for done in as_completed(waiting):
                rows[waiting[done]] = done.result()
                on_row(done.result())
        except BrokenProcessPool:
            raise DetrainError(
                f"a process of the sweep was ended, perhaps because memory ran out, with {len(wanted) - len(rows)} of {len(wanted)} plans "
                "still to compute; use fewer in parallel (--processes)"
            ) from None
    return [rows[number] for number in sorted(rows)]


@contextmanager
def _processes(count: int) -> Iterator[ProcessPoolExecutor]:
    """A pool of processes. They are terminated if the block is left by an exception, as each may still need long for its plan."""
    # Spawned, not forked: a fork of a process with compiled threads may hang.
    before = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=multiprocessing.get_context("spawn"))
    is_done = False
    try:
        yield pool
        is_done = True
    finally:
        for process in () if is_done else set(multiprocessing.active_children()) - before:
            process.terminate()
        pool.shutdown(cancel_futures=True)


@contextmanager
def _unheard(number: signal.Signals) -> Iterator[None]:
    """Blocks a signal within; it is delivered afterwards. Processes started within inherit the mask and never receive it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def row(request: registry.Request, cell: Cell, planner: str) -> Row:
    """The row of one cell and planner. Plans have one stage per device; for an interleaved schedule the stages are divided afterwards."""
    assert request.workload is not None
    kind = request.schedule
    empty = Row(cell.devices, cell.batch, planner)
    try:
        workload = replace(request.workload, batch=cell.batch)
        empty = _with_data_parallelism(_with_baselines(empty, request, workload), request, workload)
        planned_for = SYNCHRONOUS if kind.name == "interleaved" else kind
        chosen = registry.plan(planner, replace(request, workload=workload, schedule=planned_for))
        planned, _ = prepared(Planned(chosen, request.profile, request.topology), kind)
        workload = chosen.workload or workload
        empty = _with_data_parallelism(empty, request, workload)
        judged = judge(planned.plan, request.profile.to_plan(), request.topology, workload, kind)
    except GraphError as error:
        return replace(empty, why=str(error))
    return replace(
        empty, hybrid=chosen.speedup, simulated=judged.speedup, fits=judged.fits, seconds=round(chosen.seconds, 3), plan=plan_words(chosen),
        micro_batch=workload.micro_batch, note=chosen.note,
    )  # fmt: skip


def _with_data_parallelism(empty: Row, request: registry.Request, workload: Workload) -> Row:
    """By the simulator. Interleaved there is one stage for each chunk, so it is judged under the schedule that plans are made for."""
    kind = SYNCHRONOUS if request.schedule.name == "interleaved" else request.schedule
    against = data_parallel(Judge(request.profile.to_plan(), request.topology, workload, kind))
    return empty if against is None else replace(empty, dp_simulated=against.speedup, dp_fits=against.fits)


def _with_baselines(empty: Row, request: registry.Request, workload: Workload) -> Row:
    try:
        speedups = baselines(
            in_published_order(request.profile), workload, cluster_of(request.topology), request.peak_activation_bytes
        )
    except GraphError as error:
        return replace(empty, why=f"no data parallelism: {error}")
    return replace(
        empty, dp_no_overlap=speedups.no_overlap, dp_p3=speedups.current_p3, dp_overlap=speedups.current_inner
    )


def plan_words(plan: Plan) -> str:
    """Stages as published: (first state, end, replicas), and the copies."""
    stages = "".join(
        f"({stage.start},{stage.end},{stage.replicas}{',R' if stage.recompute else ''})" for stage in plan.stages
    )
    return f"{stages} x{plan.replication}"


def write_table(path: Path, rows: Sequence[Row]) -> None:
    """Comma-separated values with a header. Raises `OSError`."""
    tables.write(path, Row, rows)


def row_text(row: Row) -> str:
    """A row as a line of text: what the simulator says, and in brackets what the planner and the closed form of data parallelism say."""
    what = f"{row.devices:>12} batch {row.batch:>6}  {row.planner:10}"
    if row.simulated is None or row.hybrid is None:
        return f"{what} none: {row.why}"
    parallel, closed = (
        "-" if value is None else f"{value:.3f}{mark}"
        for value, mark in (
            (row.dp_simulated, " too much memory" if row.dp_fits is False else ""),
            (row.dp_no_overlap, ""),
        )
    )
    memory = "" if row.fits else " too much memory"
    note = f"; {row.note}" if row.note else ""
    return (
        f"{what} {row.simulated:8.3f}{memory}, data parallel {parallel} (planner reckons {row.hybrid:.3f}, data parallel without overlap "
        f"{closed})  {row.plan}{note}"
    )


def draw(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Speed-up over the batch, a picture for each set of devices, as SVG or, if the path ends so, PNG. Raises `OSError`.

    Bold lines are the simulator's, data parallelism among them; hollow marks take too much memory. Thin grey lines are closed forms.
    """
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(row.devices for row in rows))
    figure = Figure(figsize=(8.5, 3.6 * len(kinds)), layout="constrained")
    for axes, devices in zip(figure.subplots(len(kinds), 1, squeeze=False)[:, 0], kinds, strict=True):
        here = [row for row in rows if row.devices == devices]
        for planner in dict.fromkeys(row.planner for row in here):
            _draw_simulated(
                axes, [(row.batch, row.simulated, row.fits) for row in here if row.planner == planner], planner, None
            )
        best = (max(rows_of, key=data_parallel_rank) for rows_of in _by_batch(here))
        _draw_simulated(axes, [(row.batch, row.dp_simulated, row.dp_fits) for row in best], "data parallel", "#111827")
        for name, (label, style) in _BASELINES.items():
            points = _points((row.batch, getattr(row, name)) for row in here)
            if points:
                axes.plot(*zip(*points, strict=True), style, color="#9ca3af", linewidth=0.8, label=label)
        batches = sorted({row.batch for row in here})
        axes.set_xscale("log")
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.minorticks_off()
        axes.set(xlabel="batch", ylabel="speed-up over one device", title=f"{title} on {devices}", ylim=(0, None))
        axes.grid(visible=True, linewidth=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5))
    is_svg = path.suffix != ".png"
    with rc_context({"svg.hashsalt": "detrain"}):  # the same picture each time
        figure.savefig(path, format="svg" if is_svg else None, metadata={"Date": None} if is_svg else None)


def _draw_simulated(
    axes: Axes, figures: Iterable[tuple[int, float | None, bool | None]], label: str, color: str | None
) -> None:
    """A line over the batch. What takes too much memory is hollow."""
    points = sorted((batch, value, fits is not False) for batch, value, fits in figures if value is not None)
    if not points:
        return
    (line,) = axes.plot(
        [batch for batch, _, _ in points],
        [value for _, value, _ in points],
        linewidth=1.4,
        label=f"{label} (simulated)",
        color=color,
    )
    for is_full in (True, False):
        marks = [(batch, value) for batch, value, fits in points if fits == is_full]
        if marks:
            face = line.get_color() if is_full else "white"
            axes.plot(*zip(*marks, strict=True), "o", markersize=4, color=line.get_color(), markerfacecolor=face)


def _by_batch(rows: Iterable[Row]) -> list[list[Row]]:
    grouped: dict[int, list[Row]] = {}
    for row in rows:
        grouped.setdefault(row.batch, []).append(row)
    return list(grouped.values())


def data_parallel_rank(row: Row) -> tuple[bool, float]:
    """Rows of one batch may have micro-batches of several sizes; the best of them that fits is what data parallelism can do."""
    return row.dp_fits is True, row.dp_simulated or 0.0


def _points(pairs: Iterable[tuple[int, float | None]]) -> list[tuple[int, float]]:
    """Those that there are, from the smallest batch on."""
    return sorted({(batch, value) for batch, value in pairs if value is not None})

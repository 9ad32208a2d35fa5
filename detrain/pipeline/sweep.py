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

from detrain.errors import DetrainError, GraphError
from detrain.pipeline.compression import states_of
from detrain.pipeline.judge import SYNCHRONOUS, judge, prepared
from detrain.pipeline.plan import Plan, Workload
from detrain.pipeline.planfile import Planned
from detrain.pipeline.planners import registry
from detrain.pipeline.planners.baselines import baselines
from detrain.pipeline.planners.dapple import numbered
from detrain.pipeline.planners.placement import cluster_of
from detrain.pipeline.profile import Profile
from detrain.pipeline.states import States
from detrain.pipeline.topology import Topology
from detrain.plans import tables
from detrain.plans.errors import NoPlanError

_BASELINES = {
    "dp_no_overlap": ("data parallel, no overlap", ":"), "dp_overlap": ("data parallel, overlap", "--"),
    "dp_p3": ("data parallel, P3", "-."),
}  # fmt: skip


@dataclass(frozen=True)
class Cell:
    """One batch on one topology."""

    devices: str
    topology: Topology
    batch: int


@dataclass(frozen=True)
class Row:
    """Speed-ups over one device; None where there is none, and `why`."""

    devices: str
    batch: int
    planner: str
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
    """They are ended where what is done with them is broken off: each may have long to go."""
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
    """A signal that comes here is heard later; processes that are begun here never hear it, and print nothing about it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def row(request: registry.Request, cell: Cell, planner: str) -> Row:
    """One of them. Plans have one stage a device; where the schedule is interleaved, they are cut smaller afterwards."""
    assert request.workload is not None
    kind = request.schedule
    empty = Row(cell.devices, cell.batch, planner)
    try:
        workload = replace(request.workload, batch=cell.batch)
        empty = _with_baselines(empty, request, workload)
        planned_for = SYNCHRONOUS if kind.name == "interleaved" else kind
        chosen = registry.plan(planner, replace(request, workload=workload, schedule=planned_for))
        planned, _ = prepared(Planned(chosen, request.profile, request.topology), kind)
        judged = judge(planned.plan, request.profile.to_plan(), request.topology, chosen.workload or workload, kind)
    except GraphError as error:
        return replace(empty, why=str(error))
    return replace(
        empty, hybrid=chosen.speedup, simulated=judged.speedup, fits=judged.fits, seconds=round(chosen.seconds, 3), plan=plan_words(chosen)
    )  # fmt: skip


def _with_baselines(empty: Row, request: registry.Request, workload: Workload) -> Row:
    try:
        speedups = baselines(_in_order(request.profile), workload, cluster_of(request.topology))
    except GraphError as error:
        return replace(empty, why=f"no data parallelism: {error}")
    return replace(empty, dp_no_overlap=speedups.no_overlap, dp_p3=speedups.current_p3, dp_overlap=speedups.current_inner)


def _in_order(profile: Profile) -> States:
    """The published baselines take states in their order for layers; where those are too many, others."""
    try:
        return numbered(profile, is_compat=True)
    except NoPlanError:
        return states_of(profile.to_plan())


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
    """A line."""
    what = f"{row.devices:>12} batch {row.batch:>6}  {row.planner:10}"
    if row.simulated is None or row.hybrid is None:
        return f"{what} none: {row.why}"
    parallel = "-" if row.dp_no_overlap is None else f"{row.dp_no_overlap:.3f}"
    memory = "" if row.fits else " too much memory"
    return f"{what} {row.simulated:8.3f} (reckoned {row.hybrid:.3f}; data parallel {parallel}){memory}  {row.plan}"


def draw(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Speed-up over the batch, a picture for each set of devices, as SVG. Raises `OSError`."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(row.devices for row in rows))
    figure = Figure(figsize=(6.5, 3.6 * len(kinds)), layout="constrained")
    for axes, devices in zip(figure.subplots(len(kinds), 1, squeeze=False)[:, 0], kinds, strict=True):
        here = [row for row in rows if row.devices == devices]
        for planner in dict.fromkeys(row.planner for row in here):
            points = _points((row.batch, row.simulated) for row in here if row.planner == planner)
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=4, linewidth=1.4, label=planner)
        for name, (label, style) in _BASELINES.items():
            points = _points((row.batch, getattr(row, name)) for row in here)
            if points:
                axes.plot(*zip(*points, strict=True), style, color="#6b7280", linewidth=1.0, label=label)
        batches = sorted({row.batch for row in here})
        axes.set_xscale("log")
        axes.set_xticks(batches, [str(batch) for batch in batches])
        axes.minorticks_off()
        axes.set(xlabel="batch", ylabel="speed-up over one device", title=f"{title} on {devices}", ylim=(0, None))
        axes.grid(visible=True, linewidth=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=8)
    with rc_context({"svg.hashsalt": "detrain"}):  # the same picture each time
        figure.savefig(path, format="svg", metadata={"Date": None})


def _points(pairs: Iterable[tuple[int, float | None]]) -> list[tuple[int, float]]:
    """Those that there are, from the smallest batch on."""
    return sorted({(batch, value) for batch, value in pairs if value is not None})

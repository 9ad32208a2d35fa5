"""One planner over batches and devices, beside what data parallelism would do: a table as in DAPPLE's reproduction."""

from __future__ import annotations

import csv
import multiprocessing
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from pathlib import Path

from detrain.errors import GraphError
from detrain.pipeline.compression import states_of
from detrain.pipeline.judge import judge
from detrain.pipeline.plan import NoPlanError, Plan, Workload
from detrain.pipeline.planners import registry
from detrain.pipeline.planners.baselines import baselines
from detrain.pipeline.planners.dapple import numbered
from detrain.pipeline.planners.placement import cluster_of
from detrain.pipeline.profile import Profile
from detrain.pipeline.states import States
from detrain.pipeline.topology import Topology


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
    request: registry.Request, cells: Sequence[Cell], planners: Sequence[str], told: Callable[[Row], None] = lambda _: None,
    num_processes: int | None = None,
) -> list[Row]:  # fmt: skip
    """A row for each cell and planner, in processes side by side; `told` hears of each as it comes."""
    if request.workload is None:
        raise GraphError("a sweep needs a micro-batch and the profile's batch")
    asked = [(replace(request, topology=cell.topology), cell, planner) for cell in cells for planner in planners]
    rows: dict[int, Row] = {}
    # Spawned, not forked: a fork of a process with compiled threads may hang.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(num_processes, mp_context=context) as pool:
        waiting = {pool.submit(row, *one): number for number, one in enumerate(asked)}
        for done in as_completed(waiting):
            rows[waiting[done]] = done.result()
            told(done.result())
    return [rows[number] for number in sorted(rows)]


def row(request: registry.Request, cell: Cell, planner: str) -> Row:
    """One of them."""
    assert request.workload is not None
    empty = Row(cell.devices, cell.batch, planner)
    try:
        workload = replace(request.workload, batch=cell.batch)
        empty = _with_baselines(empty, request, workload)
        found = registry.plan(planner, replace(request, workload=workload))
        judged = judge(found, request.profile.to_plan(), request.topology, found.workload or workload, request.schedule)
    except GraphError as error:
        return replace(empty, why=str(error))
    return replace(
        empty, hybrid=found.speedup, simulated=judged.speedup, fits=judged.fits, seconds=round(found.seconds, 3), plan=plan_words(found)
    )  # fmt: skip


def _with_baselines(empty: Row, request: registry.Request, workload: Workload) -> Row:
    try:
        found = baselines(_in_order(request.profile), workload, cluster_of(request.topology))
    except GraphError as error:
        return replace(empty, why=f"no data parallelism: {error}")
    return replace(empty, dp_no_overlap=found.no_overlap, dp_p3=found.current_p3, dp_overlap=found.current_inner)


def _in_order(profile: Profile) -> States:
    """The published baselines take states in their order for layers; where those are too many, others."""
    try:
        return numbered(profile, is_compat=True)
    except NoPlanError:
        return states_of(profile.to_plan())


def plan_words(plan: Plan) -> str:
    """Stages as published: (first state, end, replicas), and the copies."""
    stages = "".join(f"({one.start},{one.end},{one.replicas}{',R' if one.recompute else ''})" for one in plan.stages)
    return f"{stages} x{plan.replication}"


def write_table(path: Path, rows: Iterable[Row]) -> None:
    """Comma-separated values with a header. Raises `OSError`."""
    names = list(Row.__dataclass_fields__)
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(names)
        for one in rows:
            values = [getattr(one, name) for name in names]
            writer.writerow(
                ["" if value is None else int(value) if isinstance(value, bool) else value for value in values]
            )


def row_text(one: Row) -> str:
    """A line."""
    what = f"{one.devices:>12} batch {one.batch:>6}  {one.planner:10}"
    if one.simulated is None or one.hybrid is None:
        return f"{what} none: {one.why}"
    parallel = "-" if one.dp_no_overlap is None else f"{one.dp_no_overlap:.3f}"
    memory = "" if one.fits else " too much memory"
    return f"{what} {one.simulated:8.3f} (reckoned {one.hybrid:.3f}; data parallel {parallel}){memory}  {one.plan}"


def draw(path: Path, title: str, rows: Sequence[Row]) -> None:
    """Speed-up over the batch, a picture for each set of devices, as SVG. Raises `OSError`."""
    from matplotlib.figure import Figure

    kinds = list(dict.fromkeys(one.devices for one in rows))
    figure = Figure(figsize=(6.5, 3.6 * len(kinds)), layout="constrained")
    for axes, devices in zip(figure.subplots(len(kinds), 1, squeeze=False)[:, 0], kinds, strict=True):
        here = [one for one in rows if one.devices == devices]
        for planner in dict.fromkeys(one.planner for one in here):
            points = sorted(
                (one.batch, one.simulated) for one in here if one.planner == planner and one.simulated is not None
            )
            if points:
                axes.plot(*zip(*points, strict=True), marker="o", markersize=4, linewidth=1.4, label=planner)
        for name, style in (("dp_no_overlap", ":"), ("dp_overlap", "--"), ("dp_p3", "-.")):
            points = sorted({(one.batch, getattr(one, name)) for one in here if getattr(one, name) is not None})
            if points:
                label = name.replace("dp_", "data parallel, ").replace("_", " ")
                axes.plot(*zip(*points, strict=True), style, color="#6b7280", linewidth=1.0, label=label)
        axes.set(xlabel="batch", ylabel="speed-up over one device", title=f"{title} on {devices}", ylim=(0, None))
        axes.grid(visible=True, linewidth=0.3)
        if axes.get_legend_handles_labels()[1]:
            axes.legend(fontsize=8)
    figure.savefig(path, format="svg", metadata={"Date": None})

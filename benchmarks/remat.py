"""Every policy and planner over the published logs of DTR, judged by the one simulator, beside the published heuristics."""

from __future__ import annotations

import time

from dtr_logs import logs
from measure import Bench, Report, main

from detrain.plans.errors import NoPlanError
from detrain.remat import dtrlog
from detrain.remat.graph import Graph
from detrain.remat.online.policy import Runner, parse
from detrain.remat.planners.registry import plan
from detrain.remat.simulator import floor_bytes, peak_bytes, simulate

RATIOS = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
#: What was published, as it was published: with its order and its limit of twice the time.
PUBLISHED = (
    "dtr:eager",
    "dtr-eq:eager",
    "dtr-local:eager",
    "msps:eager",
    "lru:eager",
    "size:eager",
    "dtr:banish",
    "dtr:ignore",
)
#: The same, going on where the published simulator gives up.
OURS = ("dtr:eager", "msps:eager")
PLANNERS = ("chen-sqrt", "chen-greedy", "griewank", "rotor", "rockmate", "hiremate", "dtr")
TIME_LIMIT_S = 20.0
_LIMIT = 10.0


class Table:
    """One log's: a row for each way, a column for each ratio."""

    def __init__(self, graph: Graph, ratios: tuple[float, ...]) -> None:
        self.graph, self.ratios, self.peak = graph, ratios, peak_bytes(graph)
        self.runner = Runner(graph)
        self.cells: dict[str, list[float | None]] = {}
        self.seconds: dict[str, float] = {}

    def add_policy(self, row: str, name: str, *, is_compat: bool) -> None:
        """A policy as it runs."""
        began_s = time.perf_counter()
        cells: list[float | None] = []
        for ratio in self.ratios:
            budget_bytes = int(self.peak * ratio)
            limit = 2.0 if is_compat else _LIMIT
            result = self.runner.run(parse(name), budget_bytes, limit=limit, is_compat=is_compat, has_schedule=True)
            outcome = simulate(self.graph, result.schedule, budget_bytes)
            assert result.status != "ok" or not outcome.failure, (row, ratio, outcome.failure)
            cells.append(outcome.overhead if result.status == "ok" else None)
        self.cells[row], self.seconds[row] = cells, time.perf_counter() - began_s

    def add_planner(self, name: str) -> None:
        """A planner."""
        began_s = time.perf_counter()
        cells: list[float | None] = []
        for ratio in self.ratios:
            try:
                cells.append(plan(self.graph, int(self.peak * ratio), name, TIME_LIMIT_S).outcome.overhead)
            except NoPlanError:
                cells.append(None)
        self.cells[name], self.seconds[name] = cells, time.perf_counter() - began_s

    def best(self, rows: list[str], column: int) -> float | None:
        """Of these rows."""
        return min((cell for row in rows if (cell := self.cells[row][column]) is not None), default=None)


def _text(cell: float | None) -> str:
    return "–" if cell is None else f"{cell:.4f}"


def measure_logs(_: Bench, report: Report, is_quick: bool) -> None:
    """A table for each log."""
    behind, gone = [], []
    for model, path in logs().items():
        table = Table(dtrlog.read(path), (0.9, 0.5, 0.2) if is_quick else RATIOS)
        published = [f"published {name}" for name in PUBLISHED]
        for row, name in zip(published, PUBLISHED, strict=True):
            table.add_policy(row, name, is_compat=True)
        ours = [f"on and on {name}" for name in OURS]
        for row, name in zip(ours, OURS, strict=True):
            table.add_policy(row, name, is_compat=False)
        for name in PLANNERS:
            table.add_planner(name)
        mine = [*ours, *PLANNERS]
        floor = floor_bytes(table.graph) / table.peak
        report.say(f"## {model}: {len(table.graph.operators):,} operators; the floor is {floor:.3f} of the peak")
        best = {"best published": published, "best": mine}
        rows = [[name, *map(_text, cells), f"{table.seconds[name]:.1f}"] for name, cells in table.cells.items()]
        rows += [
            [f"**{name}**", *(_text(table.best(of, column)) for column in range(len(table.ratios))), ""]
            for name, of in best.items()
        ]
        report.table(["", *(str(ratio) for ratio in table.ratios), "seconds"], rows)
        for column, ratio in enumerate(table.ratios):
            theirs, found = table.best(published, column), table.best(mine, column)
            if theirs is not None and (found is None or found > theirs):
                behind.append(f"{model} at {ratio}")
            if ratio >= floor and found is None:
                gone.append(f"{model} at {ratio}")
    report.say(
        "Overhead: time over that of each operator once, by detrain's simulator; – where there is no schedule within the budget. Seconds: "
        f"over the row, with a limit of {TIME_LIMIT_S:.0f} s for each plan. Published: order, limit and faults of the published simulator. "
        "On and on: where that gives up, operators that wait give up their inputs, and ten times the time is allowed."
    )
    report.say(f"Cells where the best published is better: {', '.join(behind) or 'none'}.")
    report.say(f"At or above the floor without a schedule: {', '.join(gone) or 'none'}.")
    report.say("The floor is a bound: whether there is a schedule at it is not known.")


if __name__ == "__main__":
    main("Rematerialization: policies and planners on the published logs", __doc__ or "", {"logs": measure_logs})

"""Runs the cells of experiments, one after another in this process, so that what numba compiles is compiled once."""

from __future__ import annotations

import signal
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from detrain.errors import GraphError, MissingExtra, UsageError
from detrain.plans.documents import errors_naming
from detrain.remat import builders, reading
from detrain.remat.experiments import bounds
from detrain.remat.experiments.cells import Cell, one_line
from detrain.remat.experiments.config import ModelChoice
from detrain.remat.experiments.measuring import Measure
from detrain.remat.experiments.results import Row, Store
from detrain.remat.experiments.scripts import ScriptBench
from detrain.remat.graph import Graph
from detrain.remat.planners import registry
from detrain.remat.simulator import floor_bytes, parse_budget, peak_bytes, simulate

if TYPE_CHECKING:
    from detrain.remat.online.policy import Runner  # needs numba


def rows_there(store: Store, cells: Sequence[Cell]) -> list[Row]:
    """The rows that an earlier start has left for these cells; those that ended with an error nobody expects are to be done again.

    Raises `UsageError` if there are rows of other cells, `GraphError` for what is no document of results, or `OSError`.
    """
    keys = {cell.key for cell in cells}
    rows = store.read()
    other = [row for row in rows if row.key not in keys]
    if other:
        raise UsageError(
            f"the folder has {len(other)} results that this file does not ask for (the first: {other[0].experiment}, {other[0].model}, "
            f"{other[0].budget}, {other[0].planner}); take another folder (-o), or begin anew with --fresh"
        )
    return [row for row in rows if row.status != "error"]


@dataclass(frozen=True)
class Ending:
    """How a run of experiments has ended."""

    rows: list[Row]
    is_interrupted: bool
    #: Name of an experiment whose time was over to the number of its cells that are left.
    num_left: Counter[str]


def run(
    cells: Sequence[Cell], rows: Sequence[Row], store: Store, on_row: Callable[[Row], None] = lambda _: None,
    on_compile: Callable[[], None] = lambda: None, measure: Measure | None = None,
) -> Ending:  # fmt: skip
    """Runs the cells of which there is no row among `rows`, which are those that there are.

    `on_row` is called with each new row, and `on_compile` once before anything that numba compiles runs; `measure` runs the scripts of
    measured experiments. Ctrl-C ends it; the cell in which
    it comes has no row. Raises `MissingExtra`, `GraphError` for a file that is no model, or `OSError`.
    """
    done = {row.key for row in rows}
    missing = [cell for cell in cells if cell.key not in done]
    new: list[Row] = []
    num_left: Counter[str] = Counter()
    began_s: dict[str, float] = {}
    is_ended = False
    with _noticing_interrupts() as has_come:
        try:
            bench = Bench(_read_files(missing))
            scripts = ScriptBench(measure) if measure is not None else None
            store.begin(rows)
            if any(registry.is_compiled(cell.planner) and not cell.model.words for cell in missing):
                on_compile()
                _compile()
            for cell in missing:
                experiment = cell.experiment
                passed_s = time.monotonic() - began_s.setdefault(experiment.name, time.monotonic())
                if experiment.timeout_s is not None and passed_s > experiment.timeout_s:
                    num_left[experiment.name] += 1
                    continue
                row = scripts.row(cell) if scripts is not None and cell.model.words else bench.row(cell)
                if has_come():  # a planner ends with its best so far at Ctrl-C: that is no result
                    is_ended = True
                    break
                store.add(row)
                new.append(row)
                on_row(row)
        except KeyboardInterrupt:
            is_ended = True
        order = {cell.key: place for place, cell in enumerate(cells)}
        ended = Ending(sorted([*rows, *new], key=lambda row: order[row.key]), is_ended, num_left)
        if ended.is_interrupted:
            store.begin(ended.rows)  # Ctrl-C may have come while a row was being written
        return ended


def _read_files(cells: Sequence[Cell]) -> dict[Path, Graph]:
    """The models that are files, all before the first cell: what is wrong with one should not be found after an hour."""
    graphs = {}
    for path in dict.fromkeys(cell.model.path for cell in cells):
        if path is not None:
            with errors_naming(path):
                graphs[path] = reading.read(path)
    return graphs


@contextmanager
def _noticing_interrupts() -> Iterator[Callable[[], bool]]:
    """Gives a function that says whether Ctrl-C has come, also where somebody has caught it."""
    seen = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield seen.is_set  # Python's signals are the main thread's
        return

    def interrupt(signum: int, frame: FrameType | None) -> None:
        seen.set()
        signal.default_int_handler(signum, frame)

    before = signal.signal(signal.SIGINT, interrupt)
    try:
        yield seen.is_set
    finally:
        signal.signal(signal.SIGINT, before)


def _compile() -> None:
    """Have numba compile the simulator before the time of the first cell counts."""
    from detrain.remat.online.policy import Runner, parse

    Runner(builders.linear(4)).run(parse("dtr:eager"), 3, has_schedule=True)


class Bench:
    """Knows the model that is being planned: its graph, and what is the same for all its cells."""

    def __init__(self, files: Mapping[Path, Graph]) -> None:
        """`files`: the graphs of the models that are files."""
        self._files = files
        self._model: ModelChoice | None = None
        self._graph = Graph((), (), ())
        self._runner: Runner | None = None
        self._keep_all_bytes = self._floor_bytes = 0

    def row(self, cell: Cell) -> Row:
        """The row of a cell, tried again as often as it may be where it has failed for want of time, or unexpectedly."""
        self._take(cell)
        row = self._once(cell)
        for _ in range(cell.experiment.retries):
            is_late = row.status == "none" and (row.seconds or 0.0) >= cell.experiment.time_limit_s
            if row.status != "error" and not is_late:
                break
            row = self._once(cell)
        return row

    def _take(self, cell: Cell) -> None:
        """Have what all cells of a model share; the time that it takes is no cell's."""
        model = cell.model
        if model != self._model:
            if model.path is not None:
                graph = self._files[model.path]
            else:
                graph = builders.MODELS[model.builder].build(**dict(model.parameters))
            self._graph, self._runner, self._model = graph, None, model
            self._keep_all_bytes, self._floor_bytes = peak_bytes(graph), floor_bytes(graph)
        if ":" in cell.planner and self._runner is None:
            from detrain.remat.online.policy import Runner

            self._runner = Runner(self._graph)

    def _once(self, cell: Cell) -> Row:
        experiment = cell.experiment
        blank = row = self._blank(cell)
        times_s: list[float] = []
        for number in range(experiment.warm_up + experiment.repetitions):
            began_s = time.monotonic()
            row = self._tried(cell, blank)
            if number >= experiment.warm_up:
                times_s.append(time.monotonic() - began_s)
            if row.status == "error":
                times_s = times_s or [time.monotonic() - began_s]
                break
        return replace(
            row, seconds=round(statistics.median(times_s), 6), seconds_least=round(min(times_s), 6), seconds_most=round(max(times_s), 6)
        )  # fmt: skip

    def _blank(self, cell: Cell) -> Row:
        graph, experiment = self._graph, cell.experiment
        if experiment.kind == "linear":
            budget_bytes = bounds.budget_within(cell.budget, dict(cell.model.parameters)["length"])
        else:
            amount, is_share = parse_budget(cell.budget)
            budget_bytes = int(self._keep_all_bytes * amount) if is_share else int(amount)
        return Row(
            cell.key, experiment.name, experiment.kind, cell.model.label, cell.budget, cell.planner, status="none",
            num_operators=len(graph.operators), baseline_ns=graph.cost_ns, keep_all_bytes=self._keep_all_bytes,
            constant_bytes=graph.constant_bytes, floor_bytes=self._floor_bytes, budget_bytes=budget_bytes,
        )  # fmt: skip

    def _tried(self, cell: Cell, blank: Row) -> Row:
        """Once, whatever happens: what cannot be planned is a result, too."""
        try:
            if self._runner is not None and ":" in cell.planner:
                return self._of_policy(cell, blank, self._runner)
            return self._of_planner(cell, blank)
        except GraphError as error:  # no plan, or a budget of no bytes
            return replace(blank, why=one_line(error))
        except MissingExtra:
            raise
        except Exception as error:  # noqa: BLE001 - a cell must not end the others; it is named, and done again at the next start
            return replace(blank, status="error", why=f"{type(error).__name__}: {one_line(error)}")

    def _of_planner(self, cell: Cell, blank: Row) -> Row:
        plan = registry.plan(self._graph, blank.budget_bytes, cell.planner, cell.experiment.time_limit_s)
        outcome = plan.outcome
        return replace(
            blank, status="ok", overhead=outcome.overhead, clock_ns=outcome.clock_ns, peak_bytes=outcome.peak_bytes,
            num_rematerialized=outcome.num_again, is_optimal=plan.is_optimal,
        )  # fmt: skip

    def _of_policy(self, cell: Cell, blank: Row, runner: Runner) -> Row:
        """Also where it fails, what a policy has done until then is known."""
        from detrain.remat.online.policy import parse

        experiment = cell.experiment
        result = runner.run(
            parse(cell.planner),
            blank.budget_bytes,
            limit=experiment.limit,
            is_compat=experiment.is_compat,
            has_schedule=True,
        )
        row = replace(blank, status=result.status, num_evictions=result.num_evictions, num_accesses=result.num_looks)
        if result.status != "ok":
            ways = {
                "oom": "it runs out of memory",
                "thrash": f"it turns in circles, or takes more than {experiment.limit:g} times the time",
            }
            return replace(row, why=ways[result.status])
        if experiment.is_compat:  # by the published simulator's own account, whose clock begins at 1
            return replace(
                row, overhead=result.overhead, clock_ns=result.clock - 1, peak_bytes=result.peak_bytes,
                num_rematerialized=result.num_again,
            )  # fmt: skip
        outcome = simulate(self._graph, result.schedule, blank.budget_bytes)
        if outcome.failure:
            return replace(row, status="none", why=outcome.failure)
        return replace(
            row, overhead=outcome.overhead, clock_ns=outcome.clock_ns, peak_bytes=outcome.peak_bytes,
            num_rematerialized=outcome.num_again,
        )  # fmt: skip

"""The cells of measured experiments: a script that trains within a budget, beside the same script without one."""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace

from detrain.errors import DetrainError, MissingExtra
from detrain.plans.errors import NoPlanError
from detrain.remat.amounts import ONLINE, amount_of
from detrain.remat.experiments.cells import Cell, one_line
from detrain.remat.experiments.config import Experiment, ModelChoice
from detrain.remat.experiments.measuring import Measure, Timing, TimingOrder
from detrain.remat.experiments.results import Row

#: Under which every operator is seen and nothing is evicted.
_ALL = str(1 << 60)


@dataclass(frozen=True)
class Baseline:
    """The script without a budget."""

    batch_ns: int
    #: As the runtime counts, of a run in which nothing was evicted.
    peak_bytes: int


class ScriptBench:
    """Measures one script after the other."""

    def __init__(self, measure: Measure) -> None:
        self._measure = measure
        #: Of what the baseline is.
        self._measured: tuple[object, ...] = ()
        self._baseline = Baseline(0, 0)

    def row(self, cell: Cell) -> Row:
        """The row of a cell, tried again as often as it may be where it has failed."""
        row = self._once(cell)
        for _ in range(cell.experiment.retries):
            if row.status != "error":
                break
            row = self._once(cell)
        return row

    def _once(self, cell: Cell) -> Row:
        began_s, times_s = time.monotonic(), []
        row = blank = _blank(cell, self._baseline if _baseline_key(cell) == self._measured else Baseline(0, 0))
        try:
            self._take(cell)
            blank = _blank(cell, self._baseline)
            for _ in range(cell.experiment.repetitions):
                began_s = time.monotonic()
                timing = self._measure(_order(cell.experiment, cell.model, cell.budget, cell.planner))
                times_s.append(time.monotonic() - began_s)
                one = _measured(blank, timing, self._baseline)
                # The quickest counts: what is slower has been disturbed.
                if row.clock_ns is None or (one.clock_ns or 0) < row.clock_ns:
                    row = one
        except NoPlanError as error:
            row = replace(blank, status="oom", why=one_line(error))
        except MissingExtra:
            raise
        except DetrainError as error:
            row = replace(blank, status="error", why=one_line(error))
        times_s = times_s or [time.monotonic() - began_s]
        return replace(
            row, seconds=round(statistics.median(times_s), 3), seconds_least=round(min(times_s), 3), seconds_most=round(max(times_s), 3)
        )  # fmt: skip

    def _take(self, cell: Cell) -> None:
        """Have the script measured without a budget; the time that it takes is no cell's."""
        if _baseline_key(cell) == self._measured:
            return
        experiment, self._measured = cell.experiment, ()
        plain = [
            self._measure(_order(experiment, cell.model, "", ONLINE)).batches_s for _ in range(experiment.repetitions)
        ]
        seen = self._measure(_order(experiment, cell.model, _ALL, ONLINE))
        batch_s = min(statistics.median(batches_s) for batches_s in plain)
        self._measured, self._baseline = _baseline_key(cell), Baseline(int(batch_s * 1e9), seen.peak_bytes)


def _baseline_key(cell: Cell) -> tuple[object, ...]:
    experiment = cell.experiment
    return cell.model, experiment.num_batches, experiment.warm_up, experiment.repetitions


def _order(experiment: Experiment, model: ModelChoice, budget: str, planner: str) -> TimingOrder:
    assert model.folder is not None, "a script has one"
    return TimingOrder(
        model.words, model.folder, experiment.num_batches, experiment.warm_up, budget, planner,
        0.0 if planner == ONLINE else experiment.time_limit_s,
    )  # fmt: skip


def _blank(cell: Cell, baseline: Baseline) -> Row:
    return Row(
        cell.key, cell.experiment.name, cell.experiment.kind, cell.model.label, cell.budget, cell.planner, status="none",
        num_operators=0, baseline_ns=baseline.batch_ns, keep_all_bytes=baseline.peak_bytes, constant_bytes=0, floor_bytes=0,
        budget_bytes=_budget_bytes(cell.budget, baseline),
    )  # fmt: skip


def _budget_bytes(text: str, baseline: Baseline) -> int:
    num_bytes, share = amount_of(text, "budgets")
    return num_bytes or int(baseline.peak_bytes * share)


def _measured(blank: Row, timing: Timing, baseline: Baseline) -> Row:
    batch_ns = int(statistics.median(timing.batches_s) * 1e9)
    return replace(
        blank, status="ok", overhead=batch_ns / max(baseline.batch_ns, 1), clock_ns=batch_ns, peak_bytes=timing.peak_bytes,
        budget_bytes=timing.budget_bytes or blank.budget_bytes, num_rematerialized=timing.num_again,
        num_evictions=timing.num_evictions, why=timing.why,
    )  # fmt: skip

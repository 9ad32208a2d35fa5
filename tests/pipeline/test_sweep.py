"""Sweeps: the rows in their order whoever is ready first, what is said of plans that there are not, the end of a broken-off one."""

import csv
import multiprocessing
import os
import signal
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

pytest.importorskip("numba", reason='planners are compiled by numba: pip install "detrain-run[plan]"')

from detrain.errors import DetrainError, GraphError, UsageError
from detrain.pipeline import sweep as sweeping
from detrain.pipeline.judge import judge, kind_of, prepared
from detrain.pipeline.plan import Plan, Stage, Workload
from detrain.pipeline.planfile import Planned
from detrain.pipeline.planners import registry
from detrain.pipeline.planners.registry import Request
from detrain.pipeline.sweep import Cell, Row
from detrain.pipeline.topology import machines, nested

from .graphs import chain, layer

PROFILE = chain(*(layer(f"n{number}", 2, 4, 1e6, 1e6) for number in range(6)))
PAIRS, FOUR = machines([2, 4], 25e9, 1e9, 16e9), nested((4,), (1e10,), 16e9)
#: Of four samples; a step of one takes 9 ms on one device.
REQUEST = Request(PROFILE, PAIRS, Workload(4, 4, 4))
CELLS = [Cell("2,4", PAIRS, 64), Cell("2,4", PAIRS, 4), Cell("4", FOUR, 64)]


def without_seconds(rows):
    return [replace(one, seconds=None) for one in rows]


def test_two_processes_give_what_one_gives_in_the_order_of_what_was_asked():
    heard = []
    found = sweeping.sweep(REQUEST, CELLS, ["dapple", "pipedream"], heard.append, 2)
    asked = [(cell, planner) for cell in CELLS for planner in ("dapple", "pipedream")]
    assert [(one.devices, one.batch, one.planner) for one in found] == [
        (cell.devices, cell.batch, planner) for cell, planner in asked
    ]
    assert sorted(heard, key=str) == sorted(found, key=str)
    here = [sweeping.row(replace(REQUEST, topology=cell.topology), cell, planner) for cell, planner in asked]
    assert without_seconds(found) == without_seconds(here)
    assert all(one.simulated > 1 for one in found)


def test_a_row_has_what_the_planner_reckons_and_what_the_simulator_says():
    found = sweeping.row(REQUEST, CELLS[0], "dapple")
    workload = Workload(4, 64, 4)
    plan = registry.plan("dapple", replace(REQUEST, workload=workload))
    judged = judge(plan, PROFILE, PAIRS, workload)
    assert (found.hybrid, found.simulated, found.fits) == (plan.speedup, judged.speedup, True)
    assert found.plan == sweeping.plan_words(plan)
    assert found.why == ""


def test_data_parallelism_without_overlap_is_its_compute_and_its_all_reduce():
    """64 samples take 576 ms on one device; four devices take 144 ms, and 3/4 of 2 times 6 MB at 1 GB/s."""
    assert sweeping.row(REQUEST, CELLS[0], "dapple").dp_no_overlap == pytest.approx(576 / (144 + 9), rel=1e-9)


def test_data_parallelism_is_simulated_as_the_plans_are():
    """It is a plan of one stage: with its copies' all-reduce behind the last backward pass, no simulated plan is hidden below it."""
    found = sweeping.row(REQUEST, CELLS[0], "dapple")
    one_stage = Plan(
        "drawn", (Stage(0, 6, tuple(one.name for one in PROFILE.layers), 1, (0, 1, 2, 3)),), 4, 0.0, 0.0, 0.0
    )
    assert found.dp_simulated == judge(one_stage, PROFILE, PAIRS, Workload(4, 64, 4)).speedup
    assert (found.dp_fits, found.micro_batch) == (True, 4)


def test_of_several_micro_batches_the_best_data_parallelism_that_fits_is_drawn():
    def row(planner, dp_simulated, dp_fits):
        return Row("4", 32, planner, simulated=1.0, dp_simulated=dp_simulated, dp_fits=dp_fits)

    rows = [row("a", 3.0, False), row("b", 2.0, True), row("c", 1.0, True), row("d", None, None)]
    assert max(rows, key=sweeping.data_parallel_rank).planner == "b"


def test_our_planner_is_never_below_the_others_and_data_parallelism():
    """So it is the default of `detrain pipeline sweep`."""
    for cell in CELLS:
        request = replace(REQUEST, topology=cell.topology, time_limit_s=60.0)
        ours, *others = (sweeping.row(request, cell, planner) for planner in ("detrain", "dapple", "pipedream"))
        assert ours.simulated >= max(ours.dp_simulated, *(one.simulated for one in others)) * (1 - 1e-12)
        assert ours.simulated == pytest.approx(ours.hybrid)


def test_plans_are_judged_interleaved_as_they_are_simulated():
    kind = kind_of("interleaved", chunks=2)
    request = replace(REQUEST, schedule=kind, topology=nested((2,), (1e8,), 16e9))
    for planner in ("pipedream", "detrain"):
        found = sweeping.row(request, Cell("2", request.topology, 64), planner)
        workload = Workload(4, 64, 4)
        plan = registry.plan(planner, replace(request, workload=workload, schedule=kind_of("1f1b")))
        planned, _ = prepared(Planned(plan, PROFILE, request.topology), kind)
        assert found.simulated == judge(planned.plan, PROFILE, request.topology, workload, kind).speedup
        assert found.plan == sweeping.plan_words(plan)


def test_where_there_is_no_plan_the_row_says_why():
    none = sweeping.row(replace(REQUEST, topology=FOUR.with_memory(1e6)), Cell("4", FOUR, 64), "detrain")
    assert (none.simulated, none.hybrid, none.fits, none.plan) == (None, None, None, "")
    assert none.why == (
        "layer n0 (f) takes 4,000,000 bytes with gradients and optimizer state, and the largest device has 1,000,000"
    )
    few = sweeping.row(REQUEST, Cell("2,4", PAIRS, 2), "dapple")
    assert few.why == "a micro-batch of 4 is more than the batch of 2"


def test_a_plan_that_needs_too_much_memory_says_so():
    """DAPPLE's planner does not look: 24 MB of parameters and what belongs to them, and the activations, over four devices of 4 MB."""
    small = FOUR.with_memory(4e6)
    found = sweeping.row(replace(REQUEST, topology=small), Cell("4", small, 64), "dapple")
    assert (found.fits, found.simulated > 1) == (False, True)
    assert "too much memory" in sweeping.row_text(found)


@pytest.mark.parametrize(("name", "error"), [("best", UsageError), ("", UsageError)])
def test_a_planner_that_there_is_not_ends_the_sweep(name, error):
    with pytest.raises(error, match=f"there is no planner {name}: it is one of pipedream, dapple, detrain"):
        sweeping.sweep(REQUEST, CELLS, [name], num_processes=1)
    assert multiprocessing.active_children() == []


def test_a_sweep_without_samples_is_refused():
    with pytest.raises(GraphError, match="a sweep needs a micro-batch"):
        sweeping.sweep(replace(REQUEST, workload=None), CELLS, ["dapple"])


def test_a_sweep_that_is_broken_off_ends_its_processes():
    def interrupted(_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sweeping.sweep(REQUEST, CELLS * 20, ["detrain"], interrupted, 2)
    assert multiprocessing.active_children() == []
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())


def test_a_process_that_somebody_ends_is_named_as_the_cause():
    def murder(_):
        for process in multiprocessing.active_children():
            os.kill(process.pid, signal.SIGKILL)

    with pytest.raises(DetrainError, match=r"a process of the sweep was ended.* of 60 plans still to compute"):
        sweeping.sweep(REQUEST, CELLS * 20, ["detrain"], murder, 1)
    assert multiprocessing.active_children() == []


ROWS = [
    Row("2,4", 32, "dapple", 2.0, 3.0, 2.5, 3.5, 3.25, False, 0.125, "(0,3,2)(3,6,2) x1", "", 2.25, False, 4, "as is"),
    Row("2,4", 128, "dapple", 2.0, 3.0, 2.5, 3.5, 3.75, True, 0.0, "(0,6,1) x4"),
    Row("4", 32, "detrain", why="none, for want of memory"),
]


def test_a_table_has_a_header_and_nothing_where_there_is_nothing(tmp_path):
    sweeping.write_table(tmp_path / "sweep.csv", ROWS)
    found = list(csv.reader((tmp_path / "sweep.csv").read_text().splitlines()))
    assert found == [
        [
            "devices", "batch", "planner", "dp_no_overlap", "dp_p3", "dp_overlap", "hybrid", "simulated", "fits", "seconds", "plan", "why",
            "dp_simulated", "dp_fits", "micro_batch", "note",
        ],
        ["2,4", "32", "dapple", "2.0", "3.0", "2.5", "3.5", "3.25", "0", "0.125", "(0,3,2)(3,6,2) x1", "", "2.25", "0", "4", "as is"],
        ["2,4", "128", "dapple", "2.0", "3.0", "2.5", "3.5", "3.75", "1", "0.0", "(0,6,1) x4", *[""] * 5],
        ["4", "32", "detrain", *[""] * 8, "none, for want of memory", *[""] * 4],
    ]  # fmt: skip


def test_a_line_is_said_of_each_row():
    assert [" ".join(sweeping.row_text(one).split()) for one in ROWS] == [
        "2,4 batch 32 dapple 3.250 too much memory, data parallel 2.250 too much memory "
        "(planner reckons 3.500, data parallel without overlap 2.000) (0,3,2)(3,6,2) x1; as is",
        "2,4 batch 128 dapple 3.750, data parallel - (planner reckons 3.500, data parallel without overlap 2.000) (0,6,1) x4",
        "4 batch 32 detrain none: none, for want of memory",
    ]


def test_the_picture_has_what_the_table_has_and_is_the_same_each_time(tmp_path):
    pytest.importorskip("matplotlib", reason='pictures are drawn by matplotlib: pip install "detrain-run[plan]"')
    for name in ("one.svg", "other.svg"):
        sweeping.draw(tmp_path / name, "chain", ROWS)
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()
    text = (tmp_path / "one.svg").read_text()
    ElementTree.fromstring(text)
    drawn = [
        "chain on 2,4", "chain on 4", "dapple (simulated)", "data parallel (simulated)", "data parallel, P3 (closed form)", "32", "128",
        "batch",
    ]  # fmt: skip
    assert [one for one in drawn if f"<!-- {one} -->" not in text] == []
    assert "<!-- detrain -->" not in text

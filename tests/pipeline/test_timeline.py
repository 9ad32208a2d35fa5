"""Timelines: as rows, as a trace, as a picture."""

import json
import math
import re
from collections import defaultdict
from itertools import pairwise
from xml.etree import ElementTree

import pytest

pytest.importorskip("numba", reason='planners are compiled by numba: pip install "detrain-run[plan]"')

from detrain.pipeline import picture
from detrain.pipeline.picture import StageDevices
from detrain.pipeline.schedules import Kind, Schedule
from detrain.pipeline.simulator import StageLoad, simulate
from detrain.pipeline.timeline import Task, chrome_trace

LOAD = StageLoad(
    0.25, 0.5, 0.25, 0.125, 0.125, all_reduce_s=1, all_reduce_lead_s=0.25, weight_bytes=10, state_bytes=100, activation_bytes=7,
)  # fmt: skip
ALONE = StageLoad(0.25, 0.5, 0.25, 0.125, 0.125, weight_bytes=10, state_bytes=100, activation_bytes=7)
DEALT = StageLoad(
    0.75, 1.5, 0.25, 0.5, 0.5, all_reduce_s=1, weight_bytes=10, state_bytes=100, activation_bytes=7, replicas=3
)
CASES = [
    (Schedule("gpipe", 8), [LOAD] * 4),
    (Schedule("1f1b", 8), [LOAD] * 4),
    (Schedule("1f1b", 8, warmup="pb"), [LOAD] * 4),
    (Schedule("zb-h1", 8), [LOAD] * 4),
    (Schedule("interleaved", 8, chunks=2), [LOAD] * 8),
    (Schedule("1f1b-async", num_mini_batches=12), [ALONE] * 4),
    (Schedule("1f1b-async", num_mini_batches=24), [DEALT, ALONE]),
    (Schedule("2bw", 8, num_mini_batches=3), [ALONE] * 4),
]
ids = [f"{schedule.name}-{number}" for number, (schedule, _) in enumerate(CASES)]
timelines = pytest.mark.parametrize("timeline", [simulate(*case) for case in CASES], ids=ids)


def test_rows_come_by_when_they_begin():
    # Forwards of 1, backwards of 2, half a second on the link each way.
    timeline = simulate(
        Schedule("1f1b", 1), [StageLoad(1, 2, send_s=0.5), StageLoad(1, 2, send_back_s=0.5, all_reduce_s=4)]
    )
    rows = [task for task in timeline.tasks() if task.end_s > task.start_s]
    assert rows == [
        Task(Kind.FORWARD, 0, 0, 0, 0, 0, 1), Task(Kind.SEND, 0, 0, 0, 0, 1, 1.5), Task(Kind.FORWARD, 1, 0, 0, 1, 1.5, 2.5),
        Task(Kind.BACKWARD, 1, 0, 0, 1, 2.5, 4.5), Task(Kind.SEND_BACK, 1, 0, 0, 1, 4.5, 5), Task(Kind.ALL_REDUCE, 1, 0, 0, 1, 4.5, 8.5),
        Task(Kind.BACKWARD, 0, 0, 0, 0, 5, 7),
    ]  # fmt: skip
    assert [task.name for task in rows] == ["F 0", "→ 0", "F 0", "B 0", "← 0", "AR 0", "B 0"]


def test_workers_have_names():
    def names(timeline):
        return [timeline.worker_name(worker) for worker in range(timeline.num_workers)]

    assert names(simulate(*CASES[0])) == ["stage 0", "stage 1", "stage 2", "stage 3"]
    assert names(simulate(Schedule("interleaved", 2, chunks=2), [LOAD] * 4)) == [
        "device 0: stages 0, 2",
        "device 1: stages 1, 3",
    ]
    assert names(simulate(*CASES[6])) == ["stage 0, replica 0", "stage 0, replica 1", "stage 0, replica 2", "stage 1"]


def test_chunks_are_the_turns_of_a_device():
    timeline = simulate(Schedule("interleaved", 2, chunks=3), [LOAD] * 6)
    assert {(task.stage, task.chunk) for task in timeline.tasks()} == {(0, 0), (1, 0), (2, 1), (3, 1), (4, 2), (5, 2)}


@timelines
def test_a_trace_has_each_task_where_and_when_it_is_done(timeline):
    trace = json.loads(json.dumps(chrome_trace(timeline)))
    processes = {
        event["pid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "process_name"
    }
    threads = {
        (event["pid"], event["tid"]): event["args"]["name"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name"
    }
    assert list(processes.values()) == [timeline.worker_name(worker) for worker in processes]
    kinds = {"all_reduce": "all-reduce", "send": "send", "send_back": "send back"}
    found = defaultdict(list)
    for event in trace["traceEvents"]:
        if event["ph"] == "X":
            assert threads[event["pid"], event["tid"]] == kinds.get(event["cat"], "compute")
            found[event["cat"], event["args"]["stage"], event["args"]["micro_batch"]].append(event)
    lasting = [task for task in timeline.tasks() if task.end_s > task.start_s]
    assert len(lasting) == len(found)
    for task in lasting:
        events = found[task.kind.name.lower(), task.stage, task.micro_batch]
        doing = [worker for worker, stages in enumerate(timeline.worker_stages) if task.stage in stages]
        assert [event["pid"] for event in events] == (doing if task.kind == Kind.ALL_REDUCE else [task.worker])
        for event in events:
            assert event["name"] == task.name
            assert (event["ts"], event["ts"] + event["dur"]) == pytest.approx((task.start_s * 1e6, task.end_s * 1e6))


@timelines
def test_nothing_overlaps_on_a_thread_of_a_trace(timeline):
    found = defaultdict(list)
    for event in chrome_trace(timeline)["traceEvents"]:
        if event["ph"] == "X":
            found[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"]))
    for spans in found.values():
        assert all(earlier[1] <= later[0] + 1e-3 for earlier, later in pairwise(sorted(spans)))


@timelines
def test_a_trace_counts_what_workers_hold(timeline):
    most = defaultdict(float)
    for event in chrome_trace(timeline)["traceEvents"]:
        if event["ph"] == "C":
            most[event["pid"]] = max(most[event["pid"]], event["args"]["held"])
    for worker, stages in enumerate(timeline.worker_stages):
        assert most[worker] <= max(timeline.peak_bytes[stage] for stage in stages)
    assert max(most.values()) == max(timeline.peak_bytes)


@timelines
def test_a_picture_has_a_row_for_each_worker(timeline, tmp_path):
    pytest.importorskip("matplotlib", reason='pictures are drawn by matplotlib: pip install "detrain-run[plan]"')
    picture.draw(tmp_path / "timeline.svg", timeline)
    text = (tmp_path / "timeline.svg").read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for worker in range(timeline.num_workers):
        assert f"<!-- {timeline.worker_name(worker)} -->" in text
    what = "a mini-batch every" if timeline.schedule.is_asynchronous else "a step of"
    assert (
        f"<!-- {timeline.schedule.name}: {what} {timeline.step_s:.4g} s, bubble {timeline.bubble_share:.1%} -->" in text
    )


def test_a_picture_of_no_sizes_and_no_time_is_one(tmp_path):
    pytest.importorskip("matplotlib", reason='pictures are drawn by matplotlib: pip install "detrain-run[plan]"')
    picture.draw(tmp_path / "empty.svg", simulate(Schedule("1f1b", 2), [StageLoad(0, 0)] * 2))
    assert "memory held" not in (tmp_path / "empty.svg").read_text(encoding="utf-8")


def labels_of(tmp_path, timeline, stage_devices=()):
    pytest.importorskip("matplotlib", reason='pictures are drawn by matplotlib: pip install "detrain-run[plan]"')
    picture.draw(tmp_path / "labels.svg", timeline, stage_devices)
    return re.findall(r"<!-- (.*) -->", (tmp_path / "labels.svg").read_text(encoding="utf-8"))


def test_lines_of_memory_are_labelled_with_device_unit_and_peak(tmp_path):
    gib = 2.0**30
    loads = [StageLoad(1, 2, state_bytes=3 * gib, activation_bytes=gib), StageLoad(1, 2, state_bytes=2 * gib)]
    timeline = simulate(Schedule("1f1b", 4), loads)
    bare = labels_of(tmp_path, timeline)
    assert {"memory held (GiB)", "stage 0: peak 5 GiB", "stage 1: peak 2 GiB"} <= set(bare)
    found = labels_of(tmp_path, timeline, [StageDevices((0, 1, 2), 4 * gib), StageDevices((5,), 4 * gib)])
    assert {
        "stage 0 (devices 0-2, each): peak 5 of 4 GiB — too much", "stage 1 (device 5): peak 2 of 4 GiB", "memory of a device",
    } <= set(found)  # fmt: skip


def test_data_parallelism_is_one_row_and_one_line(tmp_path):
    loads = [StageLoad(1, 2, state_bytes=2.0**30, all_reduce_s=0.5, replicas=3)]
    found = labels_of(tmp_path, simulate(Schedule("gpipe", 4), loads), [StageDevices((0, 1, 2), 1e9)])
    assert "stage 0 (devices 0-2, each): peak 1 of 0.931 GiB — too much" in found


def test_replicas_that_have_rows_of_their_own_are_single_devices(tmp_path):
    found = labels_of(tmp_path, simulate(*CASES[6]), [StageDevices((4, 5, 6), 1e9), StageDevices((7,), 1e9)])
    assert [label.partition(":")[0] for label in found if "peak" in label] == [
        "stage 0, replica 0 (device 4)", "stage 0, replica 1 (device 5)", "stage 0, replica 2 (device 6)", "stage 1 (device 7)",
    ]  # fmt: skip


def test_of_many_lines_of_memory_the_legend_names_the_highest(tmp_path):
    loads = [StageLoad(1, 2, state_bytes=number * 2.0**30) for number in range(1, 21)]
    found = labels_of(tmp_path, simulate(Schedule("1f1b", 2), loads))
    assert "16 highest of 20" in found
    assert [label for label in found if "peak" in label] == [
        f"stage {number}: peak {number + 1} GiB" for number in range(4, 20)
    ]


def test_the_same_timeline_is_the_same_picture(tmp_path):
    pytest.importorskip("matplotlib", reason='pictures are drawn by matplotlib: pip install "detrain-run[plan]"')
    for name in ("one.svg", "other.svg"):
        picture.draw(tmp_path / name, simulate(*CASES[1]))
    assert (tmp_path / "one.svg").read_bytes() == (tmp_path / "other.svg").read_bytes()


def test_no_figure_is_less_than_nothing():
    for case in CASES:
        timeline = simulate(*case)
        assert 0 <= timeline.bubble_share < 1
        assert 0 <= timeline.all_reduce_overlap <= 1
        assert math.isfinite(timeline.step_s)

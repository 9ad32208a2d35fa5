"""Timelines of what workers have measured: the simulator's tasks, in the place of measured ones, give back its timeline."""

import dataclasses

import numpy as np
import pytest

from detrain.errors import GraphError
from detrain.pipeline import measured, measured_timeline, simulator
from detrain.pipeline.measured import Done, WorkerSteps
from detrain.pipeline.schedules import Kind, Schedule
from detrain.pipeline.simulator import StageLoad

CLOCK_S = 1234.5


def simulated(schedule: Schedule, loads: list[StageLoad]):
    return simulator.simulate(schedule, loads)


def steps_of(timeline, workers):
    """As each worker would have measured it."""
    tasks: dict[int, list[Done]] = {number: [] for own in workers for number in own}
    for task in timeline.tasks():
        if task.kind in (Kind.FORWARD, Kind.BACKWARD, Kind.WEIGHT, Kind.ALL_REDUCE) and task.end_s > task.start_s:
            done = Done(task.kind, task.stage, task.micro_batch, CLOCK_S + task.start_s, CLOCK_S + task.end_s)
            tasks[task.worker].append(done)
            if task.kind != Kind.ALL_REDUCE and not timeline.schedule.is_asynchronous:
                for other in timeline.doers(task)[1:]:
                    tasks[other].append(done)
    return [WorkerSteps(timeline.schedule, workers, number, 7, tuple(done)) for number, done in tasks.items()]


UNEVEN = [StageLoad(0.5, 1.0), StageLoad(1.0, 1.5), StageLoad(0.25, 1.0)]
CASES = {
    "gpipe": (Schedule("gpipe", 4), UNEVEN, ((0,), (1,), (2,))),
    "1f1b": (Schedule("1f1b", 6), UNEVEN, ((0,), (1,), (2,))),
    "interleaved": (Schedule("interleaved", 4, 2), [*UNEVEN, UNEVEN[0]], ((0,), (1,), (0,), (1,))),
    "zb-h1": (Schedule("zb-h1", 4), [StageLoad(0.5, 1.0, 0.5), StageLoad(1.0, 1.5, 0.5)], ((0,), (1,))),
    "1f1b-async": (Schedule("1f1b-async"), [StageLoad(0.5, 1.0), StageLoad(0.5, 1.0)], ((0,), (1,))),
}


@pytest.mark.parametrize("name", CASES)
def test_what_was_measured_as_simulated_is_as_long_as_simulated(name):
    schedule, loads, workers = CASES[name]
    expected = simulated(schedule, loads)
    steps = steps_of(expected, workers)
    found = measured_timeline.together(steps)
    assert found.step_s == pytest.approx(expected.step_s)
    assert found.worker_stages == expected.worker_stages
    assert measured_timeline.simulated(steps).step_s == pytest.approx(expected.step_s)
    if not schedule.is_asynchronous:
        assert found.makespan_s == pytest.approx(expected.makespan_s)
        assert found.bubble_share == pytest.approx(expected.bubble_share)


def test_asynchronous_timeline_begins_where_all_workers_remember_and_a_pause_is_no_step():
    schedule, loads, workers = CASES["1f1b-async"]
    steps = steps_of(simulated(schedule, loads), workers)
    # A cut of ten seconds in the middle, and the second worker has forgotten the first half.
    middle = CLOCK_S + simulated(schedule, loads).makespan_s / 2
    paused = [
        dataclasses.replace(
            one,
            tasks=tuple(
                task if task.start_s < middle else task._replace(start_s=task.start_s + 10, end_s=task.end_s + 10)
                for task in one.tasks
            ),
        )
        for one in steps
    ]
    paused[1] = dataclasses.replace(paused[1], tasks=paused[1].tasks[len(paused[1].tasks) // 3 :])
    found = measured_timeline.together(paused)
    assert found.step_s == pytest.approx(1.5)
    assert set(found.workers.tolist()) == {0, 1}
    first = paused[1].tasks[0].start_s
    assert np.all(found.starts_s >= 0)
    assert len(found.kinds) == sum(task.start_s >= first for one in paused for task in one.tasks)


@pytest.mark.parametrize("name", CASES)
def test_what_is_read_is_what_was_written(name, tmp_path):
    schedule, loads, workers = CASES[name]
    for steps in steps_of(simulated(schedule, loads), workers):
        path = tmp_path / "pipeline.json"
        path.write_text(steps.encode())
        assert measured.read(path) == steps


def test_what_is_missing_is_named(tmp_path):
    schedule, loads, workers = CASES["gpipe"]
    steps = steps_of(simulated(schedule, loads), workers)
    with pytest.raises(GraphError, match="of workers 1 nothing is known here"):
        measured_timeline.together([steps[0], steps[2]])
    with pytest.raises(GraphError, match="workers have measured other steps: 7, 7, 8"):
        measured_timeline.together([*steps[:2], dataclasses.replace(steps[2], step=8)])
    with pytest.raises(GraphError, match="a worker has measured no task"):
        measured_timeline.together([*steps[:2], dataclasses.replace(steps[2], tasks=())])
    only = [dataclasses.replace(one, tasks=tuple(task for task in one.tasks if task.stage != 1)) for one in steps]
    with pytest.raises(GraphError, match="stage 1 has not gone forward and back"):
        measured_timeline.simulated(only)
    path = tmp_path / "pipeline.json"
    path.write_text(steps[0].encode().replace("1234.5", '"x"', 1))
    with pytest.raises(GraphError, match="starts_s is 'x', which is no time"):
        measured.read(path)

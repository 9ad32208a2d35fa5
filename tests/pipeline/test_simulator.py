"""Times and memory of simulated steps: closed forms where they are exact, invariants, and the same done by events."""

import math
import random
import re
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise, product

import pytest

from tests.tiers import full_but

pytest.importorskip("numba", reason='planners are compiled by numba: pip install "detrain-run[plan]"')

from detrain.errors import GraphError
from detrain.pipeline.schedules import Kind, Schedule, in_flight, num_mini_batches
from detrain.pipeline.simulator import StageLoad, peak_bytes, simulate, sizes, step_s, structure_of, table
from tests.pipeline.dynamic import Pipeline

SHAPES = [(1, 1), (1, 7), (2, 1), (2, 2), (3, 2), (3, 10), (4, 8), (5, 3), (8, 32), (16, 5), (32, 64)]
NAMES = ("gpipe", "1f1b", "1f1b-async", "2bw", "interleaved", "zb-h1")


def any_load(rng, *, replicas=1, num_fabrics=0):
    backward_s = rng.uniform(0.1, 3.0)
    all_reduce_s = rng.choice((0.0, rng.uniform(0.0, 6.0)))
    return StageLoad(
        rng.uniform(0.1, 2.0), backward_s, rng.uniform(0.0, backward_s), rng.choice((0.0, rng.uniform(0.0, 1.5))),
        rng.choice((0.0, rng.uniform(0.0, 1.5))), all_reduce_s, rng.uniform(0.0, min(all_reduce_s, backward_s)),
        weight_bytes=rng.randrange(9), state_bytes=rng.randrange(30), activation_bytes=rng.randrange(9), working_bytes=rng.randrange(5),
        replicas=replicas, fabrics=tuple(rng.sample(range(num_fabrics), rng.randrange(num_fabrics + 1))),
    )  # fmt: skip


def any_case(name, seed, *, num_fabrics=2):
    """A schedule and its loads. All-reduces of asynchronous stages of one replica take no time."""
    rng = random.Random(f"{name} {seed}")
    if name == "interleaved":
        devices, chunks = rng.randrange(1, 5), rng.randrange(2, 4)
        schedule = Schedule(name, devices * rng.randrange(1, 5), chunks=chunks)
        return schedule, [any_load(rng, num_fabrics=num_fabrics) for _ in range(devices * chunks)]
    num_stages = rng.randrange(1, 7)
    if name not in ("1f1b-async", "2bw"):
        warmup = rng.choice(("pa", "pb")) if name == "1f1b" else "pa"
        schedule = Schedule(name, rng.randrange(1, 15), warmup=warmup)
        return schedule, [any_load(rng, num_fabrics=num_fabrics) for _ in range(num_stages)]
    replicas = [rng.choice((1, 1, 2, 3)) for _ in range(num_stages)]
    loads = [any_load(rng, replicas=count, num_fabrics=num_fabrics) for count in replicas]
    loads = [load if load.replicas > 1 else replace(load, all_reduce_s=0.0, all_reduce_lead_s=0.0) for load in loads]
    options = {"vertical_sync": rng.random() < 0.5, "update_delay": rng.randrange(2)} if name == "1f1b-async" else {}
    size, steps = (1, sum(replicas) + 8) if name == "1f1b-async" else (sum(replicas) + rng.randrange(4), 3)
    return Schedule(name, size, num_mini_batches=steps + rng.randrange(3), **options), loads


def spans(timeline):
    return {(task.kind, task.stage, task.micro_batch): (task.start_s, task.end_s) for task in timeline.tasks()}


# --- closed forms --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), SHAPES)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b pa", "1f1b pb"])
def test_equal_stages_take_a_ramp_of_one_micro_batch_each(schedule, num_stages, num_micro_batches):
    name, _, warmup = schedule.partition(" ")
    for forward_s, backward_s in ((1, 2), (3, 1), (2, 2)):
        timeline = simulate(
            Schedule(name, num_micro_batches, warmup=warmup or "pa"), [StageLoad(forward_s, backward_s)] * num_stages
        )
        ramp = num_micro_batches + num_stages - 1
        assert timeline.step_s == ramp * (forward_s + backward_s)
        assert timeline.bubble_share == pytest.approx((num_stages - 1) / ramp)


@pytest.mark.parametrize(("num_stages", "num_micro_batches"), [shape for shape in SHAPES if shape[1] >= shape[0]])
def test_the_bubble_of_zb_h1_is_that_of_the_paper(num_stages, num_micro_batches):
    # The gradients of the weights fill what the others leave if they fit beside a forward and beside a backward.
    for forward_s, backward_s, weight_s in product((1, 2, 3), repeat=3):
        if weight_s <= min(forward_s, backward_s):
            load = StageLoad(forward_s, backward_s + weight_s, weight_s)
            work_s = num_micro_batches * (forward_s + backward_s + weight_s)
            found_s = simulate(Schedule("zb-h1", num_micro_batches), [load] * num_stages).step_s
            assert found_s - work_s == (num_stages - 1) * (forward_s + backward_s - weight_s)


@pytest.mark.parametrize(
    ("devices", "chunks", "rounds"), [(1, 2, 3), (2, 2, 1), (2, 3, 4), (4, 2, 2), (4, 4, 1), (8, 2, 4), (8, 4, 8)]
)
def test_chunks_divide_the_bubble(devices, chunks, rounds):
    num_micro_batches = rounds * devices
    for forward_s, backward_s in ((1, 2), (1, 1)):
        loads = [StageLoad(forward_s, backward_s)] * (devices * chunks)
        timeline = simulate(Schedule("interleaved", num_micro_batches, chunks=chunks), loads)
        device_s = chunks * (forward_s + backward_s)
        assert timeline.step_s == num_micro_batches * device_s + (devices - 1) * device_s / chunks


@pytest.mark.parametrize("seed", range(60))
def test_an_asynchronous_straight_pipeline_keeps_the_pace_of_its_slowest_stage(seed):
    rng = random.Random(seed)
    loads = [StageLoad(rng.randrange(1, 9), rng.randrange(1, 9)) for _ in range(rng.randrange(1, 9))]
    slowest_s = max(load.forward_s + load.backward_s for load in loads)
    assert simulate(Schedule("1f1b-async"), loads).step_s == pytest.approx(slowest_s)
    assert simulate(Schedule("2bw", 10), loads).step_s == pytest.approx(10 * slowest_s)


@pytest.mark.parametrize("replicas", [(1,), (4,), (3, 1), (15, 1), (13, 2, 1), (2, 3), (2, 2, 2), (1, 1, 2)])
def test_replicas_divide_the_pace_of_a_stage(replicas):
    for slow in range(len(replicas)):
        # The slow stage takes 6 for each of its replicas, the others 3: what PipeDream's planner aims at, and worse.
        loads = [
            StageLoad(count, (5 if stage == slow else 2) * count, replicas=count)
            for stage, count in enumerate(replicas)
        ]
        assert simulate(Schedule("1f1b-async"), loads).step_s == pytest.approx(6)
        size = 3 * math.lcm(*replicas)
        assert simulate(Schedule("2bw", size), loads).step_s == pytest.approx(size * 6)


def test_what_is_sent_slows_an_asynchronous_pipeline_by_what_is_in_flight():
    # Four mini-batches go round through four stages and six links while the first stage holds no more of them.
    load = StageLoad(10, 20, send_s=1, send_back_s=1)
    assert simulate(Schedule("1f1b-async"), [load] * 4).step_s == pytest.approx((4 * 30 + 6) / 4)


@pytest.mark.parametrize(
    ("delay", "all_reduce_s", "lead_s", "round_s"),
    [
        (0, 4.0, 0.0, 13.0),  # the next forward waits for all of it
        (0, 4.0, 3.0, 10.0),  # it begins beside the backward
        (1, 4.0, 0.0, 9.0),  # it goes on beside a round
        (1, 12.0, 0.0, 12.0),  # and decides if it takes longer
    ],
)
def test_updates_of_replicas_wait_for_their_all_reduce(delay, all_reduce_s, lead_s, round_s):
    load = StageLoad(3, 6, all_reduce_s=all_reduce_s, all_reduce_lead_s=lead_s, replicas=2)
    timeline = simulate(Schedule("1f1b-async", update_delay=delay), [load])
    assert timeline.step_s == pytest.approx(round_s / 2)
    assert timeline.all_reduce_exposed_s == pytest.approx((round_s - 9) / 2)
    assert timeline.all_reduce_overlap == pytest.approx(1 - (round_s - 9) / all_reduce_s)


# --- all-reduces at the end of a step ------------------------------------------------------------------------------------------


def test_an_all_reduce_is_hidden_behind_the_earlier_stages():
    # The last stage has its gradients at 2 (1 + 2) + 1 = 7, the first at 9.
    last = StageLoad(1, 2, all_reduce_s=5, all_reduce_lead_s=1)
    timeline = simulate(Schedule("1f1b", 2), [StageLoad(1, 2), last])
    assert spans(timeline)[Kind.ALL_REDUCE, 1, 0] == (6, 11)
    assert (timeline.step_s, timeline.all_reduce_exposed_s) == (11, 2)
    assert timeline.all_reduce_overlap == pytest.approx(3 / 5)


def test_all_reduces_over_one_uplink_follow_each_other_from_the_last_stage():
    def starts(fabrics):
        loads = [StageLoad(1, 2, all_reduce_s=10, fabrics=one) for one in fabrics]
        found = spans(simulate(Schedule("gpipe", 1), loads))
        return [found[Kind.ALL_REDUCE, stage, 0][0] for stage in range(3)]

    assert starts([(), (), ()]) == [9, 7, 5]
    assert starts([(0,), (1,), (2,)]) == [9, 7, 5]
    assert starts([(0,), (0,), (0,)]) == [25, 15, 5]
    assert starts([(7,), (), (7,)]) == [15, 7, 5]
    assert starts([(0,), (0, 1), (1,)]) == [25, 15, 5]


def test_the_chunks_of_a_device_are_reduced_one_after_the_other():
    loads = [StageLoad(1, 1, all_reduce_s=9)] * 4
    found = spans(simulate(Schedule("interleaved", 2, chunks=2), loads))
    for stage in (0, 1):
        assert found[Kind.ALL_REDUCE, stage, 0][0] == found[Kind.ALL_REDUCE, stage + 2, 0][1]


@pytest.mark.parametrize("name", ["1f1b-async", "2bw"])
@pytest.mark.parametrize("seed", range(20))
def test_asynchronous_all_reduces_over_one_uplink_never_overlap(name, seed):
    schedule, loads = any_case(name, seed)
    timeline = simulate(schedule, loads)
    for fabric in range(2):
        over = sorted(
            (task.start_s, task.end_s)
            for task in timeline.tasks()
            if task.kind == Kind.ALL_REDUCE and fabric in loads[task.stage].fabrics
        )
        assert all(later[0] >= earlier[1] for earlier, later in pairwise(over))


# --- any plan ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", full_but(range(20), range(60)))
def test_the_same_comes_of_events(name, seed):
    schedule, loads = any_case(name, seed, num_fabrics=0 if name in ("1f1b-async", "2bw") else 2)
    timeline = simulate(schedule, loads)
    expected = Pipeline(schedule, loads, schedule.num_mini_batches or 1).run()
    found = spans(timeline)
    assert found.keys() == expected.keys()
    for key, span in expected.items():
        assert found[key] == pytest.approx(span, abs=1e-9), key
    assert timeline.makespan_s == pytest.approx(max(end for _, end in expected.values()))
    assert len(timeline.kinds) == len(expected)
    if not schedule.is_asynchronous:
        assert timeline.step_s == timeline.makespan_s


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", full_but(range(20), range(60)))
def test_nothing_does_two_things_at_once_or_begins_before_it_can(name, seed):
    schedule, loads = any_case(name, seed)
    timeline, last = simulate(schedule, loads), len(loads) - 1
    found = spans(timeline)
    one_at_a_time = defaultdict(list)
    for task, resource in zip(timeline.tasks(), timeline.resources.tolist(), strict=True):
        one_at_a_time[resource].append(task)
        if task.kind <= Kind.WEIGHT:
            assert resource == task.worker
            assert task.stage in timeline.worker_stages[task.worker]
        elif task.kind != Kind.ALL_REDUCE and all(load.replicas == 1 for load in loads):
            one_at_a_time[task.kind, task.stage].append(task)
    for tasks in one_at_a_time.values():
        assert all(earlier.end_s <= later.start_s for earlier, later in pairwise(tasks))
    for (kind, stage, micro_batch), (start_s, _) in found.items():
        before = {
            Kind.FORWARD: [(Kind.SEND, stage - 1)] if stage else [],
            Kind.BACKWARD: [(Kind.FORWARD, stage), *([(Kind.SEND_BACK, stage + 1)] if stage < last else [])],
            Kind.WEIGHT: [(Kind.BACKWARD, stage)],
            Kind.SEND: [(Kind.FORWARD, stage)],
            Kind.SEND_BACK: [(Kind.BACKWARD, stage)],
            Kind.ALL_REDUCE: [],
        }[kind]
        assert all(found[*one, micro_batch][1] <= start_s for one in before)
    total = num_mini_batches(schedule, [load.replicas for load in loads]) * schedule.num_micro_batches
    counts = Counter((task.kind, task.stage) for task in timeline.tasks() if task.kind <= Kind.WEIGHT)
    kinds = {Kind.FORWARD, Kind.BACKWARD} | ({Kind.WEIGHT} if name == "zb-h1" else set())
    assert counts == dict.fromkeys(product(kinds, range(len(loads))), total)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", full_but(range(10), range(30)))
def test_the_short_cuts_say_what_the_timeline_says(name, seed):
    schedule, loads = any_case(name, seed)
    timeline, structure = simulate(schedule, loads), structure_of(schedule, loads)
    assert step_s(structure, table(schedule, loads)) == pytest.approx(timeline.step_s, rel=1e-12)
    assert tuple(peak_bytes(structure, sizes(loads))) == timeline.peak_bytes
    assert structure_of(schedule, [replace(load, forward_s=load.forward_s + 1) for load in loads]) is structure


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", full_but(range(10), range(30)))
def test_busy_time_and_bubble_add_up(name, seed):
    schedule, loads = any_case(name, seed)
    timeline = simulate(schedule, loads)
    share = schedule.num_micro_batches
    for load, busy_s in zip(loads, timeline.busy_s, strict=True):
        replicas = load.replicas if schedule.is_asynchronous else 1
        assert busy_s == pytest.approx((load.forward_s + load.backward_s) * share / replicas)
    if not schedule.is_asynchronous:
        work_s = sum(task.end_s - task.start_s for task in timeline.tasks() if task.kind <= Kind.WEIGHT)
        assert timeline.bubble_share == pytest.approx(1 - work_s / timeline.num_workers / timeline.step_s)


# --- memory --------------------------------------------------------------------------------------------------------------------

HEAVY = StageLoad(1, 2, 1, weight_bytes=10, state_bytes=100, activation_bytes=7, working_bytes=3)


@pytest.mark.parametrize(
    ("schedule", "replicas", "kept", "versions"),
    [
        (Schedule("gpipe", 8), (1,) * 4, (8, 8, 8, 8), (1, 1, 1, 1)),
        (Schedule("1f1b", 8), (1,) * 4, (4, 3, 2, 1), (1, 1, 1, 1)),
        (Schedule("1f1b", 2), (1,) * 4, (2, 2, 2, 1), (1, 1, 1, 1)),
        (Schedule("1f1b", 8, warmup="pb"), (1,) * 4, (7, 5, 3, 1), (1, 1, 1, 1)),
        (Schedule("zb-h1", 8), (1,) * 4, (4, 4, 4, 4), (1, 1, 1, 1)),
        (Schedule("zb-h1", 2), (1,) * 4, (2, 2, 2, 2), (1, 1, 1, 1)),
        (Schedule("1f1b-async"), (1,) * 4, (4, 3, 2, 1), (4, 3, 2, 1)),
        (Schedule("1f1b-async", vertical_sync=True), (1,) * 4, (4, 3, 2, 1), (4, 4, 4, 4)),
        (Schedule("1f1b-async", update_delay=0), (3, 1), (2, 1), (2, 1)),
        (Schedule("1f1b-async", update_delay=1), (3, 1), (2, 1), (3, 1)),
        (Schedule("1f1b-async", depths=(5, 2)), (1, 1), (6, 3), (6, 3)),
        (Schedule("2bw", 8), (1,) * 4, (4, 3, 2, 1), (2, 2, 2, 2)),
        (Schedule("2bw", 8), (3, 1), (2, 1), (2, 2)),
    ],
)
def test_a_stage_holds_what_is_in_flight_and_what_is_stashed(schedule, replicas, kept, versions):
    timeline = simulate(schedule, [replace(HEAVY, replicas=count) for count in replicas])
    assert timeline.in_flight == kept
    assert timeline.versions == versions
    assert timeline.peak_bytes == tuple(
        100 + 3 + 7 * held + 10 * (stashed - 1) for held, stashed in zip(kept, versions, strict=True)
    )


def test_a_device_holds_all_its_chunks():
    # F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 …: device 0 has up to five in flight, first three of stage 0 and two of
    # stage 2, then, when the second of stage 2 has come back, four of stage 0 and one of stage 2.
    loads = [replace(HEAVY, activation_bytes=size) for size in (1, 1000, 10, 10000)]
    timeline = simulate(Schedule("interleaved", 4, chunks=2), loads)
    assert timeline.peak_bytes[0] == timeline.peak_bytes[2] == 2 * 100 + 3 + 3 * 1 + 2 * 10
    assert (timeline.in_flight[0], timeline.in_flight[2]) == (4, 2)


def test_stages_without_the_memory_are_named():
    loads = [replace(HEAVY, memory_bytes=room) for room in (131, 130, 116, 110)]  # 131, 124, 117, 110 are needed
    assert simulate(Schedule("1f1b", 8), loads).over_memory == (2,)


def kept_at(found, releasing, stage, batches, time_s):
    return sum(found[Kind.FORWARD, stage, one][0] <= time_s < found[releasing, stage, one][1] for one in batches)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", full_but(range(10), range(30)))
def test_memory_is_what_the_events_say(name, seed):
    schedule, loads = any_case(name, seed)
    timeline = simulate(schedule, loads)
    found, most, peaks = spans(timeline), Counter(), Counter()
    releasing = Kind.WEIGHT if name == "zb-h1" else Kind.BACKWARD
    batches = range(1 + max(task.micro_batch for task in timeline.tasks() if task.kind == Kind.FORWARD))
    for task, used_bytes in zip(timeline.tasks(), timeline.used_bytes.tolist(), strict=True):
        if task.kind > Kind.WEIGHT:
            assert math.isnan(used_bytes)
            continue
        replicas = loads[task.stage].replicas if schedule.is_asynchronous else 1
        own = batches[task.micro_batch % replicas :: replicas]
        stages = timeline.worker_stages[task.worker]
        kept = {stage: kept_at(found, releasing, stage, own, task.start_s) for stage in stages}
        expected = loads[task.stage].working_bytes + sum(
            loads[stage].state_bytes + kept[stage] * loads[stage].activation_bytes for stage in stages
        )
        if schedule.is_asynchronous:
            expected += (versions_at(schedule, loads, found, task, own) - 1) * loads[task.stage].weight_bytes
        assert used_bytes == pytest.approx(expected)
        most[task.stage] = max(most[task.stage], kept[task.stage])
        for stage in stages:
            peaks[stage] = max(peaks[stage], expected)
    assert timeline.in_flight == tuple(most[stage] for stage in range(len(loads)))
    assert timeline.peak_bytes == pytest.approx([peaks[stage] for stage in range(len(loads))])
    bounds = in_flight(schedule, [load.replicas for load in loads])
    for worker, stages in enumerate(timeline.worker_stages):
        bound = min(len(loads), schedule.num_micro_batches) if name == "zb-h1" else bounds[stages[0]]
        assert sum(most[stage] for stage in stages if len(stages) == 1) <= bound, worker


def version_of(schedule, loads, found, stage, batch):
    """The version that a mini-batch uses: what had come back when it began; one round fewer if updates may come late."""

    def updated(at, one):
        count = loads[at].replicas
        start_s = found[Kind.FORWARD, at, one][0]
        own = range(one % count, one, count)
        done = sum(found[Kind.BACKWARD, at, earlier][1] <= start_s for earlier in own)
        return max(0, done - (schedule.update_delay if count > 1 else 0))

    if schedule.name == "2bw":
        return max(0, batch // schedule.num_micro_batches - 1)
    if schedule.vertical_sync:
        return updated(0, batch) * loads[0].replicas // loads[stage].replicas
    return updated(stage, batch)


def versions_at(schedule, loads, found, task, own):
    """From the version of the oldest that is not done to the newest that the worker has done its part for."""
    done = [one for one in own if found[Kind.BACKWARD, task.stage, one][1] <= task.start_s]
    size = loads[task.stage].replicas if schedule.name == "1f1b-async" else schedule.num_micro_batches
    rounds = {one // size for one in own} - {one // size for one in own if one not in done}
    newest = 1 + max(rounds) if rounds else 0
    return newest - version_of(schedule, loads, found, task.stage, own[len(done)]) + 1


@pytest.mark.parametrize("name", ["1f1b-async", "2bw"])
@pytest.mark.parametrize("seed", range(60))
def test_a_version_is_there_when_a_forward_uses_it(name, seed):
    schedule, loads = any_case(name, seed)
    found = spans(simulate(schedule, loads))
    size = schedule.num_micro_batches
    for kind, stage, batch in found:
        used = version_of(schedule, loads, found, stage, batch) if kind == Kind.FORWARD else 0
        if used and loads[stage].replicas > 1:
            assert found[Kind.ALL_REDUCE, stage, used - 1][1] <= found[kind, stage, batch][0]
        elif used:
            last = used * size - 1
            assert found[Kind.BACKWARD, stage, last][1] <= found[kind, stage, batch][0]


# --- what cannot be ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schedule", "loads", "message"),
    [
        (Schedule("1f1b", 4), [StageLoad(1, 2), StageLoad(-1, 2)], "stage 1 has forward_s = -1, no number of zero or more"),
        (Schedule("1f1b", 4), [StageLoad(1, math.nan)], "stage 0 has backward_s = nan"),
        (Schedule("1f1b", 4), [StageLoad(1, 2, send_s=math.inf)], "stage 0 has send_s = inf"),
        (Schedule("1f1b", 4), [StageLoad(1, 2, state_bytes=-8)], "stage 0 has state_bytes = -8"),
        (Schedule("zb-h1", 4), [StageLoad(1, 2, 3)], "stage 0 has weight_s = 3, more than its backward_s of 2"),
        (
            Schedule("1f1b", 4), [StageLoad(1, 2, all_reduce_s=1, all_reduce_lead_s=2)],
            "stage 0 has all_reduce_lead_s = 2, more than its all_reduce_s of 1",
        ),
        (Schedule("1f1b-async"), [StageLoad(1, 2, all_reduce_s=1)], "stage 0 has one replica, and all_reduce_s = 1"),
        (Schedule("interleaved", 5, chunks=2), [StageLoad(1, 2)] * 4, "5 micro-batches are not divisible by 2 devices"),
        (Schedule("1f1b", 4), [], "a pipeline has at least one stage"),
        # The first stage goes back before the second one, with three forwards to do first, has seen its third.
        (Schedule("1f1b-async", depths=(0, 2)), [StageLoad(1, 2)] * 2, "1f1b-async would wait for itself (deadlock): the "),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(schedule, loads, message):
    with pytest.raises(GraphError, match=re.escape(message)):
        simulate(schedule, loads)


def test_steps_of_no_time_have_no_bubble():
    timeline = simulate(Schedule("1f1b", 4), [StageLoad(0, 0)] * 3)
    assert (timeline.step_s, timeline.bubble_share) == (0, 0)

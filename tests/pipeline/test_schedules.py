"""The static order of work of each schedule."""

import random
import re
from collections import Counter

import pytest

from detrain.errors import GraphError
from detrain.pipeline.schedules import (
    Kind,
    Schedule,
    check_goes_on,
    drain,
    in_flight,
    num_mini_batches,
    orders,
    period,
    window,
)


def spelled(order, num_devices=None):
    """`F0 B0`; with chunks `F0.1` is micro-batch 0 of the second chunk."""
    return " ".join(
        f"{'FBW'[kind]}{micro_batch}" + ("" if num_devices is None else f".{stage // num_devices}")
        for kind, micro_batch, stage in order
    )


@pytest.mark.parametrize(
    ("schedule", "num_stages", "stage", "expected"),
    [
        (Schedule("gpipe", 3), 2, 0, "F0 F1 F2 B2 B1 B0"),
        (Schedule("1f1b", 4), 3, 0, "F0 F1 F2 B0 F3 B1 B2 B3"),
        (Schedule("1f1b", 4), 3, 1, "F0 F1 B0 F2 B1 F3 B2 B3"),
        (Schedule("1f1b", 4), 3, 2, "F0 B0 F1 B1 F2 B2 F3 B3"),
        (Schedule("1f1b", 1), 3, 0, "F0 B0"),
        (Schedule("1f1b", 6, warmup="pb"), 3, 0, "F0 F1 F2 F3 F4 B0 F5 B1 B2 B3 B4 B5"),
        (Schedule("1f1b", 6, warmup="pb"), 3, 2, "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5"),
        # The first and the last device of the figure of ZB-H1 in the paper, with four micro-batches.
        (Schedule("zb-h1", 4), 4, 0, "F0 F1 F2 F3 B0 W0 B1 W1 B2 W2 B3 W3"),
        (Schedule("zb-h1", 4), 4, 3, "F0 B0 F1 B1 F2 B2 F3 B3 W0 W1 W2 W3"),
        (Schedule("zb-h1", 5), 3, 1, "F0 F1 B0 F2 B1 W0 F3 B2 W1 F4 B3 W2 B4 W3 W4"),
    ],
)
def test_a_stage_works_in_the_order_of_the_paper(schedule, num_stages, stage, expected):
    assert spelled(orders(schedule, (1,) * num_stages)[stage]) == expected


@pytest.mark.parametrize(
    ("device", "expected"),
    [
        # Warm-up: 2 (devices - device - 1) + (chunks - 1) devices, that is 4 and 2.
        (0, "F0.0 F1.0 F0.1 F1.1 F2.0 B0.1 F3.0 B1.1 F2.1 B0.0 F3.1 B1.0 B2.1 B3.1 B2.0 B3.0"),
        (1, "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 F2.0 B0.0 F3.0 B1.0 F2.1 B2.1 F3.1 B3.1 B2.0 B3.0"),
    ],
)
def test_an_interleaved_device_works_by_megatrons_rule(device, expected):
    assert spelled(orders(Schedule("interleaved", 4, chunks=2), (1,) * 4)[device], 2) == expected


@pytest.mark.parametrize(
    ("replicas", "warmup"),
    [
        ((1, 1, 1, 1), (3, 2, 1, 0)),
        ((3, 1), (1, 0)),
        ((15, 1), (1, 0)),
        ((13, 2, 1), (1, 1, 0)),
        ((2, 3), (2, 0)),
        ((4,), (0,)),
    ],
)
def test_asynchronous_workers_warm_up_by_the_rule_of_pipedreams_runtime(replicas, warmup):
    schedule = Schedule("1f1b-async")
    assert in_flight(schedule, replicas) == tuple(one + 1 for one in warmup)
    for order in orders(schedule, replicas):
        stage = order[0][2]
        first_backward = next(place for place, work in enumerate(order) if work[0] == Kind.BACKWARD)
        assert first_backward == warmup[stage] + 1


def test_depths_stand_in_the_place_of_the_rule():
    assert in_flight(Schedule("1f1b-async", depths=(4, 0)), (1, 1)) == (5, 1)


def test_mini_batches_are_dealt_to_replicas_in_turn():
    found = orders(Schedule("1f1b-async", num_mini_batches=7), (3, 1))
    assert [spelled(order) for order in found] == [
        "F0 F3 B0 F6 B3 B6", "F1 F4 B1 B4", "F2 F5 B2 B5", "F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6",
    ]  # fmt: skip


def any_case(rng):
    name = rng.choice(("gpipe", "1f1b", "1f1b-async", "2bw", "interleaved", "zb-h1"))
    if name == "interleaved":
        devices, chunks = rng.randrange(1, 6), rng.randrange(2, 5)
        return Schedule(name, devices * rng.randrange(1, 5), chunks=chunks), (1,) * (devices * chunks)
    replicas = tuple(rng.choice((1, 1, 2, 3, 5)) for _ in range(rng.randrange(1, 9)))
    micro_batches = {"1f1b-async": 1, "2bw": sum(replicas) + 5}.get(name, rng.randrange(1, 20))
    return Schedule(name, micro_batches, warmup=rng.choice(("pa", "pb")) if name == "1f1b" else "pa"), replicas


@pytest.mark.parametrize("seed", range(200))
def test_each_stage_does_each_micro_batch_once_and_within_its_bound(seed):
    schedule, replicas = any_case(random.Random(seed))
    kinds = (Kind.FORWARD, Kind.BACKWARD) + ((Kind.WEIGHT,) if schedule.name == "zb-h1" else ())
    total = num_mini_batches(schedule, replicas) * schedule.num_micro_batches
    found, bounds = orders(schedule, replicas), in_flight(schedule, replicas)
    assert Counter(work for order in found for work in order) == Counter(
        (kind, micro_batch, stage) for kind in kinds for micro_batch in range(total) for stage in range(len(replicas))
    )
    for order in found:
        counts, most, most_kept = Counter(), 0, 0
        for kind, _, _ in order:
            counts[kind] += 1
            most = max(most, counts[Kind.FORWARD] - counts[Kind.BACKWARD])
            most_kept = max(most_kept, counts[Kind.FORWARD] - counts[kinds[-1]])
        bound = bounds[order[0][2] % len(bounds)]
        assert most == min(bound, counts[Kind.FORWARD])
        if schedule.name == "zb-h1":
            assert most_kept <= min(len(replicas), schedule.num_micro_batches)  # what 1f1b has at its first stage


@pytest.mark.parametrize("seed", range(40))
def test_the_window_of_the_steady_state_is_whole_periods_before_the_drain(seed):
    rng = random.Random(seed)
    replicas = tuple(rng.choice((1, 2, 3, 4)) for _ in range(rng.randrange(1, 5)))
    schedule = rng.choice((Schedule("1f1b-async"), Schedule("2bw", sum(replicas) + 1)))
    length = window(schedule, replicas)
    assert length >= 2
    assert length % period(schedule, replicas) == 0
    assert 2 * length + drain(schedule, replicas) <= num_mini_batches(schedule, replicas)
    assert all(length * schedule.num_micro_batches % count == 0 for count in replicas)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Schedule("gpype", 4), "there is no schedule gpype: it is one of gpipe, 1f1b, 1f1b-async, 2bw, interleaved, zb-h1"),
        (lambda: Schedule("1f1b", 0), "1f1b has at least one micro-batch, not 0"),
        (lambda: Schedule("1f1b-async", 8), "1f1b-async updates after each mini-batch: it has 1 micro-batch, not 8"),
        (lambda: Schedule("interleaved", 8), "interleaved has two chunks or more a device, not 1"),
        (lambda: Schedule("gpipe", 8, chunks=2), "gpipe has one chunk a device, not 2"),
        (lambda: Schedule("1f1b", 8, warmup="pc"), "there is no warm-up pc: it is one of pa, pb"),
        (lambda: Schedule("gpipe", 8, warmup="pb"), "the warm-up pb is an option of 1f1b, not of gpipe"),
        (lambda: Schedule("2bw", 8, vertical_sync=True), "vertical_sync is an option of 1f1b-async, not of 2bw"),
        (lambda: Schedule("1f1b", 8, depths=(1, 0)), "depths is an option of 1f1b-async, not of 1f1b"),
        (lambda: Schedule("1f1b-async", depths=(1, -1)), "stage 1 has a depth of -1, below zero"),
        (lambda: Schedule("1f1b-async", update_delay=2), "an update comes 0 or 1 rounds late, not 2"),
        (lambda: Schedule("2bw", 4, num_mini_batches=-1), "-1 mini-batches cannot be simulated"),
        (lambda: Schedule("1f1b", 4).check(()), "a pipeline has at least one stage"),
        (lambda: Schedule("1f1b", 4).check((1, 0)), "stage 1 has 0 replicas"),
        (lambda: Schedule("interleaved", 4, chunks=2).check((1,) * 5), "5 stages are not divisible by 2 chunks a device"),
        (lambda: Schedule("interleaved", 6, chunks=2).check((1,) * 8), "6 micro-batches are not divisible by 4 devices"),
        (lambda: Schedule("1f1b-async", depths=(1,)).check((1, 1)), "there are depths of 1 stages, and 2 stages"),
        (
            lambda: Schedule("1f1b-async", num_mini_batches=4).check((1,) * 4),
            "a steady state of this pipeline shows after 5 mini-batches or more, not 4",
        ),
        (lambda: Schedule("2bw", 2).check((1,) * 4), "updates after 2 micro-batches; this pipeline needs 3 or more"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(make, message):
    with pytest.raises(GraphError, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("depths", "replicas"), [((0, 2), (1, 1)), ((1, 0, 1), (1, 1, 1)), ((0, 1), (1, 2)), ((0, 2), (2, 1))], ids=str
)
def test_depths_that_have_all_wait_are_refused(depths, replicas):
    with pytest.raises(GraphError, match=r"with depths of \[.*\] every worker waits for another"):
        check_goes_on(Schedule("1f1b-async", depths=depths), replicas)


@pytest.mark.parametrize(("depths", "replicas"), [((2, 0), (1, 1)), ((4, 1, 0), (1, 1, 1)), ((0, 1), (2, 1))], ids=str)
def test_depths_that_go_on_are_not(depths, replicas):
    check_goes_on(Schedule("1f1b-async", depths=depths), replicas)

"""What stages cost, by hand and by slower ways; what the judge makes of it."""

import math
import random

import pytest

pytest.importorskip("numba", reason='the simulator is compiled by numba: pip install "detrain-run[plan]"')

from detrain.errors import GraphError, UsageError
from detrain.pipeline.judge import PIPEDREAM, Judge, Score, judge, kind_of
from detrain.pipeline.plan import Plan, Stage, Workload
from detrain.pipeline.pricing import Arrangement, Pricing
from detrain.pipeline.recomputation import recompute
from detrain.pipeline.schedules import Schedule
from detrain.pipeline.steps import to_graph
from detrain.pipeline.topology import Device, Level, Topology, nested
from detrain.remat.planners import registry
from detrain.remat.schedule import Action
from detrain.remat.simulator import peak_bytes

from .exhaustive import crossing_bytes, ideals, shares
from .graphs import chain, diamond, layer, profile, random_profile


def arranged(done, devices, replication=1, recompute=None):
    return Arrangement(tuple(done), tuple(devices), replication, tuple(recompute or ("",) * len(done)))


def of_speeds(*speeds, bandwidth=1e9, memory_bytes=1e12):
    devices = tuple(Device(memory_bytes, speed) for speed in speeds)
    return Topology(devices, (Level(bandwidth, (0,) * len(speeds)),))


def skipping():
    """a goes to b and, past it, to c. Of two samples."""
    return profile(
        [layer("a", 2, 4, 2e6, 1e6), layer("b", 4, 8, (4e6, 2e6), 0), layer("c", 6, 2, 8e6, 4e6)], "ab bc ac"
    )


def test_a_stage_costs_what_its_layers_do_for_the_samples_of_a_micro_batch():
    """Twelve samples in micro-batches of four; one sample takes half of the profile's times."""
    pricing = Pricing(skipping(), nested((3,), (1e9,), 5e9), Workload(2, 12, 4, 3.0))
    first, second, third = pricing.loads(arranged([0b1, 0b11, 0b111], [(0,), (1,), (2,)]))
    assert [load.forward_s for load in (first, second, third)] == pytest.approx([0.004, 0.008, 0.012])
    assert [load.backward_s for load in (first, second, third)] == pytest.approx([0.008, 0.016, 0.004])
    # Half of the backward pass of layers with parameters makes the gradients of these.
    assert [load.weight_s for load in (first, second, third)] == pytest.approx([0.004, 0, 0.002])
    # What c needs of a passes through b's device: 1e6 and 1e6 + 3e6 bytes a sample.
    assert [load.send_s for load in (first, second, third)] == pytest.approx([0.004, 0.016, 0])
    assert [load.send_back_s for load in (first, second, third)] == pytest.approx([0, 0.004, 0.016])
    # Its own outputs, and what has come in.
    assert [load.activation_bytes for load in (first, second, third)] == pytest.approx([4e6, 16e6, 32e6])
    assert [load.working_bytes for load in (first, second, third)] == [0, 0, 0]
    assert [load.weight_bytes for load in (first, second, third)] == [1e6, 0, 4e6]
    assert [load.state_bytes for load in (first, second, third)] == [3e6, 0, 12e6]
    assert {(load.all_reduce_s, load.replicas, load.memory_bytes, load.fabrics) for load in (first, second, third)} == {
        (0, 1, 5e9, ())
    }


def test_what_is_recomputed_takes_a_forward_more_and_keeps_what_came_in():
    pricing = Pricing(skipping(), nested((2,), (1e9,), 5e9), Workload(2, 12, 4))
    first, second = pricing.loads(arranged([0b1, 0b111], [(0,), (1,)], recompute=["all", "all"]))
    assert (first.forward_s, first.backward_s) == pytest.approx((0.004, 0.012))
    assert (second.forward_s, second.backward_s) == pytest.approx((0.020, 0.040))
    assert (first.activation_bytes, first.working_bytes) == pytest.approx((0, 4e6))
    assert (second.activation_bytes, second.working_bytes) == pytest.approx((4e6, 28e6))


@pytest.mark.parametrize(
    ("speeds", "samples", "expected"),
    [
        ((1, 1, 1), 8, (3, 3)),
        ((2, 2, 2), 8, (1.5, 3)),
        ((1, 1, 1), 2, (1, 1)),
        # 2, 5 and 1: 2.28, 4.57 and 1.14 would be in proportion, and a sixth would hold the second up.
        ((1, 2, 0.5), 8, (2.5, 5)),
        ((1, 2, 0.5), 7, (2, 4)),
        ((1, 0.25), 3, (3, 3)),
        # One each takes no longer than two on the first, and less memory.
        ((2, 1, 2), 3, (1, 1)),
    ],
)
def test_samples_are_shared_out_by_speed(speeds, samples, expected):
    pricing = Pricing(skipping(), of_speeds(*speeds), Workload(2, samples, samples))
    assert pricing.samples(tuple(range(len(speeds))), samples) == expected
    (load,) = pricing.loads(arranged([0b111], [tuple(range(len(speeds)))]))
    assert load.forward_s == pytest.approx(0.006 * expected[0])
    assert load.activation_bytes == pytest.approx(8e6 * expected[1])


@pytest.mark.parametrize("seed", range(60))
def test_no_other_sharing_out_ends_earlier(seed):
    rng = random.Random(seed)
    top = of_speeds(*(rng.choice([0.1, 0.25, 0.5, 0.7, 1, 1.3, 2, 3]) for _ in range(rng.randrange(1, 5))))
    devices, samples = tuple(range(top.num_devices)), rng.randrange(1, 9)
    taken, most = Pricing(skipping(), top, Workload(1, 8, 8)).samples(devices, samples)
    assert taken == pytest.approx(shares(top, devices, samples)[0], rel=1e-12)
    assert math.ceil(samples / len(devices)) <= most <= samples


def test_the_slowest_copy_and_the_smallest_device_count():
    top = Topology(
        tuple(Device(memory, speed) for memory, speed in ((4e9, 1), (3e9, 0.5), (2e9, 1), (1e9, 1))),
        (Level(1e9, (0,) * 4),),
    )
    pricing = Pricing(skipping(), top, Workload(2, 8, 4))
    # Two copies, each on two devices: 0, 1 and 2, 3. Four samples are three and one, or two and two.
    (load,) = pricing.loads(arranged([0b111], [(0, 1, 2, 3)], replication=2))
    assert load.forward_s == pytest.approx(0.006 * 3)
    assert load.activation_bytes == pytest.approx(8e6 * 3)
    assert load.memory_bytes == 1e9
    # 5e6 bytes over all four devices of both copies.
    assert load.all_reduce_s == pytest.approx(2 * 3 / 4 * 5e6 / 1e9)


def test_copies_send_side_by_side():
    """Two copies from machine to machine: both cross the uplink, 1e6 bytes a sample each."""
    pricing = Pricing(skipping(), nested((2, 2), (1e9, 1e8), 1e12), Workload(2, 8, 4))
    far, _ = pricing.loads(arranged([0b1, 0b111], [(0, 1), (2, 3)], replication=2))
    assert far.send_s == pytest.approx(2 * 4e6 / 1e8)
    near, _ = pricing.loads(arranged([0b1, 0b111], [(0, 2), (1, 3)], replication=2))
    assert near.send_s == pytest.approx(4e6 / 1e9)
    # An all-reduce over both machines takes each machine's uplink.
    assert near.fabrics == pricing.topology.uplinks((0, 2))
    assert len(near.fabrics) == 2
    assert far.fabrics == ()


@pytest.mark.parametrize("schedule", ["1f1b-async", "2bw"])
def test_where_mini_batches_are_dealt_each_replica_has_a_whole_one(schedule):
    """Three replicas to one, and half as quick as others the second of them is."""
    pricing = Pricing(skipping(), of_speeds(1, 0.5, 1, 1), Workload(2, 12, 4))
    first, second = pricing.loads(arranged([0b1, 0b111], [(0, 1, 2), (3,)]), schedule)
    assert (first.forward_s, first.backward_s) == pytest.approx((0.008, 0.016))
    assert (first.activation_bytes, first.replicas, second.replicas) == (pytest.approx(4e6), 3, 1)
    # The receiver's link has one transfer after the other.
    assert (first.send_s, second.send_back_s) == pytest.approx((0.004, 0.004))


def test_two_replicas_take_turns_with_three():
    """Each of the two sends three of six mini-batches; so two lanes send one in the time of one each."""
    pricing = Pricing(skipping(), of_speeds(1, 1, 1, 1, 1), Workload(2, 12, 4))
    first, _ = pricing.loads(arranged([0b1, 0b111], [(0, 1), (2, 3, 4)]), "1f1b-async")
    assert first.send_s == pytest.approx(0.004)


def test_each_transfer_waits_for_the_latency():
    top = nested((5,), (1e9,), 1e12, latencies_s=(0.001,))
    pricing = Pricing(skipping(), top, Workload(2, 12, 4))
    for schedule, devices in (
        ("1f1b", [(0,), (1,)]), ("1f1b-async", [(0,), (1,)]), ("1f1b-async", [(0, 1), (2,)]), ("1f1b-async", [(0, 1), (2, 3, 4)]),
    ):  # fmt: skip
        assert pricing.loads(arranged([0b1, 0b111], devices), schedule)[0].send_s == pytest.approx(0.005)


@pytest.mark.parametrize("seed", range(80))
def test_an_all_reduce_begins_as_early_as_gradients_are_there(seed):
    """Layer by layer: each layer's part is reduced behind that of the layer before it, and not before its backward pass is done."""
    asked, rng = random_profile(seed), random.Random(seed)
    states = ideals(asked)
    end = rng.choice(states)
    start = rng.choice([0, *(one for one in states if one != end and one & ~end == 0)])
    top = nested((2,), (10.0 ** rng.uniform(6, 10),), 1e12)
    pricing = Pricing(asked, top, Workload(1, 1, 1))
    load = pricing.loads(arranged([one for one in (start, end) if one], [(0, 1)] * (2 if start else 1)))[-1]
    inside = [number for number in asked.order if (end & ~start) >> number & 1]
    size = sum(asked.layers[number].parameter_bytes for number in inside)
    assert load.all_reduce_s == pytest.approx(size / top.levels[0].bandwidth)
    clock_s = reduced_s = 0.0
    for number in reversed(inside):
        clock_s += asked.layers[number].backward_ms / 1000
        share = asked.layers[number].parameter_bytes / size if size else 0
        if share:
            reduced_s = max(reduced_s, clock_s) + share * load.all_reduce_s
    exposed_s = max(0.0, reduced_s - clock_s)
    # It goes on without a pause: what is not exposed is its lead, as far as there is a backward pass before.
    expected = min(load.all_reduce_s - exposed_s, clock_s) if reduced_s >= clock_s else load.all_reduce_s
    if size:
        assert load.all_reduce_lead_s == pytest.approx(max(0.0, expected), abs=1e-12)
    else:
        assert load.all_reduce_lead_s == 0
    assert 0 <= load.all_reduce_lead_s <= load.all_reduce_s


@pytest.mark.parametrize("seed", range(40))
def test_what_crosses_is_all_that_later_layers_need(seed):
    asked = random_profile(seed)
    pricing = Pricing(asked, nested((2,), (1e9,), 1e12), Workload(4, 8, 8))
    for bits in ideals(asked):
        assert pricing.crossing_bytes(bits) == pytest.approx(crossing_bytes(asked, bits) / 4)
        if bits != ideals(asked)[-1]:
            first, _ = pricing.loads(arranged([bits, ideals(asked)[-1]], [(0,), (1,)]))
            assert first.send_s == pytest.approx(2 * crossing_bytes(asked, bits) / 1e9)


@pytest.mark.parametrize(
    ("batch", "micro_batch", "copies", "group", "expected"),
    [
        (12, 4, 1, 1, (3, 4)),
        (10, 4, 1, 1, (3, 4)),  # 4, 3 and 3
        (9, 4, 1, 1, (3, 3)),
        (12, 4, 2, 1, (2, 3)),
        (13, 4, 2, 1, (2, 4)),  # 7 for the larger half
        (4, 4, 4, 1, (1, 1)),
        (12, 4, 1, 2, (4, 3)),
        (3, 1, 1, 2, (4, 1)),
    ],
)
def test_a_batch_is_cut_into_portions_as_equal_as_samples_are(batch, micro_batch, copies, group, expected):
    assert Workload(1, batch, micro_batch).portions(copies, group) == expected


def test_more_copies_than_samples_are_refused():
    with pytest.raises(GraphError, match="a batch of 3 has no sample for each of 4 copies"):
        Workload(1, 3, 1).portions(4)


def plan_of(*stages, replication=1):
    made = [Stage(0, 0, tuple(names), len(devices) // replication, devices, how) for names, devices, how in stages]
    return Plan("made", tuple(made), replication, 0.0, 1.0, 1.0)


def test_a_plan_is_arranged_by_the_names_of_its_layers():
    pricing = Pricing(diamond(), nested((2,), (1e9,), 1e12), Workload(1, 1, 1))
    found = pricing.arrangement(plan_of(("ac", (1,), ""), ("bd", (0,), "all")))
    assert found == Arrangement((0b101, 0b1111), ((1,), (0,)), 1, ("", "all"))
    with pytest.raises(GraphError, match="the plan has a layer e, and the profile has none of that name"):
        pricing.arrangement(plan_of(("abe", (0,), "")))


def test_the_judge_says_what_one_device_and_two_take():
    """Ten samples of 30 ms on one device; on two of which one is half as quick, seven and three."""
    asked = chain(layer("a", 20, 40, 1e6, 0))
    workload = Workload(2, 10, 10)
    alone = judge(plan_of((("a",), (0,), "")), asked, of_speeds(1), workload)
    assert alone.timeline.step_s == pytest.approx(0.3)
    assert (alone.speedup, alone.samples_per_s) == (pytest.approx(1), pytest.approx(10 / 0.3))
    both = judge(plan_of((("a",), (0, 1), "")), asked, of_speeds(1, 0.5), workload)
    assert both.timeline.step_s == pytest.approx(0.21)
    assert both.speedup == pytest.approx(0.3 / 0.21)


def test_the_judge_says_what_of_the_memory_is_used_and_missing():
    """5e6 bytes for ten samples, and four times 1e6 of parameters."""
    asked = chain(layer("a", 20, 40, 1e6, 1e6))
    plan, workload = plan_of((("a",), (0,), "")), Workload(2, 10, 10)
    for memory_bytes, share, missing, fits in ((18e6, 0.5, 0, True), (9e6, 1, 0, True), (6e6, 1.5, 0.5, False)):
        top = of_speeds(1, memory_bytes=memory_bytes)
        found = judge(plan, asked, top, workload)
        assert (found.memory_share, found.fits) == (pytest.approx(share), fits)
        judging = Judge(asked, top, workload)
        assert judging.score(judging.pricing.arrangement(plan)) == Score(pytest.approx(missing), pytest.approx(0.03))


def test_what_fits_is_better_than_what_is_quicker():
    assert Score(0.0, 9.0) < Score(0.1, 1.0)
    assert Score(0.0, 1.0) < Score(0.0, 9.0)


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "zb-h1", "1f1b-async", "2bw"])
def test_the_score_is_that_of_the_whole_timeline(name):
    asked = skipping()
    for devices, replication in (
        [[(0,), (1,), (2, 3)], 1],
        [[(0, 1), (2, 3)], 2 if "async" not in name and name != "2bw" else 1],
    ):
        done = [0b1, 0b11, 0b111][3 - len(devices) :]
        judging = Judge(asked, nested((4,), (1e9,), 3e7), Workload(2, 24, 4), kind_of(name))
        one = arranged(done, devices, replication)
        score, timeline = judging.score(one), judging.timeline(one)
        assert score.sample_s == pytest.approx(timeline.step_s / judging.samples)
        loads = judging.pricing.loads(one, name)
        over = [max(0, peak / load.memory_bytes - 1) for peak, load in zip(timeline.peak_bytes, loads, strict=True)]
        assert score.missing_share == pytest.approx(sum(over))
        assert (score.missing_share > 0) == bool(timeline.over_memory)


def test_too_few_samples_for_all_copies_cannot_be_judged():
    judging = Judge(skipping(), nested((4,), (1e9,), 1e12), Workload(2, 3, 1))
    with pytest.raises(GraphError, match="a batch of 3 has no sample for each of 4 copies"):
        judging.score(arranged([0b111], [(0, 1, 2, 3)], replication=4))


def test_kinds_of_schedules_are_known_by_name():
    assert kind_of("1f1b") == Schedule("1f1b")
    assert kind_of("1f1b-async") == PIPEDREAM
    assert kind_of("interleaved", chunks=3).chunks == 3
    with pytest.raises(GraphError, match="there is no schedule 2f2b"):
        kind_of("2f2b")


def long_chain():
    return chain(*[layer(f"n{number}", 3 + number % 3, 6, 1000 + 200 * (number % 4), 0) for number in range(12)])


@pytest.mark.parametrize("how", ["rotor@0.6", "rotor@0.8", "dtr@0.6", "chen-sqrt@0.8"])
def test_a_stage_recomputes_as_remat_plans_it(how):
    """By walking through the schedule: forwards that are done again, and what is there when the last layer is through first."""
    asked, layers = long_chain(), 0b111111111100
    found = recompute(asked, layers, how, 2)
    planner, _, share = how.partition("@")
    graph = to_graph(asked.without([0, 1]))
    kept_all = sum(one.activation_bytes for one in asked.layers[2:])
    peak = peak_bytes(graph)
    schedule = registry.plan(graph, int(float(share) * peak), planner).schedule
    done, there, used, turn = [], set(), [], 0
    for place, step in enumerate(schedule.steps):
        if step.action == Action.COMPUTE:
            if step.target == 9 and 9 not in done:
                turn = place
            done.append(step.target)
            there |= set(graph.operators[step.target].outputs)
        else:
            there -= {one for one, tensor in enumerate(graph.tensors) if tensor.base == step.target}
        used.append(sum(graph.tensors[one].size_bytes for one in there))
    again_ms = sum((done.count(number) - 1) * asked.layers[number + 2].forward_ms for number in range(10))
    assert again_ms > 0
    assert found.again_s == pytest.approx(again_ms / 1000 / 2)
    assert found.bytes == pytest.approx(used[turn] / 2)
    assert found.working_bytes == pytest.approx((max(used[turn:]) - used[turn]) / 2)
    assert 0 < found.bytes < kept_all / 2
    assert found.bytes + found.working_bytes <= float(share) * peak / 2


@pytest.mark.parametrize("how", ["rotor@1", "keep-all@1"])
@pytest.mark.parametrize("parameter_bytes", [0, 5000])
def test_with_all_the_memory_nothing_is_done_again_and_weights_do_not_count(how, parameter_bytes):
    """At work there is a gradient beside all outputs."""
    asked = chain(*[layer(f"n{number}", 3, 6, 1000, parameter_bytes) for number in range(6)])
    found = recompute(asked, 0b111111, how, 2)
    assert (found.bytes, found.again_s) == (pytest.approx(6 * 1000 / 2), 0)
    assert found.working_bytes == pytest.approx(1000 / 2)


def test_a_stage_that_recomputes_in_part_stands_between_both():
    pricing = Pricing(long_chain(), nested((2,), (1e9,), 1e12), Workload(2, 8, 4))
    done = [0b11, 0b111111111111]
    (nothing, some, everything) = (
        pricing.loads(arranged(done, [(0,), (1,)], recompute=["", how]))[1] for how in ("", "rotor@0.6", "all")
    )
    assert nothing.backward_s < some.backward_s
    assert everything.activation_bytes < some.activation_bytes < nothing.activation_bytes
    # What comes in is kept in any case.
    assert everything.activation_bytes == pytest.approx(1200 / 2 * 4)


@pytest.mark.parametrize(
    ("how", "error", "said"),
    [
        ("some", GraphError, 'a stage recomputes "", "all" or as PLANNER@SHARE says, not \'some\''),
        ("rotor@", GraphError, "as PLANNER@SHARE says, not 'rotor@'"),
        ("rotor@half", GraphError, "as PLANNER@SHARE says, not 'rotor@half'"),
        ("rotor@nan", GraphError, "as PLANNER@SHARE says, not 'rotor@nan'"),
        ("rotor@inf", GraphError, "as PLANNER@SHARE says, not 'rotor@inf'"),
        ("rotor@-1", GraphError, "as PLANNER@SHARE says, not 'rotor@-1'"),
        ("wankel@0.5", UsageError, "there is no planner wankel"),
        ("rotor@0.01", GraphError, "less than the floor"),
    ],
)
def test_ways_to_recompute_that_there_are_not_are_refused(how, error, said):
    with pytest.raises(error, match=said) as caught:
        recompute(long_chain(), 0b111111111111, how, 2)
    assert caught.value.exit_status == 2, (
        "the plan that asks for it is wrong, also where a planner of remat finds no schedule"
    )

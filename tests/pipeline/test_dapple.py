"""DAPPLE's planner against the published figures, and what it is made of against tables made by hand."""

import random
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path

import pytest

from detrain.pipeline import graphtext
from detrain.pipeline.layers import Layer, Profile
from detrain.pipeline.plan import Workload
from detrain.pipeline.planners import baselines, dapple, estimates, placement, straight
from detrain.pipeline.planners.estimates import Copies, Share
from detrain.pipeline.pricing import Pricing
from detrain.pipeline.topology import Device, Level, Topology, machines, nested
from detrain.plans.errors import NoPlanError

PROFILES = Path(__file__).parents[3] / "shared/data/profiles"
TWO_MACHINES, SIXTEEN_MACHINES = (8, 16), tuple(range(1, 17))


def published_profile(name):
    path = PROFILES / f"{name}.txt"
    if not path.is_file():
        pytest.skip("the published profiles are not beside the checkout")
    return graphtext.read(path)


def published_topology(ends):
    return machines(ends, inside=25e9, across=1e9, memory_bytes=16e9, across_collective=3e9)


def chain(*layers, name="chain"):
    """Layers are of (seconds forward and backward, output bytes, parameter bytes)."""
    made = tuple(
        Layer(f"l{number}", "", seconds * 250.0, seconds * 750.0, (output,), parameters)
        for number, (seconds, output, parameters) in enumerate(layers)
    )
    return Profile(made, tuple((number, number + 1) for number in range(len(made) - 1)), name)


def random_chain(seed, count):
    rng = random.Random(seed)
    return chain(*((rng.randrange(1, 20), rng.randrange(0, 2000), rng.randrange(0, 2000)) for _ in range(count)))


def random_graph(seed, count):
    """One source and one sink, and each layer behind some of those before it."""
    rng = random.Random(seed)
    layers = tuple(
        Layer(
            f"l{number}", rng.choice("xyz"), rng.randrange(1, 9) * 1000.0, rng.randrange(1, 9) * 1000.0, (rng.randrange(90),), 7.0
        )
        for number in range(count)
    )  # fmt: skip
    edges = {(rng.randrange(max(0, number - 3), number), number) for number in range(1, count) for _ in range(2)}
    ends = set(range(count - 1)) - {begin for begin, _ in edges}
    return Profile(layers, tuple(sorted(edges | {(number, count - 1) for number in ends})), f"graph {seed}")


def small_cluster(*ends, memory_bytes=1e6):
    """100 bytes a second inside a machine, 10 across, 20 for what is collective across."""
    return placement.cluster_of(machines(ends, 100.0, 10.0, memory_bytes, across_collective=20.0))


def problem_of(profile, workload, *ends, is_compat=False):
    states = dapple.numbered(profile, is_compat=is_compat)
    return dapple.Problem(states, small_cluster(*ends), workload, is_compat)


def shape_of(plan):
    return [(stage.start, stage.end, stage.replicas) for stage in plan.stages], plan.replication


def ratio(first, second):
    """So many devices over all copies at each of two stages."""
    return lambda plan: [stage.replicas * plan.replication for stage in plan.stages] == [first, second]


def straight_of(depth):
    return lambda plan: [stage.replicas for stage in plan.stages] == [1] * depth and plan.replication == 1


def stages(*wanted, copies):
    return lambda plan: shape_of(plan) == (list(wanted), copies)


BERT_24, BERT_48, XLNET, VGG_19, AMOEBA_18, AMOEBA_6, VGG_16, RESNET = (
    ("dapple/bert-24-pbs-6", 6, 128, 6), ("dapple/bert-48-pbs-2", 2, 64, 2), ("dapple/xlnet-24-pbs-1", 1, 128, 1),
    ("dapple/vgg-19-pbs-32", 32, 2048, 32), ("dapple/amoeba-18-pbs-8", 8, 128, 8), ("dapple/amoeba-6-pbs-8-complicated", 8, 128, 8),
    ("dapple/vgg16", 64, 2048, 32), ("pipedream/resnet50", 128, 2048, 128),
)  # fmt: skip


@pytest.mark.parametrize(
    ("case", "ends", "speedup", "is_as_published"),
    [
        (BERT_24, TWO_MACHINES, "10.2256", stages((0, 18, 1), (18, 30, 1), copies=8)),
        (BERT_24, SIXTEEN_MACHINES, "7.3572", ratio(8, 8)),
        (BERT_48, TWO_MACHINES, "12.3371", stages((0, 30, 1), (30, 54, 1), copies=8)),
        (BERT_48, SIXTEEN_MACHINES, "9.7348", straight_of(16)),
        (XLNET, TWO_MACHINES, "14.0315", stages((0, 16, 8), (16, 28, 8), copies=1)),
        (XLNET, SIXTEEN_MACHINES, "11.7198", ratio(8, 8)),
        (VGG_19, TWO_MACHINES, "12.0623", stages((0, 18, 15), (18, 24, 1), copies=1)),
        (VGG_19, SIXTEEN_MACHINES, "10.3058", stages((0, 16, 14), (16, 24, 2), copies=1)),
        (AMOEBA_18, TWO_MACHINES, "7.8892", stages((0, 22, 1), (22, 24, 1), copies=8)),
        (AMOEBA_18, SIXTEEN_MACHINES, "7.0325", stages((0, 17, 1), (17, 24, 1), copies=8)),
        (AMOEBA_6, TWO_MACHINES, "7.5732", stages((0, 50, 1), (50, 51, 1), copies=8)),
        (AMOEBA_6, SIXTEEN_MACHINES, "4.4773", lambda plan: len(plan.stages) == 1),
        (VGG_16, TWO_MACHINES, "12.5960", stages((0, 25, 15), (25, 39, 1), copies=1)),
        (VGG_16, SIXTEEN_MACHINES, "12.1566", stages((0, 31, 15), (31, 39, 1), copies=1)),
        (RESNET, TWO_MACHINES, "9.7318", stages((0, 239, 2), copies=8)),
        (RESNET, SIXTEEN_MACHINES, "9.7318", stages((0, 239, 2), copies=8)),
    ],
)  # fmt: skip
def test_published_plans_come_out(case, ends, speedup, is_as_published):
    name, profile_batch, batch, micro_batch = case
    profile = published_profile(name)
    found = dapple.plan(profile, published_topology(ends), Workload(profile_batch, batch, micro_batch), is_compat=True)
    assert f"{found.speedup:.4f}" == speedup
    assert is_as_published(found), shape_of(found)


@pytest.mark.parametrize(
    ("case", "no_overlap", "p3", "inner"),
    [
        (BERT_24, "7.209", "14.344", "13.790"), (BERT_48, "4.822", "14.345", "13.798"), (XLNET, "10.419", "15.225", "14.968"),
        (VGG_19, "10.039", "16.000", "14.611"), (AMOEBA_18, "5.999", "16.000", "16.000"), (AMOEBA_6, "5.206", "16.000", "16.000"),
        (VGG_16, "12.727", "16.000", "15.881"), (RESNET, "13.985", "15.999", "15.999"),
    ],
)  # fmt: skip
def test_published_baselines_come_out(case, no_overlap, p3, inner):
    name, profile_batch, batch, micro_batch = case
    profile = published_profile(name)
    workload = Workload(profile_batch, batch, micro_batch, state_factor=1.0)
    cluster = placement.cluster_of(published_topology(TWO_MACHINES))
    found = baselines.baselines(dapple.numbered(profile, is_compat=True), workload, cluster)
    assert [f"{one:.3f}" for one in (found.no_overlap, found.current_p3, found.current_inner)] == [
        no_overlap,
        p3,
        inner,
    ]


def test_where_the_published_planner_breaks_down_there_is_no_published_plan_but_one_of_ours():
    profile = published_profile("dapple/amoeba-6-pbs-8-simplified")
    with pytest.raises(NoPlanError, match="it needs 16 successive stages, and the profile has 13 states"):
        dapple.plan(profile, published_topology(TWO_MACHINES), Workload(8, 128, 8), is_compat=True)
    found = dapple.plan(profile, published_topology(TWO_MACHINES), Workload(8, 128, 8))
    assert found.speedup >= found.data_parallel_speedup * (1 - 1e-9)


# ---- where devices come from


@pytest.mark.parametrize(
    ("ends", "used", "count", "fresh", "append", "scatter"),
    [
        ((4, 8), (0, 0), 3, (3, 0), None, (2, 1)),
        ((4, 8), (0, 0), 6, (4, 2), None, (3, 3)),
        ((4, 8), (2, 0), 3, (2, 3), None, (4, 1)),
        ((4, 8), (2, 0), 2, (2, 2), (4, 0), (3, 1)),
        ((4, 8), (2, 0), 5, None, None, (4, 3)),
        ((4, 8), (4, 1), 2, None, (4, 3), (4, 3)),
        ((4, 8), (4, 4), 1, None, None, None),
        ((2, 5, 9), (0, 0, 0), 6, (2, 3, 1), None, (2, 2, 2)),
        ((2, 5, 9), (0, 0, 0), 8, (2, 3, 3), None, (2, 3, 3)),
        ((2, 5, 9), (1, 1, 0), 3, (1, 1, 3), (2, 3, 0), (2, 2, 1)),
        ((1, 2, 3), (1, 0, 0), 1, (1, 1, 0), None, (1, 1, 0)),
    ],
)
def test_each_strategy_fills_machines_in_its_way(ends, used, count, fresh, append, scatter):
    cluster = small_cluster(*ends)
    assert placement.fresh_first(cluster, used, count) == fresh
    assert placement.append_first(cluster, used, count) == append
    assert placement.scatter_first(cluster, used, count) == scatter
    expected = {one for one in (fresh, append, scatter) if one is not None}
    assert set(placement.placements(cluster, used, count)) == expected
    assert len(list(placement.placements(cluster, used, count))) == len(expected)


def test_copies_are_placed_one_after_the_other_in_every_way():
    cluster = small_cluster(4, 8)
    assert set(placement.placements_of_copies(cluster, (2, 0), 1, 2)) == {(3, 1), (4, 0)}
    assert placement.placements_of_copies(cluster, (4, 0), 1, 2) == ((4, 2),)
    assert placement.placements_of_copies(cluster, (4, 0), 2, 2) == ((4, 4),)


def test_devices_are_counted_through():
    cluster = small_cluster(2, 5, 9)
    assert cluster.machine_of == (0, 0, 1, 1, 1, 2, 2, 2, 2)
    assert cluster.devices_between((1, 0, 2), (2, 2, 2)) == (1, 2, 3)


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (nested((2, 2, 2), (3.0, 2.0, 1.0), 1e9), "one or two levels, not for 3"),
        (Topology((Device(1e9),) * 2, bandwidths=((0.0, 1.0), (1.0, 0.0))), "not for a matrix of bandwidths"),
        (Topology((Device(1e9), Device(1e9, 0.5)), (Level(1.0, (0, 0)),)), "of the same speed"),
        (Topology((Device(1e9),) * 4, (Level(2.0, (0, 1, 0, 1)), Level(1.0, (0, 0, 0, 0)))), "machine by machine"),
    ],
)
def test_topologies_that_are_not_machines_are_refused(topology, message):
    with pytest.raises(NoPlanError, match=message):
        dapple.plan(chain((1, 1, 1), (1, 1, 1)), topology, Workload(1, 4, 1))


# ---- estimates


@pytest.mark.parametrize(
    ("senders", "receivers", "seconds"),
    [
        ((0, 1), (2,), 10.0),  # 1,000 bytes over the link inside
        ((0, 1), (0,), 10.0),  # also where the receiver has it
        ((0, 1), (4,), 100.0),  # two halves, one after the other, over the one across
        ((3, 4), (5,), 50.0),  # one half crosses
        ((3, 4), (5, 6, 7), 50.0),
        ((0,), (3, 4), 50.0),  # receivers on both machines: a collective
        ((3, 4), (3, 4), 50.0),
    ],
)
def test_splitting_and_joining_takes_its_time(senders, receivers, seconds):
    assert estimates.split_concat_s(small_cluster(4, 8), senders, receivers, 1000.0) == seconds


@pytest.mark.parametrize(
    ("devices", "seconds"),
    [((5,), 0.0), ((0, 1), 10.0), ((0, 1, 2), 40 / 3), ((0, 1, 2, 3), 7.5), ((3, 4), 50.0), ((0, 1, 4, 5), 75.0)],
)
def test_an_all_reduce_takes_its_time(devices, seconds):
    assert estimates.all_reduce_s(small_cluster(4, 8), devices, 1000.0) == pytest.approx(seconds, rel=1e-15)


def test_a_step_is_blocks_a_way_through_transfers_and_what_is_left_of_the_all_reduces():
    cluster = small_cluster(4, 8)
    shares = (Share(0.0, 1000.0, 800.0, 2, (0, 1)), Share(0.0, 2000.0, 0.0, 1, (4, 5)))
    # Blocks 3 × 3, through 7, a quarter of 800 bytes of two senders 20; all-reduces of 10, and of 20 less a block.
    assert estimates.pipeline_s(cluster, shares, Copies(1, 4), 3.0, 7.0) == 9 + 7 + 20 + 17
    assert estimates.pipeline_s(cluster, shares, Copies(2, 4), 3.0, 7.0) == 9 + 7 + 10 + 17
    assert estimates.pipeline_s(cluster, shares[:1], Copies(1, 1), 3.0, 7.0) == 7 + 10


def test_a_way_through_is_shared_by_replicas():
    shares = (Share(24.0, 0.0, 0.0, 2, (0, 1)), Share(8.0, 0.0, 0.0, 1, (2,)))
    assert estimates.through_s(shares, Copies(1, 4)) == 3 + 2
    assert estimates.through_s(shares, Copies(2, 2)) == 3 + 2


@pytest.mark.parametrize(
    ("compute_s", "sent_bytes", "micro_batches", "seconds"),
    [
        ((6.0,), (), 3, 6.0),
        ((2.0, 2.0), (0.0,), 1, 4.0),
        ((4.0, 4.0), (0.0,), 2, 6.0),  # (M + S - 1) (F + B), F = B = 1
        ((8.0, 8.0, 8.0), (0.0, 0.0), 4, 12.0),
        ((2.0, 2.0), (500.0,), 1, 4.0 + 2 * 5.0),  # there and back over the link inside
        ((4.0, 1.0), (0.0,), 2, 3.5),  # as published, backward passes of stage 0 overlap; it alone has 4 s to do
    ],
)
def test_a_step_event_by_event(compute_s, sent_bytes, micro_batches, seconds):
    sent = (*sent_bytes, 0.0)
    shares = [Share(compute_s[number], 0.0, sent[number], 1, (number,)) for number in range(len(compute_s))]
    assert estimates.recursive_s(small_cluster(4, 8), shares, Copies(1, micro_batches)) == seconds


def test_event_by_event_each_stage_ends_with_its_all_reduce():
    shares = [Share(2.0, 1000.0, 0.0, 2, (0, 1)), Share(2.0, 4000.0, 0.0, 2, (2, 3))]
    # Forward and backward take 0.5 s at each stage; the second goes back at 1.5 s, and has 40 s of all-reduce.
    assert estimates.recursive_s(small_cluster(4, 8), shares, Copies(1, 1)) == 1.5 + 40


def test_strong_and_weak_scaling():
    assert estimates.strong_scaling(4, 8.0, 2.0) == 2.0
    assert estimates.weak_scaling(4, 8.0, 2.0) == 3.2


# ---- data parallelism


@pytest.mark.parametrize(
    ("seconds", "parameters", "left_s", "left_across_steps_s"),
    [
        # On two devices of a machine, an all-reduce takes a second for 100 bytes; half of a layer's time is its backward pass.
        ((20, 60), (1000, 4000), 10 + (40 - 10), 10),
        ((20, 60, 20), (1000, 2000, 4500), 10 + (20 - 10) + (45 - 30), 10),  # across: 20 and 60 s are hidden
        ((20, 60, 20), (1000, 500, 3200), 10, 10),  # what the second leaves over the third uses
        ((20, 20, 2), (0, 0, 9000), 90 - 10 - 10, 90 - 10 - 10 - 1 - 10),
    ],
)
def test_ways_back_hide_the_all_reduces_of_the_layers_behind_them(seconds, parameters, left_s, left_across_steps_s):
    profile = chain(*((taken, 0, size) for taken, size in zip(seconds, parameters, strict=True)))
    states, cluster, workload = dapple.numbered(profile, is_compat=True), small_cluster(2), Workload(4, 4, 1)
    inner = baselines.overlapped(states, workload, cluster, 4, crosses_steps=False)
    across = baselines.overlapped(states, workload, cluster, 4, crosses_steps=True)
    total = sum(seconds)
    assert inner == pytest.approx(total / (total / 2 + left_s), rel=1e-12)
    assert across == pytest.approx(total / (total / 2 + left_across_steps_s), rel=1e-12)
    assert baselines.no_overlap(states, workload, cluster) == pytest.approx(
        total / (total / 2 + sum(parameters) / 100), rel=1e-12
    )


def test_only_the_last_iteration_hides_anything():
    states, cluster = dapple.numbered(chain((20, 0, 1000), (60, 0, 4000)), is_compat=True), small_cluster(2)
    found = baselines.overlapped(states, Workload(4, 4, 1), cluster, 1, crosses_steps=False)
    assert found == pytest.approx(80 / (40 + 10 + (40 - 2.5)), rel=1e-12)


@pytest.mark.parametrize(
    ("batch", "fitting", "current", "optimal"),
    [(12, 30, 12, 12), (12, 12, 12, 12), (12, 7, 6, 6), (12, 5, 4, 5), (10, 4, 2, 4), (7, 3, 1, 3), (9, 5, 3, 4)],
)
def test_iterations_are_as_large_as_memory_lets_them(batch, fitting, current, optimal):
    states = dapple.numbered(chain((1, 30, 40), (1, 50, 60)), is_compat=True)
    workload = Workload(8, batch, 1, state_factor=2.0)
    # 100 bytes of parameters twice; 80 bytes of outputs for 8 samples, if nothing else is known.
    cluster = small_cluster(2, memory_bytes=200 + 10 * fitting + 9)
    assert baselines.current_iteration(states, workload, cluster) == current
    assert baselines.optimal_iteration(states, workload, cluster) == optimal
    larger = small_cluster(2, memory_bytes=200 + 70 * fitting + 69)
    assert baselines.current_iteration(states, workload, larger, activation_bytes=70.0) == current
    found = baselines.baselines(states, workload, cluster, activation_bytes=10.0)
    assert found.optimal_p3 == baselines.overlapped(states, workload, cluster, optimal, crosses_steps=True)
    assert found.current_inner == baselines.overlapped(states, workload, cluster, current, crosses_steps=False)


def test_parameters_without_room_for_a_sample_are_no_data_parallelism():
    states = dapple.numbered(chain((1, 30, 40), (1, 50, 60)), is_compat=True)
    with pytest.raises(NoPlanError, match="400 bytes of parameters and their state, and 10 of a sample's activations"):
        baselines.baselines(states, Workload(8, 8, 1), small_cluster(2, memory_bytes=409.0))
    everything_free = dapple.numbered(chain((1, 0, 40), (1, 0, 60)), is_compat=True)
    assert baselines.largest_batch(everything_free, Workload(8, 8, 1), small_cluster(2, memory_bytes=409.0)) == 8


# ---- plans


def test_states_without_an_order_go_by_the_description_of_their_first_layer():
    def layer(name, description):
        return Layer(name, description, 1000.0, 1000.0, (1.0,), 1.0)

    layers = (layer("s", "start"), layer("z", "zeta"), layer("a", "alpha"), layer("e", "end"))
    profile = Profile(layers, ((0, 1), (0, 2), (1, 3), (2, 3)))
    states = dapple.numbered(profile, is_compat=True)
    # alpha's state comes first where roots are taken, so it is finished first, and what is finished first comes last.
    assert [states.names(bits) for bits in states.members] == [
        ("s",), ("s", "z"), ("s", "a"), ("s", "z", "a"), ("s", "z", "a", "e"),
    ]  # fmt: skip


def least_bottleneck_s(profile, workload, depth, copies, bandwidth):
    """By trying all cuts; every transfer is over a link of this bandwidth."""
    scale = workload.batch / workload.profile_batch
    seconds = [(layer.forward_ms + layer.backward_ms) / 1000 * scale for layer in profile.layers]
    best = float("inf")
    for cuts in combinations(range(1, len(seconds)), depth - 1):
        bounds = (0, *cuts, len(seconds))
        parts = [sum(seconds[begin:end]) / copies for begin, end in pairwise(bounds)]
        sent = [2 * profile.layers[cut - 1].activation_bytes * scale / bandwidth for cut in cuts]
        best = min(best, max(parts + sent))
    return best


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize(
    ("ends", "depth", "copies", "bandwidth"), [((4,), 4, 1, 100), ((4,), 2, 2, 100), ((1, 2, 3), 3, 1, 10)]
)
def test_the_slowest_stage_of_a_straight_pipeline_is_the_quickest_there_is(seed, ends, depth, copies, bandwidth):
    profile, workload = random_chain(seed, 7), Workload(2, 8, 1)
    states = dapple.numbered(profile, is_compat=True)
    layout = straight.Layout(small_cluster(*ends), depth, copies)
    found = straight.solve(states, 4.0, layout, copies)
    assert found.bottleneck_s == pytest.approx(
        least_bottleneck_s(profile, workload, depth, copies, bandwidth), rel=1e-12
    )


def test_a_straight_pipeline_crosses_between_machines_where_little_is_sent():
    profile = chain((8, 1000, 0), (8, 1000, 0), (8, 10, 0), (8, 1000, 0), (8, 0, 0))
    states = dapple.numbered(profile, is_compat=True)
    found = straight.solve(states, 1.0, straight.Layout(small_cluster(3, 5), 5, 1), 1)
    # Inside, 2 × 1,000 bytes take 20 s; across they would take 200.
    assert (found.cuts, found.devices, found.bottleneck_s) == ((0, 1, 2, 3), ((0,), (1,), (2,), (3,), (4,)), 20.0)


@pytest.mark.parametrize("is_compat", [True, False])
@pytest.mark.parametrize("seed", range(12))
def test_each_layer_and_each_device_is_in_one_stage(seed, is_compat):
    profile = random_graph(seed, 12)
    found = dapple.plan(profile, machines((2, 4), 1e3, 1e2, 1e9), Workload(1, 8, 1), is_compat=is_compat)
    assert sorted(name for stage in found.stages for name in stage.layers) == sorted(
        layer.name for layer in profile.layers
    )
    devices = [device for stage in found.stages for device in stage.devices]
    assert len(set(devices)) == len(devices) == sum(stage.replicas for stage in found.stages) * found.replication
    assert [stage.start for stage in found.stages[1:]] == [stage.end for stage in found.stages[:-1]]
    again = dapple.plan(profile, machines((2, 4), 1e3, 1e2, 1e9), Workload(1, 8, 1), is_compat=is_compat)
    assert replace(found, seconds=0.0) == replace(again, seconds=0.0)


@pytest.mark.parametrize("seed", range(12))
def test_no_plan_is_slower_than_data_parallelism(seed):
    found = dapple.plan(random_graph(seed, 9), machines((2, 4), 1e3, 1e2, 1e9), Workload(1, 8, 1))
    assert found.speedup >= found.data_parallel_speedup * (1 - 1e-9)


def test_where_there_is_little_to_reduce_data_parallelism_is_the_plan():
    profile = chain((6, 1000, 10), (6, 1000, 10), (6, 1000, 10))
    found = dapple.plan(profile, machines((2, 4), 100.0, 10.0, 1e9, across_collective=20.0), Workload(2, 8, 1))
    # 72 s on one device; 30 bytes at 20 a second, 1.5 times.
    assert shape_of(found) == ([(0, 2, 1)], 4)
    assert found.speedup == found.data_parallel_speedup == pytest.approx(72 / (18 + 1.5 * 30 / 20), rel=1e-12)


def test_published_estimates_of_one_stage_take_its_replicas_for_none():
    problem = problem_of(chain(*[(6, 1000, 10)] * 4), Workload(2, 8, 1), 2, 4, is_compat=True)
    one, *_ = dapple.candidates(problem)
    # Two replicas in two copies, four micro-batches: 3 blocks of 6 s, and 96 / 2 / 4 s through; 40 bytes at 20, 1.5 times.
    assert (one.replicas, one.replication) == ((2,), 2)
    assert one.speedup == pytest.approx(96 / (3 * 6 + 12 + 3), rel=1e-12)
    _, mended, *_ = dapple.candidates(replace(problem, is_compat=False))
    assert (mended.replicas, mended.replication) == ((2,), 2)
    # Micro-batches are of one sample, of which one replica has nothing.
    assert mended.speedup == pytest.approx(96 / (3 * 12 + 12 + 3), rel=1e-12)
    whole = replace(problem, is_compat=False, workload=Workload(2, 8, 2))
    _, mended, *_ = dapple.candidates(whole)
    assert mended.speedup == pytest.approx(96 / (1 * 12 + 12 + 3), rel=1e-12)


@pytest.mark.parametrize(
    ("micro_batch", "replicas", "times"), [(8, 4, 4), (8, 3, 8 / 3), (1, 8, 1), (2, 8, 2), (6, 4, 3), (5, 1, 1)]
)
def test_replicas_share_out_whole_samples(micro_batch, replicas, times):
    """As the simulator has it; as published, eight replicas do a micro-batch of one sample in an eighth of its time."""
    workload = Workload(1, 64, micro_batch)
    problem = problem_of(chain((6, 1000, 10), (6, 1000, 10)), workload, 8, is_compat=False)
    assert problem.working(replicas) == times
    assert replace(problem, is_compat=True).working(replicas) == replicas
    assert Pricing(problem.states.profile, nested((8,), (1e9,), 1e9), workload).samples(
        tuple(range(replicas)), micro_batch
    )[0] == (micro_batch / times)


def test_published_estimates_count_the_layers_behind_a_cut_twice():
    problem = problem_of(
        chain((10, 0, 0), (10, 0, 3000), (0.5, 0, 0), (0.5, 0, 0)), Workload(1, 2, 1), 4, is_compat=True
    )
    published, ours = (
        next(one for one in dapple.candidates(replace(problem, is_compat=is_compat)) if one.replicas == (1, 1))
        for is_compat in (True, False)
    )
    # Two copies of two stages, of 20 and 22 s: 3,000 bytes are 30 s of all-reduce, at the second stage less a block of 11.
    assert (published.cuts, ours.cuts, published.replication, ours.replication) == ((0,), (0,), 2, 2)
    assert published.speedup == pytest.approx(42 / (21 + 30), rel=1e-12)
    assert ours.speedup == pytest.approx(42 / (21 + 30 - 11), rel=1e-12)


def test_event_by_event_the_published_estimate_counts_them_twice_as_well():
    profile, workload = chain((2, 0, 0), (2, 0, 0), (2, 0, 0)), Workload(1, 1, 1)
    for is_compat, seconds in ((True, 4 + 4), (False, 2 + 4)):
        problem = problem_of(profile, workload, 2, is_compat=is_compat)
        found = dapple.Candidate((0,), (1, 1), ((0,), (1,)), 1, 4.0, 0.0)
        assert dapple.recursive_speedup(problem, found) == pytest.approx(6 / seconds, rel=1e-12)
    too_many = replace(problem, workload=Workload(1, 1, 1))
    assert dapple.recursive_speedup(too_many, replace(found, replication=2)) == 0.0


def test_of_equal_plans_the_published_planner_takes_the_last():
    profile = chain((10, 0, 0), (0, 0, 0), (0, 0, 0), (10, 0, 0))
    found = dapple.plan(profile, machines((2,), 100.0, 10.0, 1e9), Workload(1, 2, 1), is_compat=True)
    assert shape_of(found) == ([(0, 3, 1), (3, 3, 1)], 1)


def test_of_equal_plans_ours_is_the_first():
    # Gradients would take hours to reduce: two stages it is, cut behind any of three layers.
    profile = chain((10, 0, 1e6), (0, 0, 0), (0, 0, 0), (10, 0, 1e6))
    found = dapple.plan(profile, machines((2,), 100.0, 10.0, 1e9), Workload(1, 2, 1))
    assert shape_of(found) == ([(0, 1, 1), (1, 3, 1)], 1)


@pytest.mark.parametrize(
    ("profile", "ends", "message"),
    [
        (chain((1, 1, 1), (1, 1, 1), (1, 1, 1)), (4,), "it needs 4 successive stages, and the profile has 3 states"),
        (chain((1, 1, 1), (1, 1, 1)), (1,), "it looks for two stages, and there is one device"),
        (chain((1, 1, 1)), (2,), "it looks for two stages, and there is nowhere to cut"),
        (chain((0.0004, 1, 1), (0.0004, 1, 1)), (2,), "treats a stage of 0.8 ms as an error, because it is below 1 ms"),
    ],
)  # fmt: skip
def test_where_the_published_planner_gives_no_answer_ours_does(profile, ends, message):
    topology, workload = machines(ends, 100.0, 10.0, 1e9), Workload(1, 2, 1)
    with pytest.raises(NoPlanError, match=f"has no result here: .*{message}"):
        dapple.plan(profile, topology, workload, is_compat=True)
    found = dapple.plan(profile, topology, workload)
    assert {name for stage in found.stages for name in stage.layers} == {layer.name for layer in profile.layers}


def test_layers_that_take_no_time_have_a_plan():
    found = dapple.plan(chain((0, 0, 0), (0, 0, 0)), machines((2,), 100.0, 10.0, 1e9), Workload(1, 2, 1))
    assert (found.speedup, found.bottleneck_s) == (1.0, 0.0)


def test_a_profile_with_too_many_states_is_no_matter_for_the_published_planner():
    side_by_side = 13
    layers = tuple(Layer(f"l{number}", "", 1.0, 1.0, (1.0,), 1.0) for number in range(side_by_side + 2))
    edges = [(0, number) for number in range(1, side_by_side + 1)]
    profile = Profile(layers, tuple(edges + [(number, side_by_side + 1) for _, number in edges]), "wide")
    with pytest.raises(NoPlanError, match="wide has too many states for the published planner"):
        dapple.plan(profile, machines((2,), 100.0, 10.0, 1e9), Workload(1, 2, 1), is_compat=True)
    assert dapple.plan(profile, machines((2,), 100.0, 10.0, 1e9), Workload(1, 2, 1)).stages

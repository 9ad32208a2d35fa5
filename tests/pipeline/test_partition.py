"""The dynamic programming behind our own planner: no other stages on a layout's positions have a smaller sum."""

import math
import random
from dataclasses import replace

import pytest

pytest.importorskip("numba", reason='planners are compiled by numba: pip install "detrain-run[plan]"')

from detrain.pipeline.judge import Judge
from detrain.pipeline.plan import Workload
from detrain.pipeline.planners import partition
from detrain.pipeline.planners.layouts import Layout, blocks, layouts
from detrain.pipeline.pricing import Arrangement, Pricing
from detrain.pipeline.states import of_members
from detrain.pipeline.topology import Device, Level, Topology, machines, nested
from tests.tiers import full_but

from .exhaustive import Partition, ideals, members
from .graphs import chain, layer, random_profile

TOPOLOGIES = ("flat", "two machines", "uneven machines", "unequal devices", "matrix")


def topology(kind, rng, memory_bytes):
    """Up to four devices that have about so much memory, and links quick and slow."""
    inside, across = 10.0 ** rng.uniform(6, 10), 10.0 ** rng.uniform(5, 9)
    latency_s = rng.choice([0.0, 1e-3])
    if kind == "flat":
        return nested((rng.randrange(1, 5),), (inside,), memory_bytes, latencies_s=(latency_s,))
    if kind == "two machines":
        latencies_s = latency_s, 2 * latency_s
        return nested(
            (2, 2), (inside, across), memory_bytes, latencies_s=latencies_s, collective_bandwidths=(None, across / 2)
        )
    if kind == "uneven machines":
        return machines((3, 4), inside, across, memory_bytes)
    if kind == "unequal devices":
        devices = tuple(Device(memory_bytes * rng.uniform(0.5, 2), rng.choice([0.5, 1.0, 2.0])) for _ in range(4))
        return Topology(devices, (Level(inside, (0, 0, 1, 1)), Level(across, (0, 0, 0, 0), latency_s=latency_s)))
    bandwidths = tuple(tuple(10.0 ** rng.uniform(6, 10) for _ in range(3)) for _ in range(3))
    return Topology((Device(memory_bytes),) * 3, bandwidths=bandwidths)


def family(kind, seed, most):
    rng = random.Random(f"{kind} {seed}")
    asked = random_profile(seed, most)
    batch = rng.choice([1, 2, 3, 4])
    workload = Workload(batch, rng.choice([5, 8, 12, 24]), rng.choice([1, 2, 3]), rng.choice([1.0, 4.0]))
    kept = sum(sum(one.output_bytes) for one in asked.layers) / batch * workload.micro_batch
    always = workload.state_factor * asked.parameter_bytes
    memory_bytes = 1 + kept * rng.choice([0.3, 1, 1, 3]) * rng.uniform(0.5, 1) + always * rng.choice([0.5, 1, 2])
    return asked, topology(kind, rng, memory_bytes), workload, rng.random() < 0.8


def problem_of(asked, top, workload, layout, *, is_recomputing=True):
    pricing = Pricing(asked, top, workload)
    states = of_members(asked, ideals(asked))
    return partition.problem(pricing, states, blocks(pricing, layout), is_recomputing=is_recomputing), states


def nearest(limits, value):
    """The limit that the value is at, but for rounding."""
    return max(limit for limit in limits if math.isclose(limit, value, rel_tol=1e-9, abs_tol=1e-12))


@pytest.mark.parametrize("seed", full_but(range(12), range(48)))
@pytest.mark.parametrize("kind", TOPOLOGIES)
def test_no_other_stages_have_a_smaller_sum(kind, seed):
    asked, top, workload, is_recomputing = family(kind, seed, 8 if seed % 6 == 5 else 5)
    states = ideals(asked)
    for layout in layouts(top):
        if layout.replication > workload.batch:
            continue
        samples = Pricing(asked, top, workload).samples
        every = Partition(asked, top, workload, layout, states, samples, is_recomputing=is_recomputing)
        least = every.least()
        problem, _ = problem_of(asked, top, workload, layout, is_recomputing=is_recomputing)
        slowest_s, all_reduce_s = partition.all_limits(problem)
        if least is None:
            assert partition.splits(problem, [math.inf], [math.inf]) == []
            continue
        if len(slowest_s) * len(all_reduce_s) > 1000:
            # What no other pair of limits could better.
            slowest_s, all_reduce_s = [nearest(slowest_s, least[1])], [nearest(all_reduce_s, least[2])]
        found = partition.splits(problem, slowest_s, all_reduce_s)
        assert found[0].step_s == pytest.approx(least[0], rel=1e-9, abs=1e-12)
        for split in found:
            spans = zip(split.begins, split.ends, strict=True)
            plan = [
                (states[state], (problem.blocks.ends[begin], problem.blocks.ends[end]))
                for state, (begin, end) in zip(split.states, spans, strict=True)
            ]
            assert split.step_s == pytest.approx(every.step_s(plan)[0], rel=1e-9, abs=1e-12)
            assert split.is_recomputed == tuple(
                every.stage(before, state, block, min(len(plan) - place, every.count))[2]
                for place, (before, (state, block)) in enumerate(
                    zip([0, *(one for one, _ in plan)], plan, strict=False)
                )
            )


def test_the_family_has_plans_that_recompute_and_cases_without_a_plan():
    found = []
    for kind in TOPOLOGIES:
        for seed in range(20):
            asked, top, workload, is_recomputing = family(kind, seed, 5)
            problem, _ = problem_of(asked, top, workload, layouts(top)[0], is_recomputing=is_recomputing)
            found.append(partition.splits(problem, [math.inf], [math.inf])[:1])
    assert 5 < found.count([]) < 50
    assert sum(any(split.is_recomputed) for splits in found for split in splits) > 5
    assert sum(len(split.states) > 2 for splits in found for split in splits) > 5


@pytest.mark.parametrize("seed", range(30))
def test_what_is_said_to_fit_fits_in_the_simulator(seed):
    asked, top, workload, _ = family(TOPOLOGIES[seed % 5], seed, 6)
    for layout in layouts(top):
        if layout.replication > workload.batch:
            continue
        problem, states = problem_of(asked, top, workload, layout)
        judge = Judge(asked, top, workload)
        for split in partition.splits(problem, *partition.few_limits(problem)):
            ends = problem.blocks.ends
            arranged = Arrangement(
                tuple(states.members[one] for one in split.states),
                tuple(layout.devices(ends[a], ends[b]) for a, b in zip(split.begins, split.ends, strict=True)),
                layout.replication, tuple("all" if one else "" for one in split.is_recomputed),
            )  # fmt: skip
            assert judge.score(arranged).missing_share == 0


def two_layers():
    return chain(layer("a", 10, 20, 4e6, 1e6), layer("b", 20, 30, 1e6, 2e6))


def test_the_sum_is_that_of_a_pipeline_without_gaps():
    """30 and 50 ms for a micro-batch of one, 4e6 bytes at 1e9 a second between them, four micro-batches: 3 x 50 + 80 + 2 x 4 ms."""
    top = nested((2,), (1e9,), 1e12)
    problem, _ = problem_of(two_layers(), top, Workload(1, 4, 1), Layout(1, 2, has_stages_together=False))
    split = partition.Split((0, 1), (0, 1), (1, 2), (False, False))
    assert partition.step_s(problem, split) == pytest.approx(0.238)
    again = replace(split, is_recomputed=(True, True))  # 40 and 70 ms
    assert partition.step_s(problem, again) == pytest.approx(3 * 0.070 + 0.110 + 0.008)


def test_the_sum_has_the_longest_all_reduce_of_all_copies():
    """Two copies of two samples each: 1 x 50 + 80 + 2 x 4 ms, and 2e6 bytes over two devices at 1e9 a second: 2 ms."""
    top = nested((2, 2), (1e9, 1e9), 1e12)
    for has_stages_together in (False, True):
        layout = Layout(2, 2, has_stages_together=has_stages_together)
        problem, _ = problem_of(two_layers(), top, Workload(1, 4, 1), layout)
        # Each stage's copies side by side, or each copy's stages: from machine to machine two copies share an uplink.
        sent_s = 0.008 if has_stages_together else 0.004
        found = partition.step_s(problem, partition.Split((0, 1), (0, 1), (1, 2), (False, False)))
        assert found == pytest.approx(0.050 + 0.080 + 2 * sent_s + 0.002)


def test_what_is_sent_counts_both_ways():
    """The second device is half as quick. With b on it a step takes 10 + 26 ms, with b on the first 13 + 20 and twice 2 ms."""
    asked = chain(layer("a", 10, 0, 0), layer("b", 3, 0, 2e6), layer("c", 10, 0, 0))
    top = Topology((Device(1e12), Device(1e12, 0.5)), (Level(1e9, (0, 0)),))
    problem, _ = problem_of(asked, top, Workload(1, 1, 1), Layout(1, 2, has_stages_together=False))
    (found,) = [one for one in partition.splits(problem, [math.inf], [math.inf]) if len(one.states) == 2]
    assert (found.states, found.step_s) == ((0, 2), pytest.approx(0.036))


def test_a_stage_is_recomputed_only_where_its_memory_asks_for_it():
    """The first of two stages has two micro-batches under way, of 4e6 bytes each beside 4 x 1e6 of weights."""
    for memory_bytes, expected in ((12e6, False), (11.9e6, True)):
        top = Topology((Device(memory_bytes), Device(1e12)), (Level(1e9, (0, 0)),))
        problem, _ = problem_of(two_layers(), top, Workload(1, 4, 1), Layout(1, 2, has_stages_together=False))
        found = [one for one in partition.splits(problem, [math.inf], [math.inf]) if len(one.states) == 2]
        assert [one.is_recomputed for one in found] == [(expected, False)]
    # Recomputed, it keeps nothing, since nothing enters it; and takes 4e6 bytes at work.
    top = Topology((Device(7.9e6), Device(1e12)), (Level(1e9, (0, 0)),))
    problem, _ = problem_of(two_layers(), top, Workload(1, 4, 1), Layout(1, 2, has_stages_together=False))
    assert all(len(one.states) == 1 for one in partition.splits(problem, [math.inf], [math.inf]))


@pytest.mark.parametrize(
    ("num_devices", "profile_batch", "layers"),
    [
        (3, 1, [(2.3, 6.2, 5e6), (5.0, 7.9, 5e6), (5.7, 7.0, 0), (4.8, 1.1, 4e6)]),
        (2, 7, [(3.4, 5.0, 5e6), (0.5, 5.7, 2e6), (3.7, 2.3, 5e6)]),
        (3, 7, [(2.1, 1.7, 8e6), (4.6, 6.9, 4e6), (5.1, 6.5, 3e6), (4.6, 5.6, 2e6), (1.0, 8.5, 1e6)]),
    ],
)
def test_limits_let_through_who_is_just_at_them(num_devices, profile_batch, layers):
    """Sums in another order differ in their last digits."""
    asked = chain(*[layer(f"n{number}", *one) for number, one in enumerate(layers)])
    top, workload = nested((num_devices,), (1e9,), 1e12), Workload(profile_batch, 20, 1)
    layout = Layout(1, num_devices, has_stages_together=False)
    problem, _ = problem_of(asked, top, workload, layout)
    least = Partition(asked, top, workload, layout, ideals(asked), Pricing(asked, top, workload).samples).least()
    found = partition.splits(problem, *partition.all_limits(problem))
    assert found[0].step_s == pytest.approx(least[0], rel=1e-9)


@pytest.mark.parametrize("num_devices", [1, 2, 4, 6, 12])
def test_layouts_have_each_copy_on_devices_of_its_own(num_devices):
    seen, topology = set(), nested((num_devices,), (1e9,), 1e12)
    for layout in layouts(topology):
        used = layout.replication * layout.num_positions
        assert num_devices - layout.replication < used <= num_devices
        assert sorted(layout.devices(0, layout.num_positions)) == list(range(used))
        parts = [layout.copy_devices(0, layout.num_positions, copy) for copy in range(layout.replication)]
        assert layout.devices(0, layout.num_positions) == tuple(one for part in parts for one in part)
        seen.add(tuple(layout.devices(place, place + 1) for place in range(layout.num_positions)))
    assert len(seen) == len(layouts(topology))


@pytest.mark.parametrize("is_matrix", [False, True])
def test_devices_that_differ_stand_in_several_orders(is_matrix):
    devices = tuple(Device(1e12, speed) for speed in (0.5, 1.0, 0.5, 1.0, 0.25, 1.0))
    rows = [[0.0 if one == other else 1e9 * (1 + (one + other) % 3) for one in range(6)] for other in range(6)]
    inner, outer = Level(1e10, (0, 0, 0, 1, 1, 1)), Level(1e9, (0,) * 6)
    topology = Topology(devices, bandwidths=tuple(map(tuple, rows))) if is_matrix else Topology(devices, (inner, outer))
    orders = {layout.devices(0, 6) for layout in layouts(topology) if layout.replication == 1}
    assert all(sorted(order) == list(range(6)) for order in orders)
    assert {(0, 1, 2, 3, 4, 5), (1, 3, 5, 0, 2, 4), (4, 0, 2, 1, 3, 5)} < orders
    # From the quickest always on to the nearest; or machine by machine.
    assert ((1, 4, 0, 2, 3, 5) if is_matrix else (1, 0, 2, 3, 5, 4)) in orders


def test_many_positions_are_divided_at_no_more_than_sixteen_places():
    assert Layout(1, 16, has_stages_together=False).ends() == tuple(range(17))
    assert Layout(1, 17, has_stages_together=False).ends() == (*range(0, 17, 2), 17)
    assert len(Layout(1, 100, has_stages_together=False).ends()) <= 17


def test_states_are_numbers_behind_which_a_stage_ends():
    asked = two_layers()
    problem, states = problem_of(
        asked, nested((2,), (1e9,), 1e12), Workload(1, 4, 1), Layout(1, 2, has_stages_together=False)
    )
    assert [members(bits) for bits in states.members] == [[0], [0, 1]]
    assert {split.states for split in partition.splits(problem, [math.inf], [math.inf])} == {(1,), (0, 1)}

"""PipeDream's optimizer for inference: the least latency of all splits that take in inputs often enough."""

import math
import random

import pytest

pytest.importorskip("numba", reason='planners are compiled by numba: pip install "detrain-run[plan]"')

from detrain.errors import GraphError
from detrain.pipeline.planners.inference import Options, plan
from detrain.pipeline.states import published
from detrain.plans.errors import NoPlanError

from .exhaustive import augmented_bytes, members
from .graphs import branches, chain, layer, profile, random_profile


def priced(asked, options, stages):
    """Latency, and the time between inputs, of stages as (what is done behind it, machines); None if they cannot be."""
    before, latency_s, slowest_s = 0, 0.0, 0.0
    for done, machines in stages:
        layers = [asked.layers[one] for one in members(done & ~before)]
        forward_s = sum(one.forward_ms for one in layers) / 1000
        size = sum(sum(one.output_bytes) + one.parameter_bytes for one in layers)
        if options.uses_memory_constraint and size > options.memory_bytes:
            return None
        sent = [one for one in (before, done) if before and one != stages[-1][0] and not options.has_free_transfers]
        sent_s = [augmented_bytes(asked, one) / options.bandwidth for one in sent]
        # As published, the first stage sends for nothing, and is not at the limit but below it.
        slowest = max(forward_s, *sent_s, 0) / machines
        if slowest >= options.time_between_inputs_s if not before else slowest > options.time_between_inputs_s:
            return None
        latency_s += forward_s + sum(sent_s)
        slowest_s, before = max(slowest_s, slowest), done
    return latency_s, slowest_s


def rows(states, left, options, before=0):
    """All stages on all machines."""
    for state in states:
        if state == before or before & ~state:
            continue
        for machines in range(1, 1 + (1 if options.is_straight else left)):
            if not before and options.num_machines_first not in (None, machines):
                continue
            if state == states[-1]:
                if machines == left:
                    yield [(state, machines)]
            elif machines < left:
                for rest in rows(states, left - machines, options, state):
                    yield [(state, machines), *rest]


def drawn(seed, asked, machines):
    rng = random.Random(f"{seed} {machines}")
    size = sum(sum(one.output_bytes) + one.parameter_bytes for one in asked.layers)
    forward_s = sum(one.forward_ms for one in asked.layers) / 1000
    return Options(
        machines, (forward_s + 0.001) * rng.uniform(0.2, 1.5), 10.0 ** rng.uniform(6, 10), 1 + size * rng.uniform(0.3, 1.2),
        is_straight=rng.random() < 0.3, uses_memory_constraint=rng.random() < 0.4, has_free_transfers=rng.random() < 0.3,
        num_machines_first=rng.randrange(1, machines + 1) if rng.random() < 0.2 else None,
    )  # fmt: skip


@pytest.mark.parametrize("machines", [1, 2, 3, 4])
def test_no_split_that_is_quick_enough_has_less_latency(machines):
    num_plans = 0
    for seed in range(90):
        asked = random_profile(seed, 6, is_from_one=True)
        states = list(published(asked).members)
        options = drawn(seed, asked, machines)
        every = [priced(asked, options, stages) for stages in rows(states, machines, options)]
        least = min((one[0] for one in every if one), default=None)
        if least is None:
            with pytest.raises(NoPlanError):
                plan(asked, options)
            continue
        num_plans += 1
        found = plan(asked, options)
        assert found.latency_s == pytest.approx(least, rel=1e-9, abs=1e-12)
        number = {one.name: place for place, one in enumerate(asked.layers)}
        done, stages = 0, []
        for stage in found.plan.stages:
            done |= sum(1 << number[name] for name in stage.layers)
            stages.append((done, stage.replicas))
        assert priced(asked, options, stages) == pytest.approx((least, found.plan.bottleneck_s), rel=1e-9, abs=1e-12)
        assert [device for stage in found.plan.stages for device in stage.devices] == list(range(machines))
    assert num_plans > 20


def test_one_machine_does_all_where_it_is_quick_enough_and_more_share_where_it_is_not():
    """10, 20 and 30 ms, and 5 ms to send behind the first layer and behind the second."""
    asked = chain(layer("a", 10, 0, 5e6), layer("b", 20, 0, 5e6), layer("c", 30, 0, 5e6))
    alone = plan(asked, Options(1, 0.061))
    assert (alone.latency_s, alone.plan.bottleneck_s, alone.plan.speedup) == (
        pytest.approx(0.06),
        pytest.approx(0.06),
        1,
    )
    # Two machines take inputs in turn.
    shared = plan(asked, Options(2, 0.031))
    assert ([stage.replicas for stage in shared.plan.stages], shared.latency_s) == ([2], pytest.approx(0.06))
    assert shared.plan.bottleneck_s == pytest.approx(0.03)
    # A stage on each: 30 and 30 ms, and the second takes in what the first gives out.
    straight = plan(asked, Options(2, 0.031, is_straight=True))
    assert [stage.layers for stage in straight.plan.stages] == [("a", "b"), ("c",)]
    assert (straight.latency_s, straight.plan.bottleneck_s) == (pytest.approx(0.065), pytest.approx(0.03))
    free = plan(asked, Options(2, 0.031, is_straight=True, has_free_transfers=True))
    assert free.latency_s == pytest.approx(0.06)


def test_a_machine_is_left_out_where_that_is_allowed():
    asked = chain(layer("a", 10, 0, 5e6), layer("b", 20, 0, 5e6))
    found = plan(asked, Options(3, 0.1, is_straight=True, uses_fewer_machines=True))
    assert [stage.layers for stage in found.plan.stages] == [("a", "b")]
    with pytest.raises(NoPlanError):
        plan(asked, Options(3, 0.1, is_straight=True))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(2, 0.029), r"^no split on 2 machines takes in an input every 0.029 s$"),
        (
            Options(4, 1.0, is_straight=True),
            r"^no split on 4 machines, with one for each stage and 3 places for stages to end, takes in an input every 1 s$",
        ),
        (
            Options(2, 1.0, memory_bytes=999, uses_memory_constraint=True),
            r"^no split on 2 machines takes in an input every 1 s and keeps to 999 bytes$",
        ),
    ],
)
def test_what_stands_in_the_way_is_said(options, said):
    with pytest.raises(NoPlanError, match=said):
        plan(chain(layer("a", 10, 0, 500, 500), layer("b", 20, 0, 500), layer("c", 30, 0, 500)), options)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"num_machines": 0}, "inference takes at least one machine, not 0"),
        ({"bandwidth": 0.0}, "bandwidth, memory and the time between inputs are above zero, not 0,"),
        ({"bandwidth": math.nan}, "are above zero, not nan"),
        ({"memory_bytes": -1.0}, "are above zero, not 1e+09, -1"),
        ({"time_between_inputs_s": 0.0}, "and 0"),
        ({"num_machines_first": 3}, "the first stage has 1 to 2 machines, not 3"),
        ({"num_machines_first": 0}, "the first stage has 1 to 2 machines, not 0"),
    ],
)
def test_options_that_cannot_be_are_refused(changed, said):
    with pytest.raises(GraphError) as caught:
        Options(**{"num_machines": 2, "time_between_inputs_s": 1.0, **changed})
    assert said in str(caught.value)


def test_inputs_are_states_like_others_as_published():
    asked = profile(
        [layer("i", 0, 0, 7e6, description="Input0"), layer("a", 10, 0, 1e6), layer("b", 10, 0, 1e6)], "ia ab"
    )
    assert plan(asked, Options(1, 1.0)).plan.stages[0].layers == ("i", "a", "b")


def test_too_many_states_are_no_plan():
    with pytest.raises(NoPlanError, match="branches has too many states"):
        plan(branches(4, 8), Options(2, 1.0))

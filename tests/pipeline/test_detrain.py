"""Our own planner: what it promises of its plans."""

import random
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("numba", reason='planners are compiled by numba: pip install "detrain-run[plan]"')

from detrain.errors import GraphError
from detrain.pipeline import graphtext
from detrain.pipeline.judge import PIPEDREAM, SYNCHRONOUS, Judge, judge, kind_of
from detrain.pipeline.plan import Plan, Stage, Workload
from detrain.pipeline.planners import registry
from detrain.pipeline.planners.detrain import Question, plan
from detrain.pipeline.topology import Device, Level, Topology, nested
from detrain.plans.errors import NoPlanError
from tests.tiers import full_but

from .exhaustive import ideals, members
from .graphs import chain, diamond, layer, profile, random_profile
from .test_partition import TOPOLOGIES, family

PROFILES = Path(__file__).parents[3] / "shared/data/profiles/pipedream"
needs_profiles = pytest.mark.skipif(not PROFILES.is_dir(), reason="the published profiles are not beside the checkout")


def drawn(rng, asked, num_devices):
    """Any plan: rising states, and devices dealt at random, some of them idle."""
    states = ideals(asked)
    done = [states[-1]]
    while rng.random() < 0.6 and len(done) < num_devices:
        inside = [one for one in states if one != done[0] and one & ~done[0] == 0]
        if inside:
            done.insert(0, rng.choice(inside))
    devices = rng.sample(range(num_devices), rng.randrange(len(done), num_devices + 1))
    ends = [0, *sorted(rng.sample(range(1, len(devices)), len(done) - 1)), len(devices)]
    stages = []
    for place, (before, bits) in enumerate(zip([0, *done], done, strict=False)):
        names = tuple(asked.layers[one].name for one in members(bits & ~before))
        part = tuple(devices[ends[place] : ends[place + 1]])
        stages.append(Stage(0, 0, names, len(part), part, rng.choice(["", "all"])))
    return Plan("drawn", tuple(stages), 1, 0.0, 1.0, 1.0)


def checked(question):
    """The plan, which keeps to what every plan does; None if there is none."""
    try:
        found = plan(question)
    except NoPlanError:
        return None
    asked = question.profile.to_plan()
    assert sorted(name for stage in found.stages for name in stage.layers) == sorted(one.name for one in asked.layers)
    assert all(stage.layers for stage in found.stages)
    place = {name: number for number, stage in enumerate(found.stages) for name in stage.layers}
    assert all(place[asked.layers[begin].name] <= place[asked.layers[end].name] for begin, end in asked.edges)
    devices = [device for stage in found.stages for device in stage.devices]
    assert len(devices) == len(set(devices))
    assert set(devices) <= set(range(question.topology.num_devices))
    assert all(len(stage.devices) == stage.replicas * found.replication for stage in found.stages)
    asked_for = question.micro_batches or (question.workload.micro_batch,)
    assert found.workload.micro_batch in asked_for or found.note
    assert not found.note or found.workload.micro_batch < min(asked_for)
    assert replace(found.workload, micro_batch=question.workload.micro_batch) == question.workload
    assert question.is_recomputing or not any(stage.recompute for stage in found.stages)
    judged = judge(found, asked, question.topology, found.workload, question.schedule)
    assert judged.fits
    assert found.speedup == pytest.approx(judged.speedup)
    return found


def question_of(seed, **more):
    asked, top, workload, is_recomputing = family(TOPOLOGIES[seed % 5], seed, 6)
    return Question(asked, top, workload, is_recomputing=is_recomputing, time_limit_s=60.0, **more)


@pytest.mark.parametrize("kind", [SYNCHRONOUS, PIPEDREAM, kind_of("gpipe")], ids=lambda one: one.name)
@pytest.mark.parametrize("seed", full_but(range(10), range(30)))
def test_plans_fit_and_are_never_worse_than_those_of_rivals(seed, kind):
    rng = random.Random(seed)
    question = question_of(seed, schedule=kind)
    asked, top = question.profile.to_plan(), question.topology
    judging = Judge(asked, top, question.workload, kind)
    rivals = [drawn(rng, asked, top.num_devices) for _ in range(12)]
    request = registry.Request(asked, top, question.workload, schedule=kind)
    rivals += registry.rivals(request)
    found = checked(replace(question, rivals=tuple(rivals)))
    scores = []
    for rival in rivals:
        try:
            scores.append(judging.score(judging.pricing.arrangement(rival)))
        except GraphError:
            continue  # too few samples for its copies
    fitting = [score for score in scores if score.missing_share == 0]
    if found is None:
        assert fitting == []
        return
    mine = judging.score(judging.pricing.arrangement(found))
    assert all(mine.sample_s <= score.sample_s * (1 + 1e-12) for score in fitting)


def test_the_family_has_plans_of_several_stages_and_cases_without():
    found = [checked(question_of(seed)) for seed in range(30)]
    assert 1 < found.count(None) < 20
    assert sum(len(one.stages) > 1 for one in found if one) > 3


@pytest.mark.parametrize("seed", full_but(range(3), range(12)))
def test_the_same_question_has_the_same_answer(seed):
    question = question_of(seed, micro_batches=(1, 2, 3))
    first, second = checked(question), checked(question)
    assert (first is None) == (second is None)
    if first:
        assert replace(first, seconds=0.0) == replace(second, seconds=0.0)


@pytest.mark.parametrize("seed", range(6))
def test_without_time_a_plan_is_still_not_worse_than_its_rivals(seed):
    question = replace(question_of(seed), time_limit_s=0.0)
    asked, top = question.profile.to_plan(), question.topology
    alone = (Stage(0, 1, tuple(one.name for one in asked.layers), 1, (0,)),)
    rival = Plan("alone", alone, 1, 0.0, 1.0, 1.0)
    found = checked(replace(question, rivals=(rival,)))
    judged = judge(rival, asked, top, question.workload)
    assert found is not None or not judged.fits
    if found and judged.fits:
        assert found.speedup >= judged.speedup * (1 - 1e-12)


def test_layers_with_few_parameters_are_replicated_and_those_with_many_are_not():
    """Two equal layers on two devices. In data parallelism the parameters cost nothing, or four times what all compute does."""
    workload = Workload(8, 64, 8)
    for parameter_bytes, stages in ((0.0, 1), (4 * 0.96 * 1e9, 2)):
        asked = chain(layer("a", 20, 40, 1e4, parameter_bytes), layer("b", 20, 40, 1e4, parameter_bytes))
        found = checked(Question(asked, nested((2,), (1e9,), 1e12), workload))
        assert len(found.stages) == stages
        assert found.num_devices == 2
        # 8 micro-batches of two stages: 9 turns for 16 halves.
        assert found.speedup == pytest.approx(2 if stages == 1 else 16 / 9, rel=0.001)


def test_what_does_not_fit_otherwise_is_recomputed():
    """Three layers, each with 4e6 bytes of outputs and of weights and what belongs to them, on three devices of 16e6 bytes.

    The first stage keeps three outputs. The second would keep two outputs and what came in, twice: 20e6 bytes with its weights.
    """
    asked = chain(*[layer(f"n{number}", 10, 20, 4e6, 1e6) for number in range(3)])
    question = Question(asked, nested((3,), (1e12,), 16e6), Workload(1, 12, 1))
    assert [stage.recompute for stage in checked(question).stages] == ["", "all", ""]
    assert checked(replace(question, is_recomputing=False)) is None
    roomy = checked(replace(question, topology=nested((3,), (1e12,), 20e6)))
    assert [stage.recompute for stage in roomy.stages] == ["", "", ""]


def test_micro_batches_of_several_sizes_are_tried():
    """A pipeline of many small micro-batches has less idle time; nothing else differs here."""
    asked = chain(layer("a", 20, 40, 0, 1e12), layer("b", 20, 40, 0, 1e12))
    question = Question(asked, nested((2,), (1e9,), 1e15), Workload(8, 64, 32))
    assert checked(question).workload.micro_batch == 32
    assert checked(replace(question, micro_batches=(32, 8, 16))).workload.micro_batch == 8


#: Two layers whose outputs are 100 bytes a sample, on a device that holds a micro-batch of them.
SHORT = Question(
    chain(layer("a", 8, 16, 800, 1), layer("b", 8, 16, 800, 1)), nested((1,), (1e9,), 2000.0), Workload(8, 64, 16),
    is_recomputing=False,
)  # fmt: skip


def test_where_no_plan_fits_smaller_micro_batches_are_tried_and_the_plan_says_which_and_why():
    """Samples keep 200 bytes each: 16 of them are too many, and 8 are not."""
    found = checked(SHORT)
    assert found.workload == Workload(8, 64, 8)
    assert found.note == (
        "micro-batches of 8 samples were taken, because no plan with 16 fits: the nearest needs 3,208 bytes on device 0, which has "
        "2,000; of 16 halved again and again, 8 is the largest that fits"
    )
    assert checked(replace(SHORT, micro_batches=(16, 32))).workload.micro_batch == 8
    assert checked(replace(SHORT, micro_batches=(16, 4))).note == ""


def test_where_none_fits_the_sizes_that_were_tried_are_named():
    with pytest.raises(NoPlanError) as caught:
        plan(replace(SHORT, topology=SHORT.topology.with_memory(150.0)))
    assert str(caught.value) == (
        "no plan found keeps to the memory, with micro-batches of 16, 8, 4, 2, 1 samples; the nearest needs 208 bytes on device 0, "
        "which has 150"
    )


def test_a_mini_batch_of_pipedream_is_not_made_smaller_unasked():
    """The weights are updated after each: it would be another training."""
    with pytest.raises(NoPlanError, match="which has 2,000; a smaller micro-batch takes less"):
        plan(replace(SHORT, schedule=PIPEDREAM))


def test_devices_may_be_unequal():
    """The quick one gets more of the layers."""
    asked = chain(*[layer(f"n{number}", 10, 20, 0, 1e12) for number in range(4)])
    top = Topology((Device(1e15, 3.0), Device(1e15, 1.0)), (Level(1e6, (0, 0)),))
    found = checked(Question(asked, top, Workload(1, 32, 1)))
    assert {stage.devices: len(stage.layers) for stage in found.stages} == {(0,): 3, (1,): 1}


@needs_profiles
def test_a_published_profile_is_planned_better_than_by_its_rivals():
    asked = graphtext.read(PROFILES / "alexnet.txt")
    top, workload = nested((4,), (1.25e9,), 16e9), Workload(256, 1024, 64)
    request = registry.Request(asked, top, workload)
    found = registry.plan("detrain", replace(request, time_limit_s=2.0))
    inside = asked.to_plan()
    for rival in registry.rivals(request):
        assert found.speedup >= judge(rival, inside, top, workload).speedup * (1 - 1e-12)


@pytest.mark.parametrize(
    ("asked", "memory_bytes", "said"),
    [
        (chain(layer("a"), layer("big", 1, 1, 1, 1e6)), 3.9e6, "layer big (f) takes 4,000,000 bytes with gradients and optimizer"),
        (diamond(), 10.0, "layer a (f) takes 400 bytes"),
        (chain(layer("a", 1, 1, 1e6, 1)), 1e5, "the nearest needs 1,000,004 bytes on device 0, which has 100,000"),
    ],
)  # fmt: skip
def test_what_no_device_holds_is_named(asked, memory_bytes, said):
    with pytest.raises(NoPlanError) as caught:
        plan(Question(asked, nested((1,), (1e9,), memory_bytes), Workload(1, 4, 1)))
    assert said in str(caught.value)


def test_a_profile_of_inputs_has_nothing_to_plan():
    with pytest.raises(GraphError, match="made has no layers but inputs"):
        plan(Question(profile([layer("a", description="Input0")], ""), nested((2,), (1e9,), 1e9), Workload(1, 1, 1)))


@pytest.mark.parametrize("devices", [1, 3])
def test_one_layer_and_one_sample_have_a_plan(devices):
    found = checked(Question(random_profile(0), nested((devices,), (1e9,), 1e12), Workload(1, 1, 1)))
    assert len(found.stages) == 1
    assert found.speedup == pytest.approx(1)


def test_layers_of_no_time_have_a_plan():
    asked = chain(layer("a", 0, 0, 0, 0), layer("b", 0, 0, 0, 0))
    assert checked(Question(asked, nested((2,), (1e9,), 1e9), Workload(1, 4, 1))).speedup == 1.0

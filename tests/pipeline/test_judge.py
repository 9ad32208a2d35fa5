"""The judge against closed forms and by hand; what it takes for granted of a plan that says nothing, and what it refuses."""

import pytest

pytest.importorskip("numba", reason='the simulator is compiled by numba: pip install "detrain-run[plan]"')

from detrain.errors import GraphError
from detrain.pipeline import judge as judging
from detrain.pipeline.interleave import interleaved
from detrain.pipeline.judge import Judge, judge, kind_of, prepared
from detrain.pipeline.plan import Plan, Stage, Workload
from detrain.pipeline.planfile import Planned
from detrain.pipeline.pricing import Arrangement
from detrain.pipeline.schedules import NAMES, Schedule
from detrain.pipeline.topology import nested

from .graphs import chain, layer

#: Two layers alike that send nothing: 3 ms forward, 6 ms back, for one sample.
HALVES = chain(*(layer(f"n{number}", 3, 6, 0) for number in range(2)))


def in_line(profile, *devices, workload=None, replication=1):
    """A stage for each layer, on these devices."""
    stages = tuple(
        Stage(number, number + 1, (one.name,), len(own) // replication, own)
        for number, (one, own) in enumerate(zip(profile.layers, devices, strict=True))
    )
    return Plan("made", stages, replication, 0.0, 0.0, 0.0, workload=workload)


def whole(profile, devices=(0,), replication=1):
    names = tuple(one.name for one in profile.layers)
    return Plan(
        "made", (Stage(0, len(names), names, len(devices) // replication, devices),), replication, 0.0, 0.0, 0.0
    )


@pytest.mark.parametrize("name", NAMES)
def test_one_device_is_as_quick_as_one_device(name):
    profile = chain(*(layer(f"n{number}", 1 + number, 2, 1e6, 1e6) for number in range(4)))
    kind = kind_of(name)
    planned, workload = prepared(Planned(whole(profile), profile, nested((1,), (1e9,), 16e9)), kind, profile_batch=4)
    found = judge(planned.plan, profile, planned.topology, workload, kind)
    assert found.speedup == pytest.approx(1, rel=1e-12)
    assert found.samples_per_s == pytest.approx(4 / profile.compute_s, rel=1e-12)


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
@pytest.mark.parametrize("num_micro_batches", [1, 2, 3, 8, 50])
def test_two_equal_halves_without_communication_have_the_closed_form(name, num_micro_batches):
    """A step is M + 1 micro-batches long, in which both do M."""
    workload = Workload(1, num_micro_batches, 1)
    plan = in_line(HALVES, (0,), (1,))
    found = judge(plan, HALVES, nested((2,), (1e9,), 16e9), workload, kind_of(name))
    assert found.timeline.step_s == pytest.approx(0.009 * (num_micro_batches + 1), rel=1e-12)
    assert found.speedup == pytest.approx(2 * num_micro_batches / (num_micro_batches + 1), rel=1e-12)


def test_interleaved_the_ends_of_a_pipeline_are_as_many_times_shorter_as_there_are_chunks():
    """Narayanan et al. 2021, 2.2: of p devices with v chunks the bubble is (p - 1) / v forwards and backwards."""
    profile = chain(*(layer(f"n{number}", 1, 2, 0) for number in range(8)))
    planned = Planned(in_line(chain(*profile.layers[:2]), (0,), (1,)), profile, nested((2,), (1e9,), 16e9))
    for chunks in (2, 4):
        kind = kind_of("interleaved", chunks=chunks)
        found, workload = prepared(planned, kind, profile_batch=1, batch=6, micro_batch=1)
        assert len(found.plan.stages) == 2 * chunks
        judged = judge(found.plan, profile, planned.topology, workload, kind)
        assert judged.timeline.step_s == pytest.approx(0.012 * (6 + 1 / chunks), rel=1e-12)


def test_without_a_flush_the_slowest_stage_decides_and_a_step_is_a_micro_batch():
    profile = chain(layer("a", 3, 6, 0), layer("b", 1, 2, 0))
    workload = Workload(4, 64, 8)
    found = judge(in_line(profile, (0,), (1,)), profile, nested((2,), (1e9,), 16e9), workload, kind_of("1f1b-async"))
    assert found.timeline.step_s == pytest.approx(0.018, rel=1e-12)
    assert found.samples_per_s == pytest.approx(8 / 0.018, rel=1e-12)
    assert found.speedup == pytest.approx(12 / 9, rel=1e-12)


def test_a_device_without_the_memory_is_named_and_the_share_is_of_the_fullest():
    """The first keeps two micro-batches of 1 MB at most, the second one of 3 MB: it has the other's output too."""
    profile = chain(layer("a", 1, 1, 1e6, 1e6), layer("b", 1, 1, 2e6, 1e6))
    plan, workload = in_line(profile, (0,), (1,)), Workload(1, 4, 1, 4.0)

    def at(memory_bytes):
        return judge(plan, profile, nested((2,), (1e9,), memory_bytes), workload)

    assert (at(7e6).fits, at(7e6).memory_share) == (True, pytest.approx(1.0))
    assert (at(6.5e6).fits, at(6.5e6).timeline.over_memory) == (False, (1,))
    assert at(3.5e6).timeline.over_memory == (0, 1)
    assert at(3.5e6).memory_share == pytest.approx(2.0)


def test_a_batch_that_is_no_multiple_is_cut_as_evenly_as_whole_samples_are():
    """128 samples in micro-batches of 6 at most: 22 of them, none of more than 6, where 21 would leave two samples out."""
    judged = Judge(HALVES, nested((1,), (1e9,), 16e9), Workload(2, 128, 6))
    arranged = Arrangement((0b11,), ((0,),), 1, ("",))
    assert judged.schedule(arranged).num_micro_batches == 22
    (load,) = judged.pricing.loads(arranged)
    assert load.forward_s == pytest.approx(6 * 0.003, rel=1e-12)


def test_of_a_plan_that_knows_no_batches_the_mini_batch_divides_evenly_and_a_step_has_four_for_each_stage():
    profile = chain(*(layer(f"n{number}") for number in range(3)))
    topology = nested((12,), (1e9,), 16e9)
    devices = tuple(range(4)), tuple(range(4, 10)), (10, 11)
    bare = Planned(in_line(profile, *devices, replication=2), profile, topology)
    planned, workload = prepared(bare, Schedule("1f1b"))
    assert planned == bare
    assert workload == Workload(profile_batch=6, batch=6 * 2 * 4 * 3, micro_batch=6, state_factor=4.0)
    assert prepared(bare, Schedule("1f1b"), profile_batch=32)[1] == Workload(32, 32 * 24, 32)
    assert prepared(bare, Schedule("1f1b"), micro_batch=2, state_factor=1.0)[1] == Workload(6, 48, 2, 1.0)
    assert prepared(bare, Schedule("1f1b"), batch=100, profile_batch=None)[1] == Workload(6, 100, 6)


def test_a_plan_is_for_its_own_batches_but_for_what_is_asked():
    planned = Planned(in_line(HALVES, (0,), (1,), workload=Workload(8, 64, 4, 2.0)), HALVES, nested((2,), (1e9,), 16e9))
    assert prepared(planned, Schedule("gpipe"))[1] == Workload(8, 64, 4, 2.0)
    assert prepared(planned, Schedule("gpipe"), batch=16, state_factor=3.0)[1] == Workload(8, 16, 4, 3.0)
    with pytest.raises(GraphError, match="a micro-batch of 4 is more than the batch of 2"):
        prepared(planned, Schedule("gpipe"), batch=2)


def test_stages_that_are_chunks_already_are_not_cut_again():
    profile = chain(*(layer(f"n{number}") for number in range(8)))
    planned = Planned(in_line(profile, *[(number % 2,) for number in range(8)]), profile, nested((2,), (1e9,), 16e9))
    assert prepared(planned, kind_of("interleaved", chunks=4))[0] == planned


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        (((0,), (1,), (2,), (3,)), "of 4 stages stage 2 is on those of stage 0, and here it is not"),
        (((0,), (1,), (1,), (0,)), "of 4 stages stage 2 is on those of stage 0, and here it is on those of stage 1"),
        (((0,), (0,), (0,), (0,)), "of 4 stages stage 1 is on devices of its own, and here it is on those of stage 0"),
        (((0,), (1,), (0,)), "interleaved: 3 stages are not divisible by 2 chunks"),
    ],
)  # fmt: skip
def test_interleaved_stages_that_are_not_chunks_of_the_same_devices_are_refused(devices, said):
    """Who simulates two devices as one says that they are half as quick as they are."""
    profile = chain(*(layer(f"n{number}") for number in range(len(devices))))
    with pytest.raises(GraphError) as caught:
        judge(
            in_line(profile, *devices), profile, nested((4,), (1e9,), 16e9), Workload(1, 8, 1), kind_of("interleaved")
        )
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("name", "most"), [("gpipe", judging.MOST_FORWARDS // 2), ("2bw", judging.MOST_FORWARDS // 2 // 17)]
)
def test_far_too_many_micro_batches_are_refused_before_memory_runs_out(name, most):
    """Two stages, and of 2BW sixteen mini-batches at least, with one behind them."""
    topology, arranged = nested((2,), (1e9,), 16e9), Arrangement((0b1, 0b11), ((0,), (1,)), 1, ("", ""))
    assert Judge(HALVES, topology, Workload(1, most, 1), kind_of(name)).schedule(arranged).num_micro_batches == most
    with pytest.raises(GraphError, match=rf"{most + 1:,} micro-batches of 1 through 2 stages are too many to"):
        Judge(HALVES, topology, Workload(1, most + 1, 1), kind_of(name)).schedule(arranged)


def test_a_plan_is_cut_the_same_by_whoever_asks():
    profile = chain(*(layer(f"n{number}", 1 + number % 3, 2, 1e6) for number in range(9)))
    planned = Planned(in_line(chain(*profile.layers[:3]), (0,), (1,), (2,)), profile, nested((3,), (1e9,), 16e9))
    assert prepared(planned, kind_of("interleaved", chunks=3))[0].plan == interleaved(planned.plan, profile, 3)

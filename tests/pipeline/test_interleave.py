"""Stages cut smaller, by hand and against all ways to cut them."""

import itertools

import pytest

pytest.importorskip("numba", reason='states are compressed with what numba compiles: pip install "detrain-run[plan]"')

from detrain.errors import GraphError
from detrain.pipeline import planfile
from detrain.pipeline.interleave import interleaved
from detrain.pipeline.plan import Plan, Stage
from detrain.pipeline.topology import nested
from detrain.plans.errors import NoPlanError

from .graphs import chain, diamond, layer, random_profile


def on(*devices, recompute=None, replication=1):
    """A plan with stages on these devices; what is in them does not matter."""
    how = recompute or ("",) * len(devices)
    return Plan(
        "made",
        tuple(
            Stage(0, 0, (), len(own) // replication, own, again) for own, again in zip(devices, how, strict=True)
        ),
        replication, 0.5, 2.0, 1.0,
    )  # fmt: skip


def times(*forward_ms):
    return chain(*(layer(f"n{number}", one, 0) for number, one in enumerate(forward_ms)))


@pytest.mark.parametrize(
    ("forward_ms", "devices", "chunks", "expected"),
    [
        # Equal layers, one for each chunk.
        ((1, 1, 1, 1), ((0,), (1,)), 2, ["n0", "n1", "n2", "n3"]),
        # The slow layer stands alone.
        ((1, 1, 1, 9, 1, 1), ((0,), (1,)), 2, ["n0 n1", "n2", "n3", "n4 n5"]),
        # One device has both chunks.
        ((1, 2, 3), ((4,),), 2, ["n0 n1", "n2"]),
        # Two replicas do twice as much: 3 / 1, 6 / 2, 3 / 1, 6 / 2.
        ((3, 3, 3, 3, 3, 3), ((0,), (1, 2)), 2, ["n0", "n1 n2", "n3", "n4 n5"]),
        # Three times over: a chunk of 1, 2, 1, 2, 1, 2 layers.
        ((1,) * 9, ((0,), (1, 2)), 3, ["n0", "n1 n2", "n3", "n4 n5", "n6", "n7 n8"]),
        # As many layers as stages leave nothing to choose.
        ((9, 1, 1, 9), ((0,), (1, 2)), 2, ["n0", "n1", "n2", "n3"]),
    ],
    ids=["equal", "one slow", "one device", "replicas", "three chunks", "no choice"],
)  # fmt: skip
def test_cuts_make_the_slowest_stage_quickest(forward_ms, devices, chunks, expected):
    found = interleaved(on(*devices), times(*forward_ms), chunks)
    slowest = [sum(forward_ms[int(name[1:])] for name in one.layers) / one.replicas for one in found.stages]
    wanted = [names.split() for names in expected]
    assert max(slowest) == max(
        sum(forward_ms[int(name[1:])] for name in names) / len(devices[number % len(devices)])
        for number, names in enumerate(wanted)
    )
    assert [one.devices for one in found.stages] == list(devices) * chunks
    if max(slowest) != 9:  # else there are several ways to cut what is left
        assert [list(one.layers) for one in found.stages] == wanted


def test_stages_follow_on_each_other_and_the_rest_of_the_plan_stays():
    plan = on((0, 2), (1, 3), recompute=("", "all"), replication=2)
    found = interleaved(plan, times(1, 2, 3, 4, 5), 2)
    assert [(one.start, one.end) for one in found.stages] == [
        (before, before + len(one.layers))
        for before, one in zip((0, *(stage.end for stage in found.stages)), found.stages, strict=False)
    ]
    assert [one.recompute for one in found.stages] == ["", "all", "", "all"]
    assert [one.replicas for one in found.stages] == [1, 1, 1, 1]
    assert (found.planner, found.replication, found.bottleneck_s, found.speedup) == ("made", 2, 0.5, 2.0)


@pytest.mark.parametrize("seed", range(40))
def test_no_other_cuts_of_a_chain_have_a_quicker_slowest_stage(seed):
    profile = chain(*random_profile(7 + 8 * seed).layers)
    count = len(profile.layers)
    devices = ((0,), (1, 2)) if seed % 2 else ((0, 1, 2), (3,))
    spent = [one.forward_ms + one.backward_ms for one in profile.layers]

    def slowest(ends):
        starts = (0, *ends[:-1])
        return max(
            sum(spent[start:end]) / len(devices[number % 2])
            for number, (start, end) in enumerate(zip(starts, ends, strict=True))
        )

    least = min(slowest((*cuts, count)) for cuts in itertools.combinations(range(1, count), 3))
    found = interleaved(on(*devices), profile, 2)
    assert slowest(tuple(one.end for one in found.stages)) == pytest.approx(least, rel=1e-9)


@pytest.mark.parametrize("seed", [seed for seed in range(56) if 1 + seed % 8 >= 4])
def test_no_stage_takes_what_a_later_one_makes(seed):
    """Layer by layer, a profile can be cut into as many stages as it has layers."""
    profile = random_profile(seed)
    planfile.check(interleaved(on((0,), (1,)), profile, 2), profile, nested((2,), (1e9,), 1e9))


def test_branches_are_cut_one_within_the_other():
    """a, then b and c side by side, then d: four states of a line, and one besides."""
    found = interleaved(on((0,), (1,)), diamond(), 2)
    assert [one.layers for one in found.stages][::3] == [("a",), ("d",)]
    assert {one.layers for one in found.stages[1:3]} == {("b",), ("c",)}


@pytest.mark.parametrize(
    ("plan", "forward_ms", "chunks", "error", "said"),
    [
        (on((0,), (1,)), (1, 1, 1), 2, NoPlanError, "4 stages take as many layers, and chain has 3"),
        (on((0,)), (1,), 2, NoPlanError, "2 stages take as many layers, and chain has 1"),
        (on((0,)), (1, 1), 1, GraphError, "interleaved stages are two or more to a device, not 1"),
    ],
)
def test_what_cannot_be_cut_is_said(plan, forward_ms, chunks, error, said):
    with pytest.raises(error) as caught:
        interleaved(plan, times(*forward_ms), chunks)
    assert str(caught.value) == said

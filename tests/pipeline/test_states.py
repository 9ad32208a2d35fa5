"""Where a profile may be cut: all places, those that PipeDream counts, fewer of them, and branches as single layers."""

import math
from itertools import pairwise, product
from pathlib import Path

import pytest

from detrain.errors import GraphError
from detrain.pipeline import graphtext
from detrain.pipeline.branches import merge_branches
from detrain.pipeline.compression import LIMIT, depth_first, least_crossing, states_of
from detrain.pipeline.layers import Profile
from detrain.pipeline.states import all_ideals, of_members, published

from .exhaustive import Level, PipeDream, augmented_bytes, crossing_bytes, everything, ideals
from .graphs import branches, chain, diamond, layer, profile, random_profile, series_parallel

PROFILES = Path(__file__).parents[3] / "shared/data/profiles"
needs_profiles = pytest.mark.skipif(not PROFILES.is_dir(), reason="the published profiles are not beside the checkout")


def two_sources():
    return profile([layer("a", 1), layer("b", 2), layer("c", 4), layer("d", 8)], "ac bc cd")


def a_source_that_leads_elsewhere_too():
    return profile(
        [layer("a", 1, 0, 1), layer("b", 2, 0, 2), layer("c", 4, 0, 4), layer("d", 8, 0, 8)], "ac bc bd", "elsewhere"
    )


def two_sinks():
    return profile([layer("a", 1, 0, 1), layer("b", 2, 0, 2), layer("c", 4, 0, 4)], "ab ac")


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (chain(layer("a", 1, 1, 1), layer("b", 1, 1, 2), layer("c", 1, 1, 4)), [("a", 1), ("ab", 2), ("abc", 4)]),
        # Who has b and c done needs no a, and it counts.
        (diamond(), [("a", 10), ("ac", 50), ("ab", 30), ("abc", 70), ("abcd", 80)]),
        (two_sinks(), [("a", 1), ("ac", 5), ("ab", 3), ("abc", 7)]),
        # The second source is done with what needs it, and is nowhere to cut behind.
        (two_sources(), [("a", 1), ("abc", 1), ("abcd", 1)]),
        (a_source_that_leads_elsewhere_too(), [("a", 1), ("abc", 6), ("abcd", 14)]),
    ],
    ids=["chain", "diamond", "two sinks", "two sources", "elsewhere"],
)  # fmt: skip
def test_states_are_those_that_pipedream_counts_in_its_order(asked, expected):
    found = published(asked)
    assert [
        ("".join(found.names(bits)), size) for bits, size in zip(found.members, found.output_bytes, strict=True)
    ] == expected


def test_names_decide_which_of_two_states_comes_first():
    keys = {0: "", 1: "y", 2: "x", 3: "z"}
    found = published(diamond(), lambda number: keys[number])
    assert ["".join(found.names(bits)) for bits in found.members] == ["a", "ab", "ac", "abc", "abcd"]


@pytest.mark.parametrize("seed", range(0, 300, 2))
def test_published_states_are_all_that_the_first_layer_leads_to(seed):
    asked = random_profile(seed, is_from_one=seed % 4 == 0)
    before = asked.ancestors
    first = 1 << next(number for number, one in enumerate(before) if not one)
    reached, queue = {first}, [first]
    while queue:
        bits = queue.pop()
        for begin, end in asked.edges:
            larger = bits | before[end] | 1 << end
            if bits >> begin & 1 and larger not in reached:
                reached.add(larger)
                queue.append(larger)
    if everything(asked) not in reached:
        with pytest.raises(GraphError, match="no path leads from the first layer to n"):
            published(asked)
        return
    found = published(asked)
    assert set(found.members) == reached
    assert len(found.members) == len(reached)
    assert not any(
        later & ~earlier == 0 for at, earlier in enumerate(found.members) for later in found.members[at + 1 :]
    )
    assert found.output_bytes.tolist() == pytest.approx([augmented_bytes(asked, bits) for bits in found.members])


def test_a_layer_that_the_first_does_not_lead_to_is_named():
    apart = profile("abcd", "ab cd", "apart")
    with pytest.raises(GraphError, match="apart: no path leads from the first layer to c, directly or through"):
        published(apart)
    assert len(states_of(apart).members) == 8


def test_too_many_states_are_none():
    asked = branches(3, 3)  # 4 places in each branch, and one behind them
    assert len(published(asked, limit=65).members) == 65
    assert published(asked, limit=64) is None


@pytest.mark.parametrize("seed", range(120))
def test_all_states_are_all_sets_with_what_comes_before_their_members(seed):
    asked = random_profile(seed)
    expected = ideals(asked)
    assert all_ideals(asked, len(expected)) == {0, *expected}
    assert all_ideals(asked, len(expected) - 1) is None
    found = states_of(asked)
    assert set(found.members) == set(expected)
    assert len(found.members) == len(expected)
    assert found.output_bytes.tolist() == pytest.approx([crossing_bytes(asked, bits) for bits in found.members])
    for number, bits in enumerate(found.members):
        layers = [one for place, one in enumerate(asked.layers) if bits >> place & 1]
        assert found.names(bits) == tuple(one.name for one in layers)
        assert found.compute_s[number] == pytest.approx(sum(one.forward_ms + one.backward_ms for one in layers) / 1000)
        assert found.forward_s[number] == pytest.approx(sum(one.forward_ms for one in layers) / 1000)
        assert found.parameter_bytes[number] == pytest.approx(sum(one.parameter_bytes for one in layers))
        assert found.activation_bytes[number] == pytest.approx(sum(sum(one.output_bytes) for one in layers))
        assert found.below[number].tolist() == [bits & ~other == 0 and bits != other for other in found.members]
        assert not found.below[number, :number].any()


def test_a_stage_has_what_one_state_has_beyond_another():
    found = of_members(diamond(), [1, 3])
    assert [found.layers_between(*ends) for ends in [(-1, 0), (0, 1), (1, 2), (0, 2)]] == [
        ("a",), ("b",), ("c", "d"), ("b", "c", "d"),
    ]  # fmt: skip


def test_more_than_64_layers_have_their_places_among_each_other():
    found = states_of(chain(*[1] * 130))
    assert found.below.sum() == 130 * 129 / 2
    assert found.below[63, 64]
    assert not found.below[64, 63]


def graph_of(kind, seed):
    if kind == "branches":
        return branches(2 + seed % 2, 1 + seed % 3, 1 + seed % 2)
    return random_profile(seed, 9) if kind == "random" else series_parallel(seed)


@pytest.mark.parametrize("limit", [1, 5, 12])
@pytest.mark.parametrize("kind", ["random", "series-parallel", "branches"])
def test_fewer_states_are_states_and_have_an_order_of_all_layers(kind, limit):
    num_fewer = 0
    for seed in range(40):
        asked = graph_of(kind, seed)
        found = states_of(asked, limit).members
        everywhere = all_ideals(asked, 10**6)
        assert everywhere.issuperset(found)
        assert len(set(found)) == len(found)
        assert len(found) <= limit + 3 * len(asked.layers)
        num_fewer += len(found) < len(everywhere) - 1
        # From the empty set to that of all, layer by layer.
        reached = {0}
        for bits in found:
            if any(bits & ~(1 << one) in reached for one in range(bits.bit_length()) if bits >> one & 1):
                reached.add(bits)
        assert everything(asked) in reached
    assert num_fewer > 2


@pytest.mark.parametrize("limit", [1, 5, 12])
@pytest.mark.parametrize("kind", ["random", "series-parallel", "branches"])
def test_fewer_states_cost_no_more_than_the_slowest_layer_where_only_time_counts(kind, limit):
    for seed in range(20):
        made = graph_of(kind, seed)
        asked = Profile(tuple(layer(one.name, one.forward_ms, one.backward_ms, 0) for one in made.layers), made.edges)
        slowest_s = max(one.forward_ms + one.backward_ms for one in asked.layers) / 1000
        machines = 2 + seed % 2
        for is_straight in (True, False):
            level = Level(machines, 1e9, is_straight=is_straight)
            best_s, found_s = (
                PipeDream(asked, list(states), level).least_s()
                for states in (states_of(asked, 10**6).members, states_of(asked, limit).members)
            )
            assert best_s <= found_s or math.isclose(best_s, found_s)
            assert found_s == best_s or found_s <= best_s + slowest_s + 1e-12
            assert math.isinf(best_s) == (is_straight and len(asked.layers) < machines)


def test_a_chain_has_all_its_states_however_few_are_asked_for():
    assert len(states_of(chain(*[1] * 300), limit=10).members) == 300


def test_branches_are_cut_into_pieces_of_like_time():
    """Each of three branches of 6, 6 and 8 ms into two of 12 and 8."""
    layers = [layer("in"), *(layer(f"{one}{place}", time, 0) for one in "abc" for place, time in enumerate([6, 6, 8]))]
    edges = [(0, 1), (0, 4), (0, 7), *((one, one + 1) for one in (1, 2, 4, 5, 7, 8))]
    asked = Profile(tuple(layers), tuple(edges))
    assert len(states_of(asked).members) == 4**3
    # Two regions, of up to 30 states each.
    fewer = states_of(asked, limit=60)
    found = {frozenset(fewer.names(bits)) for bits in fewer.members}
    for places in product([0, 2, 3], repeat=3):
        done = {f"{name}{one}" for name, place in zip("abc", places, strict=True) for one in range(place)}
        assert {"in", *done} in found
    assert len(found) < 40


def test_the_order_that_least_crosses_knows_what_comes_behind_a_region():
    """a1 is large, and needed until the branches meet."""
    sizes = {"in": 10, "a0": 1, "a1": 100, "b0": 5, "b1": 5, "out": 1}
    layers = tuple(layer(name, 1, 1, size) for name, size in sizes.items())
    asked = Profile(layers, ((0, 1), (0, 3), (1, 2), (3, 4), (2, 5), (4, 5)))
    assert [layers[one].name for one in least_crossing(asked)] == ["in", "a0", "b0", "b1", "a1", "out"]
    assert [layers[one].name for one in depth_first(asked)] == ["in", "a0", "a1", "b0", "b1", "out"]
    found = states_of(asked, limit=1)
    assert ("in", "a0", "b0", "b1") in [found.names(bits) for bits in found.members]


def test_what_leads_nowhere_crosses_nothing():
    layers = (layer("in", 1, 1, 10), layer("a", 1, 1, 1), layer("sink", 1, 1, 100), layer("b", 1, 1, 1))
    asked = Profile(layers, ((0, 1), (0, 2), (1, 3)))
    assert [layers[one].name for one in least_crossing(asked)] == ["in", "sink", "a", "b"]


@needs_profiles
def test_inception_has_about_as_many_states_as_are_asked_for():
    asked = graphtext.read(PROFILES / "pipedream/inception_v3.txt").to_plan()
    assert all_ideals(asked, 4 * LIMIT) is None
    found = states_of(asked)
    assert len(asked.layers) < len(found.members) <= LIMIT + 3 * len(asked.layers)
    assert found.members[-1] == everything(asked)


def fork():
    return profile("abcde", "ab bc ad ce de", "fork")


def nested_fork():
    """Behind b, which belongs to the run that it ends, c and d are branches of their own."""
    return profile("abcdefg", "ab ag bc bd ce de ef gf", "nested")


def straight_into_the_join():
    return profile("abcd", "ab bc ac cd", "straight")


def that_ends_in_a_sink():
    return profile("abcd", "ab bc ad", "sink")


@pytest.mark.parametrize(
    ("asked", "expected", "edges"),
    [
        (chain(*[1] * 3), [("n0",), ("n1",), ("n2",)], "n0-n1 n1-n2"),
        (fork(), [("a",), ("b", "c"), ("d",), ("e",)], "a-compressed_node0 a-compressed_node1 compressed_node0-e compressed_node1-e"),
        (
            nested_fork(), [("a",), ("b",), ("g",), ("c",), ("d",), ("f",), ("e",)],
            "a-b a-compressed_node1 b-compressed_node2 b-compressed_node3 compressed_node1-f e-f compressed_node2-e compressed_node3-e",
        ),
        (straight_into_the_join(), [("a",), ("b",), ("c",), ("d",)], "a-compressed_node0 a-c compressed_node0-c c-d"),
        (that_ends_in_a_sink(), [("a",), ("b", "c"), ("d",)], "a-compressed_node0 a-d"),
        (profile("abc", "ab", "alone"), [("c",), ("a",), ("b",)], "a-b"),
    ],
    ids=lambda one: one.name if isinstance(one, Profile) else "",
)  # fmt: skip
def test_an_unbranched_run_behind_a_fork_is_one_layer(asked, expected, edges):
    merged, stands_for = merge_branches(asked)
    assert [stands_for[one.name] for one in merged.layers] == expected
    names = [one.name for one in merged.layers]
    assert " ".join(f"{names[begin]}-{names[end]}" for begin, end in merged.edges) == edges


def test_a_run_that_leads_to_a_fork_takes_it_in():
    asked = profile("abcdefg", "ab bc ag cd ce df ef gf", "run to a fork")
    merged, stands_for = merge_branches(asked)
    assert stands_for[merged.layers[1].name] == ("b", "c")
    assert merged.layers[1].description == "Branch 0"


def test_a_merged_layer_takes_the_time_of_all_and_gives_out_what_the_last_does():
    asked = profile(
        [layer("a"), layer("b", 1, 2, 4, 8), layer("c", 16, 32, (64, 128), 256), layer("d"), layer("e")],
        "ab bc ad ce de",
    )
    merged, _ = merge_branches(asked)
    run = merged.layers[1]
    assert (run.name, run.forward_ms, run.backward_ms, run.output_bytes, run.parameter_bytes) == (
        "compressed_node0", 17, 34, (64, 128), 264,
    )  # fmt: skip


@pytest.mark.parametrize("seed", range(150))
def test_merging_keeps_all_layers_once_and_their_totals(seed):
    asked = random_profile(seed, 12)
    merged, stands_for = merge_branches(asked)
    assert sorted(name for one in merged.layers for name in stands_for[one.name]) == sorted(
        one.name for one in asked.layers
    )
    assert merged.compute_s == pytest.approx(asked.compute_s)
    assert merged.parameter_bytes == pytest.approx(asked.parameter_bytes)
    for names in stands_for.values():
        places = [next(number for number, one in enumerate(asked.layers) if one.name == name) for name in names]
        assert all(asked.successors[begin] == (end,) for begin, end in pairwise(places))

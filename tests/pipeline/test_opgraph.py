"""Profiles as steps of remat, steps as profiles: by hand, there and back, and nothing lost."""

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import pytest

from detrain.errors import GraphError
from detrain.pipeline import graphtext
from detrain.pipeline.layers import Layer, Profile
from detrain.pipeline.steps import from_graph, to_graph
from detrain.remat import builders, dtrlog
from detrain.remat.graph import GraphBuilder
from detrain.remat.schedule import keep_all
from detrain.remat.simulator import peak_bytes, simulate

PROFILES = Path(__file__).parents[3] / "shared/data/profiles"

#: The data goes to a, a to b, a and b to c.
SMALL = Profile(
    (
        Layer("x", "Input", 5.0, 0.0, (8.0,), 0.0), Layer("a", "Conv", 1.0, 2.0, (16.0,), 4.0),
        Layer("b", "Split", 0.5, 0.001, (4.0, 2.0), 0.0), Layer("c", "Linear", 3.0, 4.0, (1.0,), 8.0),
    ),
    ((0, 1), (1, 2), (1, 3), (2, 3)),
    "small",
)  # fmt: skip


def test_a_profile_is_a_step_forward_and_back():
    graph = to_graph(SMALL)
    assert [(tensor.name, tensor.size_bytes) for tensor in graph.tensors] == [
        ("a parameters", 4), ("c parameters", 8), ("x", 8), ("a", 16), ("b", 4), ("b output 1", 2), ("c", 1),
        ("c parameters' gradient", 8), ("a gradient of c", 16), ("b gradient of c", 6), ("a gradient of b", 16),
        ("a parameters' gradient", 4),
    ]  # fmt: skip
    assert [(one.name, one.cost_ns, one.inputs, one.outputs, one.is_backward) for one in graph.operators[3:]] == [
        ("Conv", 1_000_000, (2, 0), (3,), False), ("Split", 500_000, (3,), (4, 5), False), ("Linear", 3_000_000, (3, 4, 5, 1), (6,), False),
        # Its gradients first, then what it took and what it made.
        ("Linear backward", 4_000_000, (3, 4, 5, 1, 6), (7, 8, 9), True), ("Split backward", 1_000, (9, 3, 4, 5), (10,), True),
        ("Conv backward", 2_000_000, (8, 10, 2, 0, 3), (11,), True),
    ]  # fmt: skip
    assert [graph.tensors[one].name for one in graph.outputs] == ["c parameters' gradient", "a parameters' gradient"]


def test_a_step_frees_each_layer_behind_its_own_way_back():
    graph = to_graph(SMALL)
    # Constants 20, the forward pass 23; then c's 30 come and its 1 goes, b's 16 come and its 12 go, a's 4 come and its 48 go.
    assert peak_bytes(graph) == 20 + 23 + 30 - 1 + 16
    outcome = simulate(graph, keep_all(graph))
    assert outcome.failure == ""
    assert outcome.usage_bytes[-1] == 20 + 8 + 4
    assert graph.cost_ns == 10_501_000


def test_a_step_comes_back_as_its_profile():
    found = from_graph(to_graph(SMALL))
    # Loading the data is no part of a step.
    assert found.layers == (replace(SMALL.layers[0], forward_ms=0.0), *SMALL.layers[1:])
    assert set(found.edges) == set(SMALL.edges)


@pytest.mark.parametrize(
    ("profile", "names"),
    [
        # Names that others would have got.
        (
            Profile(tuple(Layer(one, "f", 1.0, 1.0, (1.0,), 2.0) for one in ("a", "a parameters")), ((0, 1),)),
            ["a", "a parameters"],
        ),
        # Nothing to learn, nothing to hand on: the backward pass makes nothing that stays.
        (Profile((Layer("a", "", 1.0, 1.0, (), 0.0),), ()), ["a"]),
        # Layers beside each other, and edges that stand twice.
        (Profile(tuple(Layer(one, "f", 1.0, 0.0, (1.0,), 0.0) for one in "abc"), ((0, 1), (0, 1))), ["a", "b", "c"]),
    ],
)  # fmt: skip
def test_odd_profiles_are_steps_too(profile, names):
    graph = to_graph(profile)
    assert simulate(graph, keep_all(graph)).failure == ""
    found = from_graph(graph)
    assert sorted(layer.name for layer in found.layers) == names
    assert by_name(found)[1] == by_name(profile)[1]


def random_profile(seed):
    """Sizes are few, so that data, parameters and outputs often have the same."""
    rng = random.Random(seed)
    layers, edges = [], []
    for number in range(rng.randrange(1, 13)):
        if rng.random() < 0.2:
            layers.append(Layer(f"n{number}", "Input", 0.0, 0.0, (float(rng.randrange(4)),), 0.0))
            continue
        outputs = tuple(float(rng.randrange(4)) for _ in range(rng.choice((1, 1, 1, 2, 3))))
        times = (rng.randrange(5000) / 1000, rng.choice((0.0, rng.randrange(5000) / 1000)))
        layers.append(Layer(f"n{number}", f"f{rng.randrange(3)}", *times, outputs, float(rng.choice((0, 0, 1, 2, 3)))))
        before = rng.sample(range(number), min(number, rng.randrange(4)))
        edges += [(one, number) for one in before]
    order = list(range(len(layers)))
    rng.shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    return Profile(tuple(layers[old] for old in order), tuple((place[begin], place[end]) for begin, end in edges))


def by_name(profile):
    edges = {(profile.layers[begin].name, profile.layers[end].name) for begin, end in profile.edges}
    return {layer.name: layer for layer in profile.layers}, edges


def only_inputs(profile):
    return all(layer.is_input for layer in profile.layers)


@pytest.mark.parametrize("seed", range(300))
def test_any_profile_comes_back_with_its_times_sizes_and_edges(seed):
    profile = random_profile(seed)
    graph = to_graph(profile)
    assert simulate(graph, keep_all(graph)).failure == ""
    if only_inputs(profile):
        with pytest.raises(GraphError, match="has no forward operators"):
            from_graph(graph)
        return
    assert by_name(from_graph(graph)) == by_name(profile)


@pytest.mark.skipif(not PROFILES.is_dir(), reason="the published profiles are not beside the checkout")
@pytest.mark.parametrize("path", sorted(PROFILES.glob("*/*.txt")), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_published_profiles_come_back_with_their_times_sizes_and_edges(path):
    profile = graphtext.read(path)
    layers, edges = by_name(profile)
    # The data is one tensor, and takes no time.
    data = {one.name for number, one in enumerate(profile.layers) if one.is_input and not profile.predecessors[number]}
    for name in data:
        layers[name] = replace(
            layers[name], description="Input", forward_ms=0.0, backward_ms=0.0, output_bytes=(layers[name].activation_bytes,)
        )  # fmt: skip
    assert by_name(from_graph(to_graph(profile))) == (layers, edges)


def two_layers(is_flagged=True):
    """A step of two linear layers with a relu between them, in one call for each operator that a framework does."""
    made = GraphBuilder("two-layers")
    data, weight, weight_2, counter = (
        made.constant(name, size) for name, size in (("x", 100), ("w", 40), ("v", 50), ("k", 8))
    )

    def call(name, cost_ns, inputs, output, size, alias=-1, is_backward=False):
        (one,) = made.compute(name, cost_ns, inputs, [(output, size, alias)], is_backward=is_backward and is_flagged)
        return one

    turned = call("t", 1, [weight], "wt", 0, 0)
    call("add", 2, [counter], "k+1", 8)
    first = call("mm", 10, [data, turned], "a", 60)
    relu = call("relu", 3, [first], "r", 60)
    flat = call("view", 1, [relu], "rv", 0, 0)
    out = call("mm", 20, [flat, weight_2], "o", 20)
    seed = call("ones_like", 1, [], "g", 20, is_backward=True)
    of_weight_2 = call("mm", 7, [seed, flat], "dv", 50, is_backward=True)
    of_relu = call("mm", 8, [seed, weight_2], "dr", 60, is_backward=True)
    of_first = call("threshold_backward", 4, [of_relu, relu], "da", 60, is_backward=True)
    same = call("view", 5, [of_first], "dav", 0, 0, is_backward=True)
    of_weight = call("mm", 9, [same, data], "dw", 40, is_backward=True)
    for gone in (turned, first, relu, flat, seed, of_relu, of_first, same):
        made.release(gone)
    return made.build([out, of_weight_2, of_weight])


def test_a_steps_operators_are_the_layers_that_they_belong_to():
    found = from_graph(two_layers())
    assert found.layers == (
        # The counter's own layer is beside all others: it is part of the first product, as is the view of its weight.
        Layer("x", "Input", 0.0, 0.0, (100.0,), 0.0), Layer("k", "Input", 0.0, 0.0, (8.0,), 0.0),
        Layer("a", "mm", 13e-6, 9e-6, (60.0,), 40.0), Layer("r", "relu", 4e-6, 9e-6, (60.0,), 0.0),
        # Where the gradients begin, that is the last layer's.
        Layer("o", "mm", 20e-6, 16e-6, (20.0,), 50.0),
    )  # fmt: skip
    assert set(found.edges) == {(1, 2), (0, 2), (2, 3), (3, 4)}
    assert found.name == "two-layers"


def test_steps_that_share_a_weight_have_their_own_ways_back():
    made = GraphBuilder()
    weight, at, states = made.constant("w", 9), made.constant("x", 4), []
    for number in range(3):
        (at,) = made.compute("mm", 10, [at, weight], [(f"h{number}", 4, -1)])
        (at,) = made.compute("tanh", 1, [at], [(f"s{number}", 4, -1)])
        states.append(at)
    (gradient,) = made.compute("loss_backward", 5, [at], [("g", 4, -1)], is_backward=True)
    for number in reversed(range(3)):
        inputs = [gradient, states[number]]
        (gradient,) = made.compute("tanh_backward", 2, inputs, [(f"gh{number}", 4, -1)], is_backward=True)
        (gradient,) = made.compute("mm", 7, [gradient, weight], [(f"gs{number}", 4, -1)], is_backward=True)
    (of_weight,) = made.compute("mm", 3, [gradient, made.constant("y", 2)], [("dw", 9, -1)], is_backward=True)
    found = from_graph(made.build([of_weight]))
    assert [(layer.name, round(1e6 * layer.backward_ms), layer.parameter_bytes) for layer in found.layers] == [
        ("x", 0, 0.0), ("y", 0, 0.0), ("h0", 10, 9.0), ("s0", 2, 0.0), ("h1", 7, 0.0), ("s1", 2, 0.0), ("h2", 7, 0.0), ("s2", 7, 0.0),
    ]  # fmt: skip


def test_a_weight_of_which_others_take_a_view_makes_no_edges():
    made = GraphBuilder()
    weight, data = made.constant("w", 9), made.constant("x", 4)
    (turned,) = made.compute("t", 1, [weight], [("wt", 0, 0)])
    (left,) = made.compute("mm", 1, [data, turned], [("l", 4, -1)])
    (right,) = made.compute("mm", 1, [data, turned], [("r", 4, -1)])
    made.compute("mm_backward", 1, [left, right], [("dw", 9, -1)], is_backward=True)
    found = from_graph(made.build([5]))
    names = [layer.name for layer in found.layers]
    assert {(names[begin], names[end]) for begin, end in found.edges} == {("x", "l"), ("x", "r")}


def unflagged(graph):
    return replace(graph, operators=tuple(replace(one, is_backward=False) for one in graph.operators))


def test_without_flags_the_way_back_begins_where_most_memory_is_in_use():
    # Six layers; the last one's output goes before its gradient comes: five are in memory, and six with the first gradient. But
    # six were in memory already when the last layer was done, so that it counts with the backward pass.
    found = from_graph(unflagged(builders.linear(6)))
    assert [layer.name for layer in found.layers] == ["f0", "f1", "f2", "f3", "f4"]
    assert sum(layer.backward_ms for layer in found.layers) == pytest.approx(7e-6)


def test_without_gradients_that_stay_the_first_constant_is_the_data():
    made = GraphBuilder()
    data, weight = made.constant("x", 4), made.constant("w", 9)
    (out,) = made.compute("mm", 1, [data, weight], [("o", 4, -1)])
    found = from_graph(made.build([out]))
    assert [(layer.name, layer.parameter_bytes) for layer in found.layers] == [("x", 0.0), ("o", 9.0)]


def test_a_graph_without_a_way_forward_has_no_layers():
    made = GraphBuilder("empty")
    made.compute("f", 1, [], [("a", 1, -1)], is_backward=True)
    with pytest.raises(GraphError, match="empty has no forward operators, so there are no layers"):
        from_graph(made.build())


def check_that_nothing_is_lost(graph):
    found = from_graph(graph)
    assert (
        sum(round(1e6 * layer.forward_ms) + round(1e6 * layer.backward_ms) for layer in found.layers) == graph.cost_ns
    )
    constants = sum(layer.parameter_bytes for layer in found.layers) + sum(
        layer.activation_bytes for layer in found.layers if layer.is_input
    )
    assert constants == graph.constant_bytes


def random_step(seed):
    """Operators that take anything, make tensors and views, and learn some of their constants."""
    rng = random.Random(seed)
    made = GraphBuilder(f"random-{seed}")
    constants = [made.constant(f"w{number}", rng.randrange(5)) for number in range(rng.randrange(1, 5))]
    there, outputs = list(constants), []
    num_forward = rng.randrange(1, 15)
    for number in range(rng.randrange(num_forward, 30)):
        inputs = [rng.choice(there) for _ in range(rng.randrange(1, 4))]
        new = [(f"t{number}", 0, 0) if rng.random() < 0.25 else (f"t{number}", rng.randrange(5), -1)]
        new += [(f"u{number}", rng.randrange(5), -1)] * (rng.random() < 0.2)
        made_now = made.compute("f", rng.randrange(100), inputs, new, is_backward=number >= num_forward)
        there += made_now
        if number >= num_forward and rng.random() < 0.4:
            outputs.append(made_now[0])
    return made.build(outputs)


GRAPHS = [
    builders.linear(7), builders.chain(9), builders.residual(4), builders.u_net(3), builders.recurrent(5), builders.tree(3),
    builders.transformer(2), two_layers(), *map(random_step, range(60)),
]  # fmt: skip


@pytest.mark.parametrize("graph", GRAPHS, ids=lambda graph: graph.name)
def test_no_time_and_no_constant_is_lost(graph):
    check_that_nothing_is_lost(graph)
    check_that_nothing_is_lost(unflagged(graph))


@pytest.mark.parametrize("graph", [builders.chain(9), builders.transformer(2)], ids=lambda graph: graph.name)
def test_parameters_are_those_that_have_gradients(graph):
    layers = from_graph(graph).layers
    constants = {graph.tensors[one.outputs[0]].name for one in graph.operators if one.is_constant}
    assert sum(layer.parameter_bytes for layer in layers) == graph.constant_bytes - 1
    assert [layer.name for layer in layers if layer.name in constants] == ["data"]


def logs():
    folder = os.environ.get("DETRAIN_DTR_LOGS")
    if not folder:
        return []
    manifest = json.loads((Path(folder) / "manifest.json").read_text(encoding="utf-8"))
    return [Path(folder) / Path(model["log"]).name for model in manifest["models"]]


@pytest.mark.skipif(not logs(), reason="DETRAIN_DTR_LOGS does not name the folder of DTR's published logs")
@pytest.mark.parametrize("path", logs(), ids=lambda path: path.name.partition("-")[0])
def test_published_logs_are_profiles_and_nothing_is_lost(path):
    check_that_nothing_is_lost(dtrlog.read(path))


def test_a_stage_can_be_planned_within_a_budget():
    pytest.importorskip("numba", reason='planners are compiled by numba: pip install "detrain-run[plan]"')
    from detrain.remat.planners.registry import plan

    layers = tuple(Layer(f"n{number}", "f", 1.0, 2.0, (100.0,), 1.0) for number in range(12))
    graph = to_graph(Profile(layers, tuple((at, at + 1) for at in range(11))))
    budget_bytes = int(0.7 * peak_bytes(graph))
    found = plan(graph, budget_bytes, "rotor")
    assert found.outcome.peak_bytes <= budget_bytes
    assert 0 < found.outcome.clock_ns - graph.cost_ns < 12 * 1_000_000

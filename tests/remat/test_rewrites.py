"""Simpler graphs of the same step."""

import pytest

from detrain.remat import builders, rewrites
from detrain.remat.graph import GraphBuilder
from detrain.remat.schedule import keep_all
from detrain.remat.simulator import peak_bytes, simulate

from .graphs import small_graph, training_graph


def with_views():
    made = GraphBuilder("views")
    weight = made.constant("w", 5)
    (first,) = made.compute("mul", 7, [weight], [("a", 10, -1)])
    (view,) = made.compute("view", 2, [first], [("v", 0, 0)])
    made.release(first)
    left, right = made.compute("split", 4, [view, weight], [("l", 3, -1), ("r", 4, -1)])
    made.release(view)
    (last,) = made.compute("add", 1, [left, right], [("z", 2, -1)])
    made.release(left)
    made.release(right)
    return made.build([last])


def summary(graph):
    return [(one.name, one.cost_ns, one.inputs, one.outputs) for one in graph.operators], [
        t.size_bytes for t in graph.tensors
    ]


def test_views_are_part_of_what_they_look_into():
    graph = rewrites.without_views(with_views())
    assert summary(graph) == (
        [("constant", 0, (), (0,)), ("mul", 9, (0,), (1,)), ("split", 4, (1, 0), (2, 3)), ("add", 1, (2, 3), (4,))],
        [5, 10, 3, 4, 2],
    )


def test_a_view_of_a_constant_takes_no_time():
    made = GraphBuilder("transposed")
    (view,) = made.compute("t", 2, [made.constant("w", 5)], [("v", 0, 0)])
    graph = rewrites.without_views(made.build(made.compute("mul", 7, [view], [("a", 10, -1)])))
    assert summary(graph) == ([("constant", 0, (), (0,)), ("mul", 7, (0,), (1,))], [5, 10])


def test_what_an_operator_makes_is_one_tensor():
    graph = rewrites.with_one_output_each(rewrites.without_views(with_views()))
    assert summary(graph) == (
        [("constant", 0, (), (0,)), ("mul", 9, (0,), (1,)), ("split", 4, (1, 0), (2,)), ("add", 1, (2,), (3,))], [5, 10, 7, 2],
    )  # fmt: skip
    with pytest.raises(ValueError, match="without_views comes first"):
        rewrites.with_one_output_each(with_views())


def test_constants_are_taken_from_the_peak():
    graph = rewrites.without_constants(with_views())
    assert summary(graph) == (
        [("mul", 7, (), (0,)), ("view", 2, (0,), (1,)), ("split", 4, (1,), (2, 3)), ("add", 1, (2, 3), (4,))], [10, 0, 3, 4, 2],
    )  # fmt: skip
    assert peak_bytes(graph) == peak_bytes(with_views()) - 5


@pytest.mark.parametrize(
    "graph", [with_views(), builders.residual(3), *map(small_graph, range(20)), *map(training_graph, range(20))],
    ids=lambda graph: graph.name,
)  # fmt: skip
def test_time_and_peak_stay_as_they_are(graph):
    plain = rewrites.without_views(graph)
    single = rewrites.with_one_output_each(plain)
    bare = rewrites.without_constants(single)
    assert simulate(graph, keep_all(graph)).failure == ""
    for one in (plain, single, bare):
        outcome = simulate(one, keep_all(one))
        assert (outcome.failure, outcome.clock_ns) == ("", graph.cost_ns)
    assert peak_bytes(plain) == peak_bytes(graph)
    assert peak_bytes(single) >= peak_bytes(graph)
    assert peak_bytes(bare) == peak_bytes(single) - graph.constant_bytes

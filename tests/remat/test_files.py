"""Graphs and plans as files: the same bytes for the same thing, and every way to be wrong."""

import json

import pytest

from detrain.errors import GraphError
from detrain.remat import builders, graphfile, planfile
from detrain.remat.graph import GraphBuilder
from detrain.remat.planners.registry import plan
from detrain.remat.simulator import peak_bytes, simulate

GOLDEN_GRAPH = (
    '{"kind":"detrain operator graph","format":1,"operators":[{"name":"constant","cost_ns":0,"inputs":[],"outputs":[["w",8]],'
    '"is_constant":true},{"name":"mul","cost_ns":10,"inputs":[0],"outputs":[["a",16],["v",{"alias":0}]],"is_random":true},'
    '{"name":"mul_backward","cost_ns":20,"inputs":[1,0],"outputs":[["g",8]],"is_backward":true}],'
    '"program":[["compute",0],["pin",0],["compute",1],["release",2],["compute",2],["release",1]],"outputs":[3]}\n'
)


def golden():
    made = GraphBuilder()
    weight = made.constant("w", 8)
    first, view = made.compute("mul", 10, [weight], [("a", 16, -1), ("v", 0, 0)], is_random=True)
    made.release(view)
    (last,) = made.compute("mul_backward", 20, [first, weight], [("g", 8, -1)], is_backward=True)
    made.release(first)
    return made.build([last])


def test_a_graph_is_these_bytes(tmp_path):
    graphfile.write(tmp_path / "graph.json", golden())
    assert (tmp_path / "graph.json").read_text() == GOLDEN_GRAPH
    assert graphfile.read(tmp_path / "graph.json") == golden()


def changed(**fields):
    return json.dumps({**json.loads(GOLDEN_GRAPH), **fields})


def with_operator(number, **fields):
    document = json.loads(GOLDEN_GRAPH)
    document["operators"][number].update(fields)
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is not JSON"), ("[]", "is not an operator graph: its kind must be 'detrain operator graph'"),
        (changed(format=2), "has format 2; this detrain reads format 1"), (changed(program=3), "program"),
        (changed(program=[["jump", 0]]), "jump"), (changed(program=[["compute", 9]]), "9"), (changed(outputs=[7]), "7"),
        (with_operator(1, inputs=[2]), "operator mul takes tensor 2, which is not made before it"),
        (with_operator(1, cost_ns=-1), "operator mul takes -1 ns"), (with_operator(1, cost_ns="10"), "cost_ns, inputs or outputs"),
        (with_operator(1, outputs=[]), "makes 0 tensors"), (with_operator(1, outputs=[["a", -5]]), "a of -5 bytes"),
        (with_operator(2, outputs=[["a", 8]]), "makes a, and so has one before it"),
        (with_operator(1, outputs=[["a", {"alias": 4}]]), "as an alias of its input 4"),
        (with_operator(1, mutates=[3]), "mutates is [3], no positions of inputs"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_graph_is_said(text, said, tmp_path):
    (tmp_path / "graph.json").write_text(text)
    with pytest.raises(GraphError) as caught:
        graphfile.read(tmp_path / "graph.json")
    assert said in str(caught.value)


@pytest.fixture
def planned(tmp_path):
    graph = builders.linear(6)
    found = plan(graph, peak_bytes(graph), "keep-all")
    planfile.write(tmp_path / "plan.json", graph, found)
    return tmp_path / "plan.json", graph, found


def test_a_plan_is_the_same_behind_its_file(planned):
    path, graph, found = planned
    again = planfile.read(path)
    assert (again.graph, again.schedule) == (graph, found.schedule)
    assert simulate(again.graph, again.schedule, again.schedule.budget_bytes) == found.outcome
    document = json.loads(path.read_text())
    assert (document["overhead"], document["peak_bytes"], document["planner"]) == (1.0, peak_bytes(graph), "keep-all")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"kind": "else"}, "is not a plan"), ({"format": 3}, "has format 3"), ({"steps": {}}, "steps is no list"),
        ({"steps": [["compute"]]}, "step 0 is ['compute'], not [compute, operator] or [free, tensor]"),
        ({"steps": [["free", 99]]}, "step 0 is ['free', 99], and there are"), ({"graph": None}, "is not an operator graph"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_plan_is_said(planned, fields, said):
    path, *_ = planned
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))
    with pytest.raises(GraphError) as caught:
        planfile.read(path)
    assert said in str(caught.value)

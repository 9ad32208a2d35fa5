"""Logs of the DTR prototype: every instruction, and every way to be wrong."""

import json

import pytest

from detrain.errors import GraphError
from detrain.remat import builders, dtrlog, graphfile
from detrain.remat.graph import GraphBuilder, Kind


def line(instruction, **fields):
    return json.dumps({"INSTRUCTION": instruction, **fields})


def constant(name, size):
    return [line("CONSTANT", NAME=name), line("MEMORY", NAME=name, MEMORY=str(size))]


def call(name, arguments, *results, time=10):
    lines = [line("CALL", NAME=name, ARGS=arguments, RESULT=[result for result, _, _ in results], TIME=str(time))]
    for result, size, alias in results:
        lines += [line("MEMORY", NAME=result, MEMORY=str(size)), line("ALIAS", NAME=result, ALIAS=str(alias))]
    return lines


START = [line("ANNOTATE", ANNOTATION="START")]
STEP = [
    *constant("w", 8), *call("mul", ["w"], ("a", 16, -1)), *call("split", ["a"], ("b", 4, 0), ("c", 6, -1)),
    line("COPY", DST="d", SRC="c"), line("RELEASE", NAME="c"), line("MUTATE", NAME="add_", ARGS=["b", "d"], MUTATE=[0], TIME="3"),
    line("RELEASE", NAME="nobody has heard of it"), *call("mul_backward", ["b", "a"], ("g", 16, -1)), line("RELEASE", NAME="a"),
    line("COPY_FROM", DST="g", SRC="d"),
]  # fmt: skip


def test_every_instruction_is_understood():
    graph = dtrlog.parse(STEP)
    names = [tensor.name for tensor in graph.tensors]
    assert names == ["w", "a", "b", "c", "b$", "g"]
    assert [(one.name, one.cost_ns, one.is_backward) for one in graph.operators] == [
        ("constant", 0, False), ("mul", 10, False), ("split", 10, False), ("add_", 3, False), ("mul_backward", 10, True),
    ]  # fmt: skip
    # An alias has no bytes of its own; what is changed in place has as many as the storage that was changed.
    assert [(tensor.size_bytes, names[tensor.base]) for tensor in graph.tensors] == [
        (8, "w"), (16, "a"), (0, "a"), (6, "c"), (16, "b$"), (16, "g"),
    ]  # fmt: skip
    assert graph.operators[3].mutates == (0,)
    assert graph.operators[4].inputs == (4, 1)
    told = [(command.kind.name, command.target) for command in graph.program if command.kind != Kind.COMPUTE]
    assert told == [
        ("PIN", 0), ("GET", 3), ("RELEASE", 3), ("RELEASE", 2), ("RELEASE", 1), ("RELEASE", 5), ("GET", 3),
    ]  # fmt: skip
    # In the order in which their names were heard first: b has become b$, and g is d's, which is c.
    assert [names[one] for one in graph.outputs] == ["w", "b$", "c"]


def test_a_log_counts_from_its_last_start_unless_all_is_asked_for():
    before = [*constant("old", 100), line("ANNOTATE", ANNOTATION="START"), *constant("older", 50)]
    assert dtrlog.parse([*before, *START, *STEP]) == dtrlog.parse(STEP)
    assert dtrlog.parse([*before, *START, *STEP], is_whole=True).constant_bytes == 158


def test_backward_is_what_comes_after_the_annotation():
    graph = dtrlog.parse(
        [*constant("w", 8), line("ANNOTATE", ANNOTATION="BACKWARD"), *call("mul", ["w"], ("a", 16, -1))]
    )
    assert [one.is_backward for one in graph.operators] == [False, True]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{"], "line 1 is not JSON: "),
        (["[1]"], "line 1 is not an instruction: [1]"),
        ([line("JUMP")], "line 1, JUMP: this instruction is unknown here"),
        ([line("MEMORY", NAME="a", MEMORY="1")], "line 1, MEMORY: this instruction is unknown here"),
        ([line("CONSTANT")], "line 1, CONSTANT: NAME is missing"),
        ([line("CONSTANT", NAME="w")], "line 1, CONSTANT: the log ends before MEMORY of w"),
        ([line("CONSTANT", NAME="w"), line("RELEASE", NAME="w")], "line 2, RELEASE: MEMORY of w was due"),
        ([line("CONSTANT", NAME="w"), line("MEMORY", NAME="w", MEMORY="-3")], "line 2, MEMORY: MEMORY is '-3', not a whole"),
        ([line("CONSTANT", NAME="w"), line("MEMORY", NAME="w", MEMORY=3)], "line 2, MEMORY: MEMORY is 3, not str"),
        ([*constant("w", 1), *constant("w", 1)], "line 3, CONSTANT: w is there already"),
        (call("mul", ["w"], ("a", 1, -1)), "line 1, CALL: 'w' has not been defined before"),
        (call("mul", [], ("a", 1, -1))[:2], "line 2, MEMORY: the log ends before ALIAS of a"),
        (call("mul", [], ("a", 1, 0)), "line 3, ALIAS: operator mul makes a of 0 bytes as an alias of its input 0"),
        ([line("CALL", NAME="f", ARGS=[], RESULT=[], TIME="1")], "line 1, CALL: operator f takes 1 ns and makes 0 tensors"),
        ([*constant("w", 1), line("MUTATE", NAME="f", ARGS=["w"], MUTATE=[1], TIME="1")], "line 3, MUTATE: MUTATE is [1], and there"),
        ([*constant("w", 1), line("COPY", DST="v", SRC="u")], "line 3, COPY: 'u' has not been defined before"),
        ([*constant("w", 1), line("RELEASE", NAME="w"), line("RELEASE", NAME="w")], "line 4, RELEASE: command 3 asks for w, which"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_its_line(lines, said):
    with pytest.raises(GraphError) as caught:
        dtrlog.parse(lines)
    assert str(caught.value).startswith(said) or said in str(caught.value)


def test_a_graph_is_the_same_behind_its_file(tmp_path):
    graph = dtrlog.parse(STEP)
    graphfile.write(tmp_path / "graph.json", graph)
    assert graphfile.read(tmp_path / "graph.json") == graph


@pytest.mark.parametrize("lines", [STEP, [*START, *STEP], constant("w", 3)], ids=["step", "with its start", "constant"])
def test_a_log_is_written_so_that_the_same_graph_is_read_of_it(lines, tmp_path):
    graph = dtrlog.parse(lines)
    dtrlog.write(tmp_path / "again.log", graph)
    assert dtrlog.read(tmp_path / "again.log") == graph


@pytest.mark.parametrize(
    "graph",
    [
        builders.linear(9), builders.chain(5), builders.residual(3), builders.u_net(2), builders.recurrent(3), builders.tree(2),
    ],
    ids=lambda graph: graph.name,
)  # fmt: skip
def test_what_is_built_can_be_said_in_a_log(graph):
    lines = list(dtrlog.lines_of(graph))
    again = dtrlog.parse(lines)
    assert (again.operators, again.tensors, again.program) == (graph.operators, graph.tensors, graph.program)
    assert set(again.outputs) >= set(graph.outputs)
    assert list(dtrlog.lines_of(dtrlog.parse(lines))) == lines


@pytest.mark.parametrize(("annotated", "flags"), [(True, [False, False, True]), (False, [False, True, True])])
def test_an_annotation_says_where_the_way_back_begins_and_names_do_only_without(annotated, flags):
    # DTR's logs call the pooling of the forward pass max_pool2d_backward.
    way_forward = [*call("conv", ["w"], ("a", 2, -1)), *call("max_pool2d_backward", ["a"], ("b", 2, -1))]
    annotation = [line("ANNOTATE", ANNOTATION="BACKWARD")] if annotated else []
    graph = dtrlog.parse([*constant("w", 3), *way_forward, *annotation, *call("mm", ["b"], ("c", 2, -1))])
    assert [one.is_backward for one in graph.operators if not one.is_constant] == flags
    assert dtrlog.parse(list(dtrlog.lines_of(graph))).operators == graph.operators


def test_a_log_has_sorted_keys_and_numbers_as_text():
    made = GraphBuilder()
    weight = made.constant("w", 8)
    made.compute("mul_backward", 10, [weight], [("a", 16, -1), ("v", 0, 0)], is_backward=True)
    assert list(dtrlog.lines_of(made.build([0, 1, 2]))) == [
        '{"INSTRUCTION":"CONSTANT","NAME":"w"}',
        '{"INSTRUCTION":"MEMORY","MEMORY":"8","NAME":"w"}',
        '{"ANNOTATION":"BACKWARD","INSTRUCTION":"ANNOTATE"}',
        '{"ARGS":["w"],"INSTRUCTION":"CALL","NAME":"mul_backward","RESULT":["a","v"],"TIME":"10"}',
        '{"INSTRUCTION":"MEMORY","MEMORY":"16","NAME":"a"}',
        '{"ALIAS":"-1","INSTRUCTION":"ALIAS","NAME":"a"}',
        '{"INSTRUCTION":"MEMORY","MEMORY":"8","NAME":"v"}',
        '{"ALIAS":"0","INSTRUCTION":"ALIAS","NAME":"v"}',
    ]


def _random(made, weight):
    made.compute("dropout", 1, [weight], [("a", 1, -1)], is_random=True)
    return [0, 1]


def _forward_again(made, weight):
    made.compute("mul", 1, [weight], [("a", 1, -1)], is_backward=True)
    made.compute("add", 1, [weight], [("b", 1, -1)])
    return [0, 1, 2]


def _pinned(made, weight):
    made.pin(*made.compute("mul", 1, [weight], [("a", 1, -1)]))
    return [0, 1]


def _used_after_release(made, weight):
    (first,) = made.compute("mul", 1, [weight], [("a", 1, -1)])
    made.release(first)
    made.compute("add", 1, [first], [("b", 1, -1)])
    return [0, 2]


def _other_outputs(made, weight):
    (first,) = made.compute("mul", 1, [weight], [("a", 1, -1)])
    return made.compute("add", 1, [first], [("b", 1, -1)])


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (_random, "that dropout draws random numbers"), (_forward_again, "that add belongs to the forward pass"),
        (_pinned, "that a is pinned: it is no constant"), (_used_after_release, "that a is used after the program has released it"),
        (_other_outputs, "outputs are what is referred to at its end"),
    ],
)  # fmt: skip
def test_what_a_log_cannot_say_is_refused(build, said):
    made = GraphBuilder()
    outputs = build(made, made.constant("w", 1))
    with pytest.raises(GraphError, match=said):
        list(dtrlog.lines_of(made.build(outputs)))

"""Profiles as text: both dialects of graph.txt, the old tables, and every way to be wrong."""

from dataclasses import replace
from pathlib import Path

import pytest

from detrain.errors import GraphError
from detrain.pipeline import csvprofile, graphtext
from detrain.pipeline.layers import Layer, Profile

PROFILES = Path(__file__).parents[3] / "shared/data/profiles"

PIPEDREAM = (
    "node1 -- Input -- forward_compute_time=0.000, backward_compute_time=0.000, activation_size=602112.000, parameter_size=0.000\n"
    "node2 -- Conv2d(3, 64, kernel_size=(3, 3), bias=False) -- forward_compute_time=1.250, backward_compute_time=2.500, "
    "activation_size=12845056.000, parameter_size=6912.000 -- stage_id=0\n"
    "node3 -- LSTM(64, 8) -- forward_compute_time=0.001, backward_compute_time=0.000, activation_size=[4.000; 8.000; 8.500], "
    "parameter_size=64.000 -- stage_id=12\n"
    "\tnode1 -- node2\n"
    "\tnode2 -- node3"
)
DAPPLE = (
    "\n"
    "node1 -- Input -- forward_compute_time=0, backward_compute_time=0.0, activation_size=602112, parameter_size=0  \n"
    "node2 -- Conv2d(3, 64, kernel_size=(3, 3), bias=False) -- forward_compute_time=1.25,backward_compute_time=2.5, "
    "activation_size=12845056, parameter_size=6912 -- stage_id=0 \r\n"
    "   \n"
    "node3 -- LSTM(64, 8) -- forward_compute_time=1e-3, backward_compute_time=0, activation_size=[4;8;  8.5], parameter_size=64"
    " -- stage_id=12\n"
    "  node1 -- node2\n"
    "\t node2 -- node3 \n\n"
)
EXPECTED = Profile(
    (
        Layer("node1", "Input", 0.0, 0.0, (602112.0,), 0.0),
        Layer("node2", "Conv2d(3, 64, kernel_size=(3, 3), bias=False)", 1.25, 2.5, (12845056.0,), 6912.0, 0),
        Layer("node3", "LSTM(64, 8)", 0.001, 0.0, (4.0, 8.0, 8.5), 64.0, 12),
    ),
    ((0, 1), (1, 2)),
)


@pytest.mark.parametrize("text", [PIPEDREAM, DAPPLE], ids=["PipeDream", "DAPPLE"])
def test_both_dialects_are_read_as_the_same_profile(text):
    assert graphtext.parse(text) == EXPECTED


def test_a_profile_is_written_as_pipedream_writes_it(tmp_path):
    graphtext.write(tmp_path / "graph.txt", EXPECTED)
    assert (tmp_path / "graph.txt").read_bytes() == PIPEDREAM.encode()
    assert graphtext.read(tmp_path / "graph.txt").name == "graph"


def test_the_order_of_layers_and_edges_is_kept():
    layers = tuple(Layer(f"n{number}", "f", 1.0, 1.0, (1.0,), 0.0) for number in (4, 1, 3))
    profile = Profile(layers, ((2, 0), (1, 2), (1, 0)))
    assert graphtext.parse(graphtext.render(profile)) == profile


@pytest.mark.parametrize("value", [0.1 + 0.2, 1 / 3, 1e-9, 123456789.1234567, 1e15])
def test_numbers_of_more_than_three_decimals_are_not_rounded(value):
    layer = Layer("a", "f", value, value, (value, 0.0), value)
    assert graphtext.parse(graphtext.render(Profile((layer,), ()))).layers == (layer,)


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path):
    (tmp_path / "graph.txt").write_text(PIPEDREAM, encoding="utf-8-sig")
    assert graphtext.read(tmp_path / "graph.txt") == EXPECTED


def times(forward="1", backward="1", size="1", parameters="1"):
    return f"forward_compute_time={forward}, backward_compute_time={backward}, activation_size={size}, parameter_size={parameters}"


A, B = f"a -- f -- {times()}\n", f"b -- f -- {times()}\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "graph.txt has no layers"),
        ("\n \n", "graph.txt has no layers"),
        (A + A, "graph.txt, line 2: there is a a before it"),
        (A + "\ta -- b\n", "graph.txt, line 2: the edge names b, and no line before it is a layer of that name"),
        ("\ta -- a\n" + A, "graph.txt, line 1: the edge names a, and no line before it"),
        (A + "\ta\n", "graph.txt, line 2: an edge is `FROM -- TO`, not a"),
        (A + B + "\ta -- b -- a\n", "graph.txt, line 3: an edge is `FROM -- TO`, not a -- b -- a"),
        (A + "\ta -- a\n", "graph.txt, line 2: the edges form a cycle through layer a"),
        (A + B + "\ta -- b\n\tb -- a\n\ta -- b\n", "graph.txt, line 4: the edges form a cycle through layer"),
        ("hello\n", "graph.txt, line 1: a layer is `NAME -- DESCRIPTION -- forward_compute_time=…"),
        (f"a -- {times()}\n", "graph.txt, line 1: a layer is `NAME"),
        (f"a -- x -- y -- {times()}\n", "line 1: layer a has ` -- ` in its description: x -- y"),
        (f"a -- x -- y -- {times()} -- stage_id=1\n", "line 1: layer a has ` -- ` in its description: x -- y"),
        (f"a -- f -- {times()} -- stage_id=-1\n", "line 1: layer a ends with stage_id=-1, not with stage_id=NUMBER"),
        ("a -- f -- forward_compute_time=1, backward_compute_time=1, activation_size=1\n", "layer a has no parameter_size"),
        ("a -- f -- forward_compute_time=1, backward_compute_time=1, parameter_size=1\n", "layer a has no activation_size"),
        (f"a -- f -- {times()}, colour=3\n", "line 1: layer a has a field colour, which is none of forward_compute_time"),
        (f"a -- f -- {times()}, parameter_size=3\n", "layer a has a field parameter_size, which stands there twice"),
        (f"a -- f -- {times(forward='fast')}\n", "line 1: layer a has forward_compute_time=fast, no number of zero or more"),
        (f"a -- f -- {times(backward='-0.5')}\n", "layer a has backward_compute_time=-0.5, no number"),
        (f"a -- f -- {times(parameters='nan')}\n", "layer a has parameter_size=nan, no number"),
        (f"a -- f -- {times(size='inf')}\n", "layer a has activation_size=inf, no number"),
        (f"a -- f -- {times(size='[1; -2]')}\n", "layer a has activation_size=-2, no number"),
        (f"a -- f -- {times(size='[]')}\n", "layer a has activation_size=, no number"),
        (f"a -- f -- {times(size='[1')}\n", "layer a has activation_size=[1, no number"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named_with_file_line_and_field(text, said, tmp_path):
    (tmp_path / "graph.txt").write_text(text)
    with pytest.raises(GraphError) as caught:
        graphtext.read(tmp_path / "graph.txt")
    assert str(caught.value).startswith(str(tmp_path / "graph.txt"))
    assert said in str(caught.value)


@pytest.mark.parametrize("module", [graphtext, csvprofile])
def test_what_is_no_text_is_said_to_be_none(module, tmp_path):
    (tmp_path / "graph.txt").write_bytes(b"\x89PNG\r\n\x1a\n\xff\xfe\x00")
    with pytest.raises(GraphError, match=r"graph\.txt is not text: "):
        module.read(tmp_path / "graph.txt")


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": "a -- b"}, "cannot have the name 'a -- b'"), ({"name": " a"}, "cannot have the name ' a'"),
        ({"name": ""}, "cannot have the name ''"), ({"description": "x -- y"}, "cannot have the description 'x -- y'"),
        ({"description": "-- y"}, "cannot have the description '-- y'"), ({"description": "x\ny"}, "the description 'x"),
        ({"description": ""}, "cannot have the description ''"), ({"output_bytes": ()}, "a layer without outputs"),
    ],
)  # fmt: skip
def test_what_would_be_read_as_something_else_is_not_written(fields, said):
    with pytest.raises(GraphError) as caught:
        graphtext.render(Profile((replace(EXPECTED.layers[0], **fields),), ()))
    assert said in str(caught.value)


def published():
    return sorted(PROFILES.glob("*/*.txt"))


@pytest.mark.skipif(not published(), reason="the published profiles are not beside the checkout")
@pytest.mark.parametrize("path", published(), ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_published_profiles_are_the_same_behind_their_text(path):
    profile = graphtext.read(path)
    text = graphtext.render(profile)
    assert graphtext.parse(text, str(path)) == profile
    # GNMT's sizes are written as Python writes floats; the others have three decimals everywhere, as ours have.
    if path.parent.name == "pipedream" and path.stem != "gnmt":
        assert text.encode() == path.read_bytes()


TABLE = (
    "Layer Type,Total time,Forward pass time (100),Backward pass time,Output Size (floats),Parameter Size (floats)\n"
    'Conv2d,5,2,3,"1,000",250\n'
    "ReLU,0.5,0.125,0.375,,0\n"
)


def test_an_old_table_is_a_chain_of_layers(tmp_path):
    (tmp_path / "vgg.csv").write_text(TABLE)
    profile = csvprofile.read(tmp_path / "vgg.csv")
    # Seconds of a hundred mini-batches; floats of four bytes.
    assert profile.layers == (
        Layer("node1", "Conv2d", 20.0, 30.0, (4000.0,), 1000.0), Layer("node2", "ReLU", 1.25, 3.75, (0.0,), 0.0),
    )  # fmt: skip
    assert (profile.edges, profile.name) == (((0, 1),), "vgg")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "row 1: there is no column Layer Type"),
        (TABLE.replace("Total time", "Time"), "row 1: there is no column Total time"),
        (TABLE.replace("(100)", ""), "row 1: Forward pass time  does not say of how many mini-batches"),
        (TABLE.replace("(100)", "(0)"), "row 1: Forward pass time (0) does not say of how many mini-batches"),
        (TABLE.partition("\n")[0], "has no layers"),
        (TABLE.replace("ReLU,0.5", "ReLU,soon"), "row 3 (layer 2): Total time is soon, no number of zero or more"),
        (TABLE.replace("ReLU,0.5", "ReLU,-1"), "row 3 (layer 2): Total time is -1, no number"),
        (TABLE.replace("0.375,,0", "0.375"), "row 3 (layer 2): Parameter Size (floats) is empty, no number"),
        (TABLE.replace("5,2,3", "5,6,3"), "row 2 (layer 1): the forward time is longer than the total time"),
        (TABLE + '"ReLU', "is not a table: "),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_table_is_named_with_row_and_column(text, said, tmp_path):
    (tmp_path / "vgg.csv").write_text(text)
    with pytest.raises(GraphError) as caught:
        csvprofile.read(tmp_path / "vgg.csv")
    assert str(caught.value).startswith(str(tmp_path / "vgg.csv"))
    assert said in str(caught.value)

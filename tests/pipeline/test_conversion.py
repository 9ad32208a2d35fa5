"""Files become other files and come back; what is no such file is refused, whatever it is."""

import json
import random
import re

import pytest

pytest.importorskip("numba", reason='plans are simulated by what numba compiles: pip install "detrain-run[plan]"')

from detrain.errors import GraphError
from detrain.pipeline import conversion, deployment, graphtext, planfile, topologyfile
from detrain.pipeline.judge import judge, kind_of, prepared
from detrain.pipeline.plan import Plan, Stage, Workload
from detrain.pipeline.planfile import Planned
from detrain.pipeline.schedules import NAMES
from detrain.pipeline.topology import machines, nested
from detrain.remat import builders, dtrlog

from .graphs import chain, diamond, layer, profile

#: The data, three layers in a line that skip one, and a selection that nothing uses.
SKIPPING = profile(
    [
        layer("in", 0, 0, 8, description="Input0"), layer("a", 1, 2, 16e3, 4e3, "Conv"), layer("b", 2, 3.5, (8e3, 4e3), 0, "ReLU"),
        layer("c", 4, 8, 1e3, 6e3, 'Linear("x")'), layer("s", 0, 0, 2, 0, "__getitem__(1)"),
    ],
    "",
)  # fmt: skip
SKIPPING = type(SKIPPING)(SKIPPING.layers, ((0, 1), (1, 2), (2, 3), (1, 3), (2, 4)), "skipping")
PLANNED = Planned(
    Plan(
        "made", (Stage(0, 2, ("a", "b"), 2, (0, 1, 3, 4)), Stage(2, 3, ("c",), 1, (2, 5), "all")), 2, 0.1, 1.5, 1.2, 0.5,
        Workload(4, 16, 2),
    ),
    SKIPPING,
    machines([3, 6], 25e9, 1e9, 16e9),
)  # fmt: skip
TABLE = (
    "Layer Type,Total time,Forward pass time (100),Output Size,Parameter Size (floats)\nConv,3,1,16,1\nReLU,3,1,4,0\n"
)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """A file of each kind."""
    monkeypatch.chdir(tmp_path)
    graphtext.write(tmp_path / "graph.txt", SKIPPING)
    planfile.write(tmp_path / "plan.json", PLANNED)
    deployment.write(tmp_path / "conf.json", deployment.of_plan(PLANNED.plan))
    conversion.write(tmp_path / "staged.txt", "", conversion.read(tmp_path / "plan.json"))
    conversion.write(tmp_path / "operators.json", "", conversion.read(tmp_path / "graph.txt"))
    (tmp_path / "table.csv").write_text(TABLE)
    dtrlog.write(tmp_path / "step.log", builders.chain(3))
    return tmp_path


def convert(source, target, kind="", profile=None):
    return conversion.write(target, kind, conversion.read(source, profile))


@pytest.mark.parametrize(
    ("name", "num_layers"), [("graph.txt", 3), ("staged.txt", 3), ("operators.json", 3), ("table.csv", 2), ("step.log", 3)]
)  # fmt: skip
def test_a_profile_is_read_from_whatever_holds_one(files, name, num_layers):
    found = conversion.read_profile(files / name)
    assert sum(one.forward_ms > 0 for one in found.layers) == num_layers


@pytest.mark.parametrize(
    ("source", "target", "kind"),
    [
        ("graph.txt", "x.json", "graph"), ("graph.txt", "x.txt", "profile"), ("graph.txt", "x.dot", "dot"),
        ("operators.json", "x.txt", "profile"), ("operators.json", "x.json", "graph"), ("table.csv", "x.txt", "profile"),
        ("step.log", "x.txt", "profile"), ("plan.json", "x.json", "conf"), ("plan.json", "x.txt", "profile"),
        ("plan.json", "x.dot", "dot"), ("conf.json", "x.json", "plan"), ("conf.json", "x.txt", "profile"),
    ],
)  # fmt: skip
def test_the_suffix_says_what_a_file_becomes(files, source, target, kind):
    assert convert(files / source, files / target, "", files / "staged.txt") == kind
    again = conversion.read(files / target, files / "staged.txt") if kind != "dot" else None
    if kind in ("profile", "graph"):
        assert again.content == conversion.read_profile(files / target)
    elif again is not None:
        assert [stage.layers for stage in again.content.plan.stages] == [("a", "b"), ("c",)]


def test_a_profile_comes_back_from_an_operator_graph(files):
    """But for what an operator graph does not have: the descriptions of data."""
    convert(files / "operators.json", files / "again.txt")
    wanted = (files / "graph.txt").read_text().replace("Input0", "Input")
    assert (files / "again.txt").read_text() == wanted


def test_a_plan_goes_into_a_profile_as_the_stages_of_its_layers(files):
    found = graphtext.read(files / "staged.txt")
    assert {one.name: one.stage for one in found.layers} == {"in": 0, "a": 0, "b": 0, "c": 1, "s": None}


def test_a_plan_comes_back_from_a_conf(files):
    """Copies are one pipeline there, and devices are all alike."""
    assert convert(files / "conf.json", files / "again.json", "", files / "staged.txt") == "plan"
    found = planfile.read(files / "again.json")
    stages = [(one.layers, one.replicas, one.devices) for one in found.plan.stages]
    assert stages == [(("a", "b"), 4, (0, 1, 3, 4)), (("c",), 2, (2, 5))]
    assert found.plan.replication == 1
    assert found.topology.num_devices == 6
    convert(files / "again.json", files / "conf-again.json")
    assert (files / "conf-again.json").read_bytes() == (files / "conf.json").read_bytes()


def test_a_plan_stays_a_plan(files):
    assert convert(files / "plan.json", files / "again.json", "plan") == "plan"
    assert (files / "again.json").read_bytes() == (files / "plan.json").read_bytes()


def test_graphviz_gets_every_layer_and_edge_with_quotes_around_what_has_quotes(files):
    convert(files / "plan.json", files / "graph.dot")
    lines = (files / "graph.dot").read_text().splitlines()
    labels = [json.loads(re.search(r'label=("(?:[^"\\]|\\.)*")', line)[1]) for line in lines if "[label=" in line]
    assert [label.splitlines()[0] for label in labels] == [f"{one.name}: {one.description}" for one in SKIPPING.layers]
    assert [label.splitlines()[3:] for label in labels] == [["stage 0"]] * 3 + [["stage 1"], []]
    assert [tuple(map(int, line.strip(" ;").split(" -> "))) for line in lines if "->" in line] == list(SKIPPING.edges)
    colors = [re.search(r"fillcolor=(\"#\w+\")", line) for line in lines if "[label=" in line]
    assert [color and color[1] for color in colors[:4]] == [colors[0][1]] * 3 + [colors[3][1]]
    assert colors[0][1] != colors[3][1]
    assert colors[4] is None


@pytest.mark.parametrize(
    ("source", "kind", "profile", "said"),
    [
        ("graph.txt", "conf", None, "a profile alone has no stages: it can become profile, dot, graph, not conf"),
        ("graph.txt", "plan", None, "not plan"),
        ("conf.json", "plan", None, "give --profile, whose layers have stages"),
        ("conf.json", "plan", "graph.txt", "and the profile does not say which layers are in which. Give as --profile"),
        ("conf.json", "plan", "conf.json", "conf.json is a conf of PipeDream, which has no layers"),
        ("graph.txt", "", None, "out.xyz has no known suffix: give --to, which is one of profile, graph, plan, conf, dot"),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("files")
def test_what_cannot_become_what_is_said(tmp_path, source, kind, profile, said):
    path = tmp_path.joinpath
    with pytest.raises(GraphError) as caught:
        convert(path(source), path("out.xyz"), kind, profile and path(profile))
    assert said in str(caught.value).replace(f"{tmp_path}/", "")
    assert not path("out.xyz").exists()


def test_a_device_that_runs_two_stages_is_no_rank_of_a_conf(tmp_path):
    stages = (Stage(0, 1, ("n0",), 1, (0,)), Stage(1, 2, ("n1",), 1, (0,)))
    planfile.write(
        tmp_path / "plan.json", Planned(Plan("made", stages, 1, 0, 0, 0), chain(1, 1), nested((1,), (1e9,), 1e9))
    )
    with pytest.raises(GraphError, match="rank 0 is in stage 1 and in stage 0"):
        convert(tmp_path / "plan.json", tmp_path / "conf.json")


TOPOLOGY = """name = "lab"
[device]
memory = "16GiB"
[[devices]]
first = 1
last = 2
speed = 0.5
[[level]]
ends = [1, 3]
bandwidth = "25GB/s"
latency_s = 1e-6
[[level]]
size = 2
bandwidth = 1e9
"""
MATRIX = """[device]
memory = 16e9
[matrix]
bandwidth = [[0, 1e9, "1GB/s"], [1e9, 0, 2e9], [1e9, 2e9, 0]]
latency_s = [[0, 1e-6, 1e-6], [1e-6, 0, 1e-6], [0, 0, 0]]
"""
WORDS = (
    "0", "-1", "1e400", "nan", "Infinity", "null", "true", "[]", "{}", '""', "\t", " -- ", "\n", ",", "=", "[", "]", "{", "}", '"', "\x00",
    "\u2028", "9" * 30, "0x10", "é", "\r\n", " -- stage_id=1", "1_000", "١",
)  # fmt: skip
VALUES = (
    None,
    True,
    0,
    -1,
    1,
    3,
    1.5,
    10**400,
    float("nan"),
    "",
    "x",
    [],
    {},
    [1],
    [[]],
    {"a": 1},
    "all",
    "dtr@7",
    [0, 1],
    [0, 0],
)


def mistyped(rng, text):
    """Somebody's slips: letters gone, doubled or put in, lines in another order, numbers changed, the end lost."""
    for _ in range(rng.randint(1, 3)):
        start = rng.randrange(len(text) + 1)
        end, lines = start + rng.choice([1, 1, 2, 5, 20, 100]), text.split("\n")
        one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
        numbers = list(re.finditer(r"-?\d+\.?\d*", text)) or [re.match("", text)]
        number = rng.choice(numbers)
        swapped = [lines[{one: other, other: one}.get(at, at)] for at in range(len(lines))]
        text = rng.choice(
            [
                text[:start] + text[end:], text[:start] + rng.choice(WORDS) + text[start:], text[:start] + rng.choice(WORDS) + text[end:],
                text[:start] + text[start:end] * 2 + text[end:], "\n".join(swapped), "\n".join([*lines[:one], lines[other], *lines[one:]]),
                text[: number.start()] + rng.choice(["0", "-1", "1e400", "3.7", "9" * 20, "65537"]) + text[number.end() :], text[:start],
            ]
        )  # fmt: skip
    return text


def misled(rng, text):
    """A document in which a value is another, or gone."""
    document = json.loads(text)
    places, waiting = [], [document]
    while waiting:
        table = waiting.pop()
        keys = list(table) if isinstance(table, dict) else range(len(table))
        places += [(table, key) for key in keys]
        waiting += [table[key] for key in keys if isinstance(table[key], dict | list)]
    table, key = rng.choice(places)
    if rng.random() < 0.25:
        del table[key]
    else:
        table[key] = rng.choice(VALUES)
    return json.dumps(document)


def simulated(path):
    """A plan that can be read can be simulated, or it is said why not."""
    planned = planfile.read(path)
    for name in NAMES:
        try:
            kind = kind_of(name)
            found, workload = prepared(planned, kind)
            judge(found.plan, found.profile.to_plan(), found.topology, workload, kind)
        except GraphError:
            continue


@pytest.mark.parametrize(
    ("name", "text", "read", "change"),
    [
        ("graph.txt", None, conversion.read_profile, mistyped), ("staged.txt", None, conversion.read_profile, mistyped),
        ("table.csv", None, conversion.read_profile, mistyped), ("plan.json", None, simulated, mistyped),
        ("plan.json", None, simulated, misled), ("conf.json", None, deployment.read, mistyped),
        ("conf.json", None, deployment.read, misled),
        ("lab.toml", TOPOLOGY, topologyfile.read, mistyped), ("lab.toml", MATRIX, topologyfile.read, mistyped),
    ],
    ids=["graph", "stages", "table", "plan", "plan values", "conf", "conf values", "levels", "matrix"],
)  # fmt: skip
def test_slips_are_said_in_a_line(files, name, text, read, change):
    """Nothing but `GraphError` comes out of a file that is not as it should be; some slips do no harm."""
    path, rng = files / name, random.Random(8)
    text = text or path.read_text()
    path.write_text(text)
    read(path)
    said = []
    for _ in range(200):
        path.write_text(change(rng, text))
        try:
            read(path)
        except GraphError as error:
            said.append(str(error))
    assert 60 < len(said) < 200
    assert [one for one in said if "\n" in one or str(path) not in one] == []


def test_bytes_that_are_no_text_are_said(tmp_path):
    path = tmp_path / "graph.txt"
    path.write_bytes(random.Random(8).randbytes(2000))
    for read in (conversion.read_profile, planfile.read, deployment.read, topologyfile.read):
        with pytest.raises(GraphError, match=r"graph\.txt is not (text|JSON|TOML): 'utf-8' codec"):
            read(path)


def test_branches_come_back_from_an_operator_graph(tmp_path):
    graphtext.write(tmp_path / "graph.txt", diamond())
    convert(tmp_path / "graph.txt", tmp_path / "operators.json")
    convert(tmp_path / "operators.json", tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_text() == (tmp_path / "graph.txt").read_text()

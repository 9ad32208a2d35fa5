"""Plans as files: the same behind them, and every way to be wrong."""

import json

import pytest

from detrain.errors import GraphError
from detrain.pipeline import planfile
from detrain.pipeline.layers import Layer, Profile
from detrain.pipeline.plan import Plan, Stage, Workload
from detrain.pipeline.planfile import Planned
from detrain.pipeline.topology import Device, Level, Topology, machines

PROFILE = Profile(
    (
        Layer("x", "Input", 0.5, 0.0, (8.0,), 0.0), Layer("a", "Conv", 1.0, 2.0, (16.0, 0.25), 4.0),
        Layer("b", "ReLU", 0.1, 1 / 3, (16.0,), 0.0), Layer("c", "Linear", 3.0, 4.0, (1.0,), 8.0, 7),
    ),
    ((0, 1), (1, 2), (2, 3), (1, 3)),
    "small",
)  # fmt: skip
TOPOLOGY = machines([3, 6], 25e9, 1e9, 16e9, across_collective=3e9)
PLAN = Plan(
    "dapple", (Stage(0, 2, ("a", "b"), 2, (0, 1, 3, 4), "rotor@0.5"), Stage(2, 3, ("c",), 1, (2, 5), "all")), 2, 0.1, 1.5, 1.25, 0.02,
    Workload(32, 64, 16, 3.5),
)  # fmt: skip
BARE = Plan("pipedream", (Stage(0, 3, ("a", "b", "c"), 1, (1,)),), 1, 0.1, 1.0, 1.0)
MATRIX = Topology(
    (Device(1e9, 0.5), Device(2e9)),
    bandwidths=((0.0, 1.0), (2.0, 0.0)),
    latencies_s=((0.0, 0.1), (0.2, 0.0)),
    name="lab",
)
LEVELS = Topology((Device(1.0),) * 2, (Level(10.0, (0, 1)), Level(1.0, (0, 0), latency_s=0.25)))
#: The same device has two chunks.
CHUNKS = Plan(
    "detrain",
    tuple(Stage(at, at + 1, (name,), 1, (at % 2,)) for at, name in enumerate("abc")),
    1, 0.1, 1.0, 1.0,
)  # fmt: skip


@pytest.mark.parametrize(
    "planned",
    [
        Planned(PLAN, PROFILE, TOPOLOGY), Planned(BARE, PROFILE, MATRIX),
        Planned(BARE, PROFILE.to_plan(), LEVELS), Planned(CHUNKS, PROFILE, LEVELS),
    ],
    ids=["two copies", "matrix", "without inputs", "chunks"],
)  # fmt: skip
def test_a_plan_is_the_same_behind_its_file(planned, tmp_path):
    planfile.write(tmp_path / "plan.json", planned)
    found = planfile.read(tmp_path / "plan.json")
    assert found == planned
    assert (found.profile.name, found.topology.name) == (planned.profile.name, planned.topology.name)
    planfile.write(tmp_path / "again.json", found)
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plan.json").read_bytes()


def test_a_summary_begins_with_what_every_planner_says():
    document = planfile.summary(PLAN)
    assert list(document)[:6] == [
        "stages",
        "replication",
        "bottleneck_s",
        "speedup",
        "data_parallel_speedup",
        "seconds",
    ]
    assert document["stages"][0] == {
        "start": 0, "end": 2, "replicas": 2, "devices": [0, 1, 3, 4], "recompute": "rotor@0.5", "layers": ["a", "b"],
    }  # fmt: skip
    assert (document["replication"], document["bottleneck_s"], document["planner"]) == (2, 0.1, "dapple")
    assert document["workload"] == {"profile_batch": 32, "batch": 64, "micro_batch": 16, "state_factor": 3.5}
    assert planfile.summary(BARE)["workload"] is None
    assert json.loads(json.dumps(document)) == document


def test_a_file_is_one_line_that_begins_with_its_kind(tmp_path):
    planfile.write(tmp_path / "plan.json", Planned(PLAN, PROFILE, TOPOLOGY))
    text = (tmp_path / "plan.json").read_text()
    assert text.startswith('{"kind":"detrain pipeline plan","format":1,"stages":[{"start":0,"end":2,')
    assert text.index("\n") == len(text) - 1


ABSENT = object()


def changed(document, path, value):
    """The document with another value at a path, such as `stages.0.layers`."""
    *names, last = [int(name) if name.isdigit() else name for name in path.split(".")]
    within = document
    for name in names:
        within = within[name]
    if value is ABSENT:
        del within[last]
    else:
        within[last] = value
    return document


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("kind", "else", "is not a plan: its kind must be 'detrain pipeline plan'"),
        ("format", 2, "has format 2; this detrain"),
        ("profile", ABSENT, "profile is missing"), ("topology", 3, "topology is 3, not a table"), ("stages", ABSENT, "stages is missing"),
        ("stages", [], "stages is empty"), ("stages.0", [], "stages[0] is [], not a table"), ("planner", 1, "planner is 1, not a text"),
        ("replication", 0, "replication is 0, not a whole number from 1 on"), ("replication", True, "replication is True, not a whole"),
        ("replication", 1, "stages[0] has 4 devices, not 2 for each of 1 copies"), ("bottleneck_s", -1, "bottleneck_s is -1, not a number"),
        ("speedup", "fast", "speedup is 'fast', not a number of zero or more"), ("speedup", float("nan"), "speedup is nan, not a number"),
        ("seconds", None, "seconds is None, not a number"), ("workload.batch", 0, "workload: batch is 0, not a whole number from 1 on"),
        ("workload.micro_batch", 65, "a micro-batch of 65 is more than the batch of 64"),
        ("workload.state_factor", ABSENT, "state_factor is missing"),
        ("stages.0.start", -1, "stages[0]: start is -1, not a whole number from 0 on"),
        ("stages.1.end", 1, "stages[1]: end is 1, not a whole number from 2"),
        ("stages.0.recompute", "some", "stages[0]: recompute is 'some', not \"\", \"all\" or PLANNER@SHARE"),
        ("stages.0.recompute", False, "not a text"),
        ("stages.0.layers", "ab", "stages[0]: layers is 'ab', not a list"), ("stages.0.layers", ["a", 2], "not a list of texts"),
        ("stages.0.layers", ["a", "z"], "stages[0] has a layer z, and the profile has none of that name"),
        ("stages.0.layers", ["a"], "layer b is in no stage"),
        ("stages.1.layers", ["c", "a"], "stages[1] has layer a, and so has stages[0]"),
        ("stages.0.layers", ["a", "b", "a"], "stages[0] has layer a, and so has stages[0]"),
        ("stages.0.replicas", 1, "stages[0] has 4 devices, not 1 for each of 2 copies"),
        ("stages.0.replicas", 0, "replicas is 0, not a whole"),
        ("stages.0.devices", [0, 1, 1, 4], "stages[0] has a device twice: [0, 1, 1, 4]"),
        ("stages.0.devices", [0, 1, 3, -4], "not a list of whole"),
        ("stages.0.devices", [0, 1, 3, 6], "stages[0] has device 6, and the topology has 6"),
        ("stages.1.devices", [2, 4], "stages[1] and stages[0] share device 4, and have other devices besides"),
        ("profile.layers", {}, "profile: layers is {}, not a list"), ("profile.layers.1.name", "x", "profile: there are two layers x"),
        ("profile.layers.1.forward_ms", -1, "profile: layers[1]: forward_ms is -1, not a number of zero or more"),
        ("profile.layers.1.output_bytes", ["1"], "profile: layers[1]: output_bytes[0] is '1', not a number"),
        ("profile.layers.1.parameter_bytes", 10**400, "profile: layers[1]: parameter_bytes is 1000"),
        ("profile.layers.1.stage", -1, "stage is -1"),
        ("profile.edges.0", [0], "profile: edges[0] is [0], not [from, to]"),
        ("profile.edges.0", [0, 9], "profile: there is an edge 0 to 9"),
        ("profile.edges.0", [2, 1], "profile: the edges form a cycle through layer"),
        ("profile.edges.0", [True, 1], "profile: edges[0] is [True, 1], not [from, to]"),
        ("profile.name", None, "profile: name is None, not a text"),
        ("topology.devices", [], "topology: a topology has at least one device"),
        ("topology.devices.0.speed", 0, "devices[0]: speed is 0, not a number above"),
        ("topology.devices.0.memory_bytes", ABSENT, "topology: devices[0]: memory_bytes is missing"),
        ("topology.levels.0.bandwidth", 0, "topology: levels[0]: bandwidth is 0, not a number above zero"),
        ("topology.levels.0.groups", [0], "topology: level 1 has groups of 1 devices, not of 6"),
        ("topology.levels", [], "either levels or a matrix"),
        ("topology.levels.1.latency_s", "0", "topology: levels[1]: latency_s is '0', not a number of zero or more"),
        ("topology.bandwidths", [1], "topology: bandwidths[0] is 1, not a list"),
        ("topology.latencies_s", [["0"]], "latencies_s[0][0] is '0', not a number"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_plan_is_named_with_its_place(path, value, said, tmp_path):
    file = tmp_path / "plan.json"
    planfile.write(file, Planned(PLAN, PROFILE, TOPOLOGY))
    file.write_text(json.dumps(changed(json.loads(file.read_text()), path, value)))
    with pytest.raises(GraphError) as caught:
        planfile.read(file)
    assert str(caught.value).startswith(str(file))
    assert said in str(caught.value)


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000], ids=["half", "no text", "deep"])
def test_what_is_no_json_is_said_to_be_none(content, tmp_path):
    (tmp_path / "plan.json").write_bytes(content)
    with pytest.raises(GraphError, match=r"plan\.json is not JSON: "):
        planfile.read(tmp_path / "plan.json")


def test_a_stage_cannot_take_what_a_later_one_makes():
    backwards = Plan("by hand", (Stage(0, 1, ("b",), 1, (0,)), Stage(1, 3, ("a", "c"), 1, (1,))), 1, 0.1, 1.0, 1.0)
    with pytest.raises(GraphError, match=r"layer b in stages\[0\] takes what a makes in stages\[1\]"):
        planfile.check(backwards, PROFILE, LEVELS)


def test_layers_that_planners_leave_out_may_be_in_a_stage_or_in_none():
    for layers in (("x", "a", "b", "c"), ("a", "b", "c")):
        planfile.check(Plan("by hand", (Stage(0, 3, layers, 1, (0,)),), 1, 0.1, 1.0, 1.0), PROFILE, LEVELS)

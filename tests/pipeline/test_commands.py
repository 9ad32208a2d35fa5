"""`detrain pipeline …` as a user types it; most of it without a process of its own."""

import csv
import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from itertools import pairwise

import pytest

pytest.importorskip("numba", reason='planners are compiled by numba: pip install "detrain-run[plan]"')

from detrain.cli import main, pipeline
from detrain.errors import installing
from detrain.pipeline import graphtext, planfile, schedules
from detrain.pipeline.planners import catalogue, registry

from .graphs import chain, layer

#: The data and three layers, of 8 samples; 12 ms on one device.
PROFILE = chain(
    layer("n1", 0, 0, 1e3, 0, "Input0"), layer("n2", 1, 2, 1e6, 4e6, "Linear"), layer("n3", 1, 2, 1e6, 0, "ReLU"),
    layer("n4", 2, 4, (5e5, 5e5), 8e6, "Linear"),
)  # fmt: skip
LINKS = """[device]
memory = 16e9
[[level]]
size = 2
bandwidth = 1e10
[[level]]
size = 2
bandwidth = 1.25e9
"""
UNEVEN = LINKS.replace("size = 2", "ends = [1, 3]", 1)
MATRIX = "[device]\nmemory = 16e9\n[matrix]\nbandwidth = [[0, 1e9], [1e9, 0]]\n"
BATCHES = ("--profile-batch", "8", "--batch", "64")
TINY = ("tiny.txt", "--devices", "2x2", *BATCHES)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """With a profile and topologies in it."""
    monkeypatch.chdir(tmp_path)
    graphtext.write(tmp_path / "tiny.txt", PROFILE)
    for name, text in (("links.toml", LINKS), ("uneven.toml", UNEVEN), ("matrix.toml", MATRIX)):
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.fixture
def command(folder, monkeypatch, capsys):
    """The exit status, what is said on standard output, and what on standard error."""

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["detrain", "pipeline", *map(str, words)])
        status = main()
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def planned(command, *words):
    """The document of a plan."""
    status, out, err = command("plan", *words, "--json")
    assert (status, err) == (0, "")
    return json.loads(out)


def stages(document):
    return [(one["layers"], one["replicas"], one["devices"]) for one in document["stages"]]


def test_a_plan_is_written_and_simulated_under_every_schedule(command, folder):
    status, out, err = command("plan", *TINY, "--planner", "dapple", "-o", "plan.json")
    assert (status, err) == (0, "")
    assert out.startswith("dapple: 2 stages on 4 devices; planned in ")
    assert planfile.read(folder / "plan.json").profile == PROFILE
    for name in set(schedules.NAMES) - {"interleaved"}:
        status, out, err = command("simulate", "plan.json", "--schedule", name, "--json")
        found = json.loads(out)
        assert (status, err, found["schedule"]) == (0, "", name)
        assert set(found) == {
            "schedule", "micro_batches", "chunks", "batch", "micro_batch", "step_s", "bubble_share", "samples_per_s", "speedup",
            "all_reduce_exposed_s", "all_reduce_overlap", "over_memory", "stages",
        }  # fmt: skip
        assert [set(one) for one in found["stages"]] == [
            {"busy_s", "in_flight", "weight_versions", "peak_bytes", "memory_bytes", "recompute"}
        ] * 2
        samples = 8 if name == "1f1b-async" else 64
        assert found["samples_per_s"] == pytest.approx(samples / found["step_s"])
        assert 1 < found["speedup"] == pytest.approx(found["samples_per_s"] * 0.012 / 8)
        text = command("simulate", "plan.json", "--schedule", name)[1]
        assert text.startswith(f"{name}: {found['step_s']:.6g} s a ")
        assert len(text.splitlines()) == 4
    # Two stages would be four, and there are three layers.
    assert command("simulate", "plan.json", "--schedule", "interleaved") == (
        1, "", "detrain: error: 4 stages take as many layers, and tiny has 3\n",
    )  # fmt: skip


def test_a_profile_is_of_one_micro_batch_if_nothing_else_is_said(command, folder):
    words = ("tiny.txt", "--devices", "2x2", "--batch", "64", "--planner", "dapple")
    said, unsaid = (planned(command, *words, *more) for more in (("--profile-batch", "8"), ("--micro-batch", "8")))
    assert unsaid["workload"] == {"profile_batch": 8, "batch": 64, "micro_batch": 8, "state_factor": 4.0}
    assert {**unsaid, "seconds": 0} == {**said, "seconds": 0}


def test_a_document_has_what_scripts_rely_on(command, folder):
    found = planned(command, *TINY, "--planner", "dapple", "-o", "plan.json")
    assert set(found) >= {
        "stages", "replication", "bottleneck_s", "speedup", "data_parallel_speedup", "seconds", "planner", "workload",
    }  # fmt: skip
    assert all({"start", "end", "replicas"} <= set(one) for one in found["stages"])
    assert found["workload"] == {"profile_batch": 8, "batch": 64, "micro_batch": 8, "state_factor": 4.0}
    written = json.loads((folder / "plan.json").read_text())
    assert "simulated" not in written  # whoever has the file simulates it under any schedule
    del found["simulated"]
    assert {name: written[name] for name in found} == found


def test_the_simulator_stands_beside_every_closed_form(command):
    for planner, schedule in (("dapple", "1f1b"), ("pipedream", "1f1b-async"), ("detrain", "1f1b")):
        found = planned(command, *TINY, "--planner", planner, "-o", "plan.json")
        simulated = json.loads(command("simulate", "plan.json", "--schedule", schedule, "--json")[1])
        for name in ("schedule", "step_s", "speedup", "samples_per_s", "batch", "micro_batch", "micro_batches"):
            assert found["simulated"][name] == simulated[name]
        assert found["simulated"]["data_parallel_speedup"] > 1
        text = command("plan", *TINY, "--planner", planner)[1]
        assert (
            f"simulated ({schedule}): {simulated['step_s']:.6g} s a step, speed-up {simulated['speedup']:.4f} over"
            in text
        )
        assert (f"closed form of {planner}: " in text) == (planner != "detrain")
    unsaid = planned(command, "tiny.txt", "--planner", "pipedream", "-n", "2")["simulated"]
    assert (unsaid["schedule"], unsaid["why"], unsaid["speedup"] > 1) == ("1f1b-async", "", True)


def test_a_plan_that_cannot_be_simulated_says_why_and_is_a_plan(command):
    words = ("tiny.txt", "--devices", "2x2", "--profile-batch", "1", "--batch", "9999999", "--planner", "dapple")
    found = planned(command, *words)["simulated"]
    assert (found["speedup"], "are too many to simulate" in found["why"]) == (None, True)
    assert "simulated (1f1b): not possible: " in command("plan", *words)[1]


def test_the_words_of_pipedream_and_ours_ask_for_the_same(command):
    """Underscores and hyphens, numbers behind one option and with commas, a file, units."""
    plain = ("tiny.txt", "--planner", "pipedream")
    ways = [
        (*plain, "-n", "2", "2", "-b", "1e10", "1.25e9", "-s", "16e9", "--activation-compression-ratio", "1"),
        ("-n", "2,2", "-b", "1e10,1.25e9", *plain, "--memory-size", "16e9", "--activation_compression_ratio", "1.0"),
        ("--all_num_machines", "2", "2", "--network_bandwidths", "10GB/s", "10Gbit/s", *plain, "--memory_size", "16e9",
         "--activation_compression_ratio", "1"),
        (*plain, "--num-machines", "2", "2", "--bandwidth", "1e10", "1.25e9", "--activation-compression-ratio", "1"),
        (*plain, "--devices", "2x2", "--bandwidth", "1e10,1.25e9", "--memory", "16GB", "--activation-compression-ratio", "1"),
        (*plain, "--topology", "links.toml", "--activation-compression-ratio", "1"),
    ]  # fmt: skip
    documents = [{**planned(command, *words), "seconds": 0} for words in ways]
    assert documents == documents[:1] * len(ways)
    assert sorted(device for one in documents[0]["stages"] for device in one["devices"]) == [0, 1, 2, 3]
    free = planned(command, *plain, "-n", "2", "2", "-b", "1e10", "1.25e9")
    assert free["bottleneck_s"] <= documents[0]["bottleneck_s"]


def test_the_flags_of_pipedream_reach_its_planner(command):
    """Three layers of 3, 3 and 6 ms that send nothing, on three machines."""
    words = ("tiny.txt", "--planner", "pipedream", "-n", "3")
    straight = planned(command, *words, "--straight_pipeline")
    assert [one["replicas"] for one in straight["stages"]] == [1, 1, 1]
    assert straight["bottleneck_s"] == pytest.approx(0.006)
    fewer = planned(
        command, *words, "--straight-pipeline", "--use_fewer_machines", "--activation_compression_ratio", "1e-9"
    )
    assert len(fewer["stages"]) == 1
    status, _, err = command("plan", *words, "--use_memory_constraint", "-s", "1e6")
    assert (status, err) == (
        1,
        "detrain: pipedream: layer n2 (Linear) takes 4,000,000 bytes of parameters, and the largest device has 1,000,000\n",
    )


def test_devices_have_the_links_of_who_counts_them_so(command, folder):
    def links(*words):
        assert command("plan", "tiny.txt", "--planner", "pipedream", *words, "-o", "plan.json")[0] == 0
        return [level.bandwidth for level in planfile.read(folder / "plan.json").topology.levels]

    assert links("--devices", "2x2") == links("--devices", "2,4") == [25e9, 1e9]
    assert links("-n", "2", "2") == [1e9, 1e9]
    assert links("-n", "4", "--bandwidth", "2GB/s") == [2e9]


def test_memory_is_that_of_each_device(command, folder):
    assert command("plan", *TINY, "--planner", "detrain", "--memory", "1GiB", "-o", "plan.json")[0] == 0
    assert {one.memory_bytes for one in planfile.read(folder / "plan.json").topology.devices} == {2.0**30}
    status, out, err = command("plan", *TINY, "--planner", "detrain", "--memory", "1MB")
    assert (status, out) == (1, "")
    assert err == (
        "detrain: detrain: layer n2 (Linear) takes 16,000,000 bytes with gradients and optimizer state, "
        "and the largest device has 1,000,000\n"
    )


def test_the_simulator_says_what_our_planner_expects(command):
    found = planned(command, *TINY, "--planner", "detrain", "--micro-batch", "2,4,8", "-o", "plan.json")
    simulated = json.loads(command("simulate", "plan.json", "--json")[1])
    assert simulated["speedup"] == pytest.approx(found["speedup"], rel=1e-12)
    assert found["workload"]["micro_batch"] in (2, 4, 8)
    best = max(planned(command, *TINY, "--planner", "detrain", "--micro-batch", size)["speedup"] for size in "248")
    assert found["speedup"] >= best * (1 - 1e-12)


def test_a_plan_that_knows_no_batches_remembers_what_was_said(command):
    words = ("tiny.txt", "--planner", "pipedream", "-n", "2", "-o", "plan.json")
    assert planned(command, *words)["workload"] is None
    assert planned(command, *words, *BATCHES, "--micro-batch", "4")["workload"]["micro_batch"] == 4
    found = json.loads(command("simulate", "plan.json", "--json")[1])
    assert (found["batch"], found["micro_batch"], found["micro_batches"]) == (64, 4, 16)
    found = json.loads(command("simulate", "plan.json", "--json", "--batch", "12", "--micro-batch", "5")[1])
    assert (found["batch"], found["micro_batch"], found["micro_batches"]) == (12, 5, 3)


def test_a_step_that_needs_too_much_memory_has_exit_status_one(command):
    assert command("plan", *TINY, "--planner", "dapple", "--memory", "32.5MB", "-o", "plan.json")[0] == 0
    status, out, _ = command("simulate", "plan.json", "--json")
    assert (status, json.loads(out)["over_memory"]) == (1, [1])
    assert command("simulate", "plan.json")[1].splitlines()[-1].endswith("too much")


@pytest.mark.parametrize("devices", ["8,16", "4x4", ",".join(map(str, range(1, 17)))])
@pytest.mark.parametrize(
    ("planner", "more", "statuses"),
    [
        ("pipedream", (), {0}), ("pipedream", ("--compat",), {0}), ("pipedream", ("--straight",), {1}), ("dapple", (), {0}),
        ("dapple", ("--compat",), {1}), ("detrain", (), {0}), ("pipedream-inference", ("--time-between-inputs", "1"), {0, 2}),
    ],
)  # fmt: skip
def test_sixteen_devices_for_three_layers_are_no_reason_to_panic(command, devices, planner, more, statuses):
    words = ("plan", "tiny.txt", "--devices", devices, *BATCHES, "--planner", planner, *more)
    status, out, err = command(*words, "--json")
    assert status in statuses
    if status == 0:
        found = json.loads(out)["stages"]
        assert [name for one in found for name in one["layers"] if name != "n1"] == ["n2", "n3", "n4"]
        assert len({device for one in found for device in one["devices"]}) <= 16
    else:
        assert err.startswith("detrain: ")
        assert re.search(r"16 (machines|(successive )?stages)|machines must be one level", err)


def test_inference_has_a_latency(command):
    found = planned(command, "tiny.txt", "--planner", "pipedream-inference", "-n", "4", "--time_between_inputs", "1")
    assert found["latency_s"] == pytest.approx(0.004)  # one stage, and nothing is sent
    assert found["simulated"] == {"latency_s": pytest.approx(0.004), "between_outputs_s": pytest.approx(0.001)}
    status, _, err = command(
        "plan", "tiny.txt", "--planner", "pipedream-inference", "-n", "4", "--time-between-inputs", "1e-6"
    )
    assert (status, "no split on 4 machines takes in an input every 1e-06 s" in err) == (1, True)


def test_a_timeline_is_a_picture_or_a_trace(command, folder):
    command("plan", *TINY, "--planner", "dapple", "-o", "plan.json")
    for name, first in (
        ("a.svg", b"<?xml"),
        ("b.svg", b"<?xml"),
        ("a.png", b"\x89PNG"),
        ("a.pdf", b"%PDF"),
        ("a", b"<?xml"),
    ):
        assert command("simulate", "plan.json", "-o", name)[::2] == (0, "")
        assert (folder / name).read_bytes().startswith(first)
    assert (folder / "a.svg").read_bytes() == (folder / "b.svg").read_bytes()


@pytest.mark.parametrize("schedule", ["1f1b", "zb-h1", "2bw"])
def test_a_trace_is_what_trace_viewers_read(command, folder, schedule):
    """Complete events that do not overlap in their thread, names for all processes and threads, counters of numbers."""
    command("plan", *TINY, "--planner", "dapple", "-o", "plan.json")
    assert command("simulate", "plan.json", "--schedule", schedule, "-o", "trace.json")[0] == 0
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    named = {(one["name"], one["pid"], one.get("tid")) for one in events if one["ph"] == "M"}
    threads = defaultdict(list)
    for one in events:
        assert one["ph"] in "MXC"
        if one["ph"] == "X":
            threads[one["pid"], one["tid"]].append((one["ts"], one["ts"] + one["dur"]))
            assert one["dur"] > 0
        elif one["ph"] == "C":
            assert (one["ts"] >= 0, list(map(type, one["args"].values()))) == (True, [float])
    assert len(threads) >= 2
    for (process, thread), spans in threads.items():
        assert {("process_name", process, None), ("thread_name", process, thread)} <= named
        spans.sort()
        assert all(before[1] <= behind[0] + 1e-6 for before, behind in pairwise(spans))


def test_a_sweep_has_a_table_and_a_picture(command, folder):
    words = ("sweep", "tiny.txt", "--profile-batch", "8", "--batches", "8,64,8", "--devices", "2x2", "--devices", "4")
    status, out, err = command(*words, "--planners", "dapple,pipedream", "--processes", "2", "-o", "new/found")
    assert (status, out) == (0, "")
    assert len(err.splitlines()) == 8
    header, *rows = (folder / "new" / "found" / "sweep.csv").read_text().splitlines()
    assert header.startswith("devices,batch,planner,dp_no_overlap,dp_p3,dp_overlap,hybrid,simulated,")
    assert [row.split(",")[:3] for row in rows] == [
        [devices, batch, planner]
        for devices in ("2x2", "4")
        for batch in ("8", "64")
        for planner in ("dapple", "pipedream")
    ]
    assert (folder / "new" / "found" / "speedup.svg").read_text().startswith("<?xml")


def test_a_sweep_plans_with_ours_unless_published_figures_are_wanted(command, folder):
    words = (
        "sweep",
        "tiny.txt",
        "--profile-batch",
        "8",
        "--batches",
        "8,16:32:16",
        "--devices",
        "2",
        "--processes",
        "1",
    )
    for more, planner in (("--time-limit", "2"), "detrain"), (("--compat", "--peak-activation", "1MB"), "dapple"):
        assert command(*words, *more, "-o", "found")[0] == 0
        rows = list(csv.DictReader((folder / "found" / "sweep.csv").read_text().splitlines()))
        assert [(row["batch"], row["planner"]) for row in rows] == [(batch, planner) for batch in ("8", "16", "32")]
        assert all(float(row["dp_simulated"]) > 1 for row in rows)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("64:32:8", "has no sizes"), ("1:2", "a range is FIRST:LAST:STEP, as in 64:4096:64, not '1:2'"), ("1:9:0", "a range is"),
        ("1:20000:1", "20,000 sizes are more than 10,000"), ("8,", "these are whole numbers above zero"),
        ("8,1:2:1,x", "these are whole numbers above zero"),
    ],
)  # fmt: skip
def test_ranges_of_batches_that_are_none_are_refused(command, text, said):
    status, _, err = command(
        "sweep", "tiny.txt", "--profile-batch", "8", "--batches", text, "--devices", "4", "-o", "found"
    )
    assert (status, said in err) == (2, True)


def test_files_become_each_other(command, folder):
    command("plan", *TINY, "--planner", "dapple", "-o", "plan.json")
    for words, made in (
        (("plan.json", "conf.json"), "conf"),
        (("plan.json", "staged.txt"), "profile"),
        (("plan.json", "graph.dot"), "dot"),
        (("conf.json", "again.json", "--profile", "staged.txt"), "plan"),
        (("staged.txt", "operators.json"), "graph"),
        (("plan.json", "same.json", "--to", "plan"), "plan"),
    ):
        assert command("convert", *words) == (0, "", f"{words[1]}: a {made}\n")
    assert command("simulate", "again.json")[0] == 0
    assert planned(command, "operators.json", "--planner", "pipedream", "-n", "2")["speedup"] == pytest.approx(2)


BROKEN = {
    "unknown.txt": ("n3 -- n4", "n3 -- n9", "line 7: the edge names n9, and no line before it is a layer of that name"),
    "circle.txt": ("\tn3 -- n4", "\tn3 -- n4\n\tn4 -- n2", "line 8: the edges form a cycle through layer n2"),
    "sizeless.txt": ("activation_size=1000000.000, ", "", "line 2: layer n2 has no activation_size"),
    "nan.txt": ("=2.000", "=nan", "line 2: layer n2 has backward_compute_time=nan, no number of zero or more"),
    "twice.txt": ("n3 -- ReLU", "n2 -- ReLU", "line 3: there is a n2 before it"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_profile_is_named_with_the_line(command, folder, name):
    old, new, said = BROKEN[name]
    (folder / name).write_text((folder / "tiny.txt").read_text().replace(old, new, 1))
    for words in (
        ("plan", name, *TINY[1:], "--planner", "dapple"), ("convert", name, "out.json"),
        ("sweep", name, "--batches", "8", "--devices", "4", "--profile-batch", "8", "-o", "out"),
    ):  # fmt: skip
        assert command(*words) == (2, "", f"detrain: error: {name}, {said}\n")
    assert not (folder / "out.json").exists()


OWN = ("plan", *TINY, "--planner", "detrain")
DAPPLE = ("plan", *TINY, "--planner", "dapple")
PIPEDREAM = ("plan", "tiny.txt", "--planner", "pipedream")
SWEEP = ("sweep", "tiny.txt", "--batches", "8", "--devices", "2x2", "-o", "out")


@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("plan", "none.txt", *TINY[1:], "--planner", "dapple"), 2, "File 'none.txt' does not exist"),
        (("plan", ".", *TINY[1:], "--planner", "dapple"), 2, "File '.' is a directory"),
        (("plan", "empty", *TINY[1:], "--planner", "dapple"), 2, "empty has no layers"),
        (("plan", "binary", *TINY[1:], "--planner", "dapple"), 2, "binary is not text: 'utf-8' codec can't decode"),
        (("plan", "plan.json", *TINY[1:], "--planner", "dapple"), 2, "plan.json is a plan, not a profile; `detrain pipeline convert"),
        (("plan", "conf.json", *TINY[1:], "--planner", "dapple"), 2, "conf.json is a conf of PipeDream, which has no layers"),
        (("plan", *TINY, "--planner", "best"), 2, "'best' is not one of 'pipedream', 'pipedream-inference', 'dapple', 'detrain'"),
        (("plan", "tiny.txt", "--planner", "dapple"), 2, "no devices given: use --devices 8,16, --devices 2x8, --topology FILE"),
        ((*PIPEDREAM, "--topology", "links.toml", "--devices", "4"), 2, "--topology and --devices both give which devices there are"),
        ((*PIPEDREAM, "--devices", "4", "-n", "4"), 2, "--devices and -n both give which devices there are: leave one out"),
        ((*PIPEDREAM, "--topology", "links.toml", "--bandwidth", "1e9"), 2, "--topology and --bandwidth both give how fast"),
        ((*PIPEDREAM, "-n", "4", "--bandwidth", "1e9", "-b", "1e9"), 2, "--bandwidth and -b both give how fast the links are"),
        ((*PIPEDREAM, "-n", "4", "--memory", "1GB", "-s", "1e9"), 2, "--memory and -s both give how much memory a device has"),
        ((*PIPEDREAM, "--devices", "4x0"), 2, "--devices: a level has at least one machine, not 0"),
        ((*PIPEDREAM, "--devices", "x"), 2, "--devices: a shape is machines by devices, as in 2x8, not x"),
        ((*PIPEDREAM, "--devices", "16,8"), 2, "--devices: separators rise from above zero: 16,8 do not"),
        ((*PIPEDREAM, "--devices", "many"), 2, "--devices: machines are where they end, as in 8,16, not many"),
        ((*PIPEDREAM, "-n", "0"), 2, "-n: these are whole numbers above zero, as in 8,16, not '0'"),
        ((*PIPEDREAM, "-n", "100000"), 2, "-n: there are 100000 devices; 65536 is the most"),
        ((*PIPEDREAM, "-n", "4", "4", "-b", "1e9"), 2, "-n: there are 2 levels of machines and 1 bandwidths"),
        ((*PIPEDREAM, "-n", "4", "-b", "0"), 2, "-n: level 1 has a bandwidth that is not above zero"),
        ((*PIPEDREAM, "-n", "4", "-b", "fast"), 2, "-b: fast is no number with a unit"),
        ((*PIPEDREAM, "-n", "4", "-b", "1GB"), 2, "-b: there is no unit GB: it is one of B/s"),
        ((*PIPEDREAM, "-n", "4", "--memory", "0"), 2, "--memory is 0.0, not a number above zero"),
        ((*PIPEDREAM, "-n", "4", "--memory", "lots"), 2, "--memory: lots is no number with a unit"),
        ((*PIPEDREAM, "-n", "4", "-s", "nan"), 2, "nan is no number"),
        ((*PIPEDREAM, "-n", "4", "-s", "0"), 2, "0.0 is not in the range x>0"),
        ((*PIPEDREAM, "-n", "4", "--activation-compression-ratio", "0"), 2, "0.0 is not in the range x>0"),
        ((*PIPEDREAM, "--topology", "matrix.toml"), 1, "knows levels of machines, not a matrix of bandwidths"),
        ((*PIPEDREAM, "--topology", "uneven.toml"), 1, "detrain: pipedream: PipeDream's planner knows levels of equal groups only"),
        (("plan", "tiny.txt", *BATCHES, "--planner", "dapple", "--topology", "matrix.toml"), 1, "not for a matrix of bandwidths"),
        ((*PIPEDREAM, "--topology", "tiny.txt"), 2, "tiny.txt is not TOML: "),
        ((*PIPEDREAM, "--topology", "zero.toml"), 2, "zero.toml: level[1]: bandwidth is 0.0, not a number above zero"),
        (("plan", "tiny.txt", "--devices", "4", "--planner", "dapple"), 2, "dapple plans for a batch: give --batch, --micro-batch and"),
        (("plan", "tiny.txt", "--devices", "4", "--planner", "dapple", "--batch", "8"), 2, "give with --profile-batch the number"),
        ((*DAPPLE, "--micro-batch", "65"), 2, "a micro-batch of 65 is more than the batch of 64"),
        ((*DAPPLE, "--micro-batch", "4,8"), 2, "--micro-batch: dapple plans for one size, not for 4,8"),
        ((*OWN, "--micro-batch", "4,0"), 2, "--micro-batch: these are whole numbers above zero, as in 8,16, not '4,0'"),
        ((*OWN, "--batch", "0"), 2, "'--batch': 0 is not in the range x>=1"),
        ((*OWN, "--state-factor", "0.5"), 2, "0.5 is not in the range x>=1"),
        ((*OWN, "--state-factor", "inf"), 2, "inf is no number"),
        ((*OWN, "--time-limit", "nan"), 2, "nan is no number"),
        ((*OWN, "--schedule", "zb-h2"), 2, "there is no schedule zb-h2: it is one of gpipe, 1f1b, 1f1b-async, 2bw, interleaved, zb-h1"),
        ((*OWN, "--schedule", "gpipe", "--warmup", "pb"), 2, "the warm-up pb is an option of 1f1b, not of gpipe"),
        ((*OWN, "--schedule", "interleaved"), 2, "a plan has one stage per device. Plan for 1f1b; then `detrain pipeline simulate PLAN"),
        ((*OWN, "--compat"), 2, "--compat is an option of pipedream, pipedream-inference, dapple, not of detrain"),
        ((*DAPPLE, "--straight"), 2, "--straight is an option of pipedream, pipedream-inference, not of dapple"),
        ((*DAPPLE, "--schedule", "1f1b"), 2, "--schedule is an option of detrain, not of dapple"),
        ((*DAPPLE, "-o", "no/plan.json"), 2, "no/plan.json cannot be written: there is no folder no"),
        ((*DAPPLE, "-o", "."), 2, "File '.' is a directory"),
        (("plan", "tiny.txt", "--planner", "pipedream-inference", "-n", "4"), 2, "give --time-between-inputs, in seconds"),
        (("plan", "tiny.txt", "--planner", "pipedream-inference", "-n", "2", "2", "--time-between-inputs", "1"), 2, "as in -n 4 -b 1e9"),
        (("simulate", "tiny.txt"), 2, "tiny.txt is not JSON: "),
        (("simulate", "conf.json"), 2, "conf.json is not a plan: its kind must be 'detrain pipeline plan'"),
        (("simulate", "binary"), 2, "binary is not JSON: 'utf-8' codec can't decode"),
        (("simulate", "plan.json", "-o", "trace.txt"), 2, "-o trace.txt: a timeline is one of .svg, .png, .pdf, .json"),
        (("simulate", "plan.json", "-o", "no/trace.json"), 2, "no/trace.json cannot be written: there is no folder no"),
        (("simulate", "plan.json", "--chunks", "3"), 2, "--chunks is an option of interleaved, not of 1f1b"),
        (("simulate", "plan.json", "--vertical-sync"), 2, "vertical_sync is an option of 1f1b-async, not of 1f1b"),
        (("simulate", "plan.json", "--micro-batch", "2,4"), 2, "--micro-batch: this is one number, not 2,4"),
        (("simulate", "copies.json", "--batch", "3", "--micro-batch", "1"), 2, "a batch of 3 has no sample for each of 4 copies"),
        (("simulate", "plan.json", "--batch", "9" * 12), 2, "are too many to simulate; a smaller batch shows the same"),
        ((*SWEEP,), 2, "a sweep counts samples: give with --profile-batch"),
        ((*SWEEP, "--profile-batch", "8", "--planners", "dapple,best"), 2, "--planners: there is no planner 'best': it is one of"),
        ((*SWEEP, "--profile-batch", "8", "--batches", "8,x"), 2, "--batches: these are whole numbers above zero, as in 8,16, not '8,x'"),
        ((*SWEEP, "--profile-batch", "8", "-o", "empty/out"), 2, "empty/out cannot be written: "),
        (("convert", "conf.json", "out.json"), 2, "conf.json only assigns ranks to stages; give --profile, whose layers have stages"),
        (("convert", "ranks.json", "out.json", "--profile", "tiny.txt"), 2, "ranks.json: stage_to_rank_map: rank 2 is in stage 1 and in"),
        (("convert", "tiny.txt", "out.xyz"), 2, "out.xyz has no known suffix: give --to, which is one of profile, graph, plan, conf, dot"),
        (("convert", "tiny.txt", "out", "--to", "picture"), 2, "--to is one of profile, graph, plan, conf, dot, not picture"),
        (("convert", "tiny.txt", "out", "--to", "plan"), 2, "a profile alone has no stages: it can become profile, dot, graph, not plan"),
        (("convert", "tiny.txt", "no/out.dot"), 2, "no/out.dot cannot be written: "),
    ],
)  # fmt: skip
def test_what_cannot_be_done_is_said(command, folder, words, status, said):
    files = {
        "empty": b"", "binary": b"\xff\xfe\x00", "zero.toml": LINKS.replace("1.25e9", "0.0").encode(),
        "conf.json": b'{"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 1], "1": [2]}}',
        "ranks.json": b'{"module_to_stage_map": [0, 1, 1], "stage_to_rank_map": {"0": [0, 2], "1": [2]}}',
    }  # fmt: skip
    for name, data in files.items():
        (folder / name).write_bytes(data)
    if "plan.json" in words:
        command(*DAPPLE, "-o", "plan.json")
    if "copies.json" in words:
        command(
            "plan",
            "tiny.txt",
            "--devices",
            "4",
            *BATCHES,
            "--micro-batch",
            "4",
            "--planner",
            "dapple",
            "-o",
            "copies.json",
        )
    found, out, err = command(*words)
    assert (found, out) == (status, "")
    assert said in err
    assert len(err.splitlines()) == 1
    assert err.startswith("detrain: ")
    assert not any((folder / name).exists() for name in ("out", "out.json", "trace.txt"))


def test_without_a_planner_it_is_our_own_and_for_another_there_are_some_to_choose_from(command):
    status, out, _ = command("plan", *TINY, "--json")
    assert (status, json.loads(out)["planner"]) == (0, catalogue.DETRAIN)
    status, _, err = command("plan", *TINY, "--planner", "other")
    assert status == 2
    assert all(name in err for name in catalogue.NAMES)


def test_every_option_of_a_planner_is_named_where_it_is_not_one():
    """The table of whose option is whose has the options that there are."""
    names = {option.name for option in pipeline.plan.params}
    assert set(catalogue.OWNERS) <= names
    assert set(registry.PLANNERS) == set(catalogue.NAMES) - {catalogue.INFERENCE}


@pytest.mark.parametrize("name", ["plan", "simulate", "sweep", "convert"])
def test_help_is_in_sentences_and_fits_a_terminal(command, name):
    status, out, _ = command(name, "--help")
    assert status == 0
    assert max(map(len, out.splitlines())) <= 80
    for option in pipeline.pipeline.commands[name].params:
        text = getattr(option, "help", "") or ""
        assert re.sub(r" \[default: .*\]$", "", text).endswith(".") or option.param_type_name == "argument", option.name


@pytest.mark.parametrize("words", [["--help"], ["plan", "--help"]])
def test_help_loads_no_numbers(words):
    code = (
        f"import sys; sys.argv[1:] = {['pipeline', *words]}; from detrain.cli import main; main(); print(*sys.modules)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    loaded = set(said.splitlines()[-1].split())
    assert "detrain.cli.pipeline" in loaded
    assert not loaded & {"numpy", "numba", "torch", "scipy", "matplotlib", "rich", "detrain.pipeline.planners.registry"}


@pytest.mark.parametrize(
    ("missing", "words"),
    [
        ("numba", ("plan", "tiny.txt", "--planner", "pipedream", "-n", "2")),
        ("matplotlib", ("simulate", "plan.json", "-o", "timeline.svg")),
    ],
)
def test_a_library_that_is_missing_is_named_with_the_way_to_install_it(command, folder, missing, words):
    command(*DAPPLE, "-o", "plan.json")
    stub = folder / "stub" / missing
    stub.mkdir(parents=True)
    (stub / "__init__.py").write_text(f"raise ImportError('No module named {missing}', name='{missing}')")
    done = subprocess.run(
        [sys.executable, "-m", "detrain", "pipeline", *words], cwd=folder, env={**os.environ, "PYTHONPATH": str(stub.parent)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"detrain: error: {missing} is not installed: {installing('plan')}\n"


def test_ctrl_c_ends_a_sweep_without_a_word(folder):
    """As a terminal does it: all processes get the signal, those that are still beginning too."""
    words = (
        "--batches",
        ",".join(map(str, range(8, 208, 2))),
        "--devices",
        "2x4",
        "--profile-batch",
        "8",
        "--planners",
        "dapple,detrain",
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "detrain", "pipeline", "sweep", "tiny.txt", *words, "-o", "out", "--processes", "2"], cwd=folder,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell lets what it starts in the background ignore Ctrl-C
    )  # fmt: skip
    assert process.stderr.readline().split()[:2] == ["2x4", "batch"]
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert [line for line in err.splitlines() if line and not re.match(r" *2x4 batch ", line)] == []
    assert not (folder / "out" / "sweep.csv").exists()

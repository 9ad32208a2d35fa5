"""What counts as a difference between two checkpoints, and what does not."""

import json
import subprocess
import sys

import numpy as np
import pytest

from detrain.errors import CheckpointError
from detrain.proof import diff
from detrain.state.tree import Array, Tree
from detrain.store import listing
from detrain.store.commit import commit
from detrain.world import loop_clock_log, setup_clock


def node(kind, name, **fields):
    return {"k": kind, "t": f"builtins:{kind}", "p": None, "s": name, **fields}


@pytest.fixture
def compare(tmp_path, meta):
    """Saves two trees and compares them; returns the differences as (path, what)."""

    def run(a, b, meta_a=None, meta_b=None):
        for name, tree, one in (("a.h5", a, meta_a), ("b.h5", b, meta_b)):
            commit(tmp_path / name, tree, meta(1, **(one or {})))
        return diff.compare(tmp_path / "a.h5", tmp_path / "b.h5")

    return run


def said(result):
    return [(found["path"], found["what"]) for found in result["differences"]]


def tensor_tree(raw, shape, dtype="float32", strides=None):
    data = np.frombuffer(raw, np.uint8)
    nodes = [
        node(
            "torch.Tensor",
            "x",
            dtype=dtype,
            shape=shape,
            strides=strides or [1] * len(shape),
            offset=0,
            storage=["@", 1],
        ),
        node("torch.UntypedStorage", "", p=0, array=0, nbytes=len(raw)),
    ]
    return Tree(nodes, [Array("x", data)], {"x": ["@", 0]})


def test_bytes_of_a_storage_that_no_tensor_looks_into_do_not_count(compare):
    one, other = (np.array([1.5, garbage], np.float32).tobytes() for garbage in (3.0, 4.0))
    assert compare(tensor_tree(one, []), tensor_tree(other, []))["same"]
    assert compare(tensor_tree(one, [1]), tensor_tree(other, [1]))["same"]
    assert said(compare(tensor_tree(one, [2]), tensor_tree(other, [2]))) == [("x", "elements")]


def test_one_bit_of_one_element_is_found_with_its_index_values_and_bits(compare, tree):
    one = np.zeros((3, 4), np.float32)
    other = one.copy()
    other[1, 2] = -0.0
    found = compare(tree({"w": one}), tree({"w": other}))
    (difference,) = found["differences"]
    assert difference == {
        "path": "w", "what": "elements", "dtype": "float32", "shape": [3, 4], "count": 1, "index": [1, 2], "a": "0.0", "b": "-0.0",
        "a_bits": "00000000", "b_bits": "80000000",
    }  # fmt: skip
    assert "w: elements: 1 of 12 (float32 [3, 4]) differ, first at [1, 2]: A 0.0, B -0.0 (bits 00000000, 80000000)" in (
        diff.format_result(found)
    )


@pytest.mark.parametrize("is_added", [False, True], ids=["numpy lacks it", "a library has added it to numpy"])
def test_bfloat16_is_shown_by_value(tmp_path, meta, is_added):
    if is_added:
        pytest.importorskip("ml_dtypes", reason="ml_dtypes comes with TensorFlow, with Keras and with onnx")
    for name, bits in (("a.h5", 0x3F80), ("b.h5", 0x4000)):
        raw = np.array([bits], np.uint16).tobytes()
        commit(tmp_path / name, tensor_tree(raw, [1], "bfloat16"), meta(1))
    # A process of its own: what a test has imported before stays added to numpy.
    lines = ["import ml_dtypes"] if is_added else []
    lines += ["import json, pathlib, sys", "from detrain.proof import diff"]
    lines += ["print(json.dumps(diff.compare(*map(pathlib.Path, sys.argv[1:]))))"]
    command = [sys.executable, "-c", "\n".join(lines), str(tmp_path / "a.h5"), str(tmp_path / "b.h5")]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    (difference,) = found["differences"]
    shown = (difference["a"], difference["b"], difference["a_bits"], difference["b_bits"])
    assert shown == ("1.0", "2.0", "3f80", "4000")


@pytest.mark.parametrize(("a", "b"), [(1, 1.0), (1, True), (0.0, -0.0), ("x", ["b", "eA=="]), (None, False)])
def test_values_that_python_calls_equal_or_alike_but_are_not_differ(compare, tree, a, b):
    assert said(compare(tree({}, {"v": a}), tree({}, {"v": b}))) == [("v", "value")]


def test_nan_is_the_same_as_itself_and_another_nan_is_not(compare, tree):
    one, other = ["f", "000000000000f87f"], ["f", "010000000000f87f"]
    assert compare(tree({}, {"v": one}), tree({}, {"v": one}))["same"]
    (difference,) = compare(tree({}, {"v": one}), tree({}, {"v": other}))["differences"]
    assert (difference["a_bits"], difference["b_bits"]) == ("7ff8000000000000", "7ff8000000000001")


def test_leaves_of_one_side_only_are_named(compare, tree):
    found = compare(tree({}, {"a": 1, "both": 2}), tree({"b": np.zeros(2)}, {"both": 2}))
    assert said(found) == [("a", "only in a"), ("b", "only in b")]


def test_two_names_for_one_list_are_not_two_lists(compare):
    shared = Tree([node("list", "x", seq=[1])], [], {"x": ["@", 0], "y": ["@", 0]})
    apart = Tree([node("list", "x", seq=[1]), node("list", "y", seq=[1])], [], {"x": ["@", 0], "y": ["@", 1]})
    assert said(compare(shared, apart)) == [("y", "identity")]
    assert said(compare(apart, shared)) == [("y", "identity")]


def test_numbering_of_nodes_does_not_count(compare):
    one = Tree([node("list", "x", seq=[1]), node("list", "y", seq=[2])], [], {"x": ["@", 0], "y": ["@", 1]})
    other = Tree([node("list", "y", seq=[2]), node("list", "x", seq=[1])], [], {"y": ["@", 0], "x": ["@", 1]})
    assert compare(one, other)["same"]


def test_order_of_a_dict_counts(compare):
    one = Tree([node("dict", "d", items=[["a", 1], ["b", 2]])], [], {"d": ["@", 0]})
    other = Tree([node("dict", "d", items=[["b", 2], ["a", 1]])], [], {"d": ["@", 0]})
    assert said(compare(one, other)) == [("d", "order of keys")]


@pytest.mark.parametrize("text", ["t", "@"])
def test_arguments_of_an_iterator_that_look_like_refs_are_compared_and_listed(compare, tmp_path, text):
    """`itertools.repeat("t", 5)` in a file: its list of arguments is no tuple, nor `["@", 5]` a node."""
    one, other = (Tree([node("composed iterator", "x", parts=[text, count])], [], {"x": ["@", 0]}) for count in (5, 4))
    assert compare(one, one)["same"]
    assert said(compare(one, other)) == [("x.<parts>[1]", "value")]
    found = listing.describe_checkpoint(tmp_path / "a.h5")
    assert [(leaf["path"], leaf["value"]) for leaf in found["leaves"]] == [("x.<parts>[0]", text), ("x.<parts>[1]", 5)]


def test_reason_origin_cost_and_chain_do_not_count(compare):
    one = Tree([node("kept", "t", kept="owns a thread")], [], {"t": ["@", 0]})
    other = Tree([node("kept", "t", kept="another reason", **{"from": "elsewhere"})], [], {"t": ["@", 0]})
    assert compare(one, other, {"cost_s": 1.0}, {"cost_s": 2.0, "chain": ["checkpoint_0_0.h5"], "batches": 99})["same"]


def test_folder_of_the_program_does_not_count_and_another_path_does(compare, tree):
    meta_a, meta_b = ({"folder": f"/{name}/job", "sources": {f"/{name}/job/train.py": "1"}} for name in "xy")
    assert compare(tree({}, {"p": "/x/job/out.csv"}), tree({}, {"p": "/y/job/out.csv"}), meta_a, meta_b)["same"]
    assert said(compare(tree({}, {"p": "/x/job/out.csv"}), tree({}, {"p": "/y/job/other.csv"}), meta_a, meta_b)) == [
        ("p", "value")
    ]


def test_environment_is_noted_and_does_not_count(compare, tree):
    found = compare(tree({}), tree({}), {"facts": {"torch_threads": 1}}, {"facts": {"torch_threads": 2}})
    assert (found["same"], found["notes"]) == (True, ["torch_threads: 1 / 2"])


def test_other_position_is_a_difference(compare, tree):
    assert said(compare(tree({}), tree({}), {}, {"position": [["/nowhere/train.py", 3, 0, 3]]})) == [
        ("position.loops", "value")
    ]


def test_all_differences_are_counted_and_the_first_are_shown(compare, tree):
    found = compare(tree({}, {f"v{n}": 0 for n in range(50)}), tree({}, {f"v{n}": 1 for n in range(50)}))
    assert (found["num_differences"], len(found["differences"])) == (50, 20)
    assert "  … and 30 more" in diff.format_result(found)


def test_damaged_side_is_refused(compare, tree, tmp_path):
    compare(tree({}), tree({}))
    (tmp_path / "b.h5").write_bytes(b"no")
    with pytest.raises(CheckpointError, match=r"b.h5 is not a checkpoint"):
        diff.compare(tmp_path / "a.h5", tmp_path / "b.h5")


def test_processes_that_only_one_run_has_started_are_noted_and_do_not_count(compare, tree):
    found = compare(tree({}, {"v": 1}), tree({}, {"v": 1}), {"entropy": [16, 2]}, {"entropy": [16, 0]})
    assert (found["same"], found["notes"]) == (True, ["processes started: [2] / [0]"])
    found = compare(tree({}, {"v": 1}), tree({}, {"v": 1}), {"entropy": [16, 2]}, {"entropy": [24, 2]})
    assert said(found) == [("entropy[0]", "value")]


def test_switches_that_one_side_does_not_know_are_a_note_and_no_difference(compare, tree):
    old, new = ({"flags": {"torch": flags}} for flags in ({"grad": True}, {"grad": True, "fills": True}))
    same = compare(tree({}, {"v": 1}), tree({}, {"v": 1}), old, new)
    assert same["same"]
    assert compare(tree({}, {"v": 1}), tree({}, {"v": 1}), new, {"flags": {}})["differences"]
    other = compare(tree({}, {"v": 1}), tree({}, {"v": 1}), old, {"flags": {"torch": {"grad": False, "fills": True}}})
    assert said(other) == [("flags.torch.grad", "value")]


def test_what_the_clock_said_in_either_run_is_named_so(compare, tmp_path):
    """Of two numbers that differ, only what both runs have on record is called a reading of the clock."""

    def tree(began, ended, steps, loss):
        return Tree([], [], {"began": began, "ended": ended, "steps": steps, "loss": loss})

    setup_ns, loop_ns = 1_795_918_809_517_274_600, 7_565_034_236_064
    (tmp_path / setup_clock.NAME).write_text(f'["train.py:3", 0, {setup_ns}]\n["train.py', encoding="utf-8")
    np.array([(7, 1 << 8, loop_ns)], loop_clock_log.RECORD).tofile(tmp_path / loop_clock_log.NAME)
    found = compare(tree(setup_ns / 1e9, loop_ns, 3, 0.5), tree(loop_ns / 1e9, setup_ns, 4, setup_ns / 1e9))
    assert [one["path"] for one in found["differences"] if "is_clock_reading" in one] == ["began", "ended"]
    lines = diff.format_result(found).splitlines()
    assert lines[0].startswith("different: 4 differences in 6 leaves, 2 of them readings of the clock. A ")
    assert [line.split(":")[0].strip() for line in lines if line.endswith(": what the clock said in either run")] == [
        "began",
        "ended",
    ]
    alone = compare(tree(loop_ns, 1, 3, 0.5), tree(setup_ns, 1, 3, 0.5))
    assert not alone["same"]
    assert ", all of them readings of the clock. A " in diff.format_result(alone)

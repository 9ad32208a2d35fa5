"""`ls`, `inspect`, `diff` and `instrument` on real runs."""

import json
import shutil

import h5py
import pytest


def latest(folder):
    return max(folder.glob("checkpoint_*.h5"), key=lambda path: tuple(map(int, path.stem.split("_")[1:])))


# --- ls ---


def test_ls_lists_runs_with_their_checkpoints(runs):
    said = runs.detrain("ls", ".")
    assert (said.status, said.err) == (0, "")
    assert f"A: {runs.folder}/train.py\n  finished; began " in said.out
    assert f"K: {runs.folder}/train.py\n  not finished; began " in said.out
    assert "B: " in said.out
    assert "attempts: 2" in said.out
    assert f"  {latest(runs.folder / 'A').name}  " in said.out


def test_ls_json_is_one_document(runs):
    said = runs.detrain("ls", "A", "--json")
    (run,) = json.loads(said.out)
    assert (said.status, said.err) == (0, "")
    assert (run["script"], run["arguments"], run["attempts"]) == (f"{runs.folder}/train.py", [], 1)
    assert (run["is_finished"], run["held_by"], run["damage"]) == (True, None, "")
    first = run["checkpoints"][0]
    assert first["file"] == latest(runs.folder / "A").name
    assert first["bytes"] == latest(runs.folder / "A").stat().st_size
    assert {"epoch", "batch", "when", "damage", "sequence"} <= first.keys()


def test_ls_marks_damaged_checkpoints_and_still_lists_the_rest(runs, killed):
    path = latest(killed)
    path.write_bytes(path.read_bytes()[:1000])
    said = runs.detrain("ls", killed)
    assert said.status == 0
    assert f"damaged: {path.name} is not a whole checkpoint" in said.out
    checkpoints = json.loads(runs.detrain("ls", killed, "--json").out)[0]["checkpoints"]
    assert [bool(found["damage"]) for found in checkpoints] == [False] * (len(checkpoints) - 1) + [True]


def test_ls_of_a_folder_without_runs_says_so(detrain, tmp_path):
    assert detrain("ls", tmp_path).out == f"no runs in {tmp_path}\n"
    assert json.loads(detrain("ls", tmp_path, "--json").out) == []


def test_ls_of_no_folder_is_a_usage_error(detrain):
    said = detrain("ls")
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("detrain: error: there is no folder .detrain in /")


# --- inspect ---


def test_inspect_lists_every_leaf_with_kind_size_digest_and_place(runs):
    path = latest(runs.folder / "A")
    said = runs.detrain("inspect", path)
    assert (said.status, said.err) == (0, "")
    assert "environment: " in said.out
    assert "\ntrain.model.weight  float32 [3, 4]  48 B  " in said.out
    assert f"  in {path.name}" in said.out
    assert "\ntrain.opt.state[train.model.weight].exp_avg  float32 [3, 4]  48 B  " in said.out
    assert "\ntrain.epoch  int 3  1 B  " in said.out


def test_inspect_json_is_one_document(runs):
    said = runs.detrain("inspect", latest(runs.folder / "A"), "--json")
    found = json.loads(said.out)
    leaves = {leaf["path"]: leaf for leaf in found["leaves"]}
    assert (said.status, said.err) == (0, "")
    assert leaves["train.model.bias"]["shape"] == [3]
    assert len(leaves["train.model.bias"]["digest"]) == 32
    assert leaves["train.losses[0]"]["kind"] == "float"
    assert {"environment", "needs", "kept", "meta", "sequence"} <= found.keys()


def test_inspect_leaf_prints_the_value(runs):
    path = latest(runs.folder / "A")
    said = runs.detrain("inspect", path, "--leaf", "train.model.bias")
    assert said.status == 0
    line, values = said.out.splitlines()
    assert line.startswith("train.model.bias  float32 [3]  12 B  ")
    (leaf,) = json.loads(runs.detrain("inspect", path, "--leaf", "train.model.bias", "--json").out)
    assert values == f"  [{', '.join(leaf['first'])}]"
    assert [len(bits) for bits in leaf["first_bits"]] == [8, 8, 8]
    assert json.loads(runs.detrain("inspect", path, "--leaf", "train.epoch", "--json").out)[0]["value"] == 3


def test_inspect_leaf_of_a_prefix_lists_what_is_below(runs):
    said = runs.detrain("inspect", latest(runs.folder / "A"), "--leaf", "train.model")
    paths = [line.split()[0] for line in said.out.splitlines()]
    assert {"train.model.weight", "train.model.bias", "train.model.training"} <= set(paths)
    assert all(path.startswith("train.model.") for path in paths)


def test_inspect_leaf_that_is_not_there_says_how_to_find_it(runs):
    path = latest(runs.folder / "A")
    said = runs.detrain("inspect", path, "--leaf", "train.mode")
    assert (said.status, said.out) == (2, "")
    assert said.err == f"detrain: error: {path.name} has no leaf train.mode; `detrain inspect {path}` lists them\n"


def test_inspect_of_a_damaged_leaf_names_it(runs, killed):
    path = latest(killed)
    with h5py.File(path, "r") as file:
        number, offset = next(
            (n, d.id.get_offset()) for n, d in file["arrays"].items() if d.attrs["path"] == b"train.model.weight"
        )
    assert number.isdigit()
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)
    said = runs.detrain("inspect", path)
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith(
        f"detrain: error: {path.name} is damaged at leaf train.model.weight: its bytes do not have the digest"
    )


@pytest.mark.parametrize("command", [["inspect", "train.py"], ["diff", "train.py", "A"], ["diff", "A", "train.py"]])
def test_file_that_is_no_checkpoint_is_refused(runs, command):
    said = runs.detrain(*command)
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("detrain: error: train.py is not a checkpoint: its header is wrong")


@pytest.mark.parametrize("command", [["inspect", "gone.h5"], ["diff", "gone", "A"], ["instrument", "gone.py"]])
def test_path_that_is_not_there_is_a_usage_error(runs, command):
    said = runs.detrain(*command)
    assert (said.status, said.out) == (2, "")
    assert "detrain: error: " in said.err
    assert "does not exist" in said.err


# --- diff ---


def test_two_runs_with_different_every_one_of_them_killed_and_resumed_are_the_same(runs):
    assert runs.whole.out == runs.resumed.out
    said = runs.detrain("diff", "A", "B")
    assert (said.status, said.err) == (0, "")
    assert said.out.startswith("same: ")
    found = json.loads(runs.detrain("diff", "A", "B", "--json").out)
    assert (found["same"], found["num_differences"], found["differences"]) == (True, 0, [])
    assert found["a"]["is_finished"] is found["b"]["is_finished"] is True


def test_diff_of_two_checkpoints_names_leaf_element_and_bits(runs):
    early, late = latest(runs.folder / "K"), latest(runs.folder / "A")
    said = runs.detrain("diff", early, late, "--json")
    found = json.loads(said.out)
    assert (said.status, found["same"]) == (1, False)
    by_path = {one["path"]: one for one in found["differences"]}
    weight = by_path["train.model.weight"]
    assert (weight["what"], weight["dtype"], weight["shape"]) == ("elements", "float32", [3, 4])
    assert 1 <= weight["count"] <= 12
    assert len(weight["a_bits"]) == len(weight["b_bits"]) == 8
    assert weight["a_bits"] != weight["b_bits"]
    assert by_path["train.losses"]["what"] == "length"
    text = runs.detrain("diff", early, late)
    assert text.status == 1
    assert text.out.startswith("different: ")
    assert "  train.model.weight: elements: " in text.out


def test_unfinished_run_is_not_the_same_as_a_finished_one(runs):
    said = runs.detrain("diff", "A", "K")
    assert said.status == 1
    assert "  run.is_finished: value: A True, B False\n" in said.out


def test_diff_of_a_run_without_checkpoints_says_so(runs, tmp_path):
    said = runs.detrain("diff", tmp_path, "A")
    assert (said.status, said.err) == (2, f"detrain: error: there is no checkpoint in {tmp_path}\n")


def test_diff_of_a_run_with_a_damaged_checkpoint_is_refused(runs, killed):
    path = latest(killed)
    path.write_bytes(path.read_bytes()[:500])
    said = runs.detrain("diff", killed, "A")
    assert (said.status, said.out) == (2, "")
    assert f"{path.name} is not a whole checkpoint" in said.err
    assert "it may be the latest. Name two checkpoint files instead" in said.err


# --- instrument ---


def test_instrument_prints_source_that_records_the_loops_and_leaves_the_file_alone(runs):
    before = (runs.folder / "train.py").read_bytes()
    said = runs.detrain("instrument", "train.py", "--ckpt-dir", "A")
    assert (said.status, said.err) == (0, "")
    assert "record_epoch" in said.out
    assert "record_batch" in said.out
    assert (runs.folder / "train.py").read_bytes() == before


def test_instrument_diff_adds_and_keeps_line_numbers(runs):
    said = runs.detrain("instrument", "--diff", "train.py")
    assert said.status == 0
    assert said.out.startswith("--- train.py\n+++ train.py (instrumented)\n")
    assert "+" in said.out


def test_instrument_of_something_that_is_not_python_is_a_usage_error(detrain, tmp_path):
    (tmp_path / "broken.py").write_text("for x in:\n")
    said = detrain("instrument", "broken.py")
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("detrain: error: broken.py is not Python: ")


def test_looking_changes_nothing(runs, killed):
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in killed.rglob("*") if path.is_file()}
    copy = shutil.copytree(killed, killed.with_name("copy"))
    for words in (["ls", killed], ["inspect", latest(killed)], ["diff", killed, copy]):
        assert runs.detrain(*words).status == 0
    assert before == {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in killed.rglob("*") if path.is_file()
    }

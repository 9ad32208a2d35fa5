"""The key of a run's entropy tells programs apart, and is the same for one program wherever it lies and for all attempts of a run."""

import json
import sys
import zipfile

import pytest

from detrain.launch import entropy, environment
from detrain.launch.request import Request
from detrain.session.goal import Goal


def request(script="", *arguments, module="", ckpt_dir="", **others):
    return Request(str(script), module, list(arguments), "train", ckpt_dir, **others)


def write(path, text="print(1)\n"):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def key(*words, **named):
    return entropy.key_of_program(request(*words, **named))


def test_a_program_in_another_folder_is_the_same(tmp_path):
    assert key(write(tmp_path / "a" / "train.py"), "--lr", "1") == key(write(tmp_path / "b" / "train.py"), "--lr", "1")


def test_programs_arguments_and_seeds_are_told_apart(tmp_path):
    one, other = write(tmp_path / "train.py"), write(tmp_path / "other.py")
    keys = [key(one), key(other), key(one, "a", "b"), key(one, "a b"), key(one, seed=1)]
    write(one, "print(2)\n")
    assert len({*keys, key(one)}) == 6


def test_of_a_folder_and_of_an_archive_what_python_runs_counts(tmp_path):
    keys = []
    for number, text in enumerate(["print(1)\n", "print(1)\n", "print(2)\n"]):
        folder = tmp_path / str(number)
        write(folder / "program" / "__main__.py", text)
        with zipfile.ZipFile(folder / "program.zip", "w") as archive:
            archive.writestr("__main__.py", text)
            archive.writestr("data", str(number))
        keys.append((key(folder / "program"), key(folder / "program.zip")))
    assert keys[0] == keys[1]
    assert not set(keys[0]) & set(keys[2])


@pytest.mark.parametrize(
    ("module", "file"),
    [
        ("thetop", "thetop.py"), ("thepackage", "thepackage/__main__.py"), ("thepackage.inner", "thepackage/inner.py"),
        ("thepackage.deep.inner", "thepackage/deep/inner.py"), ("thepackage.deep", "thepackage/deep/__main__.py"),
    ],
)  # fmt: skip
def test_of_a_module_its_name_and_source_count_and_nothing_is_imported(tmp_path, monkeypatch, module, file):
    keys = []
    for name, text in (("a", "one"), ("b", "one"), ("c", "two")):
        folder = tmp_path / name
        write(folder / "thepackage" / "__init__.py", "raise AssertionError('imported')")
        write(folder / file, f"raise AssertionError('imported {text}')")
        monkeypatch.chdir(folder)
        sys.path_importer_cache.clear()
        keys.append(key(module=module))
    assert keys[0] == keys[1] != keys[2]
    assert keys[0] != key(module=f"{module}.other")


def test_a_module_that_is_not_there_has_its_name_for_a_key():
    assert key(module="no_such_module") != key(module="no_such_module_either")


@pytest.fixture
def run(tmp_path):
    """A run that goes on: writes what its record says."""

    def note(**record):
        write(tmp_path / "run" / "run.json", json.dumps({"seed": 3, "arguments": ["--lr", "1"], **record}))
        write(tmp_path / "run" / "checkpoint_1_0.h5", "")
        return tmp_path / "run"

    return note


def key_of_attempt(run, script, *arguments, **options):
    asked = request(script, *arguments, ckpt_dir=str(run), **options)
    return entropy.key_of(asked, environment._record_of_run(asked))


def test_a_run_keeps_its_key_also_where_changes_are_trusted(run, tmp_path):
    script = write(tmp_path / "train.py")
    folder = run(entropy="the run's own")
    for options in ({}, {"trust_changes": True}, {"trust_changes": True, "seed": 5}, {"goal": Goal()}):
        assert key_of_attempt(folder, script, "--lr", "2", **options) == "the run's own"


def test_a_run_of_an_earlier_detrain_goes_on_with_the_key_that_it_had(run, tmp_path):
    assert key_of_attempt(run(), write(tmp_path / "train.py"), "changed", trust_changes=True) == "3 --lr 1"


@pytest.mark.parametrize("begins_again", ["fresh", "finished", "no checkpoint", "no run"])
def test_a_run_that_begins_again_has_the_key_of_its_command(run, tmp_path, begins_again):
    script = write(tmp_path / "train.py")
    folder = run(entropy="the run's own")
    if begins_again == "finished":
        write(folder / "finished", "now")
    if begins_again == "no checkpoint":
        (folder / "checkpoint_1_0.h5").unlink()
    if begins_again == "no run":
        folder = tmp_path / "nothing"
    assert key_of_attempt(folder, script, fresh=begins_again == "fresh") == key(script)

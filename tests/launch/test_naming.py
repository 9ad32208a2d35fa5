"""The directory of a command that names none: its own, found again by the same command."""

import json
import os
from pathlib import Path

import pytest

from detrain.cli.requests import request_of
from detrain.errors import UsageError
from detrain.store import naming


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MODEL_NAME", raising=False)
    for script in ("train.py", "a/train.py", "b/train.py", "a-b/c.py", "a/b-c.py", "work/train.py", "pkg/__main__.py"):
        Path(script).parent.mkdir(exist_ok=True)
        Path(script).touch()
    return tmp_path


def test_script_alone_gives_its_name():
    assert naming.default_directory("train.py", None) == os.path.join(".detrain", "train")
    assert naming.run_name("./train.py", None) == naming.run_name(os.path.abspath("train.py"), None) == "train"


def test_scripts_of_one_name_have_directories_of_their_own():
    names = [naming.run_name(script, None) for script in ("train.py", "a/train.py", "b/train.py")]
    assert names == ["train", "a-train", "b-train"]
    assert naming.run_name("a-b/c.py", None) != naming.run_name("a/b-c.py", None)


def test_arguments_have_directories_of_their_own_that_say_which():
    plain, slow, slower = (
        naming.run_name("train.py", None, words) for words in ([], ["--lr", "0.1"], ["--lr", "0.10"])
    )
    assert len({plain, slow, slower}) == 3
    assert slow.startswith("train-lr-0.1-")
    assert slow == naming.run_name("train.py", None, ["--lr", "0.1"])
    assert naming.run_name("train.py", None, ["a b"]) != naming.run_name("train.py", None, ["a", "b"])
    assert naming.run_name("train.py", None, [""]) != plain


def test_long_and_strange_arguments_make_one_short_part_of_a_path():
    name = naming.run_name("train.py", None, ["--data=/home/me/träin data/*", *map(str, range(500))])
    assert len(name) < 60
    assert os.sep not in name
    assert name.isascii()


def test_script_elsewhere_and_in_another_folder_of_that_name(place, monkeypatch):
    (place / "work" / "x").mkdir()
    monkeypatch.chdir(place / "work")
    outside = naming.run_name("../train.py", None)
    assert outside.startswith("train-")
    assert outside not in (naming.run_name("../a/train.py", None), naming.run_name("train.py", None))
    assert outside == naming.run_name(str(place / "train.py"), None)


def test_modules_and_folders_go_by_their_names():
    assert naming.run_name("", "pkg.train") == "pkg.train"
    assert naming.run_name("pkg", None) == naming.run_name("pkg/__main__.py", None) == "pkg"


def test_model_name_stands_above_all(monkeypatch):
    monkeypatch.setenv("MODEL_NAME", "mine")
    assert naming.default_directory("a/train.py", None, ["--lr", "1"]) == os.path.join(".detrain", "mine")


def a_run(name: str, script: str, arguments: list[str], began_s: float) -> None:
    folder = Path(".detrain") / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps({"script": script, "arguments": arguments}))
    os.utime(folder / "run.json", (began_s, began_s))


def test_runs_of_a_script_are_found_whatever_their_arguments(place):
    script = str(place / "train.py")
    a_run("train", script, [], 1000)
    a_run("train-lr-1-00000000", script, ["--lr", "1"], 3000)
    a_run("a-train", str(place / "a" / "train.py"), [], 2000)
    (Path(".detrain") / "torn").mkdir()
    (Path(".detrain") / "torn" / "run.json").write_text("{")
    assert naming.runs_below(Path(".detrain"), script) == [
        (Path(".detrain/train-lr-1-00000000"), ["--lr", "1"]), (Path(".detrain/train"), []),
    ]  # fmt: skip
    assert naming.latest_directory("train.py") == ".detrain/train-lr-1-00000000"
    assert naming.latest_directory("b/train.py") == ".detrain/b-train"


def test_who_trusts_changes_has_to_say_which_run_is_meant(place):
    a_run("train", str(place / "train.py"), [], 1000)

    def request(*words, **options):
        return request_of(None, ("train.py", *words), {"ckpt_dir": None, "trust_changes": True, **options})

    with pytest.raises(UsageError, match=r"no run yet.*--ckpt-dir: \.detrain/train \(no arguments\)"):
        request("--lr", "1")
    assert request().ckpt_dir == ".detrain/train"
    assert request("--lr", "1", ckpt_dir=".detrain/train").ckpt_dir == ".detrain/train"
    assert request("--lr", "1", trust_changes=False).ckpt_dir.startswith(".detrain/train-lr-1-")

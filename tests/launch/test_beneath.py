"""Programs and processes that the script starts, and in which training is not followed."""

import multiprocessing
import sys
from functools import partial

import pytest

from detrain.launch import beneath

PYTHON = sys.executable


@pytest.fixture
def folder(tmp_path):
    for name in ("train.py", "my script.py", "pkg/train.py", "pkg/__main__.py", "lib/site-packages/tool.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    launcher = tmp_path / "launcher"
    launcher.write_text(f"#!{PYTHON}\n")
    launcher.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize(
    ("words", "script"),
    [
        ([PYTHON, "train.py", "--lr", "1"], "train.py"),
        (["python3", "-u", "-W", "error", "train.py"], "train.py"),
        (
            ["./launcher", "--nproc-per-node=2", "train.py"],
            None,
        ),  # found by the working folder of the tests, not the child's
        ([PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", "2", "train.py"], "train.py"),
        ([PYTHON, "-m", "pkg.train"], "-m pkg.train"),
        ([PYTHON, "-m", "pkg"], "-m pkg"),
        (["mpirun", "-np", "4", "python", "train.py"], "train.py"),
        (["env", "X=1", "python", "train.py"], "train.py"),
        (["sh", "-c", "cd . && python 'my script.py' > log"], "my script.py"),
        (["python train.py --lr 1"], "train.py"),
        # what trains nothing of the user's
        (["git", "add", "train.py"], None),
        (["cp", "train.py", "kept.py"], None),
        ([PYTHON, "-c", "import train", "train.py"], None),
        ([PYTHON, "-m", "pip", "list"], None),
        ([PYTHON, "lib/site-packages/tool.py"], None),
        ([PYTHON, "gone.py"], None),
        ([PYTHON], None),
        (["sh", "-c", "nvidia-smi"], None),
        ([], None),
    ],
)
def test_script_of_the_users_in_a_command(folder, words, script):
    assert beneath.script_in(words, str(folder)) == script


def test_launcher_that_is_written_in_python(folder):
    assert beneath.script_in([str(folder / "launcher"), "--nproc=2", "train.py"], str(folder)) == "train.py"
    assert beneath.script_in([str(folder / "launcher"), "--list"], str(folder)) is None


def test_it_is_said_once_of_each_program(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    handlers = beneath.Beneath().handlers()
    for _ in range(2):
        handlers["subprocess.Popen"]("sh", ["sh", "-c", "python train.py"], str(folder), None)
        handlers["os.posix_spawn"](PYTHON, [PYTHON.encode(), str(folder / "my script.py").encode()], {})
        handlers["os.exec"](object(), object(), object())  # refused by the function itself
    said = capsys.readouterr().err
    assert said.count("[not-followed]") == 2
    assert "the script starts a Python program beneath it, train.py, which detrain does not follow" in said


def test_a_script_that_starts_itself_as_a_rank_is_told_of_first(folder, capsys, monkeypatch):
    monkeypatch.setattr(sys, "__stderr__", sys.stderr)
    sizes = []
    handlers = beneath.Beneath(str(folder / "train.py"), sizes.append).handlers()
    for name, variables in (
        ("train.py", {"WORLD_SIZE": "1"}),
        ("my script.py", {"WORLD_SIZE": "2"}),
        ("train.py", None),
    ):
        handlers["subprocess.Popen"](PYTHON, [PYTHON, str(folder / name)], None, variables)
    assert not sizes
    handlers["subprocess.Popen"](PYTHON, [PYTHON, "train.py"], str(folder), {"WORLD_SIZE": "2", "LOCAL_RANK": "1"})
    handlers["subprocess.Popen"](PYTHON, [PYTHON, str(folder / "train.py")], None, {"WORLD_SIZE": "3"})
    assert sizes == [2, 3]


def train(rank=0):
    """A function of the user's."""


def test_process_that_begins_anew_with_a_function_of_the_users(monkeypatch):
    monkeypatch.setattr(beneath, "user_modules", {"__main__", __name__})
    spawn, fork = multiprocessing.get_context("spawn"), multiprocessing.get_context("fork")
    name = beneath.user_function_of
    assert name(spawn.Process(target=train)) == "train()"
    assert name(spawn.Process(target=partial(train, 1))) == "train()"
    assert name(spawn.Process(target=print, args=(train, 0))) == "train()"  # as torch.multiprocessing.spawn starts them
    assert name(spawn.Process(target=print, args=(0, train))) is None  # a loader's worker with a collate function
    assert name(fork.Process(target=train)) is None
    assert name(multiprocessing.Process(target=train)) is None  # forks, by default

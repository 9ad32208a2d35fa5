"""What is said when an attempt begins and ends, and what the same command does next."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import SCRIPT, Said, call


def written(folder: Path, script: str, name: str = "train.py") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    return path


def last_line(said: Said) -> str:
    return said.err.strip().splitlines()[-1]


@pytest.fixture
def finished(runs, tmp_path) -> Path:
    """A run that has come to its end, the test's own."""
    return Path(shutil.copytree(runs.folder / "A", tmp_path / "run"))


def test_end_is_said(runs):
    assert "detrain: finished after 12 batches (4 epochs), in 1 attempt; `detrain verify " in runs.whole.err
    assert "detrain: finished after 12 batches (4 epochs), in 2 attempts; " in runs.resumed.err


def test_finished_run_ends_at_once(runs, finished):
    before = {path.name: path.read_bytes() for path in finished.iterdir() if path.is_file() and path.name != "lock"}
    said = runs.detrain("run", "--ckpt-dir", finished, "--every", "2batches", "train.py")
    assert (said.status, said.out) == (0, "")
    assert said.err.startswith(f"detrain: the run in {finished} came to its end at ")
    assert said.err.endswith(": there is nothing left to do. Train again with --fresh, which keeps the old run\n")
    assert {
        path.name: path.read_bytes() for path in finished.iterdir() if path.is_file() and path.name != "lock"
    } == before
    assert not finished.with_name("run.old1").exists()


def test_finished_run_of_other_arguments_or_another_source_is_refused(runs, finished, tmp_path):
    said = runs.detrain("run", "--ckpt-dir", finished, "train.py", "--other")
    assert said.status == 2
    assert "holds a run of another command: arguments was [], is ['--other']" in said.err
    script = written(tmp_path, SCRIPT)
    for text in (SCRIPT, SCRIPT.replace("lr=0.01", "lr=0.02")):
        script.write_text(text)
        said = call("run", "--every", "never", "train.py", folder=tmp_path)
    assert said.status == 2
    assert f"and the source has changed since ({script}). Train again with --fresh" in said.err


def test_fresh_trains_a_finished_run_again(runs, finished):
    said = runs.detrain("run", "--ckpt-dir", finished, "--fresh", "--every", "never", "train.py")
    assert (said.status, said.out) == (0, runs.whole.out)
    assert (finished.with_name("run.old1") / "finished").exists()


INTERRUPTED = SCRIPT.replace("9)", 'int(os.environ["SIGNAL"]))')
BROKEN_OFF = (
    INTERRUPTED.replace("for epoch", "try:\n  for epoch", 1)
    .replace("    for x", "      for x")
    .replace("\n        ", "\n          ")
    .replace('\nprint("sum"', '\nexcept KeyboardInterrupt:\n  print("leaving early")\nprint("sum"')
)


def test_ctrl_c_ends_with_where_it_was_and_what_comes_next(tmp_path):
    written(tmp_path, INTERRUPTED)
    said = call("run", "--every", "2batches", "train.py", folder=tmp_path, DIE_AT="8", SIGNAL="2")
    # -2 as a rule; 1 where a library imports another at its end, as torch does with tabulate.
    environment = {**os.environ, "DIE_AT": "8", "SIGNAL": "2"}
    plain = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, env=environment, capture_output=True, check=False
    )
    assert said.status == plain.returncode
    assert said.status in (-2, 1)
    assert said.err.count("Traceback") == 1
    assert last_line(said) == (
        "detrain: interrupted at epoch 2, batch 1; the same command resumes from checkpoint_2_0.h5 (epoch 2, batch 0)"
    )


def test_no_checkpoint_yet_is_said_at_the_end_and_at_the_next_beginning(tmp_path):
    written(tmp_path, INTERRUPTED)
    said = call("run", "--every", "never", "train.py", folder=tmp_path, DIE_AT="8", SIGNAL="2")
    assert last_line(said).endswith("there is no checkpoint yet, so the same command starts again from the beginning")
    said = call("run", "--every", "never", "train.py", folder=tmp_path, SIGNAL="2")
    assert said.status == 0
    assert said.err.startswith("detrain: no checkpoint yet: starting again from the beginning (attempt 2)\n")


def test_training_that_a_script_breaks_off_at_ctrl_c_is_not_finished(tmp_path):
    written(tmp_path, BROKEN_OFF)
    said = call("run", "--every", "2batches", "train.py", folder=tmp_path, DIE_AT="8", SIGNAL="2")
    assert (said.status, said.out.splitlines()[0]) == (0, "leaving early")
    assert "detrain: ended early, after SIGINT, at epoch 2, batch 1; the same command resumes from" in said.err
    whole = call("run", "--ckpt-dir", "whole", "--every", "never", "train.py", folder=tmp_path)
    said = call("run", "--every", "2batches", "train.py", folder=tmp_path)
    assert (said.status, said.out) == (0, whole.out)
    assert "resumed at epoch 2, batch" in said.err


def test_script_that_ends_with_an_error_says_where_it_goes_on(tmp_path):
    written(tmp_path, SCRIPT.replace("os.kill(os.getpid(), 9)", "raise ValueError('no')"))
    said = call("run", "--every", "2batches", "train.py", folder=tmp_path, DIE_AT="8")
    assert said.status == 1
    assert (
        "ValueError: no\ndetrain: the script ended with an error at epoch 2, batch 1; the same command resumes"
        in said.err
    )


UNSAVED = """\
import os, sys, threading, torch
model = torch.nn.Linear(2, 1)
opt = torch.optim.SGD(model.parameters(), lr=0.1)
def step(_):
    opt.zero_grad(); model(torch.ones(1, 2)).sum().backward(); opt.step()
list(map(step, range(5)))
sys.stderr.write("behind the library\\n")
if os.fork() == 0:
    list(map(step, range(5)))
    os._exit(0)
os.wait()
thread = threading.Thread(target=lambda: list(map(step, range(5))))
thread.start(); thread.join()
sys.stderr.write("behind the thread\\n")
"""


def test_training_that_nobody_saves_is_said_while_it_goes_on(tmp_path):
    written(tmp_path, UNSAVED)
    said = call("run", "train.py", folder=tmp_path)
    assert said.status == 0
    lines = [line for line in said.err.splitlines() if "nothing-saved" in line or line.startswith("behind")]
    told = ["not inside a loop in the script's own files", "behind the library", "which the script has forked, trains",
            "in a thread other than the script's main thread", "behind the thread"]  # fmt: skip
    assert len(lines) == len(told)
    assert all(part in line for part, line in zip(told, lines, strict=True))
    assert said.err.splitlines()[-1].startswith("detrain: no training loop was seen, so nothing was checkpointed")


@pytest.mark.full
def test_program_beneath_is_said_when_it_starts(tmp_path):
    written(tmp_path, SCRIPT, "inner.py")
    written(tmp_path, f"import subprocess\nsubprocess.run([{sys.executable!r}, 'inner.py'], check=True)\n")
    said = call("run", "train.py", folder=tmp_path)
    assert said.status == 0
    assert said.err.startswith(
        "detrain: warning: the script starts a Python program beneath it, inner.py, which detrain does not"
    )


def test_several_ranks_are_refused_before_anything_begins(tmp_path):
    written(tmp_path, SCRIPT)
    said = call("run", "train.py", folder=tmp_path, WORLD_SIZE="2", RANK="0")
    assert (said.status, said.out) == (2, "")
    assert said.err.startswith("detrain: error: WORLD_SIZE=2: this process is one of 2 ranks")
    assert not (tmp_path / ".detrain").exists()


def test_several_ranks_of_the_scripts_own_making_are_refused_when_they_join(tmp_path):
    group = """\
import torch
torch.distributed.init_process_group("gloo", init_method="tcp://127.0.0.1:9", rank=0, world_size=2)
print("joined")
"""
    written(tmp_path, group)
    said = call("run", "train.py", folder=tmp_path)
    assert (said.status, said.out) == (2, "")
    assert "a process group was initialised: this process is one of 2 ranks" in said.err


RESTORED_BADLY = SCRIPT.replace("import os, sys, torch\n", """\
import copyreg, decimal, os, sys, torch
def rebuild():
    raise getattr(__builtins__, os.environ.get("KIND", "RuntimeError"))("out of luck")
copyreg.pickle(decimal.Context, lambda one: (rebuild, ()))
held = []
drawn = os.urandom(4).hex()  # nobody has seeded that: each process that begins this run draws the same
""").replace("        if len(losses) ==", """\
        if len(losses) == int(os.environ["BAD_AT"]):
            held.append(decimal.Context())
        if len(losses) ==""") + "print(drawn)\n"  # fmt: skip


@pytest.mark.parametrize(
    ("bad_at", "kept", "then"),
    [
        # Those that build on one which cannot be restored go with it.
        ("10", "checkpoint_3_0.h5", "resumed at epoch 3, batch 0 from checkpoint_3_0.h5"),
        pytest.param("1", "", "no checkpoint yet: starting again from the beginning (attempt", marks=pytest.mark.full),
    ],
)
def test_checkpoint_that_cannot_be_restored_is_set_aside_and_the_one_before_it_taken(tmp_path, bad_at, kept, then):
    written(tmp_path, RESTORED_BADLY)
    whole = call(
        "run", "--ckpt-dir", "whole", "--every", "never", "train.py", folder=tmp_path, is_whole=True, BAD_AT="99"
    )
    arguments = ("run", "--keep", "9", "--every", "1batches", "train.py")
    assert call(*arguments, folder=tmp_path, is_whole=True, BAD_AT=bad_at, DIE_AT="12").status == -9
    directory = tmp_path / ".detrain" / "train"
    there = {path.name: path.stat().st_mtime_ns for path in directory.glob("*.h5")}
    said = call(*arguments, folder=tmp_path, is_whole=True, BAD_AT="99")
    assert (said.status, said.out) == (0, whole.out)
    assert then in said.err
    assert "RuntimeError: out of luck" in said.err
    assert 1 <= said.err.count("[checkpoint-set-aside]") <= 4
    aside = {path.name for path in (directory / "aside").iterdir()}
    assert aside == {name for name in there if name > kept}


def test_checkpoint_that_cannot_be_restored_for_want_of_memory_stays(tmp_path):
    written(tmp_path, RESTORED_BADLY)
    arguments = ("run", "--every", "1batches", "train.py")
    assert call(*arguments, folder=tmp_path, BAD_AT="7", DIE_AT="11").status == -9
    directory = tmp_path / ".detrain" / "train"
    there = {path.name for path in directory.glob("*.h5")}
    said = call(*arguments, folder=tmp_path, BAD_AT="99", KIND="MemoryError")
    assert (said.status, said.out) == (1, "")
    assert (
        "checkpoint_3_0.h5 cannot be restored now: MemoryError: out of luck. It stays; give the same command again"
        in said.err
    )
    assert {path.name for path in directory.glob("*.h5")} == there
    assert not (directory / "aside").exists()


MODULE = SCRIPT.replace("import os,", "print('TOP', __name__, flush=True)\nimport os,")


@pytest.mark.full
def test_module_is_not_imported_a_second_time_by_a_resume(tmp_path):
    written(tmp_path, MODULE, "pkg/train.py")
    arguments = ("run", "--every", "2batches", "-m", "pkg.train")
    assert call(*arguments, folder=tmp_path, DIE_AT="8").out == "TOP __main__\n"
    said = call(*arguments, folder=tmp_path)
    assert (said.status, said.out.splitlines()[:-1]) == (0, ["TOP __main__"])
    assert "resumed at epoch 2" in said.err

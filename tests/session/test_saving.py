"""A checkpoint holds what was there when the training went on, however long its writing takes, and the training goes on meanwhile."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from detrain.store import checkpoint
from detrain.store.directory import RunDirectory
from tests import forkserver
from tests.forkserver import server_for

#: A disk that takes half a second to sync, beside batches that take three milliseconds.
TRAINING = """
import os, time
import torch

plain = os.fsync
def slow(number):
    time.sleep(0.5)
    plain(number)
PATCH

torch.manual_seed(0)
model = torch.nn.Linear(300, 300)
optimizer = torch.optim.Adam(model.parameters(), 0.01)
for epoch in range(3):
    for batch in range(40):
        print(epoch, batch, model.weight.double().sum().item(), flush=True)
        optimizer.zero_grad()
        model(torch.randn(8, 300)).square().mean().backward()
        optimizer.step()
        time.sleep(0.003)
"""


def environment(**variables: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1", **variables}


def words(folder: Path, script: str, every: str) -> list[str]:
    (folder / "train.py").write_text(script, encoding="utf-8")
    return ["-m", "detrain", "run", "--every", every, "--keep", "100", "train.py"]


def run(folder: Path, script: str, every: str, **variables: str) -> tuple[str, str]:
    own = environment(**variables)
    server = server_for(script, own, environment())
    command = words(folder, script, every)
    if server is not None:
        done = forkserver.run(server, command, folder, own, 120)
    else:
        done = subprocess.run(
            [sys.executable, *command], cwd=folder, env=own, capture_output=True, text=True, timeout=120
        )
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr


def told(out: str) -> dict[tuple[int, int], float]:
    """The sum of the weights at the beginning of each batch."""
    return {(int(one), int(two)): float(three) for one, two, three in (line.split() for line in out.splitlines())}


def saved(folder: Path) -> dict[tuple[int, int], float]:
    """The same of each checkpoint."""
    found = {}
    for path in RunDirectory(folder / ".detrain" / "train").checkpoint_paths():
        header, tree = checkpoint.load(path)
        weight = next(array for array in tree.arrays if "weight" in array.path and array.data.shape == (300, 300))
        found[header.meta.epoch, header.meta.batch] = weight.data.astype(float).sum()
    return found


@pytest.mark.full
def test_checkpoint_holds_what_was_there_when_the_training_went_on(tmp_path):
    out, err = run(
        tmp_path, TRAINING.replace("PATCH", "os.fsync = slow").replace("sleep(0.5)", "sleep(0.25)"), "10batches"
    )
    sums, found = told(out), saved(tmp_path)
    assert {(1, 10), (1, 20), (1, 30), (2, 0), (2, 30)} <= set(found)
    for place, value in found.items():
        if place in sums:
            assert value == pytest.approx(sums[place], abs=1e-9), place
    stalls = [one["stall_s"] for one in ledger_of(tmp_path).saved]
    assert sum(stall < 0.25 for stall in stalls) > 0
    assert "warning" not in err


def ledger_of(folder: Path):
    from detrain.store import ledger

    return ledger.read(folder / ".detrain" / "train" / "ledger")


def test_by_the_clock_none_is_due_while_one_is_written(tmp_path):
    run(tmp_path, TRAINING.replace("PATCH", "os.fsync = slow"), "0.05s")
    found = ledger_of(tmp_path).saved
    # Each takes a second, for the file's sync and the folder's.
    assert 1 < len(found) < 8
    assert max(one["stall_s"] for one in found[:-1]) < 0.9


@pytest.mark.full
def test_thread_that_writes_is_none_of_the_scripts(tmp_path):
    seen = (
        "print(threading.enumerate(), threading.active_count(), threading.Thread(target=print).name, file=sys.stderr)"
    )
    script = TRAINING.replace("PATCH", "os.fsync = slow\nimport sys, threading").replace(
        "        time.sleep(0.003)\n", f"        time.sleep(0.003)\n        if epoch and batch % 10 == 3: {seen}\n"
    )
    script, found = script.replace("sleep(0.5)", "sleep(0.1)"), []
    for waits in ("1", "0"):
        (tmp_path / waits).mkdir()
        _, err = run(tmp_path / waits, script, "20batches", DETRAIN_WAIT_FOR_DISK=waits)
        found.append([re.sub(r"started \d+", "", line) for line in err.splitlines() if "MainThread" in line])
    assert len(found[0]) == 8
    assert found[0][0].startswith("[<_MainThread(MainThread, )>] 1 ")
    assert found[0] == found[1]


@pytest.mark.full
def test_what_auto_chose_is_on_record(tmp_path):
    run(tmp_path, TRAINING.replace("PATCH", "").replace("range(40)", "range(400)"), "auto")
    found = ledger_of(tmp_path).saved
    assert [one["interval_s"] for one in found][:1] == [2.0]
    assert all(one["interval_s"] >= 2.0 for one in found)


@pytest.mark.full
def test_training_waits_for_the_disk_if_it_is_told_to(tmp_path):
    run(tmp_path, TRAINING.replace("PATCH", "os.fsync = slow"), "epoch", DETRAIN_WAIT_FOR_DISK="1")
    assert all(one["stall_s"] > 0.5 for one in ledger_of(tmp_path).saved)


def test_sigterm_is_delivered_when_its_checkpoint_is_on_the_disk(tmp_path):
    command = [sys.executable, *words(tmp_path, TRAINING.replace("PATCH", "os.fsync = slow"), "never")]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(60)]
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == -signal.SIGTERM
    sums, found = told("".join(lines) + out), saved(tmp_path)
    assert len(found) == 1
    ((place, value),) = found.items()
    assert place > max(sums)  # it was taken before the batch began that would have been next
    assert value != pytest.approx(sums[max(sums)], abs=1e-9)


def test_failing_write_is_said_at_once_and_later_ones_lead_around_it(tmp_path):
    fails = """
is_failing = False
def failing(number):
    if is_failing:
        raise OSError(28, "No space left on device")
    plain(number)
os.fsync = failing
"""
    script = TRAINING.replace("PATCH", fails).replace(
        "        time.sleep(0.003)\n", "        time.sleep(0.003)\n        is_failing = epoch == 1 and batch < 15\n"
    )
    out, err = run(tmp_path, script, "10batches")
    assert err.count("no checkpoint could be written") == 1
    assert re.search(r"detrain: \d checkpoints? could not be written since [\d:]{8}; now they can be again\n", err)
    found, sums = saved(tmp_path), told(out)
    assert (1, 10) not in found
    assert (1, 30) in found
    for path in RunDirectory(tmp_path / ".detrain" / "train").checkpoint_paths():
        chain = checkpoint.read_header(path).meta.chain
        assert all((path.parent / name).exists() for name in chain), (path.name, chain)
    assert found[1, 30] == pytest.approx(sums[1, 30], abs=1e-9)


def test_end_of_the_script_waits_for_the_last_checkpoint(tmp_path):
    run(tmp_path, TRAINING.replace("PATCH", "os.fsync = slow"), "epoch")
    header, _ = checkpoint.load(RunDirectory(tmp_path / ".detrain" / "train").read_checkpoints()[0][0].path)
    assert header.meta.batches == 120

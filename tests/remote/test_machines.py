"""A run whose machine goes away, with its disk: killed with its publisher at some moment, wiped, and gone on with from the store."""

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

pytest.importorskip("fsspec", reason="runs in remote storage need fsspec")

from tests.remote import servers
from tests.remote.proxy import Plan

SCRIPT = """
import sys, time
import torch

torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.Adam(model.parameters())
log = open("log.txt", "w")
print("begin", file=log, flush=True)
for epoch in range(3):
    for batch in range(20):
        x = torch.randn(4, 8)
        loss = (model(x) - x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        print(epoch, batch, loss.item(), file=log, flush=True)
        time.sleep(float(sys.argv[1]))
    with open(f"epoch_{epoch}.txt", "w") as file:
        print(loss.item(), file=file)
with open("end.txt", "w") as file:
    print(loss.item(), file=file)
print("loss", loss.item())
"""
#: What a machine has before anything is run on it.
GIVEN = {"train.py", "reference"}


class Machine:
    """A working folder, in which the same command is given again and again."""

    def __init__(self, folder: Path, url: str, variables: dict[str, str]) -> None:
        self.folder, self.url = folder, url
        root = str(Path(__file__).parents[2])
        self.variables = {**os.environ, "PYTHONPATH": root, "DETRAIN_REMOTE_LEASE_S": "3", **variables}

    def command(self, *words: str) -> list[str]:
        return [sys.executable, "-m", "detrain", *words]

    def start(self, *options: str) -> subprocess.Popen[str]:
        words = self.command("run", "--every", "3batches", *options, "train.py", "0.05")
        return subprocess.Popen(words, cwd=self.folder, env=self.variables, stderr=subprocess.PIPE, text=True)

    def goes_away(self, training: subprocess.Popen[str]) -> str:
        """All that runs on it is killed; returns what the training has said."""
        publisher = self.state["process"]
        for process in (*psutil.Process(training.pid).children(recursive=True), training):
            process.kill()
        with contextlib.suppress(ProcessLookupError):
            os.kill(publisher, signal.SIGKILL)
        return training.communicate()[1]

    def wipe(self) -> None:
        for entry in self.folder.iterdir():
            if entry.name not in GIVEN:
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def outputs(self) -> dict[str, str]:
        return {path.name: path.read_text() for path in self.folder.glob("*.txt")}

    @property
    def state(self) -> dict[str, object]:
        found = list(self.folder.glob(".detrain/.*.remote/state.json"))
        with contextlib.suppress(ValueError, FileNotFoundError):
            return json.loads(found[0].read_text()) if found else {}
        return {}

    @property
    def directory(self) -> Path:
        (found,) = self.folder.glob(".detrain/train*")
        return found

    def wait_for(self, condition: object) -> None:
        end_s = time.monotonic() + 60
        while not condition(self.state):
            assert time.monotonic() < end_s, self.state
            time.sleep(0.02)


def newest(state: dict[str, object]) -> int:
    names = [re.search(r"checkpoint_(\d+)_(\d+)", name).groups() for name in state.get("published", {})]
    return max((int(epoch) * 20 + int(batch) for epoch, batch in names), default=-1)


def loses_nothing(machine: Machine) -> dict[str, str]:
    """The same command on three machines in a row; returns what the script has written."""
    training = machine.start("--ckpt-dir", "reference/run")
    said = training.communicate(timeout=120)[1]
    assert training.returncode == 0, said
    expected = machine.outputs()
    machine.wipe()
    options = ("--remote", machine.url)
    for batches in (8, 33):
        training = machine.start(*options)
        machine.wait_for(lambda state, batches=batches: newest(state) >= batches)
        said = machine.goes_away(training)
        machine.wipe()
    assert "fetching the run from" in said
    training = machine.start(*options)
    said = training.communicate(timeout=120)[1]
    assert training.returncode == 0, said
    assert "fetching the run from" in said
    assert "resumed at epoch" in said
    assert machine.outputs() == expected
    differ = subprocess.run(
        machine.command("diff", str(machine.directory), "reference/run"), cwd=machine.folder, env=machine.variables,
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert differ.returncode == 0, differ.stdout
    machine.wait_for(lambda state: state.get("is_over"))
    machine.wipe()
    training = machine.start(*options)
    said = training.communicate(timeout=60)[1]
    assert training.returncode == 0
    assert "nothing left to do" in said
    assert machine.outputs() == expected  # a finished run's files are fetched
    return expected


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    (folder / "reference").mkdir()
    return folder


@pytest.mark.full
def test_a_machine_that_is_gone(folder: Path, tmp_path: Path) -> None:
    written = loses_nothing(Machine(folder, f"file://{tmp_path}/store/{{name}}", {}))
    assert sorted(written) == ["end.txt", "epoch_0.txt", "epoch_1.txt", "epoch_2.txt", "log.txt"]


@pytest.mark.full
@pytest.mark.parametrize("kind", servers.KINDS)
@pytest.mark.parametrize("every", [0, 5], ids=["all is well", "requests fail"])
def test_a_machine_that_is_gone_with_a_server(folder: Path, tmp_path: Path, kind: str, every: int) -> None:
    with servers.running(kind, tmp_path) as server:
        # Azure's library waits 15 s before it tries again.
        server.proxy.plan = Plan(every=every * 5 if kind == "azure" else every)
        loses_nothing(Machine(folder, f"{server.url}/{{name}}", server.variables))
        assert bool(server.proxy.plan.num_faults) == bool(every)


@pytest.mark.full
def test_a_server_that_stops_while_the_training_goes_on(folder: Path, tmp_path: Path) -> None:
    with servers.running("s3", tmp_path) as server:  # Azure's library tries by itself for more than a minute
        machine = Machine(folder, f"{server.url}/{{name}}", {**server.variables, "DETRAIN_REMOTE_LEASE_S": "60"})
        training = machine.start("--remote", machine.url)
        machine.wait_for(lambda state: newest(state) >= 5)
        server.stop()
        machine.wait_for(lambda state: state["trouble"])
        at = newest(machine.state)
        server.go_on()
        machine.wait_for(lambda state: newest(state) > at)
        said = training.communicate(timeout=120)[1]
        assert training.returncode == 0, said
        machine.wait_for(lambda state: state.get("is_over"))
        assert said.count("[remote-behind]") == 1
        assert "is published to again" in said

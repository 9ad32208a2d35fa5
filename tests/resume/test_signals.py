"""SIGTERM and SIGUSR2 ask for a checkpoint; after SIGTERM the script gets what it would have got."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from detrain.launch import signals
from detrain.launch.departing import Departure
from tests.tiers import full_but

from .harness import environment
from .programs import PROGRAMS

HANDLER = """
import signal, sys
def leave(number, frame):
    print("told to leave", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, leave)
"""


class Running:
    """A program under detrain that checkpoints at the beginning of an epoch, and when it is asked. It has a process group of its own."""

    def __init__(self, folder: Path, before: str = "", program: str = "loader_enumerate") -> None:
        self.folder = folder
        (folder / "train.py").write_text(before + PROGRAMS[program].script, encoding="utf-8")
        words = [sys.executable, "-m", "detrain", "run", "--every", "epoch", "train.py"]
        with (folder / "out").open("wb") as out, (folder / "err").open("wb") as err:
            self.process = subprocess.Popen(
                words, cwd=folder, env=environment(), stdout=out, stderr=err, start_new_session=True
            )

    def out(self) -> str:
        return (self.folder / "out").read_text(encoding="utf-8")

    def wait_for_batches(self, number: int) -> None:
        while self.out().count("batch ") < number:
            assert self.process.poll() is None, (self.folder / "err").read_text()
            time.sleep(0.002)

    def err(self) -> str:
        return (self.folder / "err").read_text(encoding="utf-8")

    def group(self) -> list[psutil.Process]:
        """Who lives of the process group."""
        return [one for one in psutil.process_iter() if self._is_alive(one)]

    def _is_alive(self, one: psutil.Process) -> bool:
        try:
            return os.getpgid(one.pid) == self.process.pid and one.status() != psutil.STATUS_ZOMBIE
        except (ProcessLookupError, psutil.NoSuchProcess):
            return False

    def asked_checkpoints(self) -> list[str]:
        """Those within an epoch."""
        found = (self.folder / ".detrain" / "train").glob("checkpoint_*.h5")
        return [path.name for path in found if not path.stem.endswith("_0")]


@pytest.mark.parametrize(
    ("before", "status"),
    [("", -signal.SIGTERM), pytest.param(HANDLER, 7, marks=pytest.mark.full)],
    ids=["default", "handled"],
)
def test_sigterm_takes_a_checkpoint_and_is_then_delivered(tmp_path: Path, before: str, status: int) -> None:
    running = Running(tmp_path, before)
    running.wait_for_batches(20)
    running.process.send_signal(signal.SIGTERM)
    assert running.process.wait(timeout=60) == status
    assert len(running.asked_checkpoints()) == 1
    assert ("told to leave" in running.out()) == bool(before)
    last = [line for line in running.out().splitlines() if line.startswith("batch ")][-1]
    again = Running(tmp_path, before)
    assert again.process.wait(timeout=60) == 0
    first = next(line for line in again.out().splitlines() if line.startswith("batch "))
    assert [int(word) for word in first.split()[1:3]] > [int(word) for word in last.split()[1:3]]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGTERM, -signal.SIGTERM), pytest.param(signal.SIGUSR2, 0, marks=pytest.mark.full)]
)
def test_loader_workers_outlast_a_signal_to_the_whole_group(tmp_path: Path, number: int, status: int) -> None:
    running = Running(tmp_path, program="loader_workers_2")
    running.wait_for_batches(20)
    assert len(running.group()) == 3
    os.kill(running.process.pid, number)  # `timeout` signals the process, and then its group
    os.killpg(running.process.pid, number)
    assert running.process.wait(timeout=60) == status
    assert len(running.asked_checkpoints()) == 1
    assert "killed by signal" not in running.err()
    psutil.wait_procs(running.group(), timeout=30)
    assert running.group() == []


def test_one_signal_that_comes_twice_is_one_and_a_second_one_does_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    now, seen = [100.0], []
    monkeypatch.setattr(signals, "monotonic", lambda: now[0])
    session = SimpleNamespace(
        has_active_batch_loop=True,
        context=SimpleNamespace(member=None),
        resume=SimpleNamespace(is_pending=False),
        request_checkpoint=lambda: seen.append("asked"),
    )
    found = signals.Signals(session, Departure(SimpleNamespace(), is_requeued=False, is_first=True))
    found._theirs[signal.SIGTERM] = lambda *_: seen.append("delivered")
    for moment in (100.0, 100.0, 100.5, 103.0):
        now[0] = moment
        found._on_signal(signal.SIGTERM, None)
    assert seen == ["asked", "delivered"]


def test_sigusr2_takes_a_checkpoint_and_the_script_goes_on(tmp_path: Path) -> None:
    running = Running(tmp_path)
    running.wait_for_batches(20)
    running.process.send_signal(signal.SIGUSR2)
    assert running.process.wait(timeout=60) == 0
    assert len(running.asked_checkpoints()) == 1
    assert (tmp_path / "result.txt").exists()


#: Time is up in the middle of a save, or of what is said about one.
TIME_IS_UP = """
import os, signal, sys
import torch

def stop(*_):
    raise TimeoutError("time is up")

signal.signal(signal.SIGALRM, stop)
batch = -1

class Alarming:
    def __init__(self, plain):
        self.plain, self.has_been = plain, False
    def __call__(self, *args):
        if batch == 20 and not self.has_been:
            self.has_been = True
            os.kill(os.getpid(), signal.SIGALRM)
        return self.plain(*args)

PATCH
weight = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
try:
    for batch in range(40):
        weight(torch.ones(4)).sum().backward()
        optimizer.step()
except TimeoutError as error:
    print("stopped in batch", batch, error)
"""


def run_till_time_is_up(folder: Path, script: str, every: str, **env: str) -> None:
    (folder / "train.py").write_text(script, encoding="utf-8")
    words = [sys.executable, "-m", "detrain", "run", "--every", every, "train.py"]
    own = {**environment(), **env}
    done = subprocess.run(words, cwd=folder, env=own, capture_output=True, text=True, check=False, timeout=60)
    assert done.stdout == "stopped in batch 20 time is up\n", done.stderr
    assert "warning" not in done.stderr


@pytest.mark.parametrize(
    "where", full_but(["os.fsync"], ["os.getcwd", "os.fsync"])
)  # while the state is looked at, and while it is written
def test_what_a_signal_handler_raises_in_the_middle_of_a_save_is_the_scripts(tmp_path: Path, where: str) -> None:
    script = TIME_IS_UP.replace("PATCH", f"{where} = Alarming({where})")
    run_till_time_is_up(tmp_path, script, "1batches", DETRAIN_WAIT_FOR_DISK="1")
    numbers = [int(path.stem.split("_")[2]) for path in (tmp_path / ".detrain" / "train").glob("*.h5")]
    assert max(numbers) == 21  # the save is not broken off


def test_what_a_signal_handler_raises_while_a_file_is_followed_is_the_scripts(tmp_path: Path) -> None:
    script = TIME_IS_UP.replace("PATCH", "os.path.realpath = Alarming(os.path.realpath)")
    script = script.replace(
        "        optimizer.step()\n", '        optimizer.step()\n        open("step", "w").close()\n'
    )
    run_till_time_is_up(tmp_path, script, "never")

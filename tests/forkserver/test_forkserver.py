"""Forked attempts are processes of their own that all begin alike."""

import os
import signal
import time
from pathlib import Path

import pytest

from tests.forkserver import Forked, ForkServer, run, server_for
from tests.resume.harness import environment

TIMEOUT_S = 120
BEGINNING = """\
import os, random, sys, uuid
import torch

things = [object() for _ in range(1000)]
print(os.urandom(8).hex(), uuid.uuid4(), random.random(), torch.rand(1).item(), [id(thing) for thing in things[::100]])
print(sys.argv, os.getcwd() == os.path.dirname(os.path.abspath(__file__)), os.getsid(0) == os.getpid(), os.environ.get("WORD"))
"""


@pytest.fixture
def server() -> ForkServer:
    found = server_for("import torch", environment(), environment())
    assert found is not None
    return found


def words(folder: Path, text: str, *more: str, run_name: str = "run0") -> list[str]:
    (folder / "train.py").write_text(text)
    return ["-m", "detrain", "run", "--ckpt-dir", str(folder / run_name), *more, "train.py", "--lr", "3"]


def test_every_attempt_begins_in_the_same_state(server: ForkServer, tmp_path: Path) -> None:
    own = {**environment(), "WORD": "given"}
    names = ["run0", "run1", "run2"]  # what detrain does in a folder where a run has been takes other memory
    done = [run(server, words(tmp_path, BEGINNING, run_name=name), tmp_path, own, TIMEOUT_S) for name in names]
    assert [one.returncode for one in done] == [0, 0, 0], done[0].stderr
    assert {one.stdout for one in done} == {done[0].stdout}
    assert done[0].stdout.endswith("['train.py', '--lr', '3'] True True given\n")


def test_another_seed_draws_something_else(server: ForkServer, tmp_path: Path) -> None:
    text = "import os\nimport torch\nprint(os.urandom(8).hex(), torch.rand(1).item())\n"
    both = [words(tmp_path, text), words(tmp_path, text, "--seed", "5", run_name="run5")]
    done = [run(server, each, tmp_path, environment(), TIMEOUT_S) for each in both]
    assert set(done[0].stdout.split()).isdisjoint(done[1].stdout.split())


@pytest.mark.parametrize(
    ("last", "status", "said"),
    [
        ("import atexit; atexit.register(print, 'behind'); sys.exit(3)", 3, ""),
        ("raise ValueError('no good')", 1, "ValueError: no good"),
        ("os.kill(os.getpid(), 15)", -15, ""),
    ],
)
def test_ends_as_a_process_does(server: ForkServer, tmp_path: Path, last: str, status: int, said: str) -> None:
    done = run(server, words(tmp_path, f"import os, sys\n{last}\n"), tmp_path, environment(), TIMEOUT_S)
    assert done.returncode == status
    assert said in done.stderr
    assert done.stdout == ("behind\n" if status == 3 else "")


def test_is_killed_as_a_process_is_and_its_number_is_its_own_until_that_is_known(
    server: ForkServer, tmp_path: Path
) -> None:
    text = "import os, time\nif os.fork() == 0:\n    time.sleep(600)\nprint('ready', flush=True)\ntime.sleep(600)\n"
    with (tmp_path / "out").open("wb") as out, (tmp_path / "err").open("wb") as err:
        forked = server.start(words(tmp_path, text), tmp_path, environment(), out, err)
    assert isinstance(forked, Forked)
    while b"ready" not in (tmp_path / "out").read_bytes():
        assert forked.poll() is None, (tmp_path / "err").read_text()
        time.sleep(0.01)
    os.killpg(forked.pid, signal.SIGKILL)
    time.sleep(0.1)
    os.kill(forked.pid, 0)  # nobody has heard that it is dead
    assert forked.wait() == -signal.SIGKILL
    until_s = time.monotonic() + TIMEOUT_S
    while Path(f"/proc/{forked.pid}").exists():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def test_another_environment_needs_a_start_of_its_own(server: ForkServer, tmp_path: Path) -> None:
    other = {**environment(), "OMP_NUM_THREADS": "2"}
    assert server_for("import torch", other, environment()) is None
    done = run(server, words(tmp_path, "import torch"), tmp_path, other, TIMEOUT_S)
    assert done.returncode == 1
    assert "other OMP_NUM_THREADS needs a start of its own" in done.stderr


@pytest.mark.parametrize(
    "script",
    ["import math", "import torch\nimport tensorflow", "import keras\nmodel.fit(x)", "import torch, subprocess"],
)
def test_scripts_that_are_started(script: str) -> None:
    assert server_for(script, environment(), environment()) is None

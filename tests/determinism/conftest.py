"""Run a script under plain `python`, or under detrain."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tests.forkserver import run, server_for

TIMEOUT_S = 240
FOREIGN_VARIABLES = {"CKPT_DIR", "MODEL_NAME", "ENABLE_TRACE", "DIFF_SIZE", "PYTHONHASHSEED", "LD_PRELOAD"}
#: One thread each: what is forked must have no others.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


class Script:
    """One script in a folder of its own; counts the runs that it is given."""

    def __init__(self, folder: Path, text: str, *, is_whole: bool = False) -> None:
        """`is_whole`: attempts are started as a user starts them, never forked from a process that has loaded the framework."""
        self.folder, self.path = folder, folder / "script.py"
        self.path.write_text(textwrap.dedent(text), encoding="utf-8")
        self._num_runs = 0
        self.arguments: list[str] = []
        self._environment = {} if is_whole else dict.fromkeys(THREADS, "1")
        self._is_whole = is_whole

    def plainly(self, **variables: str) -> str:
        """What it prints under `python`."""
        return self._start([], variables)

    def anew(self, **variables: str) -> str:
        """What it prints as a new run under detrain."""
        self._num_runs += 1
        return self.attempt(f"run{self._num_runs}", **variables)

    def attempt(self, run: str, *options: str, status: int = 0, **variables: str) -> str:
        """What it prints as the next attempt of a run."""
        words = ["-m", "detrain", "run", "--ckpt-dir", str(self.folder / run), *options]
        return self._start(words, variables, status)

    def record(self, run: str) -> dict[str, object]:
        """How a run was started."""
        found: dict[str, object] = json.loads((self.folder / run / "run.json").read_text(encoding="utf-8"))
        return found

    def command(self, *words: str, status: int = 0) -> str:
        """What another command of detrain's prints."""
        return self._start(["-m", "detrain", *words], {}, status, is_script=False)

    def _start(self, words: list[str], variables: Mapping[str, str], status: int = 0, *, is_script: bool = True) -> str:
        words = [*words, *([str(self.path), *self.arguments] if is_script else [])]
        own = environment({**self._environment, **variables})
        is_forked = words[:3] == ["-m", "detrain", "run"] and not self._is_whole
        server = (
            server_for(self.path.read_text(encoding="utf-8"), own, environment(self._environment))
            if is_forked
            else None
        )
        if server is not None:
            done = run(server, words, self.folder, own, TIMEOUT_S)
        else:
            done = subprocess.run(
                [sys.executable, *words],
                cwd=self.folder,
                env=own,
                capture_output=True,
                text=True,
                check=False,
                timeout=TIMEOUT_S,
            )
        assert done.returncode == status, done.stderr
        self.errors = done.stderr
        self.said = "".join(line for line in done.stderr.splitlines(keepends=True) if line.startswith("detrain:"))
        return done.stdout


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """This environment without what would steer detrain, with detrain importable from any folder."""
    own = {
        k: v for k, v in os.environ.items() if k not in FOREIGN_VARIABLES and not k.startswith(("DETRAIN_", "PYTEST_"))
    }
    spec = importlib.util.find_spec("detrain")
    assert spec is not None
    assert spec.origin is not None
    own |= {"PYTHONPATH": str(Path(spec.origin).parents[1]), "PYTHONUNBUFFERED": "1", "DETRAIN_LEDGER_BUDGET": "1"}
    own["PYTHONDONTWRITEBYTECODE"] = "1"
    own["DETRAIN_WAIT_FOR_DISK"] = "1"  # scripts that kill themselves in a batch are to find the checkpoint before it
    return own | dict(variables)


@pytest.fixture
def script(tmp_path: Path, request: pytest.FixtureRequest) -> Callable[[str], Script]:
    """Write a script."""
    # What does a run again starts a process, in which loading a library draws and reads clocks as well.
    is_whole = request.node.get_closest_marker("whole") is not None or "sandbox" in request.fixturenames
    return lambda text: Script(tmp_path, text, is_whole=is_whole)


@pytest.fixture(scope="session")
def sandbox() -> None:
    """Needed by what does a run again."""
    code = "from detrain.proof import sandbox; import tempfile, pathlib; sandbox.enter([], [], pathlib.Path(tempfile.mkdtemp()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be shut off on this system: {done.stderr.splitlines()[-1]}")

"""The fixture `same`: run one script under `python` and under `detrain run`, and compare all that comes out."""

import contextlib
import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

TIMEOUT_S = 30.0
# What a shell may carry that would steer detrain, or that hides what some of the tests are about.
FOREIGN_VARIABLES = {
    "CKPT_DIR",
    "MODEL_NAME",
    "ENABLE_TRACE",
    "DIFF_SIZE",
    "FORCE_COLOR",
    "PYTHONBREAKPOINT",
    "PYTHONUNBUFFERED",
    "PYTHONHASHSEED",
}

Steer = Callable[["subprocess.Popen[bytes]"], None]


@dataclass(frozen=True)
class Outcome:
    """What one process left behind; a negative status is the number of the signal that ended it."""

    status: int
    stdout: str
    stderr: str
    files: Mapping[str, bytes]


def _text(raw: bytes) -> str:
    """Bytes as text, one to one: a byte that is not UTF-8 stays visible."""
    return raw.decode(errors="backslashreplace")


def _without_own_lines(stderr: str) -> str:
    """Standard error less what detrain itself says."""
    return "".join(line for line in stderr.splitlines(keepends=True) if not line.startswith("detrain:"))


def _read_files(place: Path) -> dict[str, bytes]:
    """Every file below a directory by its relative name, byte code caches left out."""
    found = sorted(path for path in place.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(place)): path.read_bytes() for path in found}


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """The environment of both sides: this one, with detrain importable from any directory."""
    own = {k: v for k, v in os.environ.items() if k not in FOREIGN_VARIABLES and not k.startswith("DETRAIN_")}
    spec = importlib.util.find_spec("detrain")
    if spec is not None and spec.origin is not None:
        own["PYTHONPATH"] = str(Path(spec.origin).parents[1])
    return {**own, **extra}


def _wait_until_ready(process: "subprocess.Popen[bytes]") -> bytes:
    """Read standard output up to the line `ready` and return what was read."""
    assert process.stdout is not None
    seen = b""
    while not seen.endswith(b"ready\n"):
        byte = process.stdout.read(1)  # unbuffered, so that nothing is lost to communicate()
        if not byte:
            break
        seen += byte
    return seen


def _kill_group(pid: int) -> None:
    """End a process that hangs, and its children, who would hold its pipes open."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def _hear_ctrl_c() -> None:
    """Let Ctrl-C do what it does at a terminal: what a shell starts in the background is told to ignore it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _run(
    command: Sequence[str], place: Path, env: Mapping[str, str], stdin: str | None, steer: Steer | None
) -> Outcome:
    """Run one command to its end; `steer` acts on the process once it has printed `ready`."""
    with subprocess.Popen(
        command,
        cwd=place,
        env=env,
        stdin=subprocess.DEVNULL if stdin is None and steer is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        bufsize=0,
        start_new_session=True,  # so that a Ctrl-C of ours reaches the script's process group and not the tests
        preexec_fn=_hear_ctrl_c,
    ) as process:
        watchdog = threading.Timer(TIMEOUT_S, _kill_group, [process.pid])
        watchdog.start()
        try:
            begin = b""
            if steer is not None:
                begin = _wait_until_ready(process)
                if begin.endswith(b"ready\n"):
                    steer(process)
            if process.stdout is not None and process.stdout.closed:
                process.stdout = None
            rest, errors = process.communicate(None if stdin is None else stdin.encode())
        finally:
            watchdog.cancel()
    return Outcome(process.returncode, _text(begin + (rest or b"")), _text(errors), {})


class Comparison:
    """Runs a script twice, in a directory of the same name filled with the same files, and compares.

    Both sides see the very same absolute paths, so that nothing has to be normalised before the comparison.
    """

    def __init__(self, root: Path, launcher: Sequence[str]) -> None:
        self.place = root / "work"
        self.launcher = launcher
        self.root = root
        self.num_runs = 0

    def fill(self, files: Mapping[str, str | bytes], links: Mapping[str, str]) -> None:
        """Make the working directory anew."""
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir()
        for name, content in files.items():
            path = self.place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else textwrap.dedent(content).lstrip("\n").encode())
        for name, goal in links.items():
            path = self.place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(goal)

    def command(self, detrained: bool, flags: Sequence[str]) -> list[str]:
        """The command line up to the script's name."""
        if not detrained:
            return [sys.executable, *flags]
        self.num_runs += 1
        return [
            sys.executable,
            *flags,
            *(word.replace("CKPT", str(self.root / f"ckpt-{self.num_runs}")) for word in self.launcher),
        ]

    def __call__(
        self,
        script: str | bytes = "",
        *,
        args: Sequence[str] = (),
        files: Mapping[str, str | bytes] | None = None,
        links: Mapping[str, str] | None = None,
        target: Sequence[str] = ("script.py",),
        flags: Sequence[str] = (),
        cwd: str = ".",
        stdin: str | None = None,
        env: Mapping[str, str] | None = None,
        steer: Steer | None = None,
        then: Sequence[Sequence[str]] = (),
        status: int = 0,
        says: str | Sequence[str] = (),
    ) -> Outcome:
        """Compare the two sides and return what both gave.

        `status` and `says` are what plain python must give: they hold the test to its name. `{place}` in `target` is
        the working directory. `then` are arguments of further runs of the script, always under plain python.
        """
        outcomes = []
        for detrained in (False, True):
            self.fill({"script.py": script, **(files or {})}, links or {})
            words = [word.replace("{place}", str(self.place)) for word in target]
            command = [*self.command(detrained, flags), *words, *args]
            outcome = _run(command, self.place / cwd, _environment(env or {}), stdin, steer)
            for more in then:
                after = _run([sys.executable, *words, *more], self.place / cwd, _environment(env or {}), None, None)
                assert after.status == 0, after.stderr
                outcome = Outcome(outcome.status, outcome.stdout + after.stdout, outcome.stderr + after.stderr, {})
            stderr = _without_own_lines(outcome.stderr) if detrained else outcome.stderr
            outcomes.append(Outcome(outcome.status, outcome.stdout, stderr, _read_files(self.place)))
            if not detrained:
                assert outcome.status == status, f"python itself ended with {outcome.status}:\n{outcome.stderr}"
                for text in [says] if isinstance(says, str) else says:
                    assert text in outcome.stdout + outcome.stderr, f"python itself does not say {text!r}"
        plain, ours = outcomes
        for what in ("stderr", "stdout", "status", "files"):  # stderr first: it holds the reason for the rest
            assert getattr(ours, what) == getattr(plain, what), f"{what} differs"
        return plain


@pytest.fixture
def same(tmp_path: Path) -> Comparison:
    """Compares `python script` with `detrain run script`; TRANSPARENCY_STAND_IN=1 puts python in detrain's place."""
    if os.environ.get("TRANSPARENCY_STAND_IN"):
        return Comparison(tmp_path, [])
    return Comparison(tmp_path, ["-m", "detrain", "run", "--ckpt-dir", "CKPT"])


@pytest.fixture
def naive(tmp_path: Path) -> Comparison:
    """Compares with a launcher that does it wrong, to test the comparison itself."""
    program = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"
    return Comparison(tmp_path, ["-c", program])


@pytest.fixture
def detrain_run(tmp_path: Path) -> Callable[..., Outcome]:
    """Runs `detrain run` alone, with the options given, in a directory that holds `script.py`."""
    if os.environ.get("TRANSPARENCY_STAND_IN"):
        pytest.skip("asks for detrain's own words")

    def run(*words: str, script: str = "", env: Mapping[str, str] | None = None) -> Outcome:
        comparison = Comparison(tmp_path, [])
        comparison.fill({"script.py": script}, {})
        command = [sys.executable, "-m", "detrain", "run", *words]
        outcome = _run(command, comparison.place, _environment(env or {}), None, None)
        return Outcome(outcome.status, outcome.stdout, outcome.stderr, _read_files(comparison.place))

    return run

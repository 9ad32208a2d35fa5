"""Run a program uninterrupted; run it and kill it again and again; say in what the two differ."""

import contextlib
import importlib.util
import os
import random
import re
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from tests.forkserver import Forked, server_for

from .programs import Program

TIMEOUT_S = 180.0
#: Within so long a script's process has to end by itself whose pipeline has lost a worker.
_MOST_S = 30.0
BATCH_LINE = re.compile(r"^batch \S+ \S+ .*$", re.MULTILINE)
# Not at the beginning of a line: a progress bar may stand there.
OWN_WORDS = re.compile(r"detrain: .*")
RUN_AGAIN = re.compile(r"having run (\d+) batches again")
RESUMED = re.compile(r"detrain: resumed at (.*?),? [\d.]+ s after")
FOREIGN_VARIABLES = {"CKPT_DIR", "MODEL_NAME", "ENABLE_TRACE", "DIFF_SIZE", "PYTHONHASHSEED", "LD_PRELOAD"}
#: Every attempt gets this many: the same on each side of a comparison, and cheap beside loader workers.
NUM_THREADS = "1"


@dataclass(frozen=True)
class Moment:
    """When to kill an attempt: once all that is asked for has happened, and `delay_s` later."""

    batches: int = 0  # lines that tell of a batch, printed by this attempt
    text: str = ""  # somewhere in what it has printed
    is_saving: bool = False  # a half-written checkpoint lies in the run directory
    delay_s: float = 0.0
    is_whole_group: bool = True  # False: SIGKILL for the script's process alone, its loader workers live on for a while
    worker: int = 0  # of a pipeline: SIGKILL for this one alone, by which the script's process ends itself

    def __str__(self) -> str:
        words = [f"{self.batches} batches"] if self.batches else []
        words += [repr(self.text)] if self.text else []
        words += ["saving"] if self.is_saving else []
        words += [f"{self.delay_s * 1000:.0f} ms"] if self.delay_s else []
        who = f", worker {self.worker}" if self.worker else "" if self.is_whole_group else ", main process only"
        return " + ".join(words) + who


@dataclass
class Attempt:
    """What one process left behind."""

    status: int
    stdout: str
    stderr: str
    is_killed: bool

    @property
    def batches(self) -> list[str]:
        """The whole lines that tell of a batch."""
        whole = self.stdout[: self.stdout.rfind("\n") + 1]
        return BATCH_LINE.findall(whole)

    @property
    def resumed(self) -> str:
        """Where it resumed; empty if it began at the beginning."""
        found = RESUMED.search(self.stderr)
        return found[1] if found else ""

    @property
    def own_words(self) -> str:
        """What detrain said, and the last line of a traceback."""
        last = self.stderr.rstrip().splitlines()[-1:] if "Traceback" in self.stderr else []
        return "\n".join([*OWN_WORDS.findall(self.stderr.replace("\r", "\n")), *last])


@dataclass
class Life:
    """All attempts of one run, and the files that it left."""

    attempts: list[Attempt] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)

    @property
    def num_kills(self) -> int:
        return sum(attempt.is_killed for attempt in self.attempts)

    @property
    def resumes(self) -> list[str]:
        return [attempt.resumed for attempt in self.attempts if attempt.resumed]


def environment() -> dict[str, str]:
    """This environment without what would steer detrain or tells of the test, with detrain importable from any folder."""
    own = {
        k: v for k, v in os.environ.items() if k not in FOREIGN_VARIABLES and not k.startswith(("DETRAIN_", "PYTEST_"))
    }
    spec = importlib.util.find_spec("detrain")
    assert spec is not None
    assert spec.origin is not None
    own.update(PYTHONPATH=str(Path(spec.origin).parents[1]), PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1")
    own.update(dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), NUM_THREADS))
    return own


Process = subprocess.Popen[bytes] | Forked


class Place:
    """One run of one program: a working folder of its own, and its run directory beside it."""

    def __init__(self, root: Path, program: Program) -> None:
        self.root, self.program = root, program
        self.work, self.run_directory = root / "work", root / "run"
        self._num_attempts = 0
        for name, text in program.sources.items():
            path = self.work / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")

    def attempt(self, every: str = "", moment: Moment | None = None, options: Sequence[str] = ()) -> Attempt:
        """Start the program once, under detrain if `every` says when to checkpoint; kill it at a moment."""
        self._num_attempts += 1
        words = (
            ["-m", "detrain", "run", "--ckpt-dir", str(self.run_directory), "--every", every, *options] if every else []
        )
        out_path, err_path = (self.root / f"{self._num_attempts}.{name}" for name in ("out", "err"))
        # Files, not pipes: loader workers that outlive a killed process would hold a pipe open.
        with out_path.open("wb") as out, err_path.open("wb") as err:
            process = self._start([*words, "train.py", *self.program.arguments], out, err)
            try:
                is_killed = self._watch(process, moment, out_path)
            finally:
                if process.poll() is None:
                    kill_group(process.pid)
                    process.wait()
        assert process.returncode is not None
        stdout, stderr = (path.read_bytes().decode(errors="backslashreplace") for path in (out_path, err_path))
        return Attempt(process.returncode, stdout, stderr, is_killed)

    def _start(self, words: list[str], out: IO[bytes], err: IO[bytes]) -> Process:
        own = {**environment(), **self.program.environment}
        is_forked = words[0] == "-m" and not self.program.is_whole
        server = server_for("\n".join(self.program.sources.values()), own, environment()) if is_forked else None
        if server is not None:
            return server.start(words, self.work, own, out, err)
        return subprocess.Popen(
            [sys.executable, *words], cwd=self.work, env=own, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip

    def _watch(self, process: Process, moment: Moment | None, out_path: Path) -> bool:
        began_s, seen, due_s = time.monotonic(), b"", None
        with out_path.open("rb") as out:
            while process.poll() is None:
                now_s = time.monotonic()
                if now_s - began_s > TIMEOUT_S:
                    raise TimeoutError(f"{self.program.name} has not ended after {TIMEOUT_S:.0f} s")
                if moment is None:
                    time.sleep(0.01)
                    continue
                seen += out.read()
                if due_s is None and self._has_come(moment, seen):
                    due_s = now_s + moment.delay_s
                if due_s is not None and now_s >= due_s:
                    if moment.worker:
                        return _kill_worker(process, moment.worker)
                    if moment.is_whole_group:
                        kill_group(process.pid)
                    else:
                        process.kill()
                    return process.wait() == -signal.SIGKILL
                # A checkpoint may be written within a millisecond: whoever waits for one must not sleep.
                if not (moment.is_saving and _has_printed(moment, seen)):
                    time.sleep(0.001)
        return False

    def _has_come(self, moment: Moment, seen: bytes) -> bool:
        return _has_printed(moment, seen) and (not moment.is_saving or bool(self._temporaries()))

    def _temporaries(self) -> list[Path]:
        return list(self.run_directory.glob(".checkpoint_*.tmp")) if self.run_directory.is_dir() else []

    def read_files(self) -> dict[str, bytes]:
        """Every file that the program has made, by its name in the working folder."""
        found = sorted(path for path in self.work.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
        names = {str(path.relative_to(self.work)): path for path in found}
        files = {name: path for name, path in names.items() if name not in self.program.sources}
        logs = [path for path in files.values() if ".tfevents." in path.name]
        contents = {name: _read(path) for name, path in files.items() if path not in logs}
        for path in logs:  # each attempt has a log of its own, which TensorBoard reads one after the other
            name = f"{path.parent.relative_to(self.work)}/events"
            contents[name] = contents.get(name, b"") + b"".join(_events(path.read_bytes()))
        return contents


def _has_printed(moment: Moment, seen: bytes) -> bool:
    """True if an attempt has said all that is waited for."""
    if moment.batches and sum(line.startswith(b"batch ") for line in seen.split(b"\n")[:-1]) < moment.batches:
        return False
    return moment.text.encode() in seen


def _read(path: Path) -> bytes:
    """What is in a file; of a model that Keras has saved, its weights: beside them stand the time, and addresses of objects."""
    if path.suffix != ".keras":
        return path.read_bytes()
    with zipfile.ZipFile(path) as archive:
        return archive.read("model.weights.h5")


def _events(log: bytes) -> Iterator[bytes]:
    """The events of a log for TensorBoard, but for the one that tells its version, and without their times.

    It is made of records: a length, two checksums and an `Event`, whose first field is a tag of one byte and the time in eight.
    """
    place = 0
    while place < len(log):
        length = int.from_bytes(log[place : place + 8], "little")
        if place:
            yield log[place + 12 + 9 : place + 12 + length]
        place += 16 + length


def _kill_worker(process: Process, number: int) -> bool:
    """SIGKILL for a pipeline's worker, if it is there; the script's process ends soon after it, and not well."""
    with contextlib.suppress(psutil.NoSuchProcess):
        own = [
            one for one in psutil.Process(process.pid).children() if any("serving" in word for word in one.cmdline())
        ]
        if number <= len(own):
            own[number - 1].kill()
            until_s = time.monotonic() + _MOST_S
            while process.poll() is None and time.monotonic() < until_s:
                time.sleep(0.01)
            return process.poll() not in (0, None)
    return False


def kill_group(pid: int) -> None:
    """SIGKILL for a process that was started as the head of its group, and for all in it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def live(place: Place, every: str | Sequence[str], moments: Sequence[Moment], options: Sequence[str] = ()) -> Life:
    """Run the same command until it ends by itself; the n-th attempt is killed at the n-th moment, if it gets there."""
    life = Life(moments=list(moments))
    whens = [every] if isinstance(every, str) else list(every)
    for number in range(len(moments) + 1):
        moment = moments[number] if number < len(moments) else None
        attempt = place.attempt(whens[number % len(whens)], moment, options)
        life.attempts.append(attempt)
        if not attempt.is_killed:
            break
    life.files = place.read_files()
    return life


def uninterrupted(root: Path, program: Program, every: str = "never") -> Life:
    """One attempt from beginning to end; `every=""` runs it under plain python."""
    place = Place(root, program)
    attempt = place.attempt(every)
    assert attempt.status == 0, f"{program.name} ended with {attempt.status}:\n{attempt.stderr}"
    return Life([attempt], place.read_files())


def differences(reference: Life, life: Life) -> list[str]:
    """In what a run that was killed is not the uninterrupted one; empty if in nothing."""
    found = []
    last = life.attempts[-1]
    if last.status != 0:
        found.append(f"the last attempt ended with {last.status}: {last.own_words}")
    lines = reference.attempts[0].batches
    assert len(set(lines)) == len(lines), "the program prints a line twice, so lines cannot be told apart"
    known, seen = {line: place for place, line in enumerate(lines)}, set()
    for number, attempt in enumerate(life.attempts, 1):
        found += _differences_in_lines(number, attempt, lines, known)
        seen.update(attempt.batches)
    if last.status == 0:
        missing = [line for line in lines if line not in seen]
        if missing:
            found.append(f"{len(missing)} batches were never printed, the first: {missing[0]}")
        found += _differences_in_files(reference.files, life.files)
    return found


def _differences_in_lines(number: int, attempt: Attempt, lines: list[str], known: dict[str, int]) -> list[str]:
    """Each attempt must print a stretch of the reference's lines, without gap or repetition.

    One that says that it ran batches again on its way to the checkpoint may jump ahead, while those last.
    """
    origin = f"attempt {number} ({'resumed at ' + attempt.resumed if attempt.resumed else 'from the beginning'})"
    said = RUN_AGAIN.search(attempt.stderr)
    # One that was killed on its way has not said so yet.
    num_again = int(said[1]) if said else len(lines) if number > 1 and attempt.is_killed and not attempt.resumed else 0
    expected: int | None = None
    for count, line in enumerate(attempt.batches):
        place = known.get(line)
        if place is None:
            same = next((one for one in lines if one.split()[:3] == line.split()[:3]), "nothing")
            return [f"{origin} printed {line!r} in place of {same!r}"]
        if expected is not None and (place < expected or (place > expected and count > num_again)):
            wanted = lines[expected] if expected < len(lines) else "nothing"
            return [f"{origin} printed {line!r} where {wanted!r} was due"]
        expected = place + 1
    return []


def _differences_in_files(expected: dict[str, bytes], found: dict[str, bytes]) -> list[str]:
    said = [f"the file {name} is missing" for name in expected.keys() - found.keys()]
    said += [f"the file {name} should not exist" for name in found.keys() - expected.keys()]
    for name in sorted(expected.keys() & found.keys()):
        if expected[name] != found[name]:
            said.append(f"{name} differs: {_first_difference(expected[name], found[name])}")
    return said


def _first_difference(expected: bytes, found: bytes) -> str:
    if b"\0" in expected:
        place = next((i for i, (a, b) in enumerate(zip(expected, found, strict=False)) if a != b), -1)
        return f"{len(expected)} and {len(found)} bytes, first at byte {place}"
    theirs, mine = (raw.decode(errors="replace").splitlines() for raw in (expected, found))
    pairs = [(a, b) for a, b in zip(theirs, mine, strict=False) if a != b]
    if not pairs:
        return f"{len(theirs)} lines expected, {len(mine)} found"
    if len(theirs) == len(mine) and all(a.split(" ")[0] == b.split(" ")[0] for a, b in pairs):
        return "in " + ", ".join(a.split(" ")[0] for a, _ in pairs)
    return f"{pairs[0][1]!r} in place of {pairs[0][0]!r} ({len(theirs)} lines expected, {len(mine)} found)"


def random_moment(rng: random.Random, num_batches: int) -> Moment:
    """A moment somewhere in an attempt's life: set-up, within a batch, while saving, between epochs."""
    is_whole_group = rng.random() < 0.5
    kind = rng.random()
    if kind < 0.12:
        return Moment(delay_s=rng.uniform(0.05, 3.0), is_whole_group=is_whole_group)
    if kind < 0.3:
        return Moment(
            batches=rng.randint(0, 2), is_saving=True, delay_s=rng.uniform(0, 0.004), is_whole_group=is_whole_group
        )
    batches = rng.randint(1, max(2, num_batches // 6))
    return Moment(batches=batches, delay_s=rng.uniform(0, 0.02), is_whole_group=is_whole_group)


def live_at_random(
    new_place: Callable[[], Place], reference: Life, num_kills: int, seed: int, options: Sequence[str] = ()
) -> list[Life]:
    """As many lives as it takes to be killed `num_kills` times, each with another rhythm of checkpoints per attempt."""
    rng = random.Random(seed)
    lives: list[Life] = []
    left = num_kills
    while left > 0 and len(lives) < num_kills:
        moments = [random_moment(rng, len(reference.attempts[0].batches)) for _ in range(left)]
        rhythms = [rng.choice(["1batches", "3batches", "7batches", "epoch", "0.05s", "auto"]) for _ in range(left + 1)]
        lives.append(live(new_place(), rhythms, moments, options))
        left -= lives[-1].num_kills
        if differences(reference, lives[-1]):
            break
    return lives

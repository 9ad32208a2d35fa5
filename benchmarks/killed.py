"""Kills training programs at random moments, starts them again, and compares the end with runs that nobody kills.

The programs are yours: LIST has a JSON object a line, with `id`, `folder` (relative to LIST; copied for each run), `argv` (what follows
`detrain run`) and, where wanted, `env` (`{CWD}` stands for the folder of the run), `ranks` (how many torchrun starts), `name` and `loop`
for the table. For each of them, with default options: two whole runs, A and B, and one, K, that is killed (SIGKILL to its process group;
of several ranks to one of them) up to --kills times and started again with the same command. Compared: the state at the end
(`detrain diff`), what was printed, and the files. What differs between A and B too is time, which no two runs share. What differs only
between A and K is to be looked at: a defect, or a time that A and B share by chance.

Several drivers may work on one list at once; each takes programs that no other has.
"""

from __future__ import annotations

import argparse
import contextlib
import filecmp
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path

import psutil

from detrain.errors import DetrainError
from detrain.report import history
from detrain.world import output_log

RUNS = ".detrain"
#: A run that takes so many times as long as A, in all its attempts, is given up.
LONGEST = 8
#: How long the processes of a job may take to end after one of its ranks was killed. Seconds.
LONGEST_END_S = 60
#: Where an attempt writes no checkpoint, it is killed when this part of what is left has passed.
WITHOUT_CHECKPOINT = 0.7
#: Numbers, and what hexadecimal digits make of addresses and digests.
_NUMBER = re.compile(r"0x[0-9a-f]+|[0-9]+(?:[.,:][0-9]+)*(?:e[+-]?[0-9]+)?")
#: How long something took and how fast it went, as progress bars say it.
_DURATION = re.compile(r"(?<![\w.:])(?:\d+(?::\d\d)+s?|\d+(?:\.\d+)?(?:us|µs|ms|s)\b(?:/\w+)?|\d+(?:\.\d+)?\s?\w+/s)")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


@dataclass(frozen=True)
class Program:
    """One line of the list."""

    id: str
    folder: Path
    argv: list[str]
    env: dict[str, str]
    name: str
    loop: str
    #: Processes that train as one job; 0: one process, without a launcher.
    ranks: int


@dataclass
class Outcome:
    """What came out; times in seconds."""

    id: str
    name: str
    loop: str
    verdict: str = ""
    seconds: float = 0.0  # of A
    batches: int = 0
    kills: list[float] = field(default_factory=list)  # when, since the attempt was started
    resumed: int = 0  # kills after which an attempt went on from a checkpoint
    again: list[int] = field(default_factory=list)  # batches that the next attempt did again
    messages: list[str] = field(default_factory=list)
    differs: list[str] = field(default_factory=list)  # between A and K, and not between A and B
    times: list[str] = field(default_factory=list)  # between A and K, and between A and B too


class RunFailedError(Exception):
    """A run that did not come to its end."""


def read_list(path: Path) -> list[Program]:
    """The programs, in the order of the file."""
    found = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.strip():
            one = json.loads(line)
            folder = path.parent / one["folder"]
            found.append(
                Program(
                    one["id"], folder, one["argv"], one.get("env", {}), one.get("name", one["id"]), one.get("loop", ""), one.get("ranks", 0)
                )
            )  # fmt: skip
    return found


def start(program: Program, work: Path) -> subprocess.Popen:
    """One attempt, in its own process group; what it prints is appended to files beside its folder."""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    env |= {name: value.replace("{CWD}", str(work)) for name, value in program.env.items()}
    with open(work.parent / "stdout", "ab") as out, open(work.parent / "stderr", "ab") as err:
        command = [sys.executable, *_launcher(program.ranks), "-m", "detrain", "run", *program.argv]
        return subprocess.Popen(
            command, cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True
        )


def _launcher(ranks: int) -> list[str]:
    return ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"] if ranks else []


def checkpoints(work: Path) -> set[tuple[str, int]]:
    """Names and times of the checkpoints of a run, or of the cuts of a job."""
    places = [*(work / RUNS).glob("*/checkpoint_*.h5"), *(work / RUNS).glob("*/cuts/*.json")]
    return {(path.name, path.stat().st_mtime_ns) for path in places}


def kill(process: subprocess.Popen, ranks: int, chance: random.Random) -> None:
    """SIGKILL to an attempt, or to one rank of it, which all have to end for. Raises `RunFailedError` if they do not."""
    if ranks:
        chosen, begun = chance.randrange(ranks), psutil.Process(process.pid).children()
        for one in begun:
            with contextlib.suppress(psutil.Error):
                if one.environ().get("RANK") == str(chosen):
                    one.kill()
        gone, alive = psutil.wait_procs([psutil.Process(process.pid), *begun], timeout=LONGEST_END_S)
        if alive:
            end_group(process)
            raise RunFailedError(
                f"{len(alive)} of {len(gone) + len(alive)} processes live on after rank {chosen} was killed"
            )
    end_group(process)


def end_group(process: subprocess.Popen) -> None:
    """SIGKILL to everything that the attempt has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def whole_run(program: Program, place: Path, limit_s: float) -> float:
    """A run that nobody kills. Returns how long it took."""
    work = fresh(program, place)
    began_s = time.monotonic()
    process = start(program, work)
    finish(process, began_s + limit_s)
    return time.monotonic() - began_s


def finish(process: subprocess.Popen, until_s: float) -> None:
    """Wait for the end of an attempt that is to come to its end. Raises `RunFailedError` if it does not."""
    try:
        status = process.wait(max(1, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        end_group(process)
        raise RunFailedError("not over in time") from None
    if status:
        raise RunFailedError(f"exit status {status}")


def fresh(program: Program, place: Path) -> Path:
    """An empty place with a copy of the program in it."""
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(parents=True)
    shutil.copytree(program.folder, place / "work", symlinks=True)
    return place / "work"


def killed_run(program: Program, place: Path, outcome: Outcome, num_kills: int) -> None:
    """K: each attempt is killed a random time after its first checkpoint, the last one comes to its end."""
    chance = random.Random(program.id)
    work = fresh(program, place)
    until_s = time.monotonic() + LONGEST * outcome.seconds + 60
    left_s = outcome.seconds
    for _ in range(num_kills):
        began_s, there = time.monotonic(), checkpoints(work)
        process = start(program, work)
        until_kill_s = began_s + WITHOUT_CHECKPOINT * left_s
        is_saved = False
        while process.poll() is None and time.monotonic() < until_kill_s:
            if not is_saved and checkpoints(work) - there:
                is_saved = True
                until_kill_s = time.monotonic() + chance.uniform(0, 0.4) * max(1.0, left_s)
            time.sleep(0.05)
        if process.poll() is not None:
            if process.returncode:
                raise RunFailedError(f"an attempt ended with exit status {process.returncode}")
            return
        outcome.kills.append(round(time.monotonic() - began_s, 1))
        kill(process, program.ranks, chance)
        if is_saved:
            left_s = max(3.0, left_s - outcome.kills[-1] / 2)
    finish(start(program, work), until_s)


def run_directory(work: Path) -> Path:
    """The run directory, or a job's. Raises `RunFailedError` if there is not just one."""
    found = [path for path in (work / RUNS).glob("*") if (path / "run.json").exists() or (path / "job.json").exists()]
    if len(found) != 1:
        raise RunFailedError(f"{len(found)} run directories")
    return found[0]


def first_rank(directory: Path) -> Path:
    """The run directory of what speaks for a job: rank 0; of one process its own."""
    return directory / "rank_0" if (directory / "job.json").exists() else directory


def differences(a: Path, other: Path) -> dict[str, str]:
    """What differs between two runs that have ended: a key for each thing, in which no number stands for itself, and words."""
    found = {}
    command = [sys.executable, "-m", "detrain", "diff", "--json", str(run_directory(a)), str(run_directory(other))]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    try:
        for one in json.loads(done.stdout)["differences"]:
            text = json.dumps(one)
            path = str(one.get("path", text))
            found[f"state {_NUMBER.sub('#', path)}"] = text[:400]
    except (json.JSONDecodeError, KeyError) as error:
        found["diff"] = f"{error!r}: {done.stderr[-400:]}"
    printed = [output_log.read(first_rank(run_directory(work)) / output_log.NAME) for work in (a, other)]
    # Of a bar that is overwritten, what it says last; how often one leaves a line empty hangs on the time.
    said = [[line.text.rpartition("\b")[2] for line in one if line.stream == 1] for one in printed]
    lines = [[_DURATION.sub("", _COLOUR.sub("", text)) for text in one if text.strip()] for one in said]
    found |= text_differences("printed", *lines)
    names = [files_of(work) for work in (a, other)]
    for masked in sorted({*names[0], *names[1]}):
        here, there = (one.get(masked, []) for one in names)
        if here != there:  # of as many, names that have a time in them
            found[f"name {masked}" if len(here) == len(there) else f"files {masked}"] = f"{here} and {there}"
        for one, two in zip(here, there, strict=False):
            if not filecmp.cmp(a / one, other / two, shallow=False):
                found |= file_differences(masked, a / one, other / two)
    return found


def files_of(work: Path) -> dict[str, list[str]]:
    """The files that a run has left, without its run directory and what Python compiles, by their names without numbers."""
    found: dict[str, list[str]] = {}
    for path in sorted(work.rglob("*")):
        name = path.relative_to(work)
        if path.is_file() and name.parts[0] != RUNS and "__pycache__" not in name.parts:
            found.setdefault(_NUMBER.sub("#", str(name)), []).append(str(name))
    return found


def file_differences(name: str, a: Path, other: Path) -> dict[str, str]:
    """Of text each line, of anything else one entry."""
    try:
        lines = [path.read_text(encoding="utf-8").splitlines() for path in (a, other)]
    except UnicodeDecodeError:
        return {f"file {name}": f"{name}: {a.stat().st_size} and {other.stat().st_size} bytes"}
    return text_differences(f"file {name}", *lines)


def text_differences(where: str, a: list[str], other: list[str]) -> dict[str, str]:
    """Lines that differ, by what is left of them without numbers."""
    found = {}
    if len(a) != len(other):
        found[f"{where}: lines"] = f"{where}: {len(a)} and {len(other)} lines"
    for one, two in zip(a, other, strict=False):
        if one != two:
            found[f"{where}: {_NUMBER.sub('#', one)}, {_places(one, two)}"] = (
                f"{where}: {one[:200]!r} and {two[:200]!r}"
            )
    return found


def _places(one: str, two: str) -> list[int]:
    """Which of the numbers in two lines differ: a time beside a loss is no reason to pass over the loss."""
    numbers = zip(_NUMBER.findall(one), _NUMBER.findall(two), strict=False)
    return [place for place, (here, there) in enumerate(numbers) if here != there]


def judge(outcome: Outcome, place: Path) -> None:
    """The verdict, from the three runs."""
    a, b, k = (place / name / "work" for name in "ABK")
    found, between = differences(a, k), differences(a, b)
    outcome.differs = [text for key, text in found.items() if key not in between]
    outcome.times = [text for key, text in found.items() if key in between]
    outcome.verdict = "differs" if outcome.differs else ("exact but for times" if outcome.times else "exact")
    said = re.split(
        r"[\r\n]", (place / "K" / "stderr").read_text(encoding="utf-8", errors="replace")
    )  # bars end no line
    outcome.messages = [line.partition("detrain: ")[2] for line in said if "detrain: " in line]
    outcome.resumed = sum(line.startswith("resumed at") for line in outcome.messages)
    try:
        told = history.read(first_rank(run_directory(k)))
        outcome.again = [max(0, one.end - two.begin) for one, two in pairwise(told.attempts)]
        outcome.batches = told.batches
    except DetrainError as error:
        outcome.messages.append(str(error))


def judge_again(folder: Path, outcomes: Path) -> None:
    """Compare once more what has run."""
    for path in sorted(outcomes.glob("*.json")):
        text = path.read_text(encoding="utf-8")
        if text and (folder / path.stem / "B").is_dir():
            outcome = Outcome(**json.loads(text))
            judge(outcome, folder / path.stem)
            path.write_text(json.dumps(asdict(outcome), indent=1), encoding="utf-8")


def run(program: Program, folder: Path, num_kills: int, limit_s: float) -> Outcome:
    """Everything for one program."""
    outcome = Outcome(program.id, program.name, program.loop)
    place = folder / program.id
    # All three in a folder of the same path, since programs print and save it.
    try:
        outcome.seconds = round(whole_run(program, place / "now", limit_s), 1)
        move(place, "A")
        killed_run(program, place / "now", outcome, num_kills)
        move(place, "K")
        whole_run(program, place / "now", limit_s)
        move(place, "B")
        judge(outcome, place)
    except RunFailedError as error:
        outcome.verdict = str(error)
        errors = place / "now" / "stderr"
        outcome.messages += (
            errors.read_text(encoding="utf-8", errors="replace").splitlines()[-12:] if errors.exists() else []
        )
    return outcome


def move(place: Path, name: str) -> None:
    """Put a run aside."""
    shutil.rmtree(place / name, ignore_errors=True)
    (place / "now").rename(place / name)


def table(outcomes: list[Outcome]) -> str:
    """Markdown."""
    lines = [
        "| program | loop | verdict | batches | resumed | batches done again |",
        "| --- | --- | --- | ---: | --- | --- |",
    ]
    for one in sorted(outcomes, key=lambda one: (one.loop.lower(), one.name.lower())):
        again = ", ".join(map(str, one.again)) or "-"
        lines.append(
            f"| {one.name} | {one.loop} | {one.verdict} | {one.batches} | {one.resumed} of {len(one.kills)} | {again} |"
        )
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("list", type=Path, metavar="LIST")
    parser.add_argument(
        "--work", type=Path, required=True, metavar="DIR", help="where the runs and their outcomes are kept"
    )
    parser.add_argument(
        "--only", action="append", metavar="ID", help="only these programs, also if they have run before"
    )
    parser.add_argument("--kills", type=int, default=3, metavar="N", help="default %(default)s")
    parser.add_argument(
        "--limit", type=float, default=300, metavar="SECONDS", help="of a whole run (default %(default)s)"
    )
    parser.add_argument("--judge", action="store_true", help="only compare once more what has run")
    parser.add_argument("--table", action="store_true", help="only print the table of what has run")
    given = parser.parse_args()
    outcomes = given.work.absolute() / "outcomes"
    outcomes.mkdir(parents=True, exist_ok=True)
    programs = {program.id: program for program in read_list(given.list.absolute())}
    if given.judge:
        judge_again(given.work.absolute() / "runs", outcomes)
    elif not given.table:
        for program in programs.values():
            path = outcomes / f"{program.id}.json"
            if given.only:
                if program.id not in given.only:
                    continue
                path.unlink(missing_ok=True)
            try:
                path.touch(exist_ok=False)
            except FileExistsError:
                continue  # another driver has it
            outcome = run(program, given.work.absolute() / "runs", given.kills, given.limit)
            path.write_text(json.dumps(asdict(outcome), indent=1), encoding="utf-8")
            print(
                f"{program.id}: {outcome.verdict} ({outcome.seconds} s, kills {outcome.kills}, again {outcome.again})",
                flush=True,
            )
    found = [path.read_text(encoding="utf-8") for path in sorted(outcomes.glob("*.json")) if path.stem in programs]
    print(table([Outcome(**json.loads(text)) for text in found if text]))


if __name__ == "__main__":
    main()

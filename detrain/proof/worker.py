"""One part of a run, done again: a process of its own that shuts itself off, runs the script in there, and compares.

Reads orders as JSON from standard input (one, or one for each rank of a job), writes what it found as JSON to standard output.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
import filecmp
import functools
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import psutil

from detrain.adapters import launchers
from detrain.errors import DetrainError
from detrain.launch import environment, patched
from detrain.launch.patched import PatchedFile
from detrain.launch.request import Request
from detrain.messages import say
from detrain.outputs.journal import ABSENT, FILE, LINK, Journal, kind_and_stat
from detrain.proof import sandbox, together
from detrain.session.goal import Goal
from detrain.session.rerun import REPORT
from detrain.session.showing import ENDINGS, PREFIX
from detrain.store.directory import RunDirectory
from detrain.store.record import RunRecord

#: As much of what a failed attempt said is handed on. Characters.
_TAIL = 2000
#: In the run directory, as the attempt sees it.
_OLDS = "olds.json"
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # <sys/prctl.h>


@dataclass(frozen=True)
class Order:
    """What is to be done again."""

    directory: str
    record: RunRecord  # how the run was started
    goal: Goal
    start: str | None  # name of the checkpoint to begin from
    until: str | None  # name of the checkpoint to compare with
    checkpoints: list[str]  # names of those that may be there
    olds: dict[str, Any] = field(default_factory=dict)  # what `detrain.session.trusting.Trusting` needs on the way
    job: str = ""  # the directory of the job that it is one of `size` ranks of
    rank: int = 0
    size: int = 1
    memory_budget: str = ""  # as `detrain run` takes it, for a goal that times batches
    remat_planner: str = "auto"
    patched: list[PatchedFile] = field(default_factory=list)  # source files that are to be other ones

    def encode(self) -> str:
        """As JSON."""
        patched = [one.encode() for one in self.patched]
        own = {"record": self.record.encode(), "goal": self.goal.encode(), "patched": patched}
        return json.dumps({**dataclasses.asdict(replace(self, patched=[])), **own})

    @classmethod
    def decode(cls, document: dict[str, Any]) -> Order:
        """The inverse of `encode`, of the document that was read."""
        record, goal = RunRecord.decode(document["record"]), Goal.decode(document["goal"])
        patched = [PatchedFile.decode(one) for one in document["patched"]]
        return cls(**{**document, "record": record, "goal": goal, "patched": patched})

    def carry_out(self) -> dict[str, Any]:
        """See `carry_out`."""
        return carry_out([self])[0]


def carry_out(orders: list[Order]) -> list[dict[str, Any]]:
    """Carry out one order, or those of all ranks together, in a process of its own; returns what each has found.

    Raises `DetrainError` where nothing could be run.
    """
    # By name and not by `-m` or PYTHONPATH: the script is to find its modules where it found them.
    home = repr(str(Path(__file__).parents[2]))
    code = f"import sys; sys.path.insert(0, {home}); from detrain.proof import worker; sys.path.pop(0); worker.main()"
    with tempfile.TemporaryDirectory(prefix="detrain-rerun-") as place:
        done = subprocess.run(
            [sys.executable, "-P", "-c", code, place], input=f"[{','.join(one.encode() for one in orders)}]",
            capture_output=True, text=True, check=False,
        )  # fmt: skip
    try:
        found = json.loads(done.stdout)
    except ValueError:
        raise DetrainError(
            f"the process that repeats it ended with {done.returncode}: {done.stderr[-_TAIL:]}"
        ) from None
    if "error" in found:
        raise (DetrainError if found["has_sandbox"] else sandbox.NoSandbox)(found["error"])
    results: list[dict[str, Any]] = found["results"]
    return results


def main() -> None:
    """Entry point of the process."""
    _end_with_parent()
    orders = [Order.decode(document) for document in json.load(sys.stdin)]
    found: dict[str, Any]
    try:
        found = {"results": _carry_out(orders)}
    except DetrainError as error:
        found = {"error": str(error), "has_sandbox": not isinstance(error, sandbox.NoSandbox)}
    sys.stdout.write(json.dumps(found))


def _carry_out(orders: list[Order]) -> list[dict[str, Any]]:
    began_s, first = time.monotonic(), orders[0]
    machine = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)  # as it is outside
    uppers = sandbox.enter(*_folders(orders), Path(sys.argv[1]))
    if os.path.isdir(first.record.folder):
        os.chdir(first.record.folder)
    for order in orders:
        _clear(RunDirectory(Path(order.directory)), order)
    statuses = together.run(
        [functools.partial(_run, order) for order in orders], [_report_path(order) for order in orders]
    )
    _kill_what_is_left()
    seconds = time.monotonic() - began_s
    found = [_found(order, status, machine, seconds) for order, status in zip(orders, statuses, strict=True)]
    if first.goal.is_whole:
        found[0]["files"] = _changed_files(uppers, machine, Path(first.job or first.directory))
    return found


def _found(order: Order, status: int, machine: int, seconds: float) -> dict[str, Any]:
    """`machine`: a descriptor of the root outside."""
    directory = RunDirectory(Path(order.directory))
    report = _report(order)
    found = {"status": status, "seconds": seconds, **report, "said": ""}
    if not report["is_stopped"] and (status or not order.goal.is_whole):
        found["said"] = (directory.path / "rerun.err").read_text(encoding="utf-8", errors="replace")[-_TAIL:]
    if order.goal.window is not None:
        found["shown"] = _shown(directory.path)
    if order.until is not None and (directory.path / order.until).exists():
        found["checkpoint"] = _compare(directory.path, Path(f"/proc/self/fd/{machine}{directory.path}"), order)
    return found


def _shown(folder: Path) -> list[dict[str, Any]]:
    """What the script printed in the wanted epochs or batches, by their number: `out` and `err`."""
    numbers = {int(path.stem.removeprefix(PREFIX)) for path in folder.glob(f"{PREFIX}*")}
    found = []
    for number in sorted(numbers):
        texts = {ending[1:]: (folder / f"{PREFIX}{number}{ending}").read_bytes() for ending in ENDINGS.values()}
        decoded = {name: text.decode("utf-8", "surrogateescape") for name, text in texts.items()}
        found.append({"number": number, **decoded})
    return found


def _folders(orders: list[Order]) -> tuple[list[Path], list[Path]]:
    """Where the script must be able to write, and where it may."""
    record = orders[0].record
    needed = [record.folder]
    for order in orders:
        needed += [order.job or order.directory, *(os.path.dirname(path) for path in _journal(order).paths())]
    wished = [os.path.dirname(record.script), os.path.expanduser("~"), tempfile.gettempdir(), "/tmp", "/var/tmp"]
    return [Path(name) for name in needed], [
        Path(name) for name in wished if os.path.isabs(name)
    ] + sandbox.user_folders()


def _journal(order: Order) -> Journal:
    journal = Journal(Path(order.directory))
    journal.read()
    return journal


def _clear(directory: RunDirectory, order: Order) -> None:
    """Leave what was there when the run came to the start of this part, and the ledger."""
    for path in directory.checkpoint_paths():
        if path.name not in order.checkpoints:
            path.unlink()
    for name in ("finished", REPORT):
        (directory.path / name).unlink(missing_ok=True)
    directory.write_record(order.record)  # other arguments, it may be, than those that the run goes on with
    (directory.path / _OLDS).write_text(json.dumps(order.olds), encoding="utf-8")
    patched.put(order.patched, directory.path, Path(order.record.script))
    if order.start is None:
        journal = _journal(order)
        for written in sorted(journal.paths(), key=len, reverse=True):  # what is in a folder before the folder
            first, is_now = journal.state(written, 0), kind_and_stat(written)[0]
            if first is not None and first.kind == ABSENT and is_now in (FILE, LINK):
                os.unlink(written)


def _end_with_parent() -> None:
    """No process of a verification that was stopped goes on; what the script starts and leaves behind becomes ours."""
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _kill_what_is_left() -> None:
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()


def _run(order: Order) -> NoReturn:
    """Become a later attempt of the run."""
    record, command = order.record, order.record.command
    assert command is not None, "a run without its command is refused before"
    _end_with_parent()
    directory = Path(order.directory)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    for number, name in ((1, "rerun.out"), (2, "rerun.err")):
        with open(directory / name, "wb") as file:
            os.dup2(file.fileno(), number)
    if order.size > 1:
        os.environ.update(launchers.variables(order.rank, order.size))
    request = Request(
        command.script, command.module, record.arguments, record.name, order.directory, every="never", keep=1_000_000,
        seed=record.seed, start=order.start, nondeterministic=command.nondeterministic, leave_files=command.leave_files,
        trust_changes=order.goal.reports_arrivals, interpreter=list(command.interpreter), changes=record.changes,
        olds=str(directory / _OLDS), goal=order.goal, job=order.job, rank=order.rank, size=order.size,
        memory_budget=order.memory_budget, remat_planner=order.remat_planner, pipeline=command.pipeline,
        micro_batches=command.micro_batches, quiet=order.goal.window is not None,
    )  # fmt: skip
    try:
        environment.replace_process(request)
    except DetrainError as error:
        say(f"error: {error}")
        os._exit(error.exit_status)


def _report_path(order: Order) -> Path:
    return Path(order.directory) / REPORT


def _report(order: Order) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(_report_path(order).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {"is_stopped": False, "num_compared": 0, "difference": None}
    return found


def _compare(folder: Path, outside: Path, order: Order) -> dict[str, Any]:
    """The checkpoint that was taken now with the one that the run has."""
    from detrain.proof import diff
    from detrain.proof.comparison import Side
    from detrain.store import checkpoint as checkpoint_file

    name = order.until or ""
    checkpoint, tree = checkpoint_file.load(outside / name)
    checkpoint.path = folder / name  # texts of its state may begin with it
    result = diff.compare_sides(Side(checkpoint, tree), diff.open_side(folder / name), has_more=bool(order.patched))
    return {key: result[key] for key in ("same", "num_leaves", "num_differences", "differences", "notes")}


def _changed_files(uppers: dict[Path, int], machine: int, run_directory: Path) -> dict[str, list[str]]:
    """The script's own files, written again to the end, beside those that the run has left."""
    found: dict[str, list[str]] = {"same": [], "different": []}
    for target, upper in uppers.items():
        top = f"/proc/self/fd/{upper}"
        for folder, _, names in os.walk(top):
            place = target / os.path.relpath(folder, top)
            if place.is_relative_to(run_directory):
                continue
            for name in names:
                path = os.path.normpath(place / name)
                before = f"/proc/self/fd/{machine}{path}"
                if os.path.isfile(os.path.join(folder, name)) and os.path.isfile(before):
                    is_same = filecmp.cmp(os.path.join(folder, name), before, shallow=False)
                    found["same" if is_same else "different"].append(path)
    return found

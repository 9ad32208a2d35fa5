"""How time and memory grow: with the size of the state, its leaves, the batches of an epoch, the attempts of a run, and its files."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import measure
from measure import Bench, Report, detrain

from detrain.store import ledger

SCRIPT = str(measure.PROGRAMS / "scaled.py")


class Cost(NamedTuple):
    """Of one command."""

    seconds: float
    #: At its most, of the process and of the largest of its children. Megabytes.
    memory_mb: float


def run(bench: Bench, command: Sequence[str], *, status: int = 0) -> Cost:
    """A command to its end. Raises `RuntimeError` if it ends otherwise."""
    began_s = time.monotonic()
    with open(bench.folder / "output", "wb+") as output:
        process = subprocess.Popen(command, env=bench.environment, cwd=bench.folder, stdout=output, stderr=output)
        _, state, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(state)
        output.seek(0)
        if process.returncode != status:
            raise RuntimeError(
                f"{' '.join(command)} ended with {process.returncode}:\n{output.read()[-2000:].decode()}"
            )
    return Cost(time.monotonic() - began_s, usage.ru_maxrss / 1e3)


def cli(*words: object) -> list[str]:
    """A command of detrain's."""
    return [sys.executable, "-m", "detrain", *map(str, words)]


class Table:
    """One row for each size, one column for each command; beside each figure how it has grown over the row before, per size."""

    def __init__(self, what: str, rows: Sequence[int]) -> None:
        self._what, self._rows = what, rows
        self._found: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        """A figure of the next row."""
        self._found.setdefault(name, []).append(value)

    def say(self, report: Report, title: str) -> None:
        """Growth: 1 is linear, 0 is none."""
        report.say(f"## {title}")
        rows = []
        for at, size in enumerate(self._rows):
            cells = [f"{values[at]:,.2f}" + self._growth(values, at) for values in self._found.values()]
            rows.append([f"{size:,}", *cells])
        report.table([self._what, *self._found], rows)

    def _growth(self, values: list[float], at: int) -> str:
        if at == 0 or not values[at - 1]:
            return ""
        return f" ({(values[at] / values[at - 1]) / (self._rows[at] / self._rows[at - 1]):.2f})"


def saved(directory: Path) -> dict[str, float]:
    """What the last checkpoint of a run has taken."""
    found = ledger.read(directory / "ledger").saved
    return {"stall, s": found[-1]["stall_s"], "MB on disk": found[-1]["bytes"] / 1e6}


def killed(bench: Bench, directory: Path, every: str, words: Sequence[str]) -> Cost:
    """An attempt that is killed in its last batch but one."""
    began_s = time.monotonic()
    process, _ = bench.start(detrain(directory, every, [*words, "1000"]), is_fixed=False)
    assert process.stdout is not None
    assert process.stderr is not None
    if not process.stdout.readline():
        raise RuntimeError(process.stderr.read())
    seconds = time.monotonic() - began_s
    process.kill()
    process.communicate()
    return Cost(seconds, 0.0)


def measure_state(
    bench: Bench, report: Report, sizes: Sequence[tuple[int, int]], rows: Sequence[int], what: str, title: str
) -> None:
    """Save, resume, list, compare and verify states of these (megabytes, leaves)."""
    table = Table(what, rows)
    for megabytes, leaves in sizes:
        words = [SCRIPT, str(megabytes), str(leaves), "41"]
        directory = bench.new_folder()
        killed(bench, directory, "20batches", words)
        for name, value in saved(directory).items():
            table.add(name, value)
        done = run(bench, detrain(directory, "20batches", words))
        table.add("resume to the end, s", done.seconds)
        table.add("memory, MB", done.memory_mb)
        for command in ("ls", "inspect"):
            table.add(f"{command}, s", run(bench, cli(command, directory)).seconds)
        for path in sorted(directory.glob("*.h5"))[:-2]:
            path.unlink()
        other = bench.new_folder()
        shutil.copytree(directory, other, dirs_exist_ok=True)
        table.add("diff, s", run(bench, cli("diff", directory, other)).seconds)
        shutil.rmtree(directory)
        shutil.rmtree(other)
    table.say(report, title)


def measure_size(bench: Bench, report: Report, is_quick: bool) -> None:
    """Ten leaves of more and more bytes."""
    sizes = (100, 1000) if is_quick else (1000, 5000, 20_000)
    measure_state(bench, report, [(size, 10) for size in sizes], sizes, "MB", "Size of the state, in 10 leaves")


def measure_leaves(bench: Bench, report: Report, is_quick: bool) -> None:
    """More and more leaves of 100 bytes."""
    sizes = (1000, 10_000) if is_quick else (1000, 10_000, 100_000)
    states = [(max(1, size // 10_000), size) for size in sizes]
    measure_state(bench, report, states, sizes, "leaves", "Leaves of the state, of about 100 bytes each")


def measure_batches(bench: Bench, report: Report, is_quick: bool) -> None:
    """Longer and longer epochs, with a checkpoint near their end."""
    sizes = (1000, 10_000) if is_quick else (10_000, 100_000, 1_000_000)
    table = Table("batches", sizes)
    for size in sizes:
        words = [SCRIPT, "1", "10", str(size)]
        directory = bench.new_folder()
        table.add("killed in the last batch but one, s", killed(bench, directory, f"{size - 10}batches", words).seconds)
        table.add("ledger, MB", (directory / "ledger").stat().st_size / 1e6)
        done = run(bench, detrain(directory, f"{size - 10}batches", words))
        table.add("resume to the end, s", done.seconds)
        table.add("memory, MB", done.memory_mb)
        for command in ("ls", "report"):
            table.add(f"{command}, s", run(bench, cli(command, directory)).seconds)
        table.add("diff with itself, s", run(bench, cli("diff", directory, directory)).seconds)
        shutil.rmtree(directory)
    table.say(report, "Batches of one epoch")


def measure_attempts(bench: Bench, report: Report, is_quick: bool) -> None:
    """A run that is killed again and again, in the same batch."""
    counts = (3, 10) if is_quick else (1, 10, 100)
    table = Table("attempts", counts)
    directory = bench.new_folder()
    words = [SCRIPT, "1", "10", "41"]
    done = 0
    for count in counts:
        while done < count:
            last = killed(bench, directory, "20batches", words)
            done += 1
        table.add("the last attempt, s", last.seconds)
        for command in ("ls", "report"):
            table.add(f"{command}, s", run(bench, cli(command, directory)).seconds)
        table.add("diff with itself, s", run(bench, cli("diff", directory, directory)).seconds)
    shutil.rmtree(directory)
    table.say(report, "Attempts of one run")


def measure_files(bench: Bench, report: Report, is_quick: bool) -> None:
    """A run that keeps more and more checkpoints."""
    counts = (10, 100) if is_quick else (100, 1000, 10_000)
    table = Table("checkpoints", counts)
    for count in counts:
        directory = bench.new_folder()
        words = [SCRIPT, "1", "10", str(2 * count + 1)]
        command = detrain(directory, "2batches", words)
        keep = [*command[:4], "--keep", str(count + 1), *command[4:]]
        table.add("run, s", run(bench, keep).seconds)
        for path in sorted(directory.glob("*.h5"), key=lambda one: one.stat().st_mtime)[-1:]:
            path.unlink()  # the end is not on the disk: there is something to resume
        table.add("resume to the end, s", run(bench, keep).seconds)
        for name in ("ls", "report"):
            table.add(f"{name}, s", run(bench, cli(name, directory)).seconds)
        table.add("diff with itself, s", run(bench, cli("diff", directory, directory)).seconds)
        shutil.rmtree(directory)
    table.say(report, "Files of a run directory")


MEASURES: dict[str, Callable[[Bench, Report, bool], None]] = {
    "size": measure_size, "leaves": measure_leaves, "batches": measure_batches, "attempts": measure_attempts, "files": measure_files,
}  # fmt: skip


if __name__ == "__main__":
    measure.main("How detrain scales", __doc__ or "", MEASURES)

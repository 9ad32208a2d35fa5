"""How time and memory grow: with the size of the state, its leaves, the batches of an epoch, the attempts of a run, and its files."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import measure
import psutil
from measure import Bench, Report, detrain

from detrain.store import ledger

SCRIPT = str(measure.PROGRAMS / "scaled.py")
#: An attempt that is killed waits for it as long as this at most.
LONGEST_S = 1800.0
#: A larger state is not verified: that writes it a second time beside the first.
MOST_VERIFIED_MB = 5000
#: As many processes as checkpoints.
MOST_VERIFIED = 10
#: How often memory is looked at.
LOOK_S = 0.02


class Cost(NamedTuple):
    """Of one command, with all its children."""

    seconds: float
    #: Of processors: what else the machine does counts for little in it.
    processor_s: float
    #: At its most: private memory, without pages of files, which the system takes back where it needs them.
    memory_mb: float


class Memory:
    """Looks at what a process takes, beside it."""

    def __init__(self, pid: int) -> None:
        self.most_mb = 0.0
        self._pid, self._has_ended = pid, threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def end(self) -> float:
        """Megabytes."""
        self._has_ended.set()
        self._thread.join()
        return self.most_mb

    def _look(self) -> None:
        while not self._has_ended.wait(LOOK_S):
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(self._pid)
                found = [process.pid, *(one.pid for one in process.children(recursive=True))]
                self.most_mb = max(self.most_mb, sum(map(_private_mb, found)))


def _private_mb(pid: int) -> float:
    try:
        with open(f"/proc/{pid}/status", encoding="ascii", errors="replace") as status:
            return sum(int(line.split()[1]) for line in status if line.startswith("RssAnon")) * 1024 / 1e6
    except OSError:
        return 0.0


def run(bench: Bench, command: Sequence[str]) -> Cost:
    """A command to its end. Raises `RuntimeError` if it fails."""
    began_s = time.monotonic()
    with open(bench.folder / "output", "wb+") as output:
        process = subprocess.Popen(command, env=bench.environment, cwd=bench.folder, stdout=output, stderr=output)
        memory = Memory(process.pid)
        _, state, usage = os.wait4(process.pid, 0)
        seconds, memory_mb = time.monotonic() - began_s, memory.end()
        process.returncode = os.waitstatus_to_exitcode(state)
        output.seek(0)
        if process.returncode:
            raise RuntimeError(
                f"{' '.join(command)} ended with {process.returncode}:\n{output.read()[-2000:].decode()}"
            )
    return Cost(seconds, usage.ru_utime + usage.ru_stime, memory_mb)


def killed(bench: Bench, command: Sequence[str], directory: Path, checkpoint: str) -> Cost:
    """An attempt that is killed in its last batch but one, when this checkpoint is there and in the ledger."""
    began_s = time.monotonic()
    with open(bench.folder / "output", "wb+") as output:
        environment = {**bench.environment, "WAIT_S": str(LONGEST_S)}
        process = subprocess.Popen(command, env=environment, cwd=bench.folder, stdout=subprocess.PIPE, stderr=output)
        memory = Memory(process.pid)
        assert process.stdout is not None
        is_waiting = process.stdout.readline() == b"waiting\n"
        while is_waiting and not _is_saved(directory, checkpoint) and time.monotonic() - began_s < LONGEST_S:
            time.sleep(LOOK_S)
        seconds, memory_mb = time.monotonic() - began_s, memory.end()
        process.kill()
        _, state, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(state)
        process.stdout.close()
        output.seek(0)
        if not is_waiting or not _is_saved(directory, checkpoint):
            raise RuntimeError(f"{' '.join(command)} took no {checkpoint}:\n{output.read()[-2000:].decode()}")
    return Cost(seconds, usage.ru_utime + usage.ru_stime, memory_mb)


def _is_saved(directory: Path, checkpoint: str) -> bool:
    if not (directory / checkpoint).exists():
        return False
    return any(one["name"] == checkpoint for one in ledger.read(directory / "ledger").saved)


def cli(*words: object) -> list[str]:
    """A command of detrain's."""
    return [sys.executable, "-m", "detrain", *map(str, words)]


class Table:
    """One column for each size, one row for each figure; beside each how it has grown since the size before."""

    def __init__(self, what: str, sizes: Sequence[int], *, counts_waiting: bool = False) -> None:
        """`counts_waiting`: for the disk, too."""
        self._what, self._sizes, self._counts_waiting = what, sizes, counts_waiting
        self._found: dict[str, list[float]] = {}

    def add(self, name: str, value: float) -> None:
        """A figure of the next size."""
        self._found.setdefault(name, []).append(value)
        print(f"{name}: {value:.3f}", file=sys.stderr, flush=True)

    def cost(self, name: str, cost: Cost) -> None:
        """Time and memory of a command."""
        if self._counts_waiting:
            self.add(f"{name}, s", cost.seconds)
        self.add(f"{name}, processor s", cost.processor_s)
        self.add(f"{name}, MB of memory", cost.memory_mb)

    def say(self, report: Report, title: str) -> None:
        """The table."""
        report.say(f"## {title}")
        rows = []
        for name, values in self._found.items():
            grown = ["", *(f" ({exponent:.2f})" for exponent in self._exponents(values))]
            cells = [f"{value:,.2f}{more}" for value, more in itertools.zip_longest(values, grown, fillvalue="")]
            rows.append([name, *cells, *[""] * (len(self._sizes) - len(cells))])
        report.say("One run each. In parentheses the exponent of the growth: 0 is none, 1 linear, 2 quadratic.")
        report.table(["", *(f"{size:,} {self._what}" for size in self._sizes)], rows)
        exponents = [exponent for values in self._found.values() for exponent in self._exponents(values)]
        if exponents:
            report.figure(f"{self._what}: largest exponent", [max(exponents)])

    def _exponents(self, values: Sequence[float]) -> list[float]:
        """From each size to the next: 0 is no growth, 1 is linear, 2 quadratic."""
        pairs = list(zip(self._sizes, values, strict=False))
        return [
            math.log(now / value) / math.log(larger / size)
            for (size, value), (larger, now) in itertools.pairwise(pairs)
            if now > 0 and value > 0
        ]


def stall_s(directory: Path, name: str) -> float:
    """How long the training has waited for a checkpoint."""
    found = next(one for one in ledger.read(directory / "ledger").saved if one["name"] == name)
    return float(found["stall_s"])


def look(bench: Bench, table: Table, directory: Path) -> None:
    """What reads the whole of a run directory."""
    table.cost("ls", run(bench, cli("ls", directory)))
    table.cost("report", run(bench, cli("report", directory, "-o", bench.folder / "report.html")))
    table.cost("diff with itself", run(bench, cli("diff", directory, directory)))


def measure_state(
    bench: Bench, report: Report, sizes: Sequence[tuple[int, int]], rows: Sequence[int], what: str, title: str
) -> None:
    """Save, resume, list, compare and verify states of these (megabytes, leaves)."""
    table = Table(what, rows, counts_waiting=what == "MB")
    for megabytes, leaves in sizes:
        directory = bench.new_folder()
        command = detrain(directory, "20batches", [SCRIPT, str(megabytes), str(leaves), "41"])
        table.cost("killed after its save", killed(bench, command, directory, "checkpoint_0_20.h5"))
        table.add("of that the training has waited for the save, s", stall_s(directory, "checkpoint_0_20.h5"))
        table.add("checkpoints, MB on disk", sum(path.stat().st_size for path in directory.glob("*.h5")) / 1e6)
        table.cost("resume to the end", run(bench, command))
        latest = directory / "checkpoint_0_20.h5"
        table.cost("ls", run(bench, cli("ls", directory)))
        table.cost("inspect", run(bench, cli("inspect", latest)))
        table.cost("diff with itself", run(bench, cli("diff", latest, latest)))
        if megabytes <= MOST_VERIFIED_MB:
            table.cost("verify", run(bench, cli("verify", "--jobs", 1, directory)))
        shutil.rmtree(directory)
    table.say(report, title)


def measure_size(bench: Bench, report: Report, sizes: Sequence[int]) -> None:
    """Ten leaves of more and more bytes."""
    with contextlib.suppress(OSError):  # where memory runs out, this is to be ended, and nothing else
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    measure_state(bench, report, [(size, 10) for size in sizes], sizes, "MB", "Size of the state, in 10 leaves")


def measure_leaves(bench: Bench, report: Report, sizes: Sequence[int]) -> None:
    """More and more leaves of 100 bytes."""
    states = [(max(1, size // 10_000), size) for size in sizes]
    measure_state(bench, report, states, sizes, "leaves", "Leaves of the state, of about 100 bytes each")


def measure_batches(bench: Bench, report: Report, sizes: Sequence[int]) -> None:
    """Longer and longer epochs, with a checkpoint near their end."""
    table = Table("batches", sizes)
    for size in sizes:
        directory = bench.new_folder()
        command = detrain(directory, f"{size - 10}batches", [SCRIPT, "1", "10", str(size)])
        cost = killed(bench, command, directory, f"checkpoint_0_{size - 10}.h5")
        table.cost("killed in the last batch but one", cost)
        table.add("ledger, MB on disk", (directory / "ledger").stat().st_size / 1e6)
        table.cost("resume to the end", run(bench, command))
        look(bench, table, directory)
        table.cost("verify", run(bench, cli("verify", "--jobs", 1, directory)))
        shutil.rmtree(directory)
    table.say(report, "Batches of one epoch")


def measure_attempts(bench: Bench, report: Report, sizes: Sequence[int]) -> None:
    """A run that is killed again and again, in the same batch."""
    table = Table("attempts", sizes)
    directory = bench.new_folder()
    command = detrain(directory, "20batches", [SCRIPT, "1", "10", "41"])
    done = 0
    for count in sizes:
        while done < count:
            last = killed(bench, command, directory, "checkpoint_0_20.h5")
            done += 1
        table.cost("the last attempt", last)
        table.add("run directory, MB on disk", _bytes_in(directory) / 1e6)
        look(bench, table, directory)
        table.cost("verify", run(bench, cli("verify", "--jobs", 1, directory)))
    shutil.rmtree(directory)
    table.say(report, "Attempts of one run")


def _bytes_in(directory: Path) -> int:
    return sum(
        os.lstat(os.path.join(folder, name)).st_size for folder, _, names in os.walk(directory) for name in names
    )


def measure_files(bench: Bench, report: Report, sizes: Sequence[int]) -> None:
    """A run that keeps more and more checkpoints."""
    table = Table("checkpoints", sizes)
    for count in sizes:
        directory = bench.new_folder()
        words = [SCRIPT, "1", "10", str(2 * count + 1)]
        command = detrain(directory, "2batches", words)
        command[4:4] = ["--keep", str(count + 10)]
        name = f"checkpoint_0_{2 * (count - 1)}.h5"
        table.cost("killed after its saves", killed(bench, command, directory, name))
        table.cost("resume to the end", run(bench, command))
        look(bench, table, directory)
        if count <= MOST_VERIFIED:
            table.cost("verify", run(bench, cli("verify", "--jobs", 1, directory)))
        shutil.rmtree(directory)
    table.say(report, "Files of a run directory")


#: What measures, and the sizes: with --quick, and without.
MEASURES: dict[str, tuple[Callable[[Bench, Report, Sequence[int]], None], Sequence[int], Sequence[int]]] = {
    "size": (measure_size, (100, 1000), (1000, 5000, 20_000)),
    "leaves": (measure_leaves, (1000, 10_000), (1000, 10_000, 100_000)),
    "batches": (measure_batches, (1000, 10_000), (10_000, 100_000, 1_000_000)),
    "attempts": (measure_attempts, (1, 5), (1, 10, 100)),
    "files": (measure_files, (10, 100), (100, 1000, 10_000)),
}


def _part(name: str) -> Callable[[Bench, Report, bool], None]:
    def part(bench: Bench, report: Report, is_quick: bool) -> None:
        work, quick, whole = MEASURES[name]
        work(bench, report, quick if is_quick else whole)

    return part


if __name__ == "__main__":
    measure.main("How detrain scales", __doc__ or "", {name: _part(name) for name in MEASURES})

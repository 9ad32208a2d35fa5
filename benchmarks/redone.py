"""Batches that are run again after a kill, over those since the last checkpoint, and the time that a kill costs, with default options."""

from __future__ import annotations

import os
import shutil
import signal
import statistics
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import measure
from measure import Bench, Report

from detrain.store.directory import RunDirectory

KINDS = ("long epochs", "short epochs", "growing epochs", "folds", "two loops")
NUM_KILLS, NUM_KILLS_QUICK = 20, 4


@dataclass(frozen=True)
class Attempt:
    """When batches were run, in seconds since the process was started, and how long the process lived."""

    batches_s: list[float]
    seconds: float


def attempt(bench: Bench, kind: str, directory: Path, kill_after_s: float | None = None) -> Attempt:
    """Start the command once; kill it so many seconds after its first batch."""
    reading, writing = os.pipe()
    words = measure.detrain(directory, "auto", [str(measure.PROGRAMS / "nests.py"), kind])
    began_s, times = time.monotonic(), []
    process = subprocess.Popen(
        words, env={**bench.environment, "BATCHES": str(writing)}, cwd=bench.folder, pass_fds=[writing], stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    os.close(writing)
    os.set_blocking(reading, False)
    while process.poll() is None:
        times += [time.monotonic() - began_s] * _drain(reading)
        if kill_after_s is not None and times and time.monotonic() - began_s > times[0] + kill_after_s:
            process.send_signal(signal.SIGKILL)
            process.wait()
        time.sleep(0.001)
    times += [time.monotonic() - began_s] * _drain(reading)
    os.close(reading)
    assert process.stderr is not None
    if process.returncode not in (0, -signal.SIGKILL):
        raise RuntimeError(process.stderr.read())
    return Attempt(times, time.monotonic() - began_s)


def _drain(reading: int) -> int:
    try:
        return len(os.read(reading, 1 << 16))
    except BlockingIOError:
        return 0


def killed(bench: Bench, kind: str, whole: Attempt, kill_after_s: float) -> tuple[int, int, float]:
    """One kill: batches run again, batches since the last checkpoint, and seconds that the training came to its end later."""
    directory = bench.new_folder()
    first = attempt(bench, kind, directory, kill_after_s)
    there, _ = RunDirectory(directory).read_checkpoints()
    since = len(first.batches_s) - max((saved.meta.batches for saved in there), default=0)
    second = attempt(bench, kind, directory)
    shutil.rmtree(directory)
    again = len(first.batches_s) + len(second.batches_s) - len(whole.batches_s)
    return again, since, first.seconds + second.seconds - whole.seconds


def measure_kills(bench: Bench, report: Report, is_quick: bool) -> None:
    """Kills at moments that lie evenly over the training, each followed by the same command."""
    num_kills = NUM_KILLS_QUICK if is_quick else NUM_KILLS
    rows = []
    for kind in KINDS:
        whole = attempt(bench, kind, bench.new_folder())
        length_s = whole.batches_s[-1] - whole.batches_s[0]
        kills = [killed(bench, kind, whole, length_s * (n + 0.5) / num_kills) for n in range(num_kills)]
        again, since, lost_s = zip(*kills, strict=True)
        counts = [f"{statistics.median(found):.0f} ({min(found)}–{max(found)})" for found in (again, since)]
        ratio = f"{sum(again) / max(sum(since), 1):.3f}"
        rows.append([kind, f"{len(whole.batches_s)}", f"{length_s:.1f}", *counts, ratio, measure.spread(lost_s, 1)])
    report.table(
        ["", "batches", "seconds", "run again", "since the last checkpoint", "again / since", "seconds lost"], rows
    )
    report.say(
        f"{num_kills} runs each with default options, each killed once, by SIGKILL, and started again. Aim: again / since 1.0. "
        "Seconds lost: both attempts together, over one that nobody kills; the second start of Python and torch is among them."
    )


if __name__ == "__main__":
    measure.main("Work done again after a kill", __doc__ or "", {"kills": measure_kills})

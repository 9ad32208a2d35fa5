"""`detrain run --ranks N`: starts the ranks of a job on this host, starts them again when one was killed, and takes them down with it."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path

from detrain.adapters import launchers
from detrain.launch.departing import STATUS, Departure, requeue
from detrain.messages import say
from detrain.store.job import CUTS, Manifests, first_lost

_PR_SET_PDEATHSIG = 1  # <sys/prctl.h>
#: Starts in a row that have brought no cut, after which a job is not started again.
MOST_IN_VAIN = 3


def end_with_parent() -> None:
    """Runs in a process that is being started: it does not outlive this one, however that ends; ranks do not outlive their launcher."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class Supervisor:
    """Runs the launcher until the job has ended."""

    def __init__(
        self,
        words: Sequence[str],
        again: Sequence[str],
        num_ranks: int,
        num_restarts: int,
        job: Path,
        ends_s: float = math.inf,
        *,
        is_requeued: bool = False,
        on_leaving: Callable[[], None] = lambda: None,
    ) -> None:
        """`words`: the command of one rank, from `-m` on; `again`: when it is started again. `job`: the job's directory.

        `ends_s`: when the time limit is reached, by the monotonic clock. `is_requeued`: by `--requeue`.
        `on_leaving` is called when the ranks have ended and the job has not.
        """
        self._ends_s, self._is_requeued, self._on_leaving = ends_s, is_requeued, on_leaving
        self._words, self._again = ([*launchers.command(num_ranks), *given] for given in (words, again))
        self._num_ranks, self._num_restarts, self._job = num_ranks, num_restarts, job
        self._process: subprocess.Popen[bytes] | None = None
        self._told = 0

    def run(self) -> int:
        """The exit status of the last start."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._on_signal)
        if self._is_requeued:
            signal.signal(signal.SIGUSR1, self._on_signal)
        began_s = time.time()
        status = self._run()
        if status:
            self._say_last(first_lost(self._job, began_s))
            self._on_leaving()
        is_over = status != 0 and time.monotonic() >= self._ends_s
        if not is_over and not (self._is_requeued and self._told in Departure.SIGNALS and status != 0):
            return status
        if self._is_requeued:
            requeue(os.environ)
        return STATUS

    def _run(self) -> int:
        in_vain = status = 0
        for restart in range(self._num_restarts + 1):
            if self._is_told():  # between two starts
                return 128 + self._told
            before, began_s = self._cuts(), time.time()
            status = self._start(self._again if restart else self._words)
            if status == 0:
                return 0
            if self._is_told():
                return 128 + self._told
            if time.monotonic() >= self._ends_s:
                return status
            in_vain = 0 if self._cuts() != before else in_vain + 1
            if in_vain >= MOST_IN_VAIN:
                say(
                    f"the ranks have ended with status {status} {MOST_IN_VAIN} times without a new cut, so they are not started again"
                )
                return status
            if restart < self._num_restarts:
                lost = first_lost(self._job, began_s)
                ended = f"the ranks have ended with status {status}{f', as {lost}' if lost else ''}"
                say(f"{ended}; starting them again ({restart + 1} of {self._num_restarts}): the job {self._next()}")
        return status

    def _start(self, words: Sequence[str]) -> int:
        # What the launcher sets itself where nobody has, with ten lines of warning about it.
        variables = {"OMP_NUM_THREADS": "1", **os.environ} if self._num_ranks > 1 else None
        self._process = subprocess.Popen(words, env=variables, preexec_fn=end_with_parent)
        if self._is_told():  # meanwhile
            self._process.send_signal(signal.SIGTERM if self._told == signal.SIGUSR1 else self._told)
        while True:
            try:
                status = self._process.wait(timeout=1.0)
                return 128 - status if status < 0 else status
            except subprocess.TimeoutExpired:
                continue

    def _say_last(self, lost: str) -> None:
        """What the same command will do: the launcher has printed a traceback of its own over what the ranks said of it.

        `lost`: what has ended the ranks. Where it is not known, and no signal has, one of them was refused, and would be again.
        """
        if not (self._told or lost):
            return
        what = (
            f"the ranks have ended after {signal.Signals(self._told).name}"
            if self._told
            else f"{lost}, so all have ended"
        )
        say(f"{what}; the same command {self._next()}")

    def _next(self) -> str:
        """What the next start does."""
        newest = next(iter(Manifests(self._job).read(lambda _: None)), None)
        if newest is None:
            return "starts from the beginning, as there is no checkpoint yet"
        return f"resumes from {newest.name} (epoch {newest.epoch}, batch {newest.batch})"

    def _is_told(self) -> bool:
        """True if a signal has asked this process to end."""
        return bool(self._told)

    def _on_signal(self, number: int, _frame: types.FrameType | None) -> None:
        """Pass it on: the launcher gives it to the ranks, which checkpoint."""
        self._told = self._told or number
        if self._process is not None and self._process.poll() is None:
            # The launcher knows nothing of SIGUSR1; on SIGTERM the ranks checkpoint.
            self._process.send_signal(signal.SIGTERM if number == signal.SIGUSR1 else number)

    def _cuts(self) -> set[tuple[str, int]]:
        folder = self._job / CUTS
        return {(entry.name, entry.stat().st_mtime_ns) for entry in folder.iterdir()} if folder.is_dir() else set()

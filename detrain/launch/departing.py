"""Leaving a training that is to go on later: its time limit is reached, or a scheduler wants the machine back and starts it again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Callable, Mapping
from typing import NoReturn

from detrain.eventlog import note
from detrain.messages import say, warn
from detrain.outputs.following import OutputFiles
from detrain.session.leaving import leave

#: "Try again later" (EX_TEMPFAIL of <sysexits.h>): the status of a run that is to be started again.
STATUS = 75
#: SLURM's controller may be busy. Seconds.
_LONGEST_REQUEUE_S = 60.0


def job_of(variables: Mapping[str, str]) -> str:
    """The job of SLURM's that this process is part of, as `scontrol` names it; "" where it is part of none."""
    array, task = variables.get("SLURM_ARRAY_JOB_ID"), variables.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array and task else variables.get("SLURM_JOB_ID", "")


def requeue(variables: Mapping[str, str]) -> None:
    """Have SLURM start this job again; elsewhere the exit status says so to whoever has started this process."""
    job = job_of(variables)
    if not job:
        return
    # The job is about to be ended by the controller: what it is asked for has to be answered before.
    command = ["scontrol", "requeue", job]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_LONGEST_REQUEUE_S, check=False)
        trouble = "" if done.returncode == 0 else (done.stderr or done.stdout).strip() or f"status {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        trouble = str(error)
    if trouble:
        warn("not-requeued", f"`{' '.join(command)}` has failed: {trouble}. Start the same command again by hand")
    else:
        say(f"job {job} is requeued; it resumes when it starts again")


class Departure:
    """How this attempt leaves its training, if it does."""

    #: With `--requeue`, those that a scheduler sends before it takes the machine away.
    SIGNALS = (signal.SIGTERM, signal.SIGUSR1)

    def __init__(
        self,
        files: OutputFiles,
        *,
        is_requeued: bool,
        is_first: bool,
        on_leaving: Callable[[], None] = lambda: None,
    ) -> None:
        """`is_requeued`: by `--requeue`. `is_first`: this process asks for it, being alone or rank 0.

        `on_leaving` is called before that: a job that is requeued may be ended at once.
        """
        self._files, self.is_requeued, self._is_first, self._on_leaving = files, is_requeued, is_first, on_leaving

    def leave(self) -> NoReturn:
        """End the process, behind a checkpoint or where there is nothing to checkpoint."""
        self._on_leaving()
        if self.is_requeued and self._is_first:
            requeue(os.environ)
        note("ended", status=STATUS, is_finished=False)
        leave(self._files, STATUS)

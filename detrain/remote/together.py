"""Ranks that begin together: rank 0 has the run fetched, if the store has more of it, before another looks at its directory.

    begun.json     beside the state of the publication (see `detrain.remote.side`): for which start of the job that has been done

Only for ranks on one host. What is the same for the ranks of one start, and for no other, is their launcher's process and how often it has
started them. A shell that starts ranks by hand is the same for several starts; so rank 0 removes the file when all ranks have come.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

from detrain.adapters.launchers import RESTARTS
from detrain.errors import UsageError
from detrain.job.place import Place
from detrain.remote.side import Side, started_at

_NAME = "begun.json"
#: How long a rank waits for rank 0, which may be fetching a large run. Seconds.
_LONGEST_WAIT_S = 6 * 3600.0
_POLL_S = 0.05


def check(place: Place) -> None:
    """Raises `UsageError` for ranks on several hosts."""
    if not place.is_one_host:
        raise UsageError(
            f"--remote is for ranks on one host: these {place.size} are on several, or {place.launcher} does not say how many are on "
            "this one"
        )


def note(job: Path, place: Place) -> None:
    """Rank 0 is ready."""
    Side(job).write(_NAME, {"start": _start(place)})


def forget(job: Path) -> None:
    """All ranks have come."""
    (Side(job).path / _NAME).unlink(missing_ok=True)


def wait(job: Path, place: Place) -> None:
    """Another rank waits for rank 0. Raises `UsageError` where it does not come."""
    launcher, end_s = os.getppid(), time.monotonic() + _LONGEST_WAIT_S
    while Side(job).read(_NAME) != {"start": _start(place)}:
        if os.getppid() != launcher or time.monotonic() > end_s:
            raise UsageError(f"rank {place.rank}: rank 0 has not begun")
        time.sleep(_POLL_S)


def _start(place: Place) -> str:
    launcher = os.getppid()
    return f"{place.token} {launcher} {started_at(launcher)} {os.environ.get(RESTARTS, '0')}"

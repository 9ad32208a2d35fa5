"""Processes that do a part of a run again: one, or the ranks of a job together."""

from __future__ import annotations

import json
import math
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

#: Once a rank has seen a difference, or failed, the others get so long to come to the same. Seconds.
_GRACE_S = 5.0
#: How long a rank may take to come to where another has stopped. Seconds.
_LONGEST_BEHIND_S = 600.0
_TURN_S = 0.02


def run(programs: Sequence[Callable[[], NoReturn]], reports: Sequence[Path]) -> list[int]:
    """Start each program in a process of its own and wait; returns their exit statuses.

    A process alone ends by itself. A rank leaves its report and goes on, or waits, since those behind it may still need it: once all
    reports are there, or one rank has failed and the others have had time to follow, all are killed. One whose report is there has
    ended well then.
    """
    running = {_fork(program): number for number, program in enumerate(programs)}
    statuses = [0] * len(programs)
    if len(programs) == 1:
        (process,) = running
        return [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])]
    until_s, behind_s = math.inf, 0.0
    while running and time.monotonic() < until_s:
        for process, number in list(running.items()):
            has_ended, status = os.waitpid(process, os.WNOHANG)
            if has_ended:
                statuses[number] = os.waitstatus_to_exitcode(status)
                del running[process]
        found = [_read(path) for path in reports]
        if all(found[number].get("is_stopped") for number in running.values()):
            break
        if until_s == math.inf and (any(statuses) or any(one.get("difference") for one in found)):
            until_s = time.monotonic() + _GRACE_S
        elif until_s == math.inf and any(one.get("is_stopped") for one in found):
            behind_s = behind_s or time.monotonic() + _LONGEST_BEHIND_S
            until_s = behind_s if time.monotonic() > behind_s else math.inf
        time.sleep(_TURN_S)
    for process, number in running.items():
        is_done = bool(_read(reports[number]).get("is_stopped"))
        os.kill(process, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        statuses[number] = 0 if is_done else status
    return statuses


def _fork(program: Callable[[], NoReturn]) -> int:
    return os.fork() or program()


def _read(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    return found

"""Names that libraries give to semaphores, temporary files and logs: from random numbers, or the number of the process."""

from __future__ import annotations

import itertools
import multiprocessing.synchronize
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

#: Code of libraries that puts the process id into the name of a file, and does nothing else with it: events for TensorBoard.
_NAME_FILES = ("/tensorboard/summary/writer/event_file_writer.py", "/tensorboardX/event_file_writer.py")


def names_files_by_process(filename: str) -> bool:
    """True for code that asks for the process id to name a file: later attempts write the file that the first one wrote."""
    return filename.endswith(_NAME_FILES)


class SemaphoreNames(Iterator[str]):
    """Names of semaphores that no other process has had since the machine started.

    The random ones of the standard library are the same in every attempt of a run. A process that was killed together with its resource
    tracker leaves its semaphores behind, and after a hundred that are left no lock finds a name any more.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count()

    def __next__(self) -> str:
        process = os.readlink("/proc/self")  # `os.getpid` gives the script the number of the first attempt
        _, _, fields = Path(f"/proc/{process}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")
        started = fields.split()[19]  # in clock ticks since the machine started: starttime of proc(5)
        return f"{process}-{started}-{next(self._numbers)}"


def seed_now() -> None:
    """Take the generators of such names out of the script's own draws.

    They seed themselves at their first use in a process: in the first epoch of a run, and again in whatever epoch it is resumed. What
    that takes from the stream of entropy must not lie among the script's own draws.
    """
    semaphores: Any = multiprocessing.synchronize.SemLock
    files: Any = tempfile
    semaphores._rand = SemaphoreNames()
    tempfile.gettempdir()  # tries the folder out, under a name from a generator of its own
    assert files._get_candidate_names().rng is not None  # reading the attribute seeds it

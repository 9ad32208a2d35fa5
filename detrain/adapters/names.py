"""Random names that the standard library gives to semaphores and temporary files."""

from __future__ import annotations

import multiprocessing.synchronize
import tempfile
from typing import Any


def seed_now() -> None:
    """Seed the generators of such names now.

    They seed themselves at their first use in a process: in the first epoch of a run, and again in whatever epoch it is resumed. What
    that takes from the stream of entropy must not lie among the script's own draws.
    """
    semaphores: Any = multiprocessing.synchronize.SemLock
    files: Any = tempfile
    tempfile.gettempdir()  # tries the folder out, under a name from a generator of its own
    for generator in (semaphores._rand, files._get_candidate_names()):
        assert generator.rng is not None  # reading the attribute seeds it

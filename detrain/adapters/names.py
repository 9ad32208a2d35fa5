"""Names that the standard library makes up: of semaphores and of temporary files."""

from __future__ import annotations

import multiprocessing.synchronize
import tempfile
from typing import Any


def settle() -> None:
    """Let the generators of such names seed themselves now.

    They do it when first asked, once in a process: in the first epoch of a run, and again in whatever epoch it is resumed. What that
    takes from the stream of entropy must not lie among what the script draws.
    """
    semaphores: Any = multiprocessing.synchronize.SemLock
    files: Any = tempfile
    tempfile.gettempdir()  # tries the folder out, with a name from a generator of its own
    for generator in (semaphores._rand, files._get_candidate_names()):
        assert generator.rng is not None  # asking makes it

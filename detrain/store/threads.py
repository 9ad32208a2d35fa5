"""Work on much memory by several threads, for what lets go of the interpreter meanwhile: copies and digests."""

from __future__ import annotations

import _thread
import os
from collections.abc import Callable, Iterable
from typing import Any

_MOST_THREADS = 4


def share_out(pieces: Iterable[Any], work: Callable[[Any], object]) -> None:
    """Do this to each piece, by as many threads as there are cores, but few. Raises what the first that failed has raised.

    Not by `threading`, which would count the threads and so give the script's next one another name.
    """
    left = iter(list(pieces))
    errors: list[BaseException] = []

    def take(done: Any) -> None:
        try:
            for piece in left:  # a list's iterator serves one thread at a time
                work(piece)
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)
        finally:
            done.release()

    locks = [_thread.allocate_lock() for _ in range(min(_MOST_THREADS, len(os.sched_getaffinity(0))))]
    for lock in locks:
        lock.acquire()
    for lock in locks[1:]:
        _thread.start_new_thread(take, (lock,))
    take(locks[0])
    for lock in locks:
        lock.acquire()
    if errors:
        raise errors[0]

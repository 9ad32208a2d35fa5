"""Work on much memory by several threads, for what lets go of the interpreter meanwhile; and work by one that has to let go of it."""

from __future__ import annotations

import _thread
import os
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

_Item = TypeVar("_Item")

_MOST_THREADS = 4
#: So many items are worked on between two breaks. A break takes so long at least that another thread has the interpreter meanwhile, and
#: so many times as long as the work before: the training beside it loses about a tenth. What takes long holds no lock: seconds.
_ITEMS, _BREAK_S, _REST, _LONGEST_BREAK_S = 128, 0.0002, 10.0, 0.01
#: How many threads wait for work in the background.
_num_awaited = 0


def share_out(pieces: Iterable[_Item], work: Callable[[_Item], object]) -> None:
    """Do this to each piece, by as many threads as there are cores, but few. Raises what the first that failed has raised.

    Not by `threading`, which would count the threads and so give the script's next one another name.
    """
    left = iter(list(pieces))
    errors: list[BaseException] = []

    def take(done: _thread.LockType) -> None:
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


@contextmanager
def awaited() -> Iterator[None]:
    """The training waits for work in the background: inside the block, that takes no breaks."""
    global _num_awaited
    _num_awaited += 1
    try:
        yield
    finally:
        _num_awaited -= 1


def with_breaks(items: Iterable[_Item], every: int = _ITEMS) -> Iterator[_Item]:
    """The items, for work on each that holds the interpreter's lock: let go of it now and then, for a multiple of the time it was held.

    The interpreter takes it from a thread after 5 ms only, and a step of the training that lets go of it many times
    would wait as long each time.
    """
    began_s = time.monotonic()
    for number, item in enumerate(items):
        if number and number % every == 0 and not _num_awaited:
            time.sleep(min(max(_BREAK_S, (time.monotonic() - began_s) * _REST), _LONGEST_BREAK_S))
            began_s = time.monotonic()
        yield item

"""Pausing Python's cyclic garbage collector while detrain makes many objects."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

#: So many young objects take a collection longer than a millisecond.
_MUCH = 10_000


@contextlib.contextmanager
def collector_paused(*, promotes: bool = False) -> Iterator[None]:
    """Run no cyclic garbage collection inside the block.

    A collection over all objects of a framework takes longer than the walk that would trigger it, and would free the script's garbage
    at another moment than without detrain.

    `promotes`: what the block has made is old from its end on, if it is much. Else the next collection, of the young, is due at once, and
    looks at each of a hundred thousand objects. Only for what is done once: what was young before is collected at the begin.
    """
    if not gc.isenabled():
        yield
        return
    if promotes:
        gc.collect(1)
    gc.disable()
    try:
        yield
    finally:
        # What the script has frozen stays so. Python counts that one by one: 20 ms for what torch brings.
        if promotes and gc.get_count()[0] > _MUCH and not gc.get_freeze_count():
            gc.freeze()
            gc.unfreeze()
        gc.enable()

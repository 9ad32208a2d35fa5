"""Pausing Python's cyclic garbage collector while detrain makes many objects."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Run no cyclic garbage collection inside the block.

    A collection over all objects of a framework takes longer than the walk that would trigger it, and would free the script's garbage
    at another moment than without detrain.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

"""Python's collector of cycles, while detrain makes objects by the ten thousand."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def collector_paused() -> Iterator[None]:
    """Collect nothing meanwhile.

    What is made here is no garbage, and to look for some in all that a framework has made takes longer than a walk; nor does the
    script's own garbage go at another moment for having been looked at.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

"""A progress bar for what takes longer than a second, when standard error is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator

#: Shorter work shows nothing. Seconds.
PATIENCE_S = 1.0


def bar(numbers: range, what: str) -> Iterator[int]:
    """Yield the numbers; from the second second on with a bar on standard error."""
    began_s = time.monotonic()
    iterator = iter(numbers)
    for number in iterator:
        yield number
        if time.monotonic() - began_s > PATIENCE_S:
            break
    if sys.__stderr__ is None or not sys.__stderr__.isatty():
        yield from iterator
        return
    from rich.console import Console
    from rich.progress import track

    rest = list(iterator)
    yield from track(
        rest,
        f"detrain: {what}",
        total=len(numbers),
        completed=len(numbers) - len(rest),
        console=Console(file=sys.__stderr__),
        transient=True,
    )

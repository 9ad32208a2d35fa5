"""The script's signal handlers while detrain works for itself: they are called behind it.

What a handler raises is for the script. In the middle of a save a `TimeoutError` would be taken for a disk that fails, and whatever it
is for an object that cannot be looked at.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps; without enums, of which a look at every handler would make sixty
import contextlib
import signal
import sys
import threading
import types
from collections.abc import Iterator

_NUMBERS = sorted(map(int, signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}))


@contextlib.contextmanager
def handlers_deferred() -> Iterator[None]:
    """Call no handler of Python's meanwhile, but for Ctrl-C's own, which nothing of detrain's holds up."""
    # `current_thread` would make an object for a thread of detrain's, which the script could find.
    if threading.get_ident() != threading.main_thread().ident:
        yield
        return
    arrived: list[int] = []

    def defer(number: int, _frame: types.FrameType | None) -> None:
        arrived.append(number)

    deferred = {
        number: handler for number, handler in zip(_NUMBERS, map(_signal.getsignal, _NUMBERS), strict=True)
        # Of most it is the number of the default action.
        if type(handler) is not int and callable(handler) and handler is not signal.default_int_handler
    }  # fmt: skip
    for number in deferred:
        _signal.signal(number, defer)
    try:
        yield
    finally:
        for number, handler in deferred.items():
            _signal.signal(number, handler)
        for number in arrived:
            deferred[number](number, sys._getframe())

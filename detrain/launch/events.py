"""Python's audit events: one hook for everybody who hears some, since it costs at every event and can never be taken out."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

from detrain.world import preload


def hear(handlers: Mapping[str, Callable[..., None]]) -> None:
    """Call a handler with the arguments of each event of its name, before Python does what the event announces."""
    heard = dict(handlers)

    def tell(event: str, args: tuple[Any, ...]) -> None:
        heard[event](*args)

    # A plain function, quickly done: each `id()` and each hook at a `while` raises an event. Of a bound method Python would look
    # for an attribute that it does not have, which takes three times as long.
    def see(event: str, args: tuple[Any, ...]) -> None:
        if event in heard:
            heard[event](*args)

    if not preload.hear_events(tell, list(heard)):
        sys.addaudithook(see)

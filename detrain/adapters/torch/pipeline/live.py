"""Pipelines of this process that have something under way between steps: a checkpoint has them take it in."""

from __future__ import annotations

import weakref
from typing import Protocol


class TakesIn(Protocol):
    """A pipeline over ranks, under an asynchronous schedule."""

    def take_in(self) -> None:
        """Receive what other ranks have sent by now; all of them are at the same step."""


#: In the order in which they began, which is the same on all ranks.
_LIVE: weakref.WeakKeyDictionary[TakesIn, None] = weakref.WeakKeyDictionary()


def add(pipeline: TakesIn) -> None:
    """It has begun."""
    _LIVE[pipeline] = None


def take_in() -> None:
    """All ranks of a job are about to be captured at one place."""
    for pipeline in list(_LIVE):
        pipeline.take_in()

"""Pipelines over ranks that this process is part of: what a checkpoint asks of them."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from detrain.pipeline.measured import WorkerSteps


class OverRanks(Protocol):
    """A pipeline over ranks."""

    def take_in(self) -> None:
        """Receive what other ranks have sent by now; all of them are at the same step."""

    def measured(self) -> WorkerSteps | None:
        """What this rank's worker did lately; None before the first step."""


#: In the order in which they began, which is the same on all ranks.
_LIVE: weakref.WeakKeyDictionary[OverRanks, None] = weakref.WeakKeyDictionary()


def add(pipeline: OverRanks) -> None:
    """It has begun."""
    _LIVE[pipeline] = None


def take_in() -> None:
    """All ranks of a job are about to be captured at one place."""
    for pipeline in list(_LIVE):
        pipeline.take_in()


def measured() -> WorkerSteps | None:
    """Of the first pipeline that has begun."""
    return next(filter(None, (pipeline.measured() for pipeline in list(_LIVE))), None)

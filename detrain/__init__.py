"""detrain: training runs that can be killed at any moment and come out bit for bit the same.

Scripts are run by the command `detrain run`. From Python, what runs have left can be looked at: `load` a checkpoint, `diff` two of them
or two runs, `verify` a run, and its losses are a data frame: `history`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detrain.package import __version__

if TYPE_CHECKING:
    from detrain.api import Diff, Difference, Proof, Segment, Snapshot, diff, history, load, verify

_OF_API = frozenset({"load", "diff", "history", "verify", "Snapshot", "Diff", "Difference", "Proof", "Segment"})
__all__ = ["__version__", "load", "diff", "history", "verify", "Snapshot", "Diff", "Difference", "Proof", "Segment"]


def __getattr__(name: str) -> object:
    """Load what is exported at its first use: each attempt imports this package before the script, which must not pay for it."""
    if name not in _OF_API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from detrain import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

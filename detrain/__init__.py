"""detrain: training runs that can be killed at any moment and come out bit for bit the same.

Scripts are run by the command `detrain run`. From Python, `run` does the same for a function, and in a notebook `%load_ext detrain` brings
`%%detrain`. What runs have left can be looked at: `load` a checkpoint, `diff` two of them or two runs, `verify` a run, and its losses are a
data frame: `history`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detrain.package import __version__

if TYPE_CHECKING:
    from detrain.api import Diff, Difference, Proof, Segment, Snapshot, diff, history, load, verify
    from detrain.notebook.child import NotEnded
    from detrain.notebook.function import run
    from detrain.notebook.magic import load_ipython_extension

_OF_API = ("load", "diff", "history", "verify", "Snapshot", "Diff", "Difference", "Proof", "Segment")
_MODULES = {
    **dict.fromkeys(_OF_API, "detrain.api"),
    "run": "detrain.notebook.function",
    "NotEnded": "detrain.notebook.child",
    "load_ipython_extension": "detrain.notebook.magic",
}
__all__ = [
    "__version__", "run", "load", "diff", "history", "verify", "Snapshot", "Diff", "Difference", "Proof", "Segment",
    "NotEnded", "load_ipython_extension",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """Load what is exported at its first use: each attempt imports this package before the script, which must not pay for it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

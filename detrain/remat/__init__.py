"""Rematerialization within a memory budget: graphs, schedules, planners, online policies. Data in, data out.

The one exception are the names below, which PyTorch's own loops use: `budget` and `Budgeted` keep a training to so much memory, and
`record` takes a module's operator graph. They are loaded at their first use, as nothing else here needs a framework.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detrain.adapters.torch.remat.api import Budgeted, budget, record

_OF_API = frozenset({"Budgeted", "budget", "record"})
__all__ = ["Budgeted", "budget", "record"]


def __getattr__(name: str) -> object:
    """See the module."""
    if name not in _OF_API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from detrain.adapters.torch.remat import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

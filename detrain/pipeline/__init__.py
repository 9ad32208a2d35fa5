"""Pipelines: a profiled model over the devices of a topology, planned and simulated. Data in, data out; no framework.

The names below are DAPPLE's Python interface, in our words. They are loaded at their first use, as planners need compiled code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detrain.pipeline.api import (
        Conductor,
        Orchestrated,
        conductor_from_torch_graph_and_seps,
        devices_from_seps,
        model_from_torch_graph,
    )

_OF_API = frozenset(
    {"Conductor", "Orchestrated", "conductor_from_torch_graph_and_seps", "devices_from_seps", "model_from_torch_graph"}
)
__all__ = [
    "Conductor", "Orchestrated", "conductor_from_torch_graph_and_seps", "devices_from_seps", "model_from_torch_graph",
]  # fmt: skip


def __getattr__(name: str) -> object:
    """See the module."""
    if name not in _OF_API:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from detrain.pipeline import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

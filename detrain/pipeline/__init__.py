"""Pipelines: a profiled model over the devices of a topology, planned and simulated. Data in, data out; no framework.

The exceptions are `Pipeline` and `profile`, which PyTorch's own loops use. The other names below are DAPPLE's Python interface, in our
words. All are loaded at their first use, as planners need compiled code and the exceptions a framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detrain.adapters.torch.pipeline.api import Pipeline
    from detrain.adapters.torch.pipeline.profiling import profile
    from detrain.pipeline.api import (
        Conductor,
        Orchestrated,
        conductor_from_torch_graph_and_seps,
        devices_from_seps,
        model_from_torch_graph,
    )

__all__ = [
    "Conductor", "Orchestrated", "Pipeline", "conductor_from_torch_graph_and_seps", "devices_from_seps", "model_from_torch_graph",
    "profile",
]  # fmt: skip
#: By name, the module that has it; those that are not here are of `detrain.pipeline.api`.
_ELSEWHERE = {
    "Pipeline": "detrain.adapters.torch.pipeline.api",
    "profile": "detrain.adapters.torch.pipeline.profiling",
}


def __getattr__(name: str) -> object:
    """See the module."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_ELSEWHERE.get(name, "detrain.pipeline.api")), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])

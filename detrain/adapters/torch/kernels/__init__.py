"""Deterministic formulations of the operators for which torch has no deterministic kernel.

`torch.use_deterministic_algorithms` makes them raise or warn. With these the script runs, and gives the same bits every time.
docs/kernels.md has the table: when each is non-deterministic, what is done instead, at what cost, and where there is nothing.
"""

from __future__ import annotations

import torch

from detrain.adapters.torch.kernels import indexing, pooling
from detrain.adapters.torch.kernels.dispatch import Replacement, install

_EVERYWHERE = frozenset({"cpu", "cuda"})

#: Operators that raise on CPU too.
ON_CPU = [
    Replacement("max_unpool2d", pooling.unpooled, outs={"out": ("out",)}, devices=_EVERYWHERE),
    Replacement("max_unpool3d", pooling.unpooled, outs={"out": ("out",)}, devices=_EVERYWHERE),
    Replacement("put_", indexing.put, devices=_EVERYWHERE),
]

_installed: list[torch.library.Library] = []


def replace() -> None:
    """Install the formulations for as long as the process lives: those for CPU, and those for CUDA where this torch is built for it."""
    if not _installed:
        has_cuda = torch.backends.cuda.is_built() or torch.version.hip is not None
        replacements = ON_CPU
        if has_cuda:
            from detrain.adapters.torch.kernels import cuda_only  # a start on a torch without it takes longer with them

            replacements = [*ON_CPU, *cuda_only.ON_CUDA, *cuda_only.STRICT, *cuda_only.LACKING]
        _installed.extend(install(replacements))

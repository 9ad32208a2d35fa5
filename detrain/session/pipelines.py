"""Over what a script's model is trained, as it is said on the command line."""

from __future__ import annotations

from pathlib import Path

from detrain.adapters.protocol import PipelineOrder


def order_of(path: str, num_micro_batches: int, *, is_emulated: bool) -> PipelineOrder:
    """`path`: of a plan. Raises `GraphError` for what is none, and `OSError`."""
    from detrain.pipeline import planfile  # not for those without one

    return PipelineOrder(planfile.read(Path(path)).plan, num_micro_batches, is_emulated)

"""How much memory the training may have, as it is written on the command line."""

from __future__ import annotations

from detrain.adapters.protocol import Limit, MemoryUse
from detrain.plans.units import size_text
from detrain.remat.amounts import ONLINE, amount_of


def limit_of(text: str, *, is_verified: bool = False, planner: str = ONLINE) -> Limit:
    """`6GiB`, `500MB`, `1000000`; `0.5`, a share of what the first iteration takes.

    `planner`: see `training_planner`. Raises `UsageError` and `MissingExtra`.
    """
    num_bytes, share = amount_of(text, "--memory-budget")
    from detrain.remat.planners import registry  # with all that plans, for which few starts have a use

    return Limit(num_bytes, share, is_verified=is_verified, planner=registry.training_planner(planner))


def told(use: MemoryUse) -> str:
    """One line for a person."""
    budget = f" of {size_text(use.budget_bytes)}" if use.budget_bytes else ""
    parts = [
        f"at most {size_text(use.peak_bytes)}{budget}",
        f"{use.num_again:,} operators were run again, {use.again_s:.1f} s",
    ]
    if use.num_planned:
        parts.append(f"{use.num_planned:,} steps followed a plan ({use.planner})")
        if use.num_left:
            parts.append(f"{use.num_left:,} left it, the last as {use.why}")
    elif use.why:
        parts.append(f"no step followed a plan: {use.why}")
    return f"memory: {'; '.join(parts)}"

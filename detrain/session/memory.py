"""How much memory the training may have, as it is written on the command line."""

from __future__ import annotations

from detrain.adapters.protocol import Limit, MemoryUse
from detrain.errors import UsageError
from detrain.plans.units import parse_bytes, size_text

#: Nobody means less: a number alone that is smaller was meant as something else. Bytes.
_LEAST_BYTES = 1e6


def limit_of(text: str, *, is_verified: bool = False) -> Limit:
    """`6GiB`, `500MB`, `1000000`; `0.5`, a share of what the first iteration takes. Raises `UsageError`."""
    try:
        amount, unit = parse_bytes(text)
    except ValueError:
        amount, unit = 0.0, ""
    if not unit and 0 < amount <= 1 and "." in text:
        return Limit(share=amount, is_verified=is_verified)
    if amount < _LEAST_BYTES:
        raise UsageError(
            f"--memory-budget {text}: expected bytes (6GiB, 500MB, 1000000), or a share of what the first iteration takes (0.5)"
        )
    return Limit(int(amount), is_verified=is_verified)


def told(use: MemoryUse) -> str:
    """One line for a person."""
    budget = f" of {size_text(use.budget_bytes)}" if use.budget_bytes else ""
    return f"memory: at most {size_text(use.peak_bytes)}{budget}; {use.num_again:,} operators were run again, {use.again_s:.1f} s"

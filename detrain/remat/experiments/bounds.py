"""Budgets as functions of a network's length, and what theory says about a uniform linear network within them."""

from __future__ import annotations

import math
import re

from detrain.errors import GraphError

#: Those under which Kirisame et al. (ICLR 2021, appendix A) compare policies.
RULES = (
    "n", "n/2", "8*sqrt(n)", "6*sqrt(n)", "4*sqrt(n)", "2*sqrt(n)", "sqrt(n)", "3*log2(n)", "log2(n)",
)  # fmt: skip
_RULE = re.compile(r"(?:(\d+(?:\.\d+)?)\s*\*\s*)?(sqrt\(n\)|log2\(n\)|n)(?:\s*/\s*(\d+(?:\.\d+)?))?", re.ASCII)
_OF_LENGTH = {"n": float, "sqrt(n)": math.sqrt, "log2(n)": math.log2}


def check_rule(rule: str) -> None:
    """Raises `GraphError` for what `budget_within` does not understand."""
    match = _RULE.fullmatch(rule.strip())
    if match is None or not float(match[1] or 1) or not float(match[3] or 1):
        raise GraphError(f"a budget of a linear network is n, sqrt(n) or log2(n), as in 2*sqrt(n) or n/2, not {rule}")


def budget_within(rule: str, length: int) -> int:
    """A rule for a network of so many layers, in tensors, rounded up. Raises `GraphError`."""
    check_rule(rule)
    factor, function, divisor = _RULE.fullmatch(rule.strip()).groups()  # type: ignore[union-attr] # it has just matched
    return math.ceil(float(factor or 1) * _OF_LENGTH[function](length) / float(divisor or 1))


def least_again(length: int, budget: int) -> int | None:
    """No schedule does fewer layers again within a budget of so many tensors; None where none exists.

    Griewank, "Achieving logarithmic growth of temporal and spatial complexity in reverse automatic differentiation" (1992), whose
    schedule treeverse is: a chain of n steps with c checkpoints takes r n - binomial(c + r, r - 1) steps forward, where r is the least
    number with binomial(c + r, r) >= n. Here one tensor of the budget is always a gradient's, and the start of the chain costs none;
    what a schedule needs beside its checkpoints is not counted, so that the bound is a little low.
    """
    num_steps, num_checkpoints = length - 1, budget - 1
    if num_steps < 1 or num_checkpoints < 1:
        return 0 if num_steps < 1 else None
    repeats = next(count for count in range(num_steps + 1) if math.comb(num_checkpoints + count, count) >= num_steps)
    forward = repeats * num_steps - (math.comb(num_checkpoints + repeats, repeats - 1) if repeats else 0)
    return max(forward - (num_steps - 1), 0)


def chen_again(length: int, budget: int) -> int | None:
    """What the segments of Chen et al., "Training Deep Nets with Sublinear Memory Cost" (2016), do again; None where they do not fit.

    The ends of about √n segments are kept, and each segment is done once more as a whole.
    """
    num_kept = math.isqrt(length)
    return length - num_kept if budget >= num_kept + math.ceil(length / num_kept) else None

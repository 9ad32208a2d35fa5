"""The names of the planners, by themselves: the command line lists them, and would wait for all that plans."""

from __future__ import annotations

#: As `detrain.remat.planners.registry` has them.
NAMES = (
    "keep-all", "chen-sqrt", "chen-greedy", "griewank", "ilp", "lp-rounding", "rotor", "rockmate", "hiremate", "dtr", "auto",
)  # fmt: skip

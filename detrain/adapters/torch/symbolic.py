"""What PyTorch asks SymPy draws random numbers, of which a script would see the traces."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from detrain.world.preload import entropy_unmoved


@contextmanager
def draws_unmoved() -> Iterator[None]:
    """Meta kernels compare sizes by way of SymPy, which draws entropy where it is loaded, and then from generators of its own.

    Some number what they make by Python's generator. Without a budget nobody would have asked them.
    """
    module = sys.modules.get("sympy.core.random")
    generators = [one for one in vars(module).values() if isinstance(one, random.Random)] if module is not None else []
    states = [one.getstate() for one in generators]
    drawn = random.getstate()
    try:
        with entropy_unmoved():
            yield
    finally:
        random.setstate(drawn)
        for one, state in zip(generators, states, strict=True):
            one.setstate(state)

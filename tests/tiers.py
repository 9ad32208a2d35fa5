"""Which tests `make test` runs, and which only `make test-all` does (the marker `full`)."""

from collections.abc import Iterable
from typing import Any

import pytest


def full_but(quick: Iterable[str], names: Iterable[str]) -> list[Any]:
    """Each name as a parameter; those that are not `quick` are left to `make test-all`."""
    told, all_names = set(quick), sorted(names, key=str) if isinstance(names, set) else list(names)
    assert told <= set(all_names), f"no such names: {told - set(all_names)}"
    return [pytest.param(name, marks=() if name in told else pytest.mark.full) for name in all_names]

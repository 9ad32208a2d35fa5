"""Which tests `make test` runs, and which only `make test-all` does (the marker `full`)."""

from collections.abc import Iterable
from typing import Any

import pytest


def full_but(quick: Iterable[str], names: Iterable[str]) -> list[Any]:
    """Each name as a parameter; those that are not `quick` are left to `make test-all`."""
    quick_names, all_names = set(quick), list(names)
    assert quick_names <= set(all_names), f"no such names: {quick_names - set(all_names)}"
    return [pytest.param(name, marks=() if name in quick_names else pytest.mark.full) for name in all_names]

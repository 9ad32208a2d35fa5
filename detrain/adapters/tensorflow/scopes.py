"""Says whether an operation is made in a function of a data set (`map`, `filter`): such belong to the data set, and run on the CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import wraps
from typing import Any

from tensorflow.python.data.ops import structured_function

_depth = [0]


def is_in_data_function() -> bool:
    """True while a function that is given to a data set is traced."""
    return bool(_depth[0])


def patch() -> None:
    """Patch the tracing of such functions."""
    plain = structured_function.StructuredFunctionWrapper.__init__

    @wraps(plain)
    def init(*args: Any, **kwargs: Any) -> None:
        with _inside():
            plain(*args, **kwargs)

    structured_function.StructuredFunctionWrapper.__init__ = init


@contextlib.contextmanager
def _inside() -> Iterator[None]:
    _depth[0] += 1
    try:
        yield
    finally:
        _depth[0] -= 1

"""The numbers in variables' names, by which optimizers know them.

TensorFlow takes them from the counter that numbers every tensor as well, so that they would depend on how many checkpoints were taken
before. Here variables are counted alone, and the count is a part of the run's state.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from tensorflow.python.ops import resource_variable_ops


class Count:
    """The last number that was given."""

    def __init__(self) -> None:
        self.last = 0

    def name(self, unique: str, handle_name: str) -> str:
        """The name of a new variable; TensorFlow's own where it has none of its numbers in it."""
        stem, _, number = unique.rpartition("_")
        if stem != handle_name or not number.isdigit():
            return unique
        self.last += 1
        return f"{stem}_{self.last}"

    def see(self, unique: str) -> None:
        """A variable has this name: no later one is given it."""
        _, _, number = unique.rpartition("_")
        if number.isdigit():
            self.last = max(self.last, int(number))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """A variable that is none of the script's is made within."""
        before = self.last
        try:
            yield
        finally:
            self.last = before


count = Count()


def patch() -> None:
    """Patch the making of variables."""
    plain = resource_variable_ops.BaseResourceVariable.__init__

    @wraps(plain)
    def init(variable: Any, *args: Any, **kwargs: Any) -> None:
        handle, unique = kwargs.get("handle"), kwargs.get("unique_id")
        # The handle keeps the name for another variable that is made of it.
        if unique and handle is not None and not hasattr(handle, "_detrain_named"):
            kwargs["unique_id"] = handle._unique_id = count.name(unique, kwargs.get("handle_name") or "")
            handle._detrain_named = True
        plain(variable, *args, **kwargs)

    resource_variable_ops.BaseResourceVariable.__init__ = init

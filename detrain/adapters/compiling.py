"""Compilers of Python functions meet the hooks in the script's loops: what stands for a hook in the code that they make."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

Hook = Callable[..., Any]


def _plain(line: int, *iterable: Any, **told: bool) -> Any:  # noqa: ARG001 - as hooks are called
    """A hook without effect: the iterable of a `for`, and True before each test of a `while`."""
    return iterable[0] if iterable else True


def _teach_dynamo(hooks: Iterable[Hook], module: types.ModuleType) -> None:
    """`torch.compile` cannot look into a hook, and would break the graph there, or refuse with `fullgraph=True`."""
    for hook in hooks:
        # A function of its own for each: a substitute stands for one original.
        plain = types.FunctionType(_plain.__code__, _plain.__globals__, hook.__name__)
        module.substitute_in_graph(hook, skip_signature_check=True)(plain)


def teachers(hooks: Iterable[Hook]) -> Mapping[str, Callable[[types.ModuleType], None]]:
    """By the module of a compiler, what is called with it once it is loaded."""
    return {"torch._dynamo": functools.partial(_teach_dynamo, tuple(hooks))}

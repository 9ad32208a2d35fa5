"""`detrain.run`: a function that trains, run to its end across kills."""

from __future__ import annotations

import ast
import inspect
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

from detrain.errors import UsageError
from detrain.notebook import child, kernel

Result = TypeVar("Result")


def run(
    function: Callable[..., Result],
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    *,
    name: str | None = None,
    options: Sequence[str] = (),
) -> Result:
    """Call a function that trains, in a process of its own that `detrain run` runs: killed and called again, it goes on.

    >>> model = detrain.run(train, kwargs={"epochs": 3}, options=["--every", "100batches"])

    Args:
        function: one of the top level of a module or of a notebook.
        args: its positional arguments: numbers, strings, None, and lists, tuples, dicts and sets of these.
        kwargs: those with a name.
        name: of the run: its run directory is `.detrain/NAME`. The function's name if None.
        options: for `detrain run`.

    Returns:
        What the function returns, pickled there and unpickled here.

    Raises:
        UsageError: the function or an argument cannot be written into a script, or this is called inside a run.
        NotEnded: the function has raised, or the run was refused or killed.
    """
    if getattr(sys.modules.get("detrain.hooks"), "session", None) is not None:
        raise UsageError(
            'detrain.run was called in a run of detrain\'s; put the call under `if __name__ == "__main__":`'
        )
    if not isinstance(function, types.FunctionType) or not function.__qualname__.isidentifier():
        raise UsageError("detrain.run needs a function of the top level of a module, as another process has to find it")
    words = [_literal(value) for value in args]
    words += [f"{keyword}={_literal(value)}" for keyword, value in (kwargs or {}).items()]
    call = f"result = {function.__name__}({', '.join(words)})\n"
    source, folders = _source_of(function, call)
    return cast("Result", child.run(name or function.__name__, source, "result", options, folders))


def _literal(value: object) -> str:
    """An argument as Python source."""
    text = repr(value)
    try:
        if ast.literal_eval(text) == value:
            return text
    except (ValueError, SyntaxError):
        pass
    raise UsageError(f"an argument of detrain.run is no plain value: {text}; let the function make it")


def _source_of(function: types.FunctionType, call: str) -> tuple[str, list[str]]:
    """The script that calls a function, and the folder that its module is in."""
    module = inspect.getmodule(function)
    file = getattr(module, "__file__", None)
    if function.__module__ == "__main__" and file is None:
        return kernel.cells().script(call), []
    if file is None:
        raise UsageError(f"the module of {function.__name__} has no file")
    path = Path(file).resolve()
    if function.__module__ == "__main__":
        return f"from {path.stem} import {function.__name__}\n\n{call}", [str(path.parent)]
    parts = function.__module__.split(".")
    root = path.parents[len(parts) if path.stem == "__init__" else len(parts) - 1]
    return f"from {function.__module__} import {function.__name__}\n\n{call}", [str(root)]

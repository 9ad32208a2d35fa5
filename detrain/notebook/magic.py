"""`%load_ext detrain`: the cell magic `%%detrain`."""

from __future__ import annotations

import shlex
from typing import Any

from detrain.errors import DetrainError, UsageError
from detrain.notebook import child, kernel

USAGE = "%%detrain NAME [--return NAME,NAME] [options of `detrain run`]"


def load_ipython_extension(shell: Any) -> None:
    """Called by `%load_ext detrain`."""
    kernel.cells()  # from now on cells are recorded by the notebook's names for them
    shell.register_magic_function(_run_cell, "cell", "detrain")


def _run_cell(line: str, cell: str) -> None:
    """Run the cell, with the cells above that it needs, as a script that can be killed at any moment.

    %%detrain NAME [--return NAME,NAME] [options of `detrain run`]

    Run the same cell again after a kill of the kernel (and the cells above it before): it goes on from its latest checkpoint. The run
    directory is `.detrain/NAME`. `--return`: variables to bring back into the notebook when the run has ended.
    """
    from IPython.core import error as shown
    from IPython.core.getipython import get_ipython

    try:
        found = _run(line, cell)
    except DetrainError as error:
        raise shown.UsageError(str(error)) from None  # IPython prints it without a traceback
    if isinstance(found, dict):
        get_ipython().user_ns.update(found)  # type: ignore[no-untyped-call,unused-ignore]


def _run(line: str, cell: str) -> object:
    name, results, options = _words(line)
    source = kernel.cells().script(cell, kernel.current_cell(), results)
    value = f"{{{', '.join(f'{one!r}: {one}' for one in results)}}}" if results else ""
    return child.run(name, source, value, options)


def _words(line: str) -> tuple[str, list[str], list[str]]:
    """The name of the run, the names to bring back, and what is left for `detrain run`."""
    words = shlex.split(line)
    if not words or words[0].startswith("-"):
        raise UsageError(f"a run needs a name: {USAGE}")
    name, *options = words
    results: list[str] = []
    while "--return" in options:
        at = options.index("--return")
        if at + 1 == len(options):
            raise UsageError(f"--return needs names: {USAGE}")
        results += [one for one in options[at + 1].split(",") if one]
        del options[at : at + 2]
    for one in results:
        if not one.isidentifier():
            raise UsageError(f"--return {one}: this is no variable")
    return name, results, options

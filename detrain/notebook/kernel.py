"""The IPython kernel that this process is: which cells it has run."""

from __future__ import annotations

from typing import Any, Protocol

from detrain.errors import UsageError
from detrain.notebook.cells import Cells

_cells: Cells | None = None


class Ran(Protocol):
    """What IPython tells of a cell that has run (`ExecutionInfo`)."""

    raw_cell: str
    store_history: bool
    #: The notebook's name for the cell; None in a terminal.
    cell_id: str | None


class Result(Protocol):
    """What IPython tells of how it went (`ExecutionResult`)."""

    info: Ran
    success: bool


def cells() -> Cells:
    """The cells that this kernel has run. Raises `UsageError` outside of IPython."""
    global _cells
    if _cells is None:
        _cells = _record(_shell())
    return _cells


def current_cell() -> str | None:
    """The notebook's name for the cell that runs now. None in a terminal."""
    return _running


_running: str | None = None


def _shell() -> Any:
    try:
        from IPython.core.getipython import get_ipython
    except ImportError:
        get_ipython = None
    shell = get_ipython() if get_ipython is not None else None  # type: ignore[no-untyped-call,unused-ignore]
    if shell is None:
        raise UsageError("this is no IPython or Jupyter; the function has to be one of a module")
    return shell


def _record(shell: Any) -> Cells:
    found = Cells(shell.transform_cell)
    for text in shell.user_ns.get("In", ())[1:-1]:  # the last one runs now
        found.record(text)

    def before(info: Ran) -> None:
        global _running
        _running = getattr(info, "cell_id", None)

    def after(result: Result) -> None:
        if result.success and result.info.store_history:
            found.record(result.info.raw_cell, getattr(result.info, "cell_id", None))

    shell.events.register("pre_run_cell", before)
    shell.events.register("post_run_cell", after)
    return found

"""A process beside the training that is no child of it: the script may wait for any of its own."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

#: The package may have been found in the working folder, which is searched last here: the script's modules are not this process's.
_CODE = "import importlib, sys; sys.path.append(sys.argv.pop(1)); importlib.import_module(sys.argv.pop(1)).main()"


def start_aside(module: str, words: Sequence[str]) -> None:
    """Start a process that calls `main()` of a module of this package, with `words` as its arguments.

    It is in a session of its own, so what ends the training does not end it. Its standard input and output are empty; standard error and
    descriptors that can be inherited are this process's.
    """
    command = [sys.executable, "-P", "-c", _CODE, str(Path(__file__).parents[2]), module, *words]
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _become(command)
    os.waitpid(child, 0)


def _become(command: list[str]) -> None:
    """In the child: have a child of its own become the process, and end."""
    try:
        os.setsid()
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
            os.execv(command[0], command)
    finally:
        os._exit(0)

"""A process beside the training that is no child of it: the script may wait for any of its own."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

#: The package may have been found in the working folder, which is searched last here: the script's modules are not this process's.
_CODE = "import importlib, sys; sys.path.append(sys.argv.pop(1)); importlib.import_module(sys.argv.pop(1)).main()"

_NUMBER_BYTES = 8
_LONGEST_END_S = 1.0
#: Processes that end with one, each behind that one.
_ending: list[tuple[int, int]] = []


def start_aside(module: str, words: Sequence[str]) -> int:
    """Start a process that calls `main()` of a module of this package, with `words` as its arguments, and return its number.

    It is in a session of its own, so what ends the training does not end it. Its standard input and output are empty; standard error and
    descriptors that can be inherited are this process's.
    """
    command = [sys.executable, "-P", "-c", _CODE, str(Path(__file__).parents[2]), module, *words]
    sys.stdout.flush()
    sys.stderr.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        _become(command, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as told:
        number = told.read(_NUMBER_BYTES)
    os.waitpid(child, 0)
    return int.from_bytes(number, "little")


def ends_with_this(process: int) -> None:
    """Have `end_all` of this very process end a process that `start_aside` has started."""
    _ending.append((os.getpid(), process))


def end_all() -> None:
    """Send SIGTERM to those that end with this process, and wait for them, a second at most each. A forked child ends none."""
    while _ending:
        owner, process = _ending.pop()
        if owner == os.getpid():
            _end(process)


def _end(process: int) -> None:
    try:
        descriptor = os.pidfd_open(process)
    except OSError:
        return  # it is gone
    try:
        # The number may be another process's by now.
        if _CODE.encode() in Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0"):
            signal.pidfd_send_signal(descriptor, signal.SIGTERM)
            ended = select.poll()  # not `select`: a script may have more files open than that knows
            ended.register(descriptor, select.POLLIN)
            ended.poll(_LONGEST_END_S * 1000)
    except OSError:
        pass  # gone meanwhile
    finally:
        os.close(descriptor)


def _become(command: list[str], writer: int) -> None:
    """In the child: have a child of its own become the process, tell its number, and end."""
    try:
        os.setsid()
        process = os.fork()
        if process:
            os.write(writer, process.to_bytes(_NUMBER_BYTES, "little"))
        else:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
            os.execv(command[0], command)
    finally:
        os._exit(0)

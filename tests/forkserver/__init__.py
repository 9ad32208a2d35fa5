"""Starts attempts of `detrain run` in a few milliseconds: forked from a process that has loaded the framework.

The processes are real ones: each has a session of its own, is killed by a real SIGKILL, and ends as an interpreter ends. What a fork
leaves out is the interpreter's start, the import of the framework and `execve`; who tests those starts a process.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

SERVER = Path(__file__).with_name("server.py")


class ForkServer:
    """A process that has imported `modules` in this environment. It ends with this process."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """`log`: a file for what the server itself prints. A file as attempts get, so that their streams are made alike."""
        self.environment = dict(environment)
        self._control, theirs = socket.socketpair()
        with theirs, log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), str(theirs.fileno()), *modules],
                env=self.environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        if self._control.recv(5) != b"ready":
            raise RuntimeError(f"the fork server has not started:\n{log.read_text(errors='replace')}")

    def start(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
    ) -> Forked:
        """Start `python WORDS...`, which must be `-m detrain run ...`, as the head of a session of its own."""
        connection, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [b"+"], [theirs.fileno(), out.fileno(), err.fileno()])
        request = {"words": list(words), "folder": str(folder), "environment": dict(environment)}
        connection.sendall(json.dumps(request).encode() + b"\n")
        return Forked(connection)

    def close(self) -> None:
        """End the server, and wait for that."""
        self._control.close()
        self._process.wait()


class Forked:
    """An attempt, with what tests use of `subprocess.Popen`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lines = connection, connection.makefile("rb", buffering=0)
        self.returncode: int | None = None
        self.pid = int(self._lines.readline())

    def poll(self) -> int | None:
        """How it ended, None while it lives; minus the number of the signal that has killed it."""
        if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
            self.wait()
        return self.returncode

    def wait(self) -> int:
        """How it ended, once it has. Until then its process id is its own."""
        if self.returncode is None:
            line = self._lines.readline()
            if not line:
                raise RuntimeError("the fork server has ended before the attempt")
            self.returncode = int(line)
            self._lines.close()
            self._connection.close()
        return self.returncode

    def kill(self) -> None:
        """SIGKILL for this process alone."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)

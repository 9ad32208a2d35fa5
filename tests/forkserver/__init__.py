"""Starts attempts of `detrain run` in a few milliseconds: forked from a process that has loaded the framework.

The processes are real ones: each has a session of its own, is killed by a real SIGKILL, and ends as an interpreter ends. What a fork
leaves out is the interpreter's start, the import of the framework and `execve`; who tests those starts a process.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO

from tests.forkserver.server import READ_AT_START, REHEARSAL, REQUEST

SERVER = Path(__file__).with_name("server.py")
#: What is loaded before attempts are forked, by framework. `torch._dynamo` is what the first optimizer loads.
LOADED = {
    "torch": [
        "numpy", "tqdm", "csv", "logging", "torch", "torch._dynamo", "torch.utils.data",
        "detrain.adapters.numpy", "detrain.adapters.torch",
    ],
    "tensorflow": [
        "numpy", "tensorflow", "keras",
        "detrain.adapters.numpy", "detrain.adapters.tensorflow", "detrain.adapters.keras",
    ],
}  # fmt: skip
#: Scripts that need a process of their own: the loops of Keras must carry hooks when it is loaded; a process that is spawned, or a program,
#: is told how this one was started; `torch.jit` keeps the function that detrain replaces as torch is loaded.
WHOLE = re.compile(
    r"\.fit\(|KERAS_BACKEND|spawn\"|forkserver|subprocess|torch\.jit\.save|argv\[0\]|setrlimit|\bexec[lv]"
)
_servers: dict[tuple[str, frozenset[tuple[str, str]]], ForkServer] = {}


def server_for(script: str, environment: Mapping[str, str], usual: Mapping[str, str]) -> ForkServer | None:
    """The process from which attempts of this script are forked in such an environment; None if each is to be started.

    `usual`: the environment of most attempts of this kind, in which the server is; another one may differ in what is read later only.
    """
    frameworks = [name for name in LOADED if re.search(rf"^\s*(import|from) .*\b{name}\b", script, re.MULTILINE)]
    if len(frameworks) != 1 or WHOLE.search(script) or at_start(environment) != at_start(usual):
        return None
    key = (frameworks[0], at_start(usual))
    if key not in _servers:
        with tempfile.NamedTemporaryFile(prefix=f"forkserver-{frameworks[0]}-", suffix=".log", delete=False) as log:
            server = ForkServer(LOADED[frameworks[0]], usual, Path(log.name))
        atexit.register(server.close)
        _servers[key] = server
    return _servers[key]


def at_start(environment: Mapping[str, str]) -> frozenset[tuple[str, str]]:
    """What of an environment is read as a process begins."""
    return frozenset((name, value) for name, value in environment.items() if READ_AT_START.match(name))


def run(
    server: ForkServer, words: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run([sys.executable, *words], capture_output=True, text=True)`."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = server.start(words, folder, environment, out, err)
        until_s = time.monotonic() + timeout_s
        while process.poll() is None:
            if time.monotonic() > until_s:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise subprocess.TimeoutExpired(list(words), timeout_s)
            time.sleep(0.005)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode())
    return subprocess.CompletedProcess(list(words), process.wait(), *texts)


class ForkServer:
    """A process that has imported `modules` in this environment. It ends with this process."""

    def __init__(self, modules: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        """`log`: a file for what the server itself prints. A file as attempts get, so that their streams are made alike."""
        self._log = log
        self._control, theirs = socket.socketpair()
        with theirs, log.open("wb") as out:
            self._process = subprocess.Popen(
                [sys.executable, str(SERVER), str(theirs.fileno()), *modules],
                env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, pass_fds=[theirs.fileno()],
                start_new_session=True,
            )  # fmt: skip
        if self._control.recv(5) != b"ready":
            raise RuntimeError(f"the fork server has not started:\n{log.read_text(errors='replace')}")
        for _ in range(3):
            socket.send_fds(self._control, [REHEARSAL], [0, 1, 2])

    def start(
        self, words: Sequence[str], folder: Path, environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
    ) -> Forked:
        """Start `python WORDS...`, which must be `-m detrain run ...`, as the head of a session of its own."""
        connection, theirs = socket.socketpair()
        with theirs:
            socket.send_fds(self._control, [REQUEST], [theirs.fileno(), out.fileno(), err.fileno()])
        request = {"words": list(words), "folder": str(folder), "environment": dict(environment)}
        connection.sendall(json.dumps(request).encode() + b"\n")
        return Forked(connection)

    def close(self) -> None:
        """End the server, and wait for that."""
        self._control.close()
        self._process.wait()
        self._log.unlink(missing_ok=True)


class Forked:
    """An attempt, with what tests use of `subprocess.Popen`."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection, self._lines = connection, connection.makefile("rb", buffering=0)
        self.returncode: int | None = None
        self.pid = int(self._lines.readline())

    def poll(self) -> int | None:
        """How it ended, None while it lives; minus the number of the signal that has killed it."""
        if self.returncode is None:
            ready = select.poll()  # `select.select` knows no descriptor above 1023
            ready.register(self._connection, select.POLLIN)
            if ready.poll(0):
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

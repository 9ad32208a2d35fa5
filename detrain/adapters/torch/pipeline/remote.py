"""The workers' processes, as the script's process has them: started, told what to do, and heard if they fail."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from detrain.adapters.torch.pipeline.call_worker import SCRIPT
from detrain.adapters.torch.pipeline.instructions import Begin, Failed, Instruction
from detrain.adapters.torch.pipeline.mail import RankMail
from detrain.adapters.torch.pipeline.routes import Routes
from detrain.adapters.torch.pipeline.serving import group_of
from detrain.errors import PipelineError
from detrain.world.preload import entropy_unmoved

#: The script's own: what is preloaded there changes what a process draws from the system.
_OWN = "LD_PRELOAD"
#: A worker that fails says why within so long.
_LAST_WORDS_S = 0.5


class Remote:
    """All workers but the script's process itself. They end with it."""

    def __init__(self, num_workers: int, routes: Routes, seed: int, *, is_deterministic: bool) -> None:
        # Without a name in a folder: one that is drawn would be another of the script's draws.
        meeting_file = os.memfd_create("detrain-pipeline")
        meeting = f"/proc/self/fd/{meeting_file}"
        self._connections: dict[int, Connection[Any, Any]] = {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._last_words: dict[int, str] = {}
        for number in range(1, num_workers):
            self._connections[number] = self._start(number, meeting_file)
            self.tell(number, Begin(number, num_workers, meeting, routes, seed, is_deterministic))
        with self.heard():
            self.mail = RankMail(group_of(meeting, SCRIPT, num_workers), torch.device("cpu"), 0)

    def _start(self, number: int, meeting_file: int) -> Connection[Any, Any]:
        home = str(Path(__file__).parents[4])
        # By name and not by `-m`, as the script's folder is not to hide anything that the worker imports.
        code = f"import sys; sys.path.insert(0, {home!r}); from detrain.adapters.torch.pipeline import serving; serving.main()"
        here, there = socket.socketpair()
        with there, entropy_unmoved():  # the processes that the script starts are counted, and draw by their numbers
            self._processes[number] = subprocess.Popen(
                [sys.executable, "-P", "-c", code, str(there.fileno()), str(os.getpid())],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
                pass_fds=(there.fileno(), meeting_file), env={name: value for name, value in os.environ.items() if name != _OWN},
            )  # fmt: skip
        return Connection(here.detach())

    def tell(self, number: int, instruction: Instruction) -> None:
        """Raises `PipelineError` where the worker has ended."""
        try:
            self._connections[number].send(instruction)
        except OSError:
            raise PipelineError(self._why(number)) from None

    @contextmanager
    def heard(self) -> Iterator[None]:
        """Mail goes to and fro within. Raises `PipelineError` with what a worker says, if one fails or is killed meanwhile."""
        try:
            yield
        except RuntimeError as error:
            time.sleep(_LAST_WORDS_S)
            numbers = sorted(self._processes, key=self._guilt)
            if numbers and (self._said(numbers[0]) or self._processes[numbers[0]].poll() is not None):
                raise PipelineError(self._why(numbers[0])) from error
            raise

    def _guilt(self, number: int) -> int:
        """The least for what has ended first: where one is gone, those that talk to it fail as well."""
        status = self._processes[number].poll()
        if status is None:
            return 3
        if status < 0:
            return 0
        return 2 if "gloo" in self._said(number) else 1

    def _why(self, number: int) -> str:
        if why := self._said(number):
            return f"worker {number} of the pipeline has failed: {why}"
        status = self._processes[number].wait()
        return f"worker {number} of the pipeline has ended with status {status}"

    def _said(self, number: int) -> str:
        connection = self._connections[number]
        try:
            while connection.poll():
                answer = connection.recv()
                if isinstance(answer, Failed):
                    self._last_words[number] = answer.why
        except (EOFError, OSError):
            pass
        return self._last_words.get(number, "")

"""A worker's process beside the script's: does as it is told until the script's process is gone."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import traceback
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from detrain.adapters.torch import kernels, switches
from detrain.adapters.torch.pipeline.call_worker import SCRIPT, CallWorker
from detrain.adapters.torch.pipeline.instructions import Backward, Begin, Failed, Forget, Forward, Instruction, Take
from detrain.adapters.torch.pipeline.mail import RankMail
from detrain.adapters.torch.pipeline.shipping import Like, post_all, post_some, take_all, unship
from detrain.adapters.torch.pipeline.tags import Tags
from detrain.adapters.torch.pipeline.worker import Batch

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Entry point; the first argument is the descriptor of a socket to the script's process, the second that process."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[2]):
        return
    connection: Connection[Any, Any] = Connection(int(sys.argv[1]))
    try:
        _Server(connection.recv()).serve(connection)
    except EOFError:
        return
    except Exception as error:  # noqa: BLE001 - told to the script's process, which ends the run by it
        connection.send(Failed(f"{type(error).__name__}: {error}\n{traceback.format_exc()}"))
        sys.exit(1)


def group_of(meeting: str, number: int, num_workers: int) -> dist.ProcessGroup:
    """All workers, in their order; not PyTorch's default group, which is the script's to make."""
    options = dist.ProcessGroupGloo._Options()
    options._devices = [dist.ProcessGroupGloo.create_device(hostname="127.0.0.1")]
    store = dist.FileStore(meeting, num_workers)
    return dist.ProcessGroupGloo(store, number, num_workers, options)


class _Server:
    def __init__(self, begin: Begin) -> None:
        self._begin = begin
        if begin.is_deterministic:
            kernels.replace()
        group = group_of(begin.meeting, begin.number, begin.num_workers)
        self._mail = RankMail(group, torch.device("cpu"), 0)
        self._models: dict[int, tuple[CallWorker, Tags]] = {}
        #: Its stage's parameters.
        self._likes: dict[int, tuple[Like, ...]] = {}
        (self._stage,) = [stage for stage, workers in enumerate(begin.routes.workers) if begin.number in workers]

    def serve(self, connection: Connection[Any, Any]) -> None:
        """Until the other end is closed. Raises `EOFError` then."""
        while True:
            self._do(connection.recv())

    def _do(self, instruction: Instruction) -> None:
        if isinstance(instruction, Take):
            self._take(instruction)
        elif isinstance(instruction, Forward):
            self._forward(instruction)
        elif isinstance(instruction, Backward):
            self._backward(instruction)
        elif isinstance(instruction, Forget):
            self._models[instruction.model][0].forget(instruction.call)

    def _take(self, instruction: Take) -> None:
        begin = self._begin
        stages = {self._stage: unship(instruction.stage)}
        tags = Tags(instruction.num_crossings, len(begin.routes.workers), len(instruction.outputs))
        worker = CallWorker(begin.number, tags, instruction.outputs, stages, begin.routes, self._mail, begin.seed)
        self._models[instruction.model] = worker, tags

    def _forward(self, instruction: Forward) -> None:
        worker, tags = self._models[instruction.model]
        switches.set_flags(instruction.flags)
        here, stage = self._begin.number, worker.own.stage
        tensors = take_all(self._mail, tags.weights(self._stage), SCRIPT, here, instruction.tensors)
        names = [name for name, _ in stage.module.named_parameters()]
        self._likes[instruction.model] = instruction.tensors[: len(names)]
        named: dict[str, Tensor] = {}
        for (name, parameter), tensor in zip(stage.module.named_parameters(), tensors, strict=False):
            named[name] = tensor.requires_grad_(parameter.requires_grad)
        buffers = [name for name, _ in stage.module.named_buffers()]
        named.update(zip(buffers, tensors[len(names) :], strict=True))
        read = iter(
            take_all(
                self._mail,
                tags.inputs(self._stage),
                SCRIPT,
                here,
                [one for one in instruction.likes if one is not None],
            )
        )
        inputs = tuple(
            next(read) if like is not None else value
            for like, value in zip(instruction.likes, instruction.values, strict=True)
        )
        batch = Batch(instruction.step, inputs, (), instruction.ends, instruction.has_samples)
        with torch.enable_grad():
            for _ in worker.forward(instruction.call, batch, named):
                raise AssertionError("mail over ranks is always waited for")
        if stage.written and worker.own.replicas[0] == here:
            changed = worker.buffers_of(instruction.call)
            post_all(self._mail, tags.buffers(self._stage), here, SCRIPT, changed, [Like.of(one) for one in changed])
        self._mail.settle()

    def _backward(self, instruction: Backward) -> None:
        worker, tags = self._models[instruction.model]
        for _ in worker.backward(instruction.call, instruction.layouts):
            raise AssertionError("mail over ranks is always waited for")
        likes = self._likes[instruction.model]
        post_some(self._mail, tags.gradients(self._stage), self._begin.number, SCRIPT, worker.take_gradients(), likes)
        self._mail.settle()

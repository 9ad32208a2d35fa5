"""Tensors from worker to worker: over `torch.distributed`, or within one process that plays all workers in turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

#: What is there and has not been taken, by tag, sender and receiver.
Unread = dict[tuple[int, int, int], list[Tensor]]


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a worker is going to take."""

    tag: int
    sender: int
    shape: tuple[int, ...]
    dtype: torch.dtype


class Mail(Protocol):
    """What is posted under one tag between two workers arrives in that order, contiguous."""

    def post(self, tag: int, sender: int, receiver: int, tensor: Tensor) -> None:
        """Send it; the tensor must not change afterwards."""

    def has(self, tag: int, sender: int, receiver: int) -> bool:
        """True if `take` can be called now: it is there, or waiting for it stops nobody else."""

    def expect(self, receipt: Receipt, receiver: int) -> None:
        """It is going to be taken, before anything is looked at. What is expected of a sender under a tag is taken in that order."""

    def take(self, tag: int, sender: int, receiver: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """The next one, in memory of its own."""

    def look(
        self, tag: int, sender: int, receiver: int, place: int, shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        """What `take` will return after `place` others. Waits until it is there, and then it is among what is `unread`."""

    def unread(self) -> Unread:
        """What is here and has not been taken."""

    def replace(self, unread: Mapping[tuple[int, int, int], Sequence[Tensor]]) -> None:
        """That alone is unread."""

    def end_turn(self, num_kept: int) -> None:
        """A mini-batch has been worked on. What was posted so many of them ago is taken by now, or will be without anything more."""

    def settle(self) -> None:
        """Wait until all that was posted is taken."""


class LocalMail:
    """All workers are in this process."""

    def __init__(self) -> None:
        self._boxes: dict[tuple[int, int, int], deque[Tensor]] = {}

    def post(self, tag: int, sender: int, receiver: int, tensor: Tensor) -> None:
        """See `Mail`."""
        self._boxes.setdefault((tag, sender, receiver), deque()).append(
            tensor.detach().clone(memory_format=torch.contiguous_format)
        )

    def has(self, tag: int, sender: int, receiver: int) -> bool:
        """See `Mail`."""
        return bool(self._boxes.get((tag, sender, receiver)))

    def expect(self, receipt: Receipt, receiver: int) -> None:
        """See `Mail`."""

    def take(self, tag: int, sender: int, receiver: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """See `Mail`."""
        tensor = self._boxes[tag, sender, receiver].popleft()
        assert tuple(tensor.shape) == tuple(shape)
        assert tensor.dtype is dtype
        return tensor

    def look(
        self, tag: int, sender: int, receiver: int, place: int, shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        """See `Mail`."""
        return self._boxes[tag, sender, receiver][place]

    def count(self, tag: int, sender: int, receiver: int) -> int:
        """Of what can be taken."""
        return len(self._boxes.get((tag, sender, receiver), ()))

    def unread(self) -> Unread:
        """See `Mail`."""
        return {key: list(box) for key, box in self._boxes.items() if box}

    def replace(self, unread: Mapping[tuple[int, int, int], Sequence[Tensor]]) -> None:
        """See `Mail`."""
        self._boxes = {key: deque(tensors) for key, tensors in unread.items()}

    def end_turn(self, num_kept: int) -> None:
        """See `Mail`."""

    def settle(self) -> None:
        """See `Mail`."""


#: More than a pipeline has.
_NUM_TAGS = 1 << 16


class RankMail:
    """Worker i is rank i of a process group. Sending waits for nobody, receiving does."""

    def __init__(self, group: dist.ProcessGroup, device: torch.device, number: int) -> None:
        """`number`: no other mail over the group has the same."""
        self._first_tag = number * _NUM_TAGS
        self._group, self._device = group, device
        #: The turn, what to wait for, and what is sent. Gloo does not say that it was taken, so it has to be waited for.
        self._under_way: deque[tuple[int, Any, Tensor]] = deque()
        self._turn = 0
        #: A worker's mail to itself, between stages that it has both; and what it has received before it was to take it.
        self._here = LocalMail()
        #: By tag and sender: what is being received already.
        self._expected: dict[tuple[int, int], deque[tuple[Tensor, Any]]] = {}

    def post(self, tag: int, sender: int, receiver: int, tensor: Tensor) -> None:
        """See `Mail`."""
        if sender == receiver:
            self._here.post(tag, sender, receiver, tensor)
            return
        whole = tensor.detach().contiguous()
        sending = self._group.send([whole], receiver, self._first_tag + tag)
        self._under_way.append((self._turn, sending, whole))

    def has(self, tag: int, sender: int, receiver: int) -> bool:
        """See `Mail`."""
        return True

    def expect(self, receipt: Receipt, receiver: int) -> None:
        """See `Mail`. Gloo sends nothing before the receiver has said where to put it, which takes as long as the sending.

        Not from devices: NCCL does what two ranks send each other in turn, and a message that is awaited too early would stop the others.
        """
        if receipt.sender != receiver and self._device.type == "cpu":
            tensor = torch.empty(receipt.shape, dtype=receipt.dtype, device=self._device)
            receiving = self._group.recv([tensor], receipt.sender, self._first_tag + receipt.tag)
            self._expected.setdefault((receipt.tag, receipt.sender), deque()).append((tensor, receiving))

    def take(self, tag: int, sender: int, receiver: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        """See `Mail`."""
        expected = self._expected.get((tag, sender))
        if expected:
            tensor, receiving = expected.popleft()
            receiving.wait()
            return tensor
        if self._here.has(tag, sender, receiver):
            return self._here.take(tag, sender, receiver, shape, dtype)
        assert sender != receiver
        return self._receive(tag, sender, shape, dtype)

    def look(
        self, tag: int, sender: int, receiver: int, place: int, shape: Sequence[int], dtype: torch.dtype
    ) -> Tensor:
        """See `Mail`."""
        while self._here.count(tag, sender, receiver) <= place:
            self._here.post(tag, sender, receiver, self._receive(tag, sender, shape, dtype))
        return self._here.look(tag, sender, receiver, place, shape, dtype)

    def unread(self) -> Unread:
        """See `Mail`."""
        return self._here.unread()

    def replace(self, unread: Mapping[tuple[int, int, int], Sequence[Tensor]]) -> None:
        """See `Mail`."""
        self._here.replace(unread)

    def _receive(self, tag: int, sender: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        tensor = torch.empty(tuple(shape), dtype=dtype, device=self._device)
        self._group.recv([tensor], sender, self._first_tag + tag).wait()
        return tensor

    def end_turn(self, num_kept: int) -> None:
        """See `Mail`."""
        self._turn += 1
        while self._under_way and self._under_way[0][0] < self._turn - num_kept:
            self._under_way.popleft()[1].wait()

    def settle(self) -> None:
        """See `Mail`."""
        self.end_turn(0)

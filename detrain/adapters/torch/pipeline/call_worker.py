"""One worker's part in a model's calls by a script: forward passes when the model is called, backward passes when the script goes back.

Weights come with each call and their gradients go back, so a worker holds nothing of the training. Several calls may wait to go back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from detrain.adapters.torch.pipeline.mail import Mail, Receipt
from detrain.adapters.torch.pipeline.routes import Routes
from detrain.adapters.torch.pipeline.shipping import Like, post_all, take_some
from detrain.adapters.torch.pipeline.splitting import Crossing, StageModule
from detrain.adapters.torch.pipeline.tags import Tags
from detrain.adapters.torch.pipeline.worker import Batch, Flight, Gradients, Held, Worker
from detrain.errors import GraphError
from detrain.pipeline.schedules import Kind, Schedule, orders

#: The worker that has the script, and is given what the model returns.
SCRIPT = 0
#: The orders in which gradients lie in memory, which are not always those of what they are gradients of; None where there is none.
Layouts = tuple[tuple[int, ...] | None, ...]
#: Parameters and buffers by name, as a call reads them.
Tensors = Mapping[str, Tensor]


class CallWorker(Worker):
    """Works for the script's process, in it or beside it."""

    def __init__(
        self, number: int, tags: Tags, outputs: Sequence[Crossing], modules: Mapping[int, StageModule], routes: Routes, mail: Mail,
        seed: int,
    ) -> None:  # fmt: skip
        """`outputs`: what the model returns, from the last stage to nobody's."""
        super().__init__(number, tags, modules, routes, mail, _no_loss, _no_update, seed)
        self._outputs = outputs
        self._layouts: Layouts = ()
        self._tensors: dict[int, Tensors] = {}
        (self.own,) = self.held.values()

    def forward(self, call: int, batch: Batch, tensors: Tensors) -> Iterator[None]:
        """The stage's part of a call. `tensors`: the parameters and buffers that it reads; buffers are changed in place."""
        self.batches[call], self._tensors[call] = batch, tensors
        yield from self._all_of(call, Kind.FORWARD)

    def backward(self, call: int, layouts: Layouts) -> Iterator[None]:
        """Back through what `forward` has kept. `layouts`: of the gradients of what the model has returned."""
        self._layouts = layouts
        yield from self._all_of(call, Kind.BACKWARD)
        self.forget(call)

    def take_gradients(self) -> Gradients:
        """What `backward` has added up, by the stage's parameters."""
        found, self.own.gradients = self.own.gradients, [None] * len(self.own.gradients)
        if any(one is not None and one.layout is not torch.strided for one in found):
            raise GraphError("a gradient is sparse (nn.Embedding's with sparse=True), which a pipeline does not send")
        return found

    def buffers_of(self, call: int) -> list[Tensor]:
        """Those that the stage changes, as the call has left them."""
        return [self._tensors[call][name] for name in self.own.stage.written]

    def forget(self, call: int) -> None:
        """The script will not go back through it."""
        del self.batches[call], self._tensors[call]
        first = call * self._schedule.num_micro_batches
        for micro_batch in range(first, first + self._schedule.num_micro_batches):
            self.own.flights.pop(micro_batch, None)

    def _all_of(self, call: int, kind: Kind) -> Iterator[None]:
        count = len(self.batches[call].ends)
        first = call * self._schedule.num_micro_batches
        for own_kind, number, _ in orders(Schedule("gpipe", count), self._replicas)[self.own.number]:
            if own_kind == kind:
                micro_batch = first + number
                yield from self._when_there(self._needs(kind, micro_batch, self.own))
                self._do(kind, micro_batch, self.own)

    def _needs(self, kind: Kind, micro_batch: int, held: Held) -> list[Receipt]:
        needs = super()._needs(kind, micro_batch, held)
        if kind == Kind.BACKWARD and self._is_last(held):
            # Which of the gradients there are; those follow.
            needs += [
                Receipt(self._output_tag(one, kind), SCRIPT, (1,), torch.uint8)
                for one in self._outputs
                if one.has_gradient
            ]
        return needs

    def _replaced(self, held: Held, micro_batch: int) -> dict[str, Tensor]:
        return dict(self._tensors[micro_batch // self._schedule.num_micro_batches])

    def _is_last(self, held: Held) -> bool:
        return held.number == len(self.routes.workers) - 1

    def _output_tag(self, output: Crossing, kind: Kind) -> int:
        return self._tags.output(output.number, is_back=kind == Kind.BACKWARD)

    def _at_last(
        self, flight: Flight, outputs: list[Tensor], batch: Batch, span: tuple[int, int], micro_batch: int
    ) -> None:
        """What the model returns goes to the script."""
        for output, tensor in zip(self._outputs, outputs, strict=True):
            like = like_of(output, flight.piece.num_samples)
            post_all(self.mail, self._output_tag(output, Kind.FORWARD), self.number, SCRIPT, [tensor], [like])
        flight.roots += outputs

    def _backward(self, micro_batch: int, held: Held) -> None:
        if self._is_last(held):
            flight = held.flights[micro_batch]
            flight.came_back = [self._of_output(output, flight) for output in self._outputs]
        super()._backward(micro_batch, held)

    def _of_output(self, output: Crossing, flight: Flight) -> Tensor | None:
        if not output.has_gradient:
            return None
        like = like_of(output, flight.piece.num_samples, self._layouts[output.number])
        return take_some(self.mail, self._output_tag(output, Kind.BACKWARD), SCRIPT, self.number, [like])[0]


def like_of(crossing: Crossing, num_samples: int, order: tuple[int, ...] | None = None) -> Like:
    """So many samples of it; in memory as it is made, or in another order."""
    return Like(crossing.shape.dtype, crossing.shape.of(num_samples), crossing.shape.order if order is None else order)


def _no_loss(*_: object) -> Tensor:
    raise AssertionError("the script has the loss")


def _no_update(*_: object) -> None:
    raise AssertionError("the script has the optimizer")

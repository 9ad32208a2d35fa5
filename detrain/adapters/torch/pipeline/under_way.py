"""What an asynchronous pipeline has under way between two steps, as plain tensors: a checkpoint holds it, and a resumed run goes on there.

What autograd keeps between a micro-batch's forward and backward pass cannot be held. The forward pass is done again: of the same tensors,
with the weights of the same version, the same buffers and the same numbers of dropout it makes the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from detrain.adapters.torch.pipeline.mail import Unread
from detrain.adapters.torch.pipeline.packing import packed_size
from detrain.adapters.torch.pipeline.routes import Routes
from detrain.adapters.torch.pipeline.worker import Batch, Gradients, Held, Worker
from detrain.pipeline.schedules import Kind, num_done, round_size


@dataclass
class FlightUnderWay:
    """A micro-batch that has gone forward at a stage, and not back."""

    taken: list[Tensor]
    buffers: dict[str, Tensor]


@dataclass
class WorkerUnderWay:
    """Of one worker."""

    num_updates: int
    num_forwards: int
    num_backwards: int
    num_drained: int
    #: By number of mini-batch.
    batches: dict[int, Batch]
    #: By number of micro-batch.
    flights: dict[int, FlightUnderWay]
    #: Weights, by version.
    versions: dict[int, list[Tensor]]
    gradients: Gradients
    #: By number of round.
    finished: dict[int, Gradients]
    losses: list[tuple[int, int, Tensor]]


@dataclass
class UnderWay:
    """Of those workers of a pipeline that this process plays."""

    #: Steps so far, and those since the pipeline was last empty.
    at: tuple[int, int]
    workers: dict[int, WorkerUnderWay]
    #: Over ranks only what has been taken in for a checkpoint.
    unread: Unread


def of_worker(worker: Worker) -> WorkerUnderWay:
    """As it is now: references to its tensors."""
    held = _held(worker)
    flights = {
        number: FlightUnderWay(list(flight.leaves), dict(flight.buffers)) for number, flight in held.flights.items()
    }
    return WorkerUnderWay(
        held.num_updates, held.num_forwards, held.num_backwards, worker.num_drained, dict(worker.batches), flights,
        {number: list(version) for number, version in held.versions.items()}, list(held.gradients),
        {number: list(sums) for number, sums in held.finished.items()}, list(worker.losses),
    )  # fmt: skip


def put_back(worker: Worker, state: WorkerUnderWay) -> None:
    """The worker goes on from there."""
    held = _held(worker)
    held.num_updates, held.num_forwards, held.num_backwards = state.num_updates, state.num_forwards, state.num_backwards
    held.versions = {number: list(version) for number, version in state.versions.items()}
    held.gradients = list(state.gradients)
    held.finished = {number: list(sums) for number, sums in state.finished.items()}
    held.flights = {}
    worker.batches, worker.num_drained = dict(state.batches), state.num_drained
    with torch.enable_grad():
        for number, flight in state.flights.items():
            worker.fly_again(number, held, [one.detach() for one in flight.taken], flight.buffers)
    worker.losses = list(state.losses)


def take_in(worker: Worker, num_mini_batches: int) -> None:
    """Receive all that others have sent to the worker by this border between steps, so that it is part of the worker's state.

    All workers are at it, or will come to it without anything from those that wait here. What is under way there is gradients alone: each
    worker has done the forward passes of all that it was given.
    """
    held, routes = _held(worker), worker.routes
    #: Looked at so far, by tag and sender.
    places: Counter[tuple[int, int]] = Counter()

    def look(tag: int, sender: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        place = places[tag, sender]
        places[tag, sender] += 1
        return worker.mail.look(tag, sender, worker.number, place, shape, dtype)

    for micro_batch in sorted(held.flights):
        for crossing, link in worker.links_back(held, micro_batch):
            if not _has_gone_back(routes, crossing.taker, micro_batch, num_mini_batches):
                continue
            size = packed_size(crossing, link.end - link.first)
            look(worker.tag(crossing, Kind.BACKWARD), link.taker, (size,), torch.uint8)
    parameters, tag = held.parameters, worker.tag_of_gradients(held)
    for other in held.replicas:
        if other == worker.number:
            continue
        for _ in _rounds_finished(routes, held, other, num_mini_batches):
            flags = look(tag, other, (len(parameters),), torch.uint8)
            for parameter, has in zip(parameters, flags.tolist(), strict=True):
                if has:
                    look(tag, other, parameter.shape, parameter.dtype)


def _held(worker: Worker) -> Held:
    """An asynchronous worker has one stage."""
    (held,) = worker.held.values()
    return held


def _backwards(routes: Routes, stage: int, turn: int, num_mini_batches: int) -> int:
    return num_done(routes.schedule, routes.replicas, stage, turn, num_mini_batches).backwards


def _has_gone_back(routes: Routes, stage: int, micro_batch: int, num_mini_batches: int) -> bool:
    place, turn = divmod(micro_batch, routes.replicas[stage])
    return place < _backwards(routes, stage, turn, num_mini_batches)


def _rounds_finished(routes: Routes, held: Held, worker: int, num_mini_batches: int) -> Iterator[int]:
    """Those whose gradients the other worker of the stage has sent, and this one has not had an update of."""
    size, count = round_size(routes.schedule, routes.replicas, held.number), len(held.replicas)
    turn = held.replicas.index(worker)
    first = max(held.num_updates * size - turn, 0) // count  # of an earlier round at the most by one
    for place in range(first, _backwards(routes, held.number, turn, num_mini_batches)):
        micro_batch = turn + place * count
        number = micro_batch // size
        if (micro_batch + count) // size > number and number >= held.num_updates:
            yield number

"""One worker of a pipeline: does what `detrain.pipeline.schedules` says, in that order, for the stages that it has.

Gradients add up in the order of the worker's backward passes, and over replicas in the order of the replicas: the sums are the same however
the workers are timed, and in one process that plays them all.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from detrain.adapters.torch.pipeline import checking
from detrain.adapters.torch.pipeline.clipping import Clipping, norms_of
from detrain.adapters.torch.pipeline.keyed import Key
from detrain.adapters.torch.pipeline.mail import Mail, Receipt
from detrain.adapters.torch.pipeline.packing import dim_of, packed, packed_size, part_of, standing, unpacked
from detrain.adapters.torch.pipeline.routes import Link, Piece, Routes, links
from detrain.adapters.torch.pipeline.splitting import Crossing, StageModule
from detrain.adapters.torch.pipeline.tags import Tags
from detrain.errors import GraphError
from detrain.pipeline.measured import Done
from detrain.pipeline.schedules import Kind, VersionUse, Work, in_flight, round_size, version_use

#: A gradient for each parameter of a stage; None for those that nothing depends on.
Gradients = list[Tensor | None]
#: Of how many tasks, beside the next, a worker of a synchronous step receives already what they take. Activations and gradients that lie
#: there would lie with their senders otherwise.
_TASKS_AHEAD = 4
#: Of an asynchronous schedule: tasks of which it is remembered when they were done.
_TASKS_REMEMBERED = 24
#: Of what the model returns for some samples, and of their targets.
LossOf = Callable[[Sequence[Tensor], Sequence[Any]], Tensor]
#: Has an optimizer take a step with these gradients.
Update = Callable[[Sequence[tuple[nn.Parameter, Tensor | None]]], None]


@dataclass(frozen=True)
class Batch:
    """What one step is given. Every rank has all of it."""

    step: int
    inputs: tuple[Any, ...]
    targets: tuple[Any, ...]
    #: Where each micro-batch ends.
    ends: tuple[int, ...]
    #: By input: samples lie in its first dimension.
    has_samples: tuple[bool, ...]

    @property
    def num_samples(self) -> int:
        """Of the whole."""
        return self.ends[-1]

    def span(self, micro_batch: int) -> tuple[int, int]:
        """The samples of a micro-batch: the first, and the end."""
        return (self.ends[micro_batch - 1] if micro_batch else 0), self.ends[micro_batch]

    def cut_inputs(self, first: int, end: int) -> list[Any]:
        """These samples of the inputs; those without samples as they are."""
        return [value[first:end] if has else value for value, has in zip(self.inputs, self.has_samples, strict=True)]

    def cut_targets(self, first: int, end: int) -> list[Any]:
        """These samples of each target that has as many as the batch; others as they are."""
        return [
            value[first:end]
            if isinstance(value, Tensor) and value.dim() and value.shape[0] == self.num_samples
            else value
            for value in self.targets
        ]


@dataclass(frozen=True, slots=True)
class _Part:
    """What comes from one worker, of so many samples."""

    num_samples: int
    receipt: Receipt


@dataclass
class Flight:
    """A micro-batch between its forward and its backward pass at one stage."""

    piece: Piece
    leaves: list[Tensor]
    roots: list[Tensor]
    loss: Tensor | None
    parameters: list[Tensor]
    #: Of an asynchronous schedule: those that the forward pass changes, as they were before it.
    buffers: dict[str, Tensor]
    #: Of zb-h1: what has come back, until the gradients of the weights are made.
    came_back: list[Tensor | None] = field(default_factory=list)


@dataclass
class Held:
    """A stage as this worker has it."""

    number: int
    stage: StageModule
    replicas: tuple[int, ...]
    flights: dict[int, Flight] = field(default_factory=dict)
    gradients: Gradients = field(default_factory=list)
    #: Of an asynchronous schedule: weights by their version, without those that nothing will use; how many updates there were.
    versions: dict[int, list[Tensor]] = field(default_factory=dict)
    num_updates: int = 0
    num_forwards: int = 0
    num_backwards: int = 0
    #: Own sums of gradients, by update, that others may not have yet.
    finished: dict[int, Gradients] = field(default_factory=dict)

    @property
    def parameters(self) -> list[nn.Parameter]:
        """The newest."""
        return self.stage.parameters()


class Worker:
    """One rank's part, or one of several that a process plays in turn."""

    def __init__(
        self, number: int, tags: Tags, modules: Mapping[int, StageModule], routes: Routes, mail: Mail, loss_of: LossOf, update: Update,
        seed: int, clipping: Clipping | None = None,
    ) -> None:  # fmt: skip
        """`modules`: by stage; this worker's own are among them. `clipping`: of a synchronous schedule."""
        self.number, self.routes, self.mail, self.seed = number, routes, mail, seed
        self._tags, self._loss_of, self._update = tags, loss_of, update
        self._schedule, self._clipping = routes.schedule, clipping
        self.held = {
            stage: Held(stage, modules[stage], workers)
            for stage, workers in enumerate(routes.workers)
            if number in workers
        }
        self.batches: dict[int, Batch] = {}
        #: By crossing, samples of the micro-batch, and whose turn it is.
        self._known_links: dict[tuple[int, int, tuple[int, int]], list[Link]] = {}
        #: By kind of task as well: what this worker takes of those.
        self._known_parts: dict[tuple[Kind, int, int, tuple[int, int]], list[_Part]] = {}
        #: Losses of the last stage's pieces since they were last asked for: drains before it, micro-batch, and loss, weighed by its
        #: share of the samples.
        self.losses: list[tuple[int, int, Tensor]] = []
        self.num_drained = 0
        #: Done so far; by it is seen whether something goes on.
        self.num_tasks = 0
        #: Of the latest step, or of some mini-batches; and since when the task that is being done has all that it takes.
        self.done: deque[Done] = deque(maxlen=_TASKS_REMEMBERED if routes.schedule.is_asynchronous else None)
        self._began_s = 0.0
        self._has_looked_at_loss = False
        self._replicas = routes.replicas
        for held in self.held.values():
            held.gradients = [None] * len(held.parameters)
        self._begin()

    def _begin(self) -> None:
        for held in self.held.values():
            held.num_updates = held.num_forwards = held.num_backwards = 0
            held.versions = {}

    # --- steps ----------------------------------------------------------------------------------------------------------------

    def step(self, batch: Batch, order: Sequence[Work]) -> Iterator[None]:
        """One step of a synchronous schedule. Yields where it would have to wait for mail."""
        self.batches = {0: batch}
        self.done.clear()
        needs = [self._needs(kind, micro_batch, self.held[stage]) for kind, micro_batch, stage in order]
        num_expected = 0
        for place, (kind, micro_batch, stage) in enumerate(order):
            for receipt in chain.from_iterable(needs[num_expected : place + 1 + _TASKS_AHEAD]):
                self.mail.expect(receipt, self.number)
            num_expected = place + 1 + _TASKS_AHEAD
            yield from self._when_there(needs[place])
            self._do(kind, micro_batch, self.held[stage])
        sums: dict[int, Gradients] = {}
        for held in reversed(self.held.values()):
            self._send_sums(held, held.gradients)
        for held in reversed(self.held.values()):
            began_s = perf_counter()
            yield from self._when_there(self._sums_needed(held, held.replicas))
            sums[held.number] = self._summed(held, held.replicas, held.gradients)
            held.gradients = [None] * len(held.gradients)
            if self.number == held.replicas[0] and len(held.replicas) > 1:
                self.done.append(Done(Kind.ALL_REDUCE, held.number, 0, began_s, perf_counter()))
        if self._clipping is not None:
            yield from self._clip(self._clipping, sums)
        self._update(
            [pair for stage, own in sums.items() for pair in zip(self.held[stage].parameters, own, strict=True)]
        )

    def _clip(self, clipping: Clipping, sums: dict[int, Gradients]) -> Iterator[None]:
        """Scale them by the norm of all stages' gradients, which the first replica of each stage tells all other workers."""
        norms: dict[int, Tensor] = {}
        workers = sorted({worker for replicas in self.routes.workers for worker in replicas})
        for stage, own in sums.items():
            norms[stage] = norms_of(own)
            for worker in workers if self.number == self.held[stage].replicas[0] else ():
                if worker not in self.held[stage].replicas:
                    self.mail.post(self._tags.norms(stage), self.number, worker, norms[stage])
        self.num_tasks += 1
        for stage, places in enumerate(clipping.places):
            if stage not in norms:
                receipt = Receipt(self._tags.norms(stage), self.routes.workers[stage][0], (len(places),), torch.float64)
                yield from self._when_there([receipt])
                norms[stage] = self._take(receipt)
        factor = clipping.factor(norms)
        if factor is not None:
            for stage, own in sums.items():
                sums[stage] = [None if one is None else one * factor.to(one.device) for one in own]

    def advance(self, batch: Batch, index: int) -> Iterator[None]:
        """Mini-batch `index` of an asynchronous schedule has come: all is done up to the forward pass of the next."""
        self.batches[index] = batch
        (held,) = self.held.values()
        limit = (index + 1) * self._schedule.num_micro_batches
        most = in_flight(self._schedule, self._replicas)[held.number]
        turn, count = held.replicas.index(self.number), len(held.replicas)
        while True:
            if held.num_forwards - held.num_backwards < most:
                micro_batch = turn + held.num_forwards * count
                if micro_batch >= limit:
                    return
                # Since the last drain, before which there may have been steps, the script may have changed the weights.
                if not held.num_forwards:
                    held.versions = {0: _copies(held.parameters)}
                yield from self._update_up_to(held, self._use(held, micro_batch).awaited, limit)
                yield from self._when_there(self._needs(Kind.FORWARD, micro_batch, held))
                self._do(Kind.FORWARD, micro_batch, held)
                held.num_forwards += 1
            else:
                yield from self._go_back(held, turn + held.num_backwards * count)

    def drain(self, num_mini_batches: int) -> Iterator[None]:
        """After so many mini-batches none comes: all under way go back, and all updates are made."""
        (held,) = self.held.values()
        total = num_mini_batches * self._schedule.num_micro_batches
        turn, count = held.replicas.index(self.number), len(held.replicas)
        while held.num_backwards < held.num_forwards:
            yield from self._go_back(held, turn + held.num_backwards * count)
        size = round_size(self._schedule, self._replicas, held.number)
        yield from self._update_up_to(held, -(-total // size), total)
        self._begin()
        self.batches.clear()
        self.num_drained += 1

    def _go_back(self, held: Held, micro_batch: int) -> Iterator[None]:
        yield from self._when_there(self._needs(Kind.BACKWARD, micro_batch, held))
        self._do(Kind.BACKWARD, micro_batch, held)
        held.num_backwards += 1
        size = round_size(self._schedule, self._replicas, held.number)
        if (micro_batch + len(held.replicas)) // size > micro_batch // size:  # this worker's last of the round
            self._finish(held, micro_batch // size)
        batch = micro_batch // self._schedule.num_micro_batches
        for done in [one for one in self.batches if one < batch]:
            del self.batches[done]

    # --- one task -------------------------------------------------------------------------------------------------------------

    def _when_there(self, needs: Sequence[Receipt]) -> Iterator[None]:
        while not all(self.mail.has(one.tag, one.sender, self.number) for one in needs):
            yield

    def _place(self, micro_batch: int) -> tuple[Batch, int]:
        index, within = divmod(micro_batch, self._schedule.num_micro_batches)
        return self.batches[index], within

    def _pieces(self, stage: int, micro_batch: int) -> list[Piece]:
        batch, within = self._place(micro_batch)
        first, end = batch.span(within)
        return self.routes.pieces(stage, micro_batch, end - first)

    def _own(self, stage: int, micro_batch: int) -> Piece:
        return next(piece for piece in self._pieces(stage, micro_batch) if piece.worker == self.number)

    def _links(self, crossing: Crossing, micro_batch: int) -> list[Link]:
        key = self._likeness(crossing, micro_batch)
        known = self._known_links.get(key)
        if known is None:
            makers, takers = self._pieces(crossing.maker, micro_batch), self._pieces(crossing.taker, micro_batch)
            known = self._known_links[key] = list(links(makers, takers, is_whole=crossing.shape.sample_dim is None))
        return known

    def _likeness(self, crossing: Crossing, micro_batch: int) -> tuple[int, int, tuple[int, int]]:
        """Micro-batches for which it is the same go the same ways."""
        batch, within = self._place(micro_batch)
        first, end = batch.span(within)
        workers = self.routes.workers
        turns = micro_batch % len(workers[crossing.maker]), micro_batch % len(workers[crossing.taker])
        return crossing.number, end - first, turns

    def _parts(self, kind: Kind, crossing: Crossing, micro_batch: int) -> list[_Part]:
        """What this worker takes of a crossing, in order: its samples forward, their gradients backward."""
        key = kind, *self._likeness(crossing, micro_batch)
        known = self._known_parts.get(key)
        if known is None:
            tag, known = self.tag(crossing, kind), []
            for link in self._links(crossing, micro_batch):
                num_samples = link.end - link.first
                if kind == Kind.FORWARD and link.taker == self.number:
                    shape, order = crossing.shape.of(num_samples), crossing.shape.order
                    lying = tuple(shape[dim] for dim in order)
                    known.append(_Part(num_samples, Receipt(tag, link.maker, lying, crossing.shape.dtype)))
                elif kind == Kind.BACKWARD and link.maker == self.number:
                    size = packed_size(crossing, num_samples)
                    known.append(_Part(num_samples, Receipt(tag, link.taker, (size,), torch.uint8)))
            self._known_parts[key] = known
        return known

    def _take(self, receipt: Receipt) -> Tensor:
        found = self.mail.take(receipt.tag, receipt.sender, self.number, receipt.shape, receipt.dtype)
        self._began_s = perf_counter()
        return found

    def tag(self, crossing: Crossing, kind: Kind) -> int:
        """Under which it goes."""
        return self._tags.crossing(crossing.number, is_back=kind == Kind.BACKWARD)

    def tag_of_gradients(self, held: Held) -> int:
        """Under which the replicas of a stage send each other theirs."""
        return self._tags.gradients(held.number)

    def links_back(self, held: Held, micro_batch: int) -> Iterator[tuple[Crossing, Link]]:
        """What gradients come back to this worker, of what it has made."""
        for crossing in held.stage.makes:
            if crossing.has_gradient:
                for link in self._links(crossing, micro_batch):
                    if link.maker == self.number:
                        yield crossing, link

    def _needs(self, kind: Kind, micro_batch: int, held: Held) -> list[Receipt]:
        if kind == Kind.FORWARD:
            crossings = held.stage.takes
        elif kind == Kind.BACKWARD:
            crossings = tuple(crossing for crossing in held.stage.makes if crossing.has_gradient)
        else:
            return []
        return [part.receipt for crossing in crossings for part in self._parts(kind, crossing, micro_batch)]

    def _do(self, kind: Kind, micro_batch: int, held: Held) -> None:
        self.num_tasks += 1
        self._began_s = perf_counter()
        if kind == Kind.FORWARD:
            self._forward(micro_batch, held)
        elif kind == Kind.BACKWARD:
            self._backward(micro_batch, held)
        else:
            self._add(held, self._weights_gradients(held.flights.pop(micro_batch)))
        self.done.append(Done(kind, held.number, micro_batch, self._began_s, perf_counter()))

    def _forward(self, micro_batch: int, held: Held) -> None:
        taken = [self._taken(crossing, micro_batch) for crossing in held.stage.takes]
        flight = held.flights[micro_batch] = self._flight(micro_batch, held, taken)
        for crossing, tensor in zip(held.stage.makes, flight.roots, strict=False):
            for link in self._links(crossing, micro_batch):
                if link.maker == self.number:
                    part = part_of(
                        crossing,
                        tensor,
                        (link.first - flight.piece.first, link.end - flight.piece.first),
                        crossing.shape.order,
                    )
                    self.mail.post(self.tag(crossing, Kind.FORWARD), self.number, link.taker, part)

    def _flight(
        self, micro_batch: int, held: Held, taken: Sequence[Tensor], buffers: Mapping[str, Tensor] | None = None
    ) -> Flight:
        """The forward pass of what was taken. `buffers`: to be read, and changed, in place of the stage's own."""
        batch, within = self._place(micro_batch)
        piece = self._own(held.number, micro_batch)
        begin = batch.span(within)[0]
        first, end = begin + piece.first, begin + piece.end
        leaves = [
            tensor.requires_grad_() if crossing.has_gradient else tensor
            for crossing, tensor in zip(held.stage.takes, taken, strict=True)
        ]
        given = [
            leaf.clone() if crossing.number in held.stage.changed else leaf
            for crossing, leaf in zip(held.stage.takes, leaves, strict=True)
        ]
        given_inputs = batch.cut_inputs(first, end)
        inputs = [given_inputs[place] for place in held.stage.inputs]
        arguments = (piece.num_samples, Key(self.seed, batch.step, first), *inputs, *given)
        replaced, module = self._replaced(held, micro_batch), held.stage.module
        before: dict[str, Tensor] = {}
        if buffers is not None:
            before = dict(buffers)
            replaced.update((name, one.clone()) for name, one in before.items())
        elif self._schedule.is_asynchronous:
            before = {name: module.get_buffer(name).detach().clone() for name in held.stage.written}
        made = functional_call(module, replaced, arguments) if replaced else module(*arguments)
        parameters = [replaced.get(name, one) for name, one in module.named_parameters()]
        flight = Flight(piece, leaves, list(made[: len(held.stage.makes)]), None, parameters, before)
        if held.number == len(self.routes.workers) - 1:
            self._at_last(flight, list(made[len(held.stage.makes) :]), batch, (first, end), micro_batch)
        return flight

    def fly_again(self, micro_batch: int, held: Held, taken: Sequence[Tensor], buffers: Mapping[str, Tensor]) -> None:
        """A forward pass that another process has done before: what is kept for its backward pass is made once more."""
        held.flights[micro_batch] = self._flight(micro_batch, held, taken, buffers)

    def _replaced(self, held: Held, micro_batch: int) -> dict[str, Tensor]:
        """What a micro-batch reads in place of the module's own parameters and buffers, by name."""
        if not self._schedule.is_asynchronous:
            return {}
        names = [name for name, _ in held.stage.module.named_parameters()]
        return dict(zip(names, held.versions[self._use(held, micro_batch).used], strict=True))

    def _at_last(
        self, flight: Flight, outputs: list[Tensor], batch: Batch, span: tuple[int, int], micro_batch: int
    ) -> None:
        """What the model returns for these samples has been made: the loss comes."""
        loss = self._loss_of(outputs, batch.cut_targets(*span))
        if not self._has_looked_at_loss:
            checking.check_loss(loss, [one for one in (*flight.roots, *outputs) if one.requires_grad], flight.leaves)
            self._has_looked_at_loss = True
        if flight.piece.num_samples != batch.num_samples:
            loss = loss * (flight.piece.num_samples / batch.num_samples)
        self.losses.append((self.num_drained, micro_batch, loss.detach()))
        flight.loss = loss

    def _taken(self, crossing: Crossing, micro_batch: int) -> Tensor:
        order = crossing.shape.order
        parts = [standing(self._take(part.receipt), order) for part in self._parts(Kind.FORWARD, crossing, micro_batch)]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim_of(crossing))

    def _backward(self, micro_batch: int, held: Held) -> None:
        flight = held.flights[micro_batch]
        flight.came_back += [
            self._came_back(crossing, micro_batch) if crossing.has_gradient else None for crossing in held.stage.makes
        ]
        is_split = self._schedule.splits_backward
        leaves = [leaf for leaf in flight.leaves if leaf.requires_grad]
        wanted = leaves if is_split else [*(one for one in flight.parameters if one.requires_grad), *leaves]
        found = iter(_gradients(flight, wanted, is_kept=is_split))
        if not is_split:
            self._add(held, [next(found) if one.requires_grad else None for one in flight.parameters])
            del held.flights[micro_batch]
        for crossing, leaf in zip(held.stage.takes, flight.leaves, strict=True):
            if not crossing.has_gradient:
                continue
            gradient = next(found)
            there = gradient if gradient is not None else torch.zeros_like(leaf)
            for link in self._links(crossing, micro_batch):
                if link.taker == self.number:
                    span = link.first - flight.piece.first, link.end - flight.piece.first
                    self.mail.post(
                        self.tag(crossing, Kind.BACKWARD),
                        self.number,
                        link.maker,
                        packed(crossing, there, span, is_there=gradient is not None),
                    )

    def _weights_gradients(self, flight: Flight) -> Gradients:
        found = iter(_gradients(flight, [one for one in flight.parameters if one.requires_grad], is_kept=False))
        return [next(found) if one.requires_grad else None for one in flight.parameters]

    def _came_back(self, crossing: Crossing, micro_batch: int) -> Tensor | None:
        parts, is_there = [], False
        for taken in self._parts(Kind.BACKWARD, crossing, micro_batch):
            part, has = unpacked(crossing, taken.num_samples, self._take(taken.receipt))
            is_there |= has
            parts.append(part)
        if not is_there:  # nothing hangs on it there; an optimizer leaves alone what has no gradient
            return None
        if crossing.shape.sample_dim is not None:
            return parts[0] if len(parts) == 1 else torch.cat(parts, dim_of(crossing))
        total = parts[0]
        for part in parts[1:]:
            total = total + part
        return total

    def _add(self, held: Held, gradients: Gradients) -> None:
        for place, gradient in enumerate(gradients):
            if gradient is None:
                continue
            before = held.gradients[place]
            # Out of place: a gradient may be the memory of another.
            held.gradients[place] = gradient if before is None else before + gradient

    # --- updates --------------------------------------------------------------------------------------------------------------

    def _use(self, held: Held, micro_batch: int) -> VersionUse:
        return version_use(self._schedule, self._replicas, held.number, micro_batch)

    def _contributors(self, held: Held, number: int, total: int) -> tuple[int, ...]:
        """The replicas that have a micro-batch of a round, in their order."""
        size, count = round_size(self._schedule, self._replicas, held.number), len(held.replicas)
        turns = {batch % count for batch in range(number * size, min((number + 1) * size, total))}
        return tuple(worker for turn, worker in enumerate(held.replicas) if turn in turns)

    def _finish(self, held: Held, number: int) -> None:
        """The worker has gone back through all of its micro-batches of a round."""
        held.finished[number], held.gradients = held.gradients, [None] * len(held.gradients)
        self._send_sums(held, held.finished[number])

    def _update_up_to(self, held: Held, number: int, total: int) -> Iterator[None]:
        while held.num_updates < number:
            round_number = held.num_updates
            workers = self._contributors(held, round_number, total)
            yield from self._when_there(self._sums_needed(held, workers))
            own = held.finished.pop(round_number, None)
            sums = self._summed(held, workers, own)
            if self._schedule.name == "1f1b-async" and len(workers) > 1:
                sums = [one if one is None else one / len(workers) for one in sums]
            self._update(list(zip(held.parameters, sums, strict=True)))
            held.num_updates += 1
            self.num_tasks += 1
            held.versions[held.num_updates] = _copies(held.parameters)
            self._forget_versions(held)

    def _forget_versions(self, held: Held) -> None:
        oldest = held.replicas.index(self.number) + held.num_backwards * len(held.replicas)
        used = self._use(held, oldest).used
        for version in [one for one in held.versions if one < used]:
            del held.versions[version]

    def _send_sums(self, held: Held, gradients: Gradients) -> None:
        for receiver in held.replicas:
            if receiver == self.number:
                continue
            flags = torch.tensor([gradient is not None for gradient in gradients], dtype=torch.uint8)
            self.mail.post(self.tag_of_gradients(held), self.number, receiver, flags)
            for gradient in gradients:
                if gradient is not None:
                    self.mail.post(self.tag_of_gradients(held), self.number, receiver, gradient)

    def _sums_needed(self, held: Held, workers: Sequence[int]) -> list[Receipt]:
        """Which gradients there are, by the parameters, of each other replica; those follow."""
        tag, size = self.tag_of_gradients(held), (len(held.gradients),)
        return [Receipt(tag, worker, size, torch.uint8) for worker in workers if worker != self.number]

    def _summed(self, held: Held, workers: Sequence[int], own: Gradients | None) -> Gradients:
        """Over the replicas, in their order."""
        total: Gradients | None = None
        parameters = held.parameters
        for worker in workers:
            if worker == self.number:
                assert own is not None
                came = own
            else:
                flags = self.mail.take(
                    self.tag_of_gradients(held), worker, self.number, (len(parameters),), torch.uint8
                )
                came = [
                    self.mail.take(self.tag_of_gradients(held), worker, self.number, one.shape, one.dtype)
                    if has
                    else None
                    for one, has in zip(parameters, flags.tolist(), strict=True)
                ]
            if total is None:
                total = [None if one is None else one.clone() for one in came]
            else:
                total = [a if b is None else b if a is None else a.add_(b) for a, b in zip(total, came, strict=True)]
        return total if total is not None else [None] * len(parameters)


_DONE = object()


def in_turn(workers: Sequence[Worker], work: Iterable[Iterator[None]], name: str) -> None:
    """Workers that one process plays, each as far as it comes. `name`: of what they do, for the `GraphError` if none comes further."""
    waiting = list(work)
    while waiting:
        before = len(waiting), sum(worker.num_tasks for worker in workers)
        waiting = [one for one in waiting if next(one, _DONE) is not _DONE]
        if (len(waiting), sum(worker.num_tasks for worker in workers)) == before:
            raise GraphError(f"{name}: every worker waits for another")


def _copies(parameters: Sequence[nn.Parameter]) -> list[Tensor]:
    return [one.detach().clone().requires_grad_(one.requires_grad) for one in parameters]


def _gradients(flight: Flight, wanted: Sequence[Tensor], *, is_kept: bool) -> Sequence[Tensor | None]:
    """Of what is wanted, given what has come back for what was made."""
    roots, back = [], []
    for tensor, gradient in zip(flight.roots, flight.came_back, strict=True):
        if tensor.requires_grad and gradient is not None:
            roots.append(tensor)
            back.append(gradient)
    if flight.loss is not None:
        roots.append(flight.loss)
        back.append(torch.ones_like(flight.loss))
    if not roots or not wanted:
        return [None] * len(wanted)
    found: tuple[Tensor | None, ...] = torch.autograd.grad(
        roots, list(wanted), back, retain_graph=is_kept, allow_unused=True
    )
    return found

"""All workers of a script's pipeline, as the script's process has them: a call goes to all, and what they make comes back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor

from detrain.adapters.torch import switches
from detrain.adapters.torch.pipeline.call_worker import SCRIPT, CallWorker, Layouts, like_of
from detrain.adapters.torch.pipeline.instructions import Backward, Forget, Forward, Take
from detrain.adapters.torch.pipeline.mail import LocalMail, Mail
from detrain.adapters.torch.pipeline.remote import Remote
from detrain.adapters.torch.pipeline.routes import Routes
from detrain.adapters.torch.pipeline.shipping import Like, post_all, post_some, ship, take_all, take_some
from detrain.adapters.torch.pipeline.splitting import Split, StageModule
from detrain.adapters.torch.pipeline.tags import Tags
from detrain.adapters.torch.pipeline.worker import Batch, Gradients, in_turn
from detrain.errors import PipelineError


@dataclass(frozen=True)
class Trained:
    """A model that all workers have their stages of."""

    number: int
    split: Split
    tags: Tags
    #: Those in the script's process.
    workers: Mapping[int, CallWorker]


class Crew:
    """The script's process is worker 0; the others are processes beside it, or it plays them as well."""

    def __init__(self, routes: Routes, *, is_emulated: bool) -> None:
        self._routes = routes
        self._stage_of = {worker: stage for stage, workers in enumerate(routes.workers) for worker in workers}
        self._is_alone = is_emulated or len(self._stage_of) == 1
        self._remote: Remote | None = None
        self._mail: Mail = LocalMail()
        self._num_models, self._has_failed = 0, False
        #: Calls that the script will not go back through, which nobody has been told yet.
        self._dropped: list[tuple[Trained, int]] = []

    @property
    def num_processes(self) -> int:
        """That are to be started."""
        return 0 if self._is_alone or self._remote is not None else len(self._stage_of) - 1

    def take(self, split: Split, seed: int) -> Trained:
        """Every worker is given its stage. Processes are started for the first model."""
        if not self._is_alone and self._remote is None:
            is_deterministic = torch.get_deterministic_debug_mode() != 0
            self._remote = Remote(len(self._stage_of), self._routes, seed, is_deterministic=is_deterministic)
            self._mail = self._remote.mail
        number, tags = self._num_models, Tags(len(split.crossings), len(split.stages), len(split.outputs))
        self._num_models += 1
        workers = {}
        for worker, stage in self._stage_of.items():
            if self._is_here(worker):
                own = {stage: split.stages[stage]}
                workers[worker] = CallWorker(worker, tags, split.outputs, own, self._routes, self._mail, seed)
            else:
                self._told(worker).tell(
                    worker, Take(number, ship(split.stages[stage]), len(split.crossings), split.outputs)
                )
        return Trained(number, split, tags, workers)

    # --- calls ----------------------------------------------------------------------------------------------------------------

    def forward(self, model: Trained, call: int, batch: Batch) -> list[Tensor]:
        """What the model returns for a batch. Buffers are as the first replicas have left them."""
        with self._heard():
            self._tell_dropped()
            work = []
            for worker, stage in self._stage_of.items():
                if not self._is_here(worker):
                    self._send(model, call, batch, worker, stage)
                    continue
                module = model.split.stages[stage].module
                # Not the parameters themselves, whose hooks would run here as well.
                tensors = {
                    name: one.detach().requires_grad_(one.requires_grad) for name, one in module.named_parameters()
                }
                tensors.update((name, one.detach().clone()) for name, one in module.named_buffers())
                work.append(model.workers[worker].forward(call, batch, tensors))
            with torch.enable_grad():
                in_turn(list(model.workers.values()), work, "gpipe")
            outputs = self._outputs(model, batch)
            for stage, module in enumerate(model.split.stages):
                self._bring_buffers(model, call, stage, module)
            self._mail.settle()
        return outputs

    def backward(
        self, model: Trained, call: int, gradients: Sequence[Tensor | None], ends: Sequence[int]
    ) -> list[Gradients]:
        """By stage, the gradients of its parameters, given those of what the model has returned."""
        with self._heard():
            self._tell_dropped()
            layouts = tuple(None if one is None else Like.of(one).order for one in gradients)
            for worker in self._stage_of:
                if not self._is_here(worker):
                    self._told(worker).tell(worker, Backward(model.number, call, layouts))
            self._send_gradients(model, gradients, layouts, ends)
            workers = list(model.workers.values())
            in_turn(workers, [worker.backward(call, layouts) for worker in workers], "gpipe")
            sums = [self._summed(model, stage) for stage in range(len(model.split.stages))]
            self._mail.settle()
        return sums

    def drop(self, model: Trained, call: int) -> None:
        """The script will not go back through a call. May be called at any time."""
        self._dropped.append((model, call))

    # --- within ---------------------------------------------------------------------------------------------------------------

    def _is_here(self, worker: int) -> bool:
        return self._is_alone or worker == SCRIPT

    def _told(self, worker: int) -> Remote:
        assert self._remote is not None, worker
        return self._remote

    @contextmanager
    def _heard(self) -> Iterator[None]:
        """Work of one call. After a failure nobody knows what is under way between the workers."""
        if self._has_failed:
            raise PipelineError(
                "a call of the model has failed before, and what it has left with the pipeline's workers is not known: start again"
            )
        self._has_failed = True
        with nullcontext() if self._remote is None else self._remote.heard():
            yield
        self._has_failed = False

    def _tell_dropped(self) -> None:
        while self._dropped:
            model, call = self._dropped.pop()
            for worker in self._stage_of:
                if self._is_here(worker):
                    model.workers[worker].forget(call)
                else:
                    self._told(worker).tell(worker, Forget(model.number, call))

    def _send(self, model: Trained, call: int, batch: Batch, worker: int, stage: int) -> None:
        own = model.split.stages[stage]
        tensors = [*own.module.parameters(), *own.module.buffers()]
        likes = tuple(map(Like.of, tensors))
        read = {place: one for place in own.inputs if isinstance(one := batch.inputs[place], Tensor)}
        given = tuple(Like.of(read[place]) if place in read else None for place in range(len(batch.inputs)))
        values = tuple(None if isinstance(one, Tensor) else one for one in batch.inputs)
        has_samples = tuple(has and place in read for place, has in enumerate(batch.has_samples))
        instruction = Forward(
            model.number, call, batch.step, batch.ends, has_samples, given, values, likes, switches.flags()
        )
        self._told(worker).tell(worker, instruction)
        post_all(self._mail, model.tags.weights(stage), SCRIPT, worker, tensors, likes)
        post_all(
            self._mail, model.tags.inputs(stage), SCRIPT, worker, list(read.values()), list(map(Like.of, read.values()))
        )

    def _outputs(self, model: Trained, batch: Batch) -> list[Tensor]:
        parts: list[list[Tensor]] = [[] for _ in model.split.outputs]
        last = len(model.split.stages) - 1
        for micro_batch in range(len(batch.ends)):
            first, end = batch.span(micro_batch)
            for piece in self._routes.pieces(last, micro_batch, end - first):
                for output, found in zip(model.split.outputs, parts, strict=True):
                    tag = model.tags.output(output.number, is_back=False)
                    found += take_all(self._mail, tag, piece.worker, SCRIPT, [like_of(output, piece.num_samples)])
        return [
            # No view, which the script could not change in place.
            found[0].clone() if len(found) == 1 else torch.cat(found, output.shape.sample_dim)
            for output, found in zip(model.split.outputs, parts, strict=True)
        ]

    def _send_gradients(
        self, model: Trained, gradients: Sequence[Tensor | None], layouts: Layouts, ends: Sequence[int]
    ) -> None:
        last = len(model.split.stages) - 1
        for micro_batch in reversed(range(len(ends))):
            begin = ends[micro_batch - 1] if micro_batch else 0
            for piece in self._routes.pieces(last, micro_batch, ends[micro_batch] - begin):
                for output, gradient, layout in zip(model.split.outputs, gradients, layouts, strict=True):
                    if not output.has_gradient:
                        continue
                    dim, part = output.shape.sample_dim, gradient
                    if part is not None and dim is not None:
                        each = output.shape.sizes[dim].per_sample
                        part = part.narrow(dim, (begin + piece.first) * each, piece.num_samples * each)
                    tag = model.tags.output(output.number, is_back=True)
                    like = like_of(output, piece.num_samples, layout)
                    post_some(self._mail, tag, SCRIPT, piece.worker, [part], [like])

    def _bring_buffers(self, model: Trained, call: int, stage: int, own: StageModule) -> None:
        if not own.written:
            return
        first = self._routes.workers[stage][0]
        buffers = dict(own.module.named_buffers())
        changed = [buffers[name] for name in own.written]
        if self._is_here(first):
            found = model.workers[first].buffers_of(call)
        else:
            found = take_all(self._mail, model.tags.buffers(stage), first, SCRIPT, list(map(Like.of, changed)))
        with torch.no_grad():
            for buffer, value in zip(changed, found, strict=True):
                buffer.copy_(value)

    def _summed(self, model: Trained, stage: int) -> Gradients:
        """Over the replicas, in their order."""
        likes = list(map(Like.of, model.split.stages[stage].module.parameters()))
        total: Gradients = [None] * len(likes)
        for worker in self._routes.workers[stage]:
            if self._is_here(worker):
                came = model.workers[worker].take_gradients()
            else:
                came = take_some(self._mail, model.tags.gradients(stage), worker, SCRIPT, likes)
            total = [a if b is None else b if a is None else a + b for a, b in zip(total, came, strict=True)]
        return total

"""What `detrain.pipeline` offers to loops of one's own: a model's profile, and a training over the stages of a plan."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from detrain.adapters.torch.pipeline.mail import LocalMail, Mail, RankMail
from detrain.adapters.torch.pipeline.routes import Routes, split_evenly
from detrain.adapters.torch.pipeline.splitting import Split, StageModule, split
from detrain.adapters.torch.pipeline.tracing import Traced, trace
from detrain.adapters.torch.pipeline.worker import Batch, Worker
from detrain.errors import GraphError, UsageError
from detrain.pipeline import planfile
from detrain.pipeline.plan import Plan
from detrain.pipeline.schedules import Schedule, orders


@dataclass
class _Running:
    """What is made of the model at the first step of a process, and holds nothing of the training between steps.

    It stands beside the pipeline and not in it: a resumed run makes it anew, so no checkpoint has to hold it.
    """

    split: Split
    workers: dict[int, Worker]
    mail: Mail


_RUNNING: weakref.WeakKeyDictionary[Pipeline, _Running] = weakref.WeakKeyDictionary()


class Pipeline:
    """A model that is trained over the stages of a plan, one worker a rank.

    Every rank makes the same model and optimizer, and gives the same batches to `step`; the weights of rank 0 are taken. Each worker keeps
    to its stages, and sends to others what they need. `gather` brings the trained weights to all ranks' models.

    A synchronous schedule (`gpipe`, `1f1b`, `interleaved`, `zb-h1`) adds the gradients of the micro-batches up as one process does that
    weighs each micro-batch's mean loss by its share of the samples, `gpipe` from the last to the first. An asynchronous one
    (`1f1b-async`, `2bw`) updates with the gradients of older weights, which are stashed, as PipeDream does. Dropout is drawn by seed, step,
    sample and layer, so it is the same under each plan.

    >>> pipe = detrain.pipeline.Pipeline(model, "plan.json", optimizer, loss_fn=nn.CrossEntropyLoss(), num_micro_batches=4)
    >>> for x, y in loader:
    ...     loss = pipe.step(x, target=y)
    """

    def __init__(
        self, model: nn.Module, plan: Plan | str | Path, optimizer: torch.optim.Optimizer, *, loss_fn: Callable[..., Tensor],
        schedule: str | Schedule = "1f1b", num_micro_batches: int = 1, emulate: bool = False, group: dist.ProcessGroup | None = None,
    ) -> None:  # fmt: skip
        """Nothing is cut before the first step, which shows what the model is given.

        Args:
            model: the whole model, in training mode; `torch.export` must be able to take it.
            plan: a plan, or the file of one. Device i of it is rank i.
            optimizer: over the model's parameters. Each rank steps with the gradients of its own.
            loss_fn: called with the model's output and the targets; the mean over their samples.
            schedule: by name, or with its options.
            num_micro_batches: of each batch; they are as equal as whole samples are.
            emulate: play all workers in this process, one after the other: the same bits, without ranks.
            group: the ranks, in order; all of them if None.
        """
        self.model, self.optimizer, self._loss_fn = model, optimizer, loss_fn
        self.plan = planfile.read(Path(plan)).plan if isinstance(plan, (str, Path)) else plan
        if isinstance(schedule, str):
            is_single = schedule == "1f1b-async"
            chunks = len(self.plan.stages) // self.plan.num_workers if schedule == "interleaved" else 1
            schedule = Schedule(schedule, 1 if is_single else num_micro_batches, chunks)
        self.schedule, self._group = schedule, group
        self._routes = Routes(schedule, tuple(stage.devices for stage in self.plan.stages))
        schedule.check(self._replicas)
        num_workers = self.plan.num_workers
        if not emulate:
            if not dist.is_initialized():
                raise UsageError(
                    "a pipeline runs over the ranks of torch.distributed: call init_process_group first, or emulate=True"
                )
            if dist.get_world_size(group) != num_workers:
                raise UsageError(
                    f"the plan is for {num_workers} devices, and there are {dist.get_world_size(group)} ranks"
                )
        self._is_emulated = emulate
        self._num_steps = self._num_under_way = 0
        #: That all ranks have agreed on, with the weights, at the first step of the run.
        self._seed: int | None = None
        #: What the first step was given, as much of it as shows how the model goes on.
        self._sample: list[Any] | None = None
        #: Of an asynchronous schedule, or with copies that one process plays: then it does hold something, and no resume may miss that.
        self._held: _Running | None = None

    @property
    def _replicas(self) -> tuple[int, ...]:
        return tuple(len(stage.devices) for stage in self.plan.stages)

    def step(self, *inputs: Any, target: Any = ()) -> Tensor | None:
        """Train on one batch: the samples lie in the first dimension of each tensor that has as many of them as the first.

        Returns the loss of the whole batch, on every rank, under a synchronous schedule; under an asynchronous one None, and `losses` has
        those of the batches that have come to the last stage.
        """
        targets = target if isinstance(target, tuple) else (target,)
        batch = self._batch(inputs, targets)
        running = self._running(batch)
        self._num_steps += 1
        with torch.enable_grad():
            if self.schedule.is_asynchronous:
                self._run(
                    {number: worker.advance(batch, self._num_under_way) for number, worker in running.workers.items()}
                )
                self._num_under_way += 1
                # A worker gets as far as it has to take a message when the sender is no more than that ahead of it.
                running.mail.end_turn(2 * sum(self._replicas) + 2)
                return None
            done = orders(self.schedule, self._replicas)
            self._run({
                number: worker.step(batch, done[min(worker.held) % len(done)]) for number, worker in running.workers.items()
            })  # fmt: skip
        running.mail.settle()
        return self._loss(batch, running)

    def drain(self) -> None:
        """Under an asynchronous schedule: have all batches under way go back, and all updates made."""
        if self._sample is None:
            return
        running = self._started()
        if self._num_under_way:
            with torch.enable_grad():
                self._run({number: worker.drain(self._num_under_way) for number, worker in running.workers.items()})
            self._num_under_way = 0
        running.mail.settle()

    def losses(self) -> list[float]:
        """Under an asynchronous schedule, on the workers of the last stage: of the micro-batches since the last call, in their order."""
        workers = self._held.workers.values() if self._held is not None else ()
        found = sorted(((number, loss) for worker in workers for number, loss in worker.losses), key=lambda one: one[0])
        for worker in workers:
            worker.losses.clear()
        return [loss.item() for _, loss in found]

    def gather(self) -> nn.Module:
        """Drain, and bring the weights and buffers of all stages to the model of every rank. Returns it."""
        self.drain()
        if self._sample is None or self._is_emulated:
            return self.model
        running = self._started()
        for stage, workers in zip(running.split.stages, self._routes.workers, strict=True):
            for tensor in (*stage.parameters(), *stage.module.buffers()):
                dist.broadcast(tensor.detach(), group_src=workers[0], group=self._group)
        return self.model

    # --- within ---------------------------------------------------------------------------------------------------------------

    def _batch(self, inputs: tuple[Any, ...], targets: tuple[Any, ...]) -> Batch:
        first = next((one for one in inputs if isinstance(one, Tensor) and one.dim()), None)
        if first is None:
            raise UsageError("a step is given at least one tensor, with the samples in its first dimension")
        count = self.schedule.num_micro_batches
        if first.shape[0] < count:
            raise UsageError(f"a batch of {first.shape[0]} samples cannot be split into {count} micro-batches")
        return Batch(self._num_steps, inputs, targets, tuple(split_evenly(first.shape[0], count)))

    def _running(self, batch: Batch) -> _Running:
        if self._sample is None:
            piece = self._routes.pieces(0, 0, batch.ends[0])[0]
            # A single sample would be taken for a fixed length.
            num_samples = min(max(piece.num_samples, 2), batch.num_samples)
            self._sample = [
                one.detach().clone() if isinstance(one, Tensor) else one
                for one in batch.cut(batch.inputs, 0, num_samples)
            ]
        running = self._started()
        self._check_sizes(batch, running.split.traced)
        return running

    def _started(self) -> _Running:
        """Made of the model and the sample, once in a process."""
        running = _RUNNING.get(self)
        if running is not None:
            return running
        assert self._sample is not None
        traced = trace(self.model, self._sample)
        cut = split(traced, {name: number for number, stage in enumerate(self.plan.stages) for name in stage.layers})
        self._check_cut(cut)
        if self._seed is None:
            self._seed = self._agreed_seed()
        mail: Mail = LocalMail() if self._is_emulated else RankMail(self._group, next(self.model.parameters()).device)
        running = _Running(cut, {}, mail)
        for number in range(self.plan.num_workers) if self._is_emulated else [dist.get_rank(self._group)]:
            modules, update = self._own(number, cut)
            running.workers[number] = Worker(
                number, cut, modules, self._routes, mail, self._loss_fn, update, self._seed
            )
        _RUNNING[self] = running
        if self.schedule.is_asynchronous or (self._is_emulated and max(self._replicas) > 1):
            self._held = running
        return running

    def _check_cut(self, cut: Split) -> None:
        if max(self._replicas) == 1 or self.schedule.is_asynchronous:
            return
        for crossing in cut.crossings:
            if crossing.shape.sample_dim is None and not crossing.shape.is_whole:
                raise GraphError(
                    f"{crossing.name}, which stage {crossing.maker} sends to stage {crossing.taker}, cannot be split by samples"
                )

    def _check_sizes(self, batch: Batch, traced: Traced) -> None:
        if traced.is_flexible:
            return
        for micro_batch, end in enumerate(batch.ends):
            first = batch.ends[micro_batch - 1] if micro_batch else 0
            for stage in range(len(self.plan.stages)):
                for piece in self._routes.pieces(stage, micro_batch, end - first):
                    if piece.num_samples != traced.num_samples:
                        raise GraphError(
                            f"the model takes {traced.num_samples} samples at a time and no other number, and stage {stage} would have "
                            f"{piece.num_samples} of micro-batch {micro_batch}"
                        )

    def _agreed_seed(self) -> int:
        """All ranks have the weights and the seed of the first."""
        seed = torch.tensor([torch.initial_seed() % (1 << 62)])
        if not self._is_emulated:
            for tensor in (*self.model.parameters(), *self.model.buffers(), seed):
                dist.broadcast(tensor.detach(), group_src=0, group=self._group)
        return int(seed.item())

    def _own(
        self, number: int, cut: Split
    ) -> tuple[Sequence[StageModule], Callable[[Sequence[tuple[nn.Parameter, Tensor | None]]], None]]:
        """A worker's modules and its optimizer's step: those given, and copies for replicas that one process plays as well."""
        is_copy = self._is_emulated and any(
            number in workers and workers[0] != number for workers in self._routes.workers
        )
        if not is_copy:
            return cut.stages, _Step(self.optimizer)
        memo: dict[int, Any] = {}
        modules = [copy.deepcopy(stage.module, memo) for stage in cut.stages]
        stages = [
            StageModule(module, stage.inputs, stage.takes, stage.makes, stage.changed)
            for module, stage in zip(modules, cut.stages, strict=True)
        ]
        return stages, _Step(copy.deepcopy(self.optimizer, memo))

    def _run(self, work: Mapping[int, Iterator[None]]) -> None:
        """Workers in turn, each as far as it comes."""
        waiting = dict(work)
        while waiting:
            for number, steps in list(waiting.items()):
                if next(steps, self) is self:
                    del waiting[number]

    def _loss(self, batch: Batch, running: _Running) -> Tensor:
        """Of all pieces, added in their order."""
        last = self._routes.workers[-1]
        found: dict[int, list[Tensor]] = {}
        for number, worker in running.workers.items():
            if number in last:
                found[number] = [loss for _, loss in sorted(worker.losses, key=lambda one: one[0])]
                worker.losses.clear()
        count = len(batch.ends)
        if not self._is_emulated:
            for number in last:
                own = torch.stack(found[number]) if number in found else torch.empty(count)
                dist.broadcast(own, group_src=number, group=self._group)
                found[number] = list(own)
        total: Tensor | None = None
        for micro_batch in range(count):
            for number in last:
                loss = found[number][micro_batch]
                total = loss if total is None else total + loss
        assert total is not None
        return total


class _Step:
    """Has an optimizer step with given gradients; parameters without one stay as they are."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer

    def __call__(self, sums: Sequence[tuple[nn.Parameter, Tensor | None]]) -> None:
        for parameter, gradient in sums:
            parameter.grad = gradient
        self._optimizer.step()
        for parameter, _ in sums:
            parameter.grad = None

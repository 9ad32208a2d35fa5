"""What `detrain.pipeline` offers to loops of one's own: a model's profile, and a training over the stages of a plan."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._pytree import TreeSpec, tree_unflatten

from detrain.adapters.torch import updates
from detrain.adapters.torch.pipeline import checking, live, under_way
from detrain.adapters.torch.pipeline.clipping import Clipping
from detrain.adapters.torch.pipeline.mail import LocalMail, Mail, RankMail
from detrain.adapters.torch.pipeline.routes import Routes, split_evenly
from detrain.adapters.torch.pipeline.splitting import Split, StageModule, split
from detrain.adapters.torch.pipeline.tags import Tags
from detrain.adapters.torch.pipeline.tracing import Traced, trace
from detrain.adapters.torch.pipeline.under_way import UnderWay
from detrain.adapters.torch.pipeline.worker import Batch, Update, Worker, in_turn
from detrain.errors import GraphError, UsageError
from detrain.pipeline import planfile
from detrain.pipeline.measured import WorkerSteps
from detrain.pipeline.plan import Plan
from detrain.pipeline.schedules import Schedule, Work, check_goes_on, orders


@dataclass
class _Running:
    """What is made of the model at the first step of a process.

    It stands beside the pipeline and not in it: a resumed run makes it anew, so no checkpoint has to hold it. What it holds of the training
    between steps is in the pipeline's `UnderWay` as well.
    """

    split: Split
    workers: dict[int, Worker]
    mail: Mail
    #: What each worker does in a step, of a synchronous schedule.
    orders: list[list[Work]]
    #: Where the micro-batches of batches have ended that every stage takes.
    fitting: set[tuple[int, ...]] = field(default_factory=set)
    #: The `UnderWay` that the workers are at.
    at: tuple[int, int] = (0, 0)


_NUM_PIPELINES: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()
#: Of a loss, by its number in what is sent.
_LOSS_TYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
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
        max_norm: float | None = None,
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
            max_norm: of a synchronous schedule: the gradients of all stages are clipped to this norm, as by
                `torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)`. None for none.
        """
        self.model, self.optimizer, self._loss_fn = model, optimizer, loss_fn
        self.plan = planfile.read(Path(plan)).plan if isinstance(plan, (str, Path)) else plan
        if isinstance(schedule, str):
            is_single = schedule == "1f1b-async"
            chunks = len(self.plan.stages) // self.plan.num_workers if schedule == "interleaved" else 1
            schedule = Schedule(schedule, 1 if is_single else num_micro_batches, chunks)
        self.schedule, self._group = schedule, group
        checking.check_devices(self.plan, schedule)
        self._routes = Routes(schedule, tuple(stage.devices for stage in self.plan.stages))
        schedule.check(self._replicas)
        if schedule.depths:
            check_goes_on(schedule, self._replicas)
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
        if max_norm is not None and schedule.is_asynchronous:
            raise UsageError(
                f"max_norm is for synchronous schedules: under {schedule.name} each stage updates when its own gradients are there"
            )
        self._max_norm = max_norm
        self._is_emulated, self._is_broken = emulate, False
        #: Of the pipelines over these ranks: each has tags of its own.
        self._number = 0
        if not emulate:
            ranks = group if group is not None else dist.group.WORLD
            self._number = _NUM_PIPELINES.get(ranks, 0)
            _NUM_PIPELINES[ranks] = self._number + 1
        #: What the first step was given, and how the model was then: it was traced so.
        self._given: list[Any] = []
        self._has_samples: tuple[bool, ...] = ()
        self._modes: list[bool] = []
        self._code = ""
        self._num_steps = self._num_under_way = 0
        #: That all ranks have agreed on, with the weights, at the first step of the run.
        self._seed: int | None = None
        #: What the first step was given, as much of it as shows how the model goes on.
        self._sample: list[Any] | None = None
        #: Of an asynchronous schedule, after each step.
        self._under_way: UnderWay | None = None
        #: With copies that one process plays: they are nowhere else, and no resume may miss them.
        self._copied: _Running | None = None

    @property
    def _replicas(self) -> tuple[int, ...]:
        return self._routes.replicas

    def step(self, *inputs: Any, target: Any = ()) -> Tensor | None:
        """Train on one batch: the samples lie in the first dimension of each tensor that has as many of them as the first.

        Returns the loss of the whole batch, on every rank, under a synchronous schedule; under an asynchronous one None, and `losses` has
        those of the batches that have come to the last stage.
        """
        targets = target if isinstance(target, tuple) else (target,)
        batch = self._batch(inputs, targets)
        running = self._running(batch)
        self._num_steps += 1
        try:
            return self._stepped(batch, running)
        except BaseException:
            self._is_broken = True  # what is half done would be in the next step's gradients
            raise

    def _stepped(self, batch: Batch, running: _Running) -> Tensor | None:
        with torch.enable_grad():
            if self.schedule.is_asynchronous:
                self._run(
                    {number: worker.advance(batch, self._num_under_way) for number, worker in running.workers.items()}
                )
                self._num_under_way += 1
                self._note_under_way(running)
                # A worker gets as far as it has to take a message when the sender is no more than that ahead of it.
                running.mail.end_turn(2 * sum(self._replicas) + 2)
                updates.note_step_of_all()
                return None
            done = running.orders
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
            self._note_under_way(running)
        running.mail.settle()

    def losses(self) -> list[float]:
        """Under an asynchronous schedule, on the workers of the last stage: of the micro-batches since the last call, in their order.

        Each is weighed by its share of its batch, so that those of a batch add up to the batch's loss: under `2bw` with four
        micro-batches, each is a quarter of its mean loss.
        """
        if self._sample is None or not self.schedule.is_asynchronous:
            return []
        running = self._started()
        found = sorted(
            (entry for worker in running.workers.values() for entry in worker.losses), key=lambda entry: entry[:2]
        )
        for worker in running.workers.values():
            worker.losses.clear()
        self._note_under_way(running)
        return [loss.item() for _, _, loss in found]

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

    def take_in(self) -> None:
        """Under an asynchronous schedule: receive what other ranks have sent by now, so that a checkpoint holds it."""
        running = _RUNNING.get(self)
        if running is not None and not self._is_emulated and self._under_way is not None and not self._is_broken:
            for worker in self._started().workers.values():
                under_way.take_in(worker, self._num_under_way)
            self._note_under_way(running)

    def measured(self) -> WorkerSteps | None:
        """Over ranks: when this rank's worker did what, in the latest step or mini-batches; None before the first."""
        running = _RUNNING.get(self)
        if running is None or self._is_emulated or not self._num_steps:
            return None
        ((number, worker),) = running.workers.items()
        return WorkerSteps(self.schedule, self._routes.workers, number, self._num_steps, tuple(worker.done))

    # --- within ---------------------------------------------------------------------------------------------------------------

    def _note_under_way(self, running: _Running) -> None:
        running.at = self._num_steps, self._num_under_way
        workers = {number: under_way.of_worker(worker) for number, worker in running.workers.items()}
        self._under_way = UnderWay(running.at, workers, running.mail.unread())

    def _go_on(self, running: _Running) -> None:
        """From what a checkpoint has held."""
        assert self._under_way is not None
        for number, worker in running.workers.items():
            if not self._is_emulated:  # what others have sent in this process is not of this state
                under_way.take_in(worker, running.at[1])
            under_way.put_back(worker, self._under_way.workers[number])
        running.mail.replace(self._under_way.unread)
        running.at = self._under_way.at

    def _batch(self, inputs: tuple[Any, ...], targets: tuple[Any, ...]) -> Batch:
        if self._is_broken:
            raise UsageError(
                "a step of this pipeline has failed before, and what it has left is not known: make a new one"
            )
        checking.check_no_autocast()
        if any(isinstance(one, (list, tuple, dict)) for one in inputs):
            raise GraphError("a step is given a list, tuple or dict; a pipeline's inputs are tensors and plain values")
        first = next((one for one in inputs if isinstance(one, Tensor) and one.dim()), None)
        if first is None:
            raise UsageError("a step is given at least one tensor, with the samples in its first dimension")
        if not self._given:
            self._has_samples = tuple(
                isinstance(one, Tensor) and one.dim() > 0 and one.shape[0] == first.shape[0] for one in inputs
            )
            self._given = _described(inputs, self._has_samples)
            self._modes = [module.training for module in self.model.modules()]
        elif len(inputs) != len(self._given) or _described(inputs, self._has_samples) != self._given:
            raise UsageError(
                f"a step is given {_described(inputs, self._has_samples)[:9]}, and the first was given {self._given[:9]}: the stages are "
                "made for that alone"
            )
        elif self._modes != [module.training for module in self.model.modules()]:
            raise UsageError(
                "modules were set to train() or eval() after the first step: the stages are as they were then"
            )
        sizes = {one.shape[0] for one, has in zip(inputs, self._has_samples, strict=True) if has}
        if len(sizes) > 1:
            raise UsageError(f"the inputs of a step have {sorted(sizes)} samples")
        count = self.schedule.num_micro_batches
        if first.shape[0] < count:
            raise UsageError(f"a batch of {first.shape[0]} samples cannot be split into {count} micro-batches")
        if self.schedule.is_asynchronous:
            # A resume reads them again, and the script may have filled their memory with the next ones by then.
            inputs, targets = _in_own_memory(inputs), _in_own_memory(targets)
        return Batch(self._num_steps, inputs, targets, tuple(split_evenly(first.shape[0], count)), self._has_samples)

    def _running(self, batch: Batch) -> _Running:
        if self._sample is None:
            piece = self._routes.pieces(0, 0, batch.ends[0])[0]
            # A single sample would be taken for a fixed length.
            num_samples = min(max(piece.num_samples, 2), batch.num_samples)
            self._sample = [
                one.detach().clone() if isinstance(one, Tensor) else one for one in batch.cut_inputs(0, num_samples)
            ]
        running = self._started()
        if batch.ends not in running.fitting:
            self._check_sizes(batch, running.split.traced)
            running.fitting.add(batch.ends)
        return running

    def _started(self) -> _Running:
        """Made of the model and the sample, once in a process."""
        running = _RUNNING.get(self)
        if running is None:
            running = self._start()
        if self._under_way is not None and self._under_way.at != running.at:
            self._go_on(running)
        return running

    def _start(self) -> _Running:
        assert self._sample is not None
        now = [module.training for module in self.model.modules()]
        try:
            self._set_modes(self._modes)
            traced = trace(self.model, self._sample)
        finally:
            self._set_modes(now)
        if self._code and traced.root.code != self._code:
            raise GraphError(
                "the model does other things than at the first step of the run, by which its stages were made"
            )
        self._code = traced.root.code
        cut = split(traced, {name: number for number, stage in enumerate(self.plan.stages) for name in stage.layers})
        if max(self._replicas) > 1 and not self.schedule.is_asynchronous:
            checking.check_crossings(cut)
        if self._seed is None:
            self._seed = self._agreed_seed()
        mail: Mail = LocalMail()
        if not self._is_emulated:
            group = self._group if self._group is not None else dist.group.WORLD
            assert group is not None
            mail = RankMail(group, next(self.model.parameters()).device, self._number)
        clipping = None if self._max_norm is None else Clipping.of(self._max_norm, self.model, cut.stages)
        done = [] if self.schedule.is_asynchronous else orders(self.schedule, self._replicas)
        running = _Running(cut, {}, mail, done)
        tags = Tags(len(cut.crossings), len(cut.stages), 0)
        for number in range(self.plan.num_workers) if self._is_emulated else [dist.get_rank(self._group)]:
            modules, update = self._own(number, cut)
            running.workers[number] = Worker(
                number, tags, dict(enumerate(modules)), self._routes, mail, partial(self._loss_of, traced.out_spec), update, self._seed,
                clipping,
            )  # fmt: skip
        _RUNNING[self] = running
        if self._is_emulated and max(self._replicas) > 1:
            self._copied = running
        if not self._is_emulated:
            live.add(self)
        return running

    def _loss_of(self, out_spec: TreeSpec, outputs: Sequence[Tensor], targets: Sequence[Any]) -> Tensor:
        return self._loss_fn(tree_unflatten(list(outputs), out_spec), *targets)

    def _check_sizes(self, batch: Batch, traced: Traced) -> None:
        for micro_batch, end in enumerate(batch.ends):
            first = batch.ends[micro_batch - 1] if micro_batch else 0
            for stage in range(len(self.plan.stages)):
                for piece in self._routes.pieces(stage, micro_batch, end - first):
                    if not traced.least_in_parts <= piece.num_samples <= traced.most_samples:
                        raise GraphError(
                            f"the model does the same for {traced.least_in_parts} to {traced.most_samples} samples at a time, and stage "
                            f"{stage} would have {piece.num_samples} of micro-batch {micro_batch}"
                        )

    def _agreed_seed(self) -> int:
        """All ranks have the weights and the seed of the first. Raises `UsageError` where they are given other batches."""
        assert self._sample is not None
        own = checking.likeness(self._sample)
        agreed = torch.tensor([torch.initial_seed() % (1 << 62), own])
        if not self._is_emulated:
            for tensor in (*self.model.parameters(), *self.model.buffers(), agreed):
                dist.broadcast(tensor.detach(), group_src=0, group=self._group)
            self._check_likeness(own, int(agreed[1].item()), 0)
        return int(agreed[0].item())

    def _check_likeness(self, own: int, other: int, rank: int) -> None:
        if own != other:
            raise UsageError(
                f"the batch of step {max(self._num_steps, 1)} is not the same on the pipeline's ranks {dist.get_rank(self._group)} and "
                f"{rank}: every rank gives step() the whole of each batch, in the same order (a seeded loader, and no DistributedSampler)"
            )

    def _own(self, number: int, cut: Split) -> tuple[Sequence[StageModule], Update]:
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
        return stages, _Step(copy.deepcopy(self.optimizer, memo), self.optimizer)

    def _set_modes(self, modes: Sequence[bool]) -> None:
        for module, mode in zip(self.model.modules(), modes, strict=True):
            module.training = mode

    def _run(self, work: Mapping[int, Iterator[None]]) -> None:
        in_turn(list(_RUNNING[self].workers.values()), work.values(), self.schedule.name)

    def _loss(self, batch: Batch, running: _Running) -> Tensor:
        """Of all pieces, added in their order."""
        last = self._routes.workers[-1]
        found: dict[int, list[Tensor]] = {}
        for number, worker in running.workers.items():
            if number in last:
                found[number] = [loss for _, _, loss in sorted(worker.losses, key=lambda entry: entry[:2])]
                worker.losses.clear()
        count = len(batch.ends)
        if not self._is_emulated:
            likeness = checking.likeness((*batch.inputs, *batch.targets))
            for number in last:
                own = torch.zeros(count + 2, dtype=torch.float64)
                if number in found:
                    own[:count] = torch.stack(found[number]).double()
                    own[count], own[count + 1] = _LOSS_TYPES.index(found[number][0].dtype), likeness
                dist.broadcast(own, group_src=number, group=self._group)
                self._check_likeness(likeness, int(own[count + 1].item()), number)
                found[number] = list(own[:count].to(_LOSS_TYPES[int(own[count])]))
        total: Tensor | None = None
        for micro_batch in range(count):
            for number in last:
                loss = found[number][micro_batch]
                total = loss if total is None else total + loss
        assert total is not None
        return total


class _Step:
    """Has an optimizer step with given gradients; parameters without one stay as they are."""

    def __init__(self, optimizer: torch.optim.Optimizer, original: torch.optim.Optimizer | None = None) -> None:
        """`original`: of which it is a copy; what the script sets there (the rate of learning) holds here."""
        self._optimizer, self._original = optimizer, original

    def __call__(self, sums: Sequence[tuple[nn.Parameter, Tensor | None]]) -> None:
        if self._original is not None:
            for own, given in zip(self._optimizer.param_groups, self._original.param_groups, strict=True):
                own.update({key: value for key, value in given.items() if key != "params"})
        for group in self._optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None  # other stages' would be stepped with as well
        for parameter, gradient in sums:
            parameter.grad = gradient
        self._optimizer.step()
        for parameter, _ in sums:
            parameter.grad = None


def _in_own_memory(values: Sequence[Any]) -> tuple[Any, ...]:
    return tuple(one.clone() if isinstance(one, Tensor) else one for one in values)


def _described(inputs: Sequence[Any], has_samples: Sequence[bool]) -> list[Any]:
    """What of inputs the stages are made for: sizes beside the number of samples, types, and plain values."""
    return [
        (str(one.dtype), tuple(one.shape[1:]) if has else tuple(one.shape)) if isinstance(one, Tensor) else one
        for one, has in zip(inputs, has_samples, strict=False)
    ]

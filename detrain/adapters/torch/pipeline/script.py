"""A script's model over the stages of a plan, without a change to the script.

Where the script calls the model, the forward passes of all micro-batches run on the workers; where it goes back through what the model has
returned, the backward passes do, from the last micro-batch to the first (GPipe). The script's process is the first worker. It keeps the
weights, which go to the others with each call, and is given the gradients: clipping, schedules of rates, evaluation, checkpoints and
files are as they were, and no worker holds anything that a kill could lose.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_unflatten

from detrain.adapters.protocol import PipelineOrder
from detrain.adapters.torch.pipeline import calls, checking
from detrain.adapters.torch.pipeline.crew import Crew, Trained
from detrain.adapters.torch.pipeline.routes import Routes, split_evenly
from detrain.adapters.torch.pipeline.settings import settings_of
from detrain.adapters.torch.pipeline.splitting import Split, split
from detrain.adapters.torch.pipeline.tracing import samples_in, trace
from detrain.adapters.torch.pipeline.worker import Batch
from detrain.errors import DetrainError, GraphError, PipelineError
from detrain.messages import say
from detrain.pipeline.schedules import Schedule
from detrain.state import registry


@dataclass(frozen=True)
class _Known:
    """A model as it was traced for one kind of call."""

    trained: Trained
    out_spec: TreeSpec
    least_samples: int
    most_samples: int


@dataclass(frozen=True)
class _Given:
    """What a call gives to the model."""

    leaves: tuple[Any, ...]
    spec: TreeSpec
    has_samples: tuple[bool, ...]
    num_samples: int


#: A single sample is treated in another way by some operators (batch statistics, squeeze), so no part of a batch is one alone.
_LEAST_SAMPLES = 2
#: So often something is said of it.
_MANY_TRACES = 20


class ScriptPipeline:
    """Has the script's calls of the plan's model, from `begin` on."""

    def __init__(self, order: PipelineOrder, aside: Callable[[], AbstractContextManager[Any]]) -> None:
        """`aside`: within it nothing counts as the script's."""
        self._aside = aside
        stages = order.plan.stages
        schedule = Schedule("gpipe", order.num_micro_batches)
        checking.check_devices(order.plan, schedule)
        self._num_micro_batches = order.num_micro_batches
        self._routes = Routes(schedule, tuple(stage.devices for stage in stages))
        self._crew = Crew(self._routes, is_emulated=order.is_emulated)
        self._replicas = tuple(len(stage.devices) for stage in stages)
        self._stage_of_layer = {name: number for number, stage in enumerate(stages) for name in stage.layers}
        #: In checkpoints. How samples are split decides how gradients are added, so it cannot be another where a run goes on.
        self.state: dict[str, Any] = {
            "num_calls": 0,
            "seed": None,
            "num_micro_batches": order.num_micro_batches,
            "replicas": self._replicas,
        }
        self._end_calls: Callable[[], None] = lambda: None
        #: By model and by kind of call.
        self._known: dict[int, dict[Any, list[_Known]]] = {}
        self._num_traces = 0
        #: Of the first call that could not be done.
        self._failure: DetrainError | None = None
        #: At the first header of the attempt.
        self._first_batch: int | None = None
        #: Names of modules in training that the script calls.
        self._called: dict[str, None] = {}

    def begin(self) -> None:
        """From now on, in this thread."""
        registry.process_roots.append(self._roots)
        self._end_calls = calls.take_over(self._on_call)

    def end(self) -> None:
        """From now on the script's calls are its own again."""
        registry.process_roots.remove(self._roots)
        self._end_calls()

    def _roots(self) -> dict[str, Any]:
        return {"pipeline": self.state}

    def at_header(self, num_batches: int) -> None:
        """See `detrain.adapters.protocol.ScriptPipeline`."""
        if self._first_batch is None:
            self._first_batch = num_batches
        if self._failure is not None:
            raise self._failure
        if num_batches > self._first_batch and not self._num_traces:
            raise GraphError(
                f"the plan is for a model with layers {', '.join(list(self._stage_of_layer)[:3])}, ..., and the script trains without "
                f"calling one: it calls {', '.join(self._called) or 'no module in training'}"
            )

    def _on_call(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        self._called[type(model).__name__] = None
        if not self._is_planned(model):
            return run()
        try:
            return self._call(model, args, kwargs, run)
        except DetrainError as error:
            self._failure = self._failure or error  # a script that goes on in spite of it would not go on as it should
            raise

    def _call(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        leaves, spec = tree_flatten((args, kwargs))
        count, has_samples = samples_in(leaves)
        most = max(self._replicas)
        if most > 1 and count < _LEAST_SAMPLES * most:
            return run()  # the rest of an epoch, of too few samples for the replicas
        given = _Given(tuple(leaves), spec, has_samples, count)
        checking.check_call(model, leaves)
        with self._aside():
            self._check_state()
            ends = self._ends(count)
            known = self._find(model, given, ends)
        if known is None:
            return run()
        call = self.state["num_calls"]
        self.state["num_calls"] += 1
        batch = Batch(call, given.leaves, (), ends, has_samples)
        parameters = [one for stage in known.trained.split.stages for one in stage.parameters() if one.requires_grad]
        returned = _Through.apply(_Call(self._crew, known.trained, call, batch), *parameters)
        return tree_unflatten(list(returned), known.out_spec)

    def _is_planned(self, model: nn.Module) -> bool:
        modules = {type(model).__name__, *(name for name, _ in model.named_modules())}
        return all(name.partition("#")[0] in modules for name in self._stage_of_layer)

    def _ends(self, num_samples: int) -> tuple[int, ...]:
        """Where micro-batches end; fewer of them, where there would not be enough samples for each replica."""
        most = max(num_samples // (_LEAST_SAMPLES * max(self._replicas)), 1)
        return tuple(split_evenly(num_samples, min(self._num_micro_batches, most)))

    def _check_state(self) -> None:
        begun = self.state["num_micro_batches"], tuple(self.state["replicas"])
        if begun != (self._num_micro_batches, self._replicas):
            raise PipelineError(
                f"the run was begun with {begun[0]} micro-batches and replicas {'-'.join(map(str, begun[1]))}, and is to go on with "
                f"{self._num_micro_batches} and {'-'.join(map(str, self._replicas))}: gradients would be added in another way"
            )
        if self.state["seed"] is None:
            self.state["seed"] = torch.initial_seed() % (1 << 62)

    def _find(self, model: nn.Module, given: _Given, ends: Sequence[int]) -> _Known | None:
        """As it is for this kind of call; traced, if there was none of the kind yet. None if the plan is for another model."""
        spans = [
            (first + piece.first, first + piece.end)
            for first, end in zip((0, *ends[:-1]), ends, strict=True)
            for piece in self._routes.pieces(self._replicas.index(max(self._replicas)), 0, end - first)
        ]
        least = min(end - first for first, end in spans)
        most = max(end - first for first, end in zip((0, *ends[:-1]), ends, strict=True)) if 1 in self._replicas else 0
        most = max(most, *(end - first for first, end in spans))
        kind = given.spec, settings_of(model, given.leaves, given.has_samples)
        if id(model) not in self._known:
            weakref.finalize(model, self._known.pop, id(model), None).atexit = False
        of_model = self._known.setdefault(id(model), {})
        for one in of_model.setdefault(kind, []):
            if one.least_samples <= least and most <= one.most_samples:
                return one
        sample = [one[:most].detach() if has else one for one, has in zip(given.leaves, given.has_samples, strict=True)]
        name = type(model).__name__
        args, kwargs = tree_unflatten(sample, given.spec)
        with checking.watching_forward(model):
            traced = trace(model, args, kwargs)
        if {layer.name for layer in traced.layers} != self._stage_of_layer.keys() and self._is_another(id(model)):
            del self._known[id(model)]
            return None
        cut = split(traced, self._stage_of_layer)
        if least < traced.least_samples or most > traced.most_samples:
            raise GraphError(
                f"{name} does the same for {traced.least_samples} to {traced.most_samples} samples at a time, and would be given "
                f"{least} to {most}"
            )
        if len(spans) > 1:
            self._check_split(model, given, spans, cut)
        if self._crew.num_processes:
            number = self._crew.num_processes
            say(f"pipeline: {number} worker{'s are' if number > 1 else ' is'} started beside this process")
        known = _Known(
            self._crew.take(cut, self.state["seed"]), traced.out_spec, traced.least_samples, traced.most_samples
        )
        of_model[kind].append(known)
        self._num_traces += 1
        if self._num_traces % _MANY_TRACES == 0:
            say(
                f"pipeline: {name} has been traced {self._num_traces} times, as it is called in other ways: each takes time, and memory. "
                "Sizes, plain values that it is given, and attributes that change make it so"
            )
        return known

    def _is_another(self, own: int) -> bool:
        """The plan's model is known, and is not this one."""
        return any(found for key, kinds in self._known.items() if key != own for found in kinds.values())

    def _check_split(self, model: nn.Module, given: _Given, spans: Sequence[tuple[int, int]], cut: Split) -> None:
        checking.check_outputs(cut)
        checking.check_crossings(cut)
        name = type(model).__name__

        def evaluated(leaves: list[Any]) -> list[Any]:
            args, kwargs = tree_unflatten(leaves, given.spec)
            return list(tree_leaves(model.forward(*args, **kwargs)))

        with checking.in_evaluation(model):
            checking.check_samples(name, evaluated, given.leaves, given.has_samples, spans)
        if not cut.is_random and not any(stage.written for stage in cut.stages):
            (whole,) = split(cut.traced, dict.fromkeys(self._stage_of_layer, 0)).stages

            def trained(leaves: list[Any]) -> list[Any]:
                count = next(len(one) for one, has in zip(leaves, given.has_samples, strict=True) if has)
                return list(whole.module(count, None, *(leaves[place] for place in whole.inputs)))

            checking.check_samples(name, trained, given.leaves, given.has_samples, spans)


class _Call:
    """One call of the model. Workers keep what it needs until the script has gone back through it, or cannot any more."""

    def __init__(self, crew: Crew, model: Trained, number: int, batch: Batch) -> None:
        self._crew, self._model, self._number, self._batch = crew, model, number, batch
        self._drop: weakref.finalize[Any, _Call] | None = None

    def forward(self) -> list[Tensor]:
        returned = self._crew.forward(self._model, self._number, self._batch)
        self._drop = weakref.finalize(self, self._crew.drop, self._model, self._number)
        self._drop.atexit = False
        return returned

    @property
    def has_gradients(self) -> list[bool]:
        return [output.has_gradient for output in self._model.split.outputs]

    def backward(self, gradients: Sequence[Tensor | None]) -> list[Tensor | None]:
        """Of the parameters that are trained, stage by stage."""
        if self._drop is None:
            raise PipelineError(
                "the script goes back twice through one call of a model that is trained over a pipeline"
            )
        self._drop.detach()
        self._drop = None
        sums = self._crew.backward(self._model, self._number, gradients, self._batch.ends)
        return [
            gradient
            for stage, found in zip(self._model.split.stages, sums, strict=True)
            for parameter, gradient in zip(stage.parameters(), found, strict=True)
            if parameter.requires_grad
        ]


class _Through(torch.autograd.Function):  # type: ignore[misc]
    """A call as one operator of the script's graph."""

    @staticmethod
    def forward(ctx: Any, call: _Call, *parameters: Tensor) -> tuple[Tensor, ...]:  # noqa: ARG004 - gradients go to them
        ctx.set_materialize_grads(False)
        ctx.call = call
        returned = call.forward()
        ctx.mark_non_differentiable(*(one for one, has in zip(returned, call.has_gradients, strict=True) if not has))
        return tuple(returned)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        return None, *ctx.call.backward(gradients)

"""What can be trained over stages as one process trains it, and what cannot."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules import module as hooks
from torch.utils._pytree import TreeSpec, tree_leaves, tree_unflatten

from detrain.adapters.torch.pipeline.splitting import Split
from detrain.errors import GraphError
from detrain.pipeline.plan import Plan

_PLAIN = (bool, int, float, str, type(None))
_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
#: How far what the model returns for some samples may be from what it returns for them among all: kernels add in another order.
_NEAR = 1e-3


def check_devices(plan: Plan, schedule: str) -> None:
    """Stages and devices as the executor takes them. Raises `GraphError`."""
    devices = [stage.devices for stage in plan.stages]
    if sorted({device for own in devices for device in own}) != list(range(plan.num_workers)):
        raise GraphError(f"the devices of the plan are not 0 to {plan.num_workers - 1}")
    if sum(map(len, devices)) != plan.num_workers:
        raise GraphError(
            f"a device of the plan has several stages: that is an interleaved schedule's, not {schedule}'s"
        )


def settings_of(model: nn.Module, leaves: Sequence[Any], has_samples: Sequence[bool]) -> Any:
    """What a trace is made for: sizes beside the number of samples, types, plain values; modes, flags and rates of all modules.

    Raises `GraphError` where a pipeline would not do what the model does.
    """
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise GraphError("within torch.autocast a model cannot be trained over a pipeline yet")
    if any(isinstance(one, Tensor) and one.requires_grad for one in leaves):
        raise GraphError(
            f"{type(model).__name__} is given a tensor that has gradients, which a pipeline would not bring back"
        )
    if any(one.device.type != "cpu" for one in model.parameters()):
        raise GraphError("a script's model is trained over a pipeline on CPUs only, so far")
    if any(getattr(hooks, f"_global{name}") for name in _HOOKS if name != "_backward_pre_hooks"):
        raise GraphError("global hooks on modules would not run in a pipeline's stages")
    given = tuple(
        (str(one.dtype), tuple(one.shape[1:]) if has else tuple(one.shape)) if isinstance(one, Tensor) else repr(one)
        for one, has in zip(leaves, has_samples, strict=True)
    )
    modules = []
    for name, module in model.named_modules():
        own = vars(module)
        if any(own.get(kind) for kind in _HOOKS):
            raise GraphError(f"{name or type(model).__name__} has hooks, which would not run in a pipeline's stages")
        modules.append(tuple((key, value) for key, value in own.items() if isinstance(value, _PLAIN)))
    trained = tuple((id(one), one.requires_grad) for one in model.parameters())
    buffers = tuple(map(id, model.buffers()))
    return given, tuple(modules), trained, buffers, str(torch.get_default_dtype())


def check_outputs(cut: Split, *, is_split: bool) -> None:
    """`is_split`: a call's samples go apart, and what comes of them is put together. Raises `GraphError` where that cannot be."""
    for crossing in cut.outputs if is_split else ():
        dim = crossing.shape.sample_dim
        if dim is None:
            raise GraphError(
                f"the model returns {crossing.name}, which has no samples in it "
                "(a loss, it may be), so it cannot be put together from micro-batches: --micro-batches 1, and a plan without replicas"
            )
    for crossing in cut.crossings if is_split else ():
        dim = crossing.shape.sample_dim
        if crossing.is_of_inputs if dim is None else crossing.shape.sizes[dim].per_sample != 1:
            raise GraphError(
                f"{crossing.name}, which stage {crossing.maker} sends to stage {crossing.taker}, cannot be split by samples"
            )


def check_samples(
    model: nn.Module, leaves: Sequence[Any], has_samples: Sequence[bool], spec: TreeSpec, count: int
) -> None:
    """Raises `GraphError` where the model, in evaluation, returns for the first `count` samples alone other things than for all."""
    part = [one[:count] if has else one for one, has in zip(leaves, has_samples, strict=True)]
    with _in_evaluation(model):
        whole_args, whole_kwargs = tree_unflatten(list(leaves), spec)
        args, kwargs = tree_unflatten(part, spec)
        whole, alone = model.forward(*whole_args, **whole_kwargs), model.forward(*args, **kwargs)
    for one, other in zip(tree_leaves(whole), tree_leaves(alone), strict=True):
        if not isinstance(one, Tensor) or not one.is_floating_point() or one.shape == other.shape:
            continue  # what has no samples is refused by its sizes
        dims = [dim for dim, (length, part) in enumerate(zip(one.shape, other.shape, strict=True)) if length != part]
        of_first = one.narrow(dims[0], 0, other.shape[dims[0]])
        if len(dims) > 1 or (of_first - other).abs().max() > _NEAR * (1.0 + other.abs().max()):
            raise GraphError(
                f"{type(model).__name__} returns other things for its first {count} samples alone than for all: what lies along the "
                "first dimension of its inputs is not independent, so it cannot be split into micro-batches: --micro-batches 1"
            )


@contextmanager
def refusing_draws(model: nn.Module) -> Iterator[None]:
    """While a model is traced. Raises `GraphError` if its own code draws numbers, and so decides what stages would do ever after."""
    forward, name = model.forward, type(model).__name__

    @functools.wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        before = _states()
        found = forward(*args, **kwargs)
        if _states() != before:
            raise GraphError(
                f"{name}'s forward draws from Python's or NumPy's generator, which a pipeline's stages would not"
            )
        return found

    own = vars(model)
    had = {"forward": forward} if "forward" in own else {}  # put there by a library that wraps it
    own["forward"] = watched
    try:
        yield
    finally:
        del own["forward"]
        own.update(had)


def _states() -> list[Any]:
    numpy = sys.modules.get("numpy")
    return [random.getstate(), *([repr(numpy.random.get_state(legacy=False))] if numpy is not None else [])]


@contextmanager
def _in_evaluation(model: nn.Module) -> Iterator[None]:
    """Modes, plain attributes and PyTorch's generator are as they were afterwards."""
    before = [{key: value for key, value in vars(one).items() if isinstance(value, _PLAIN)} for one in model.modules()]
    modules = list(model.modules())
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        try:
            for module in modules:
                module.training = False
            yield
        finally:
            for module, attributes in zip(modules, before, strict=True):
                vars(module).update(attributes)

"""What can be trained over stages as one process trains it, and what cannot."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import xxhash
from torch import Tensor, nn
from torch.nn.modules import module as hooks

from detrain.adapters.torch.pipeline.settings import Attributes, generators_of, state_of
from detrain.adapters.torch.pipeline.splitting import Split
from detrain.errors import GraphError
from detrain.pipeline.plan import Plan
from detrain.pipeline.schedules import Schedule

_HOOKS = (
    "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip
#: How far what the model returns for some samples may be from what it returns for them among all: kernels add in another order.
_NEAR = 1e-3
#: Of a tensor at either end.
_COMPARED_BYTES = 1 << 15


def check_devices(plan: Plan, schedule: Schedule) -> None:
    """Stages and devices as the executor takes them. Raises `GraphError`."""
    devices = [stage.devices for stage in plan.stages]
    if sorted({device for own in devices for device in own}) != list(range(plan.num_workers)):
        raise GraphError(f"the devices of the plan are not 0 to {plan.num_workers - 1}")
    if schedule.name == "interleaved":
        count = len(devices) // schedule.chunks
        if any(own != (number % count,) for number, own in enumerate(devices)):
            raise GraphError("interleaved: stage i of the plan is on one device, i modulo the number of devices")
    elif sum(map(len, devices)) != plan.num_workers:
        raise GraphError(
            f"a device of the plan has several stages: that is an interleaved schedule's, not {schedule.name}'s"
        )


def likeness(values: Iterable[Any]) -> int:
    """A number of 48 bits by which ranks see that they are given the same: of plain values, and of how tensors begin and end."""
    state = xxhash.xxh3_64()
    for value in values:
        if not isinstance(value, Tensor):
            is_plain = value is None or isinstance(value, (bool, int, float, str))
            state.update((repr(value) if is_plain else type(value).__qualname__).encode())
            continue
        state.update(f"{value.dtype} {tuple(value.shape)}".encode())
        flat = value.detach().reshape(-1)
        count = _COMPARED_BYTES // flat.element_size()
        for piece in (flat[:count], flat[-count:]):
            state.update(piece.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return int(state.intdigest()) & ((1 << 48) - 1)


def check_no_autocast() -> None:
    """Raises `GraphError` within it: what crosses a cut would be of other types than it was when the model was traced."""
    if torch.is_autocast_enabled("cpu") or torch.is_autocast_enabled("cuda"):
        raise GraphError("within torch.autocast a model cannot be trained over a pipeline yet")


def check_call(model: nn.Module, leaves: Sequence[Any]) -> None:
    """Raises `GraphError` where a pipeline would not do what this call does."""
    check_no_autocast()
    if any(isinstance(one, Tensor) and one.requires_grad for one in leaves):
        raise GraphError(
            f"{type(model).__name__} is given a tensor that has gradients, which a pipeline would not bring back"
        )
    if any(one.device.type != "cpu" for one in model.parameters()):
        raise GraphError("a script's model is trained over a pipeline on CPUs only, so far")
    if any(getattr(hooks, f"_global{name}") for name in _HOOKS if name != "_backward_pre_hooks"):
        raise GraphError("global hooks on modules would not run in a pipeline's stages")
    for name, module in model.named_modules():
        if any(vars(module).get(kind) for kind in _HOOKS):
            raise GraphError(f"{name or type(model).__name__} has hooks, which would not run in a pipeline's stages")


def check_outputs(cut: Split) -> None:
    """Raises `GraphError` where what the model returns cannot be put together from what it returns for parts of the samples."""
    for output in cut.outputs:
        if output.shape.sample_dim is None:
            raise GraphError(
                f"the model returns {output.name}, which has no samples in it "
                "(a loss, it may be), so it cannot be put together from micro-batches: --micro-batches 1, and a plan without replicas"
            )


def check_crossings(cut: Split) -> None:
    """Raises `GraphError` where replicas cannot share out the samples of what goes across a cut."""
    for crossing in cut.crossings:
        dim = crossing.shape.sample_dim
        is_mixed = crossing.is_of_inputs if dim is None else crossing.shape.sizes[dim].per_sample != 1
        if is_mixed:
            raise GraphError(
                f"{crossing.name}, which stage {crossing.maker} sends to stage {crossing.taker}, cannot be split by samples"
            )


def check_samples(
    name: str, call: Callable[[list[Any]], Sequence[Any]], leaves: Sequence[Any], has_samples: Sequence[bool],
    spans: Sequence[tuple[int, int]],
) -> None:  # fmt: skip
    """Raises `GraphError` where `call` returns for samples alone other things than for them among all. `spans`: how they are split."""

    def of(first: int, end: int) -> Sequence[Any]:
        given = [one.clone() if isinstance(one, Tensor) else one for one in leaves]
        return call([one[first:end] if has else one for one, has in zip(given, has_samples, strict=True)])

    count = spans[-1][1]
    try:
        with torch.no_grad():
            whole, parts = of(0, count), [of(first, end) for first, end in spans]
    except (RuntimeError, IndexError, ValueError) as error:
        raise GraphError(
            f"{name} cannot be split into micro-batches: it fails for a part of its samples: {error}"
        ) from error
    for place, one in enumerate(whole):
        if not isinstance(one, Tensor) or not one.is_floating_point() or one.shape == parts[0][place].shape:
            continue  # what has no samples is refused by its sizes
        lengths = zip(one.shape, parts[0][place].shape, strict=True)
        dims = [dim for dim, (length, part) in enumerate(lengths) if length != part]
        joined = torch.cat([part[place] for part in parts], dims[0])
        if joined.shape != one.shape or not (joined - one).abs().max() <= _NEAR * (1.0 + one.abs().max()):
            raise GraphError(
                f"{name} returns other things for some of its samples alone than for all: what lies along the first dimension of its "
                "inputs is not independent, so it cannot be split into micro-batches: --micro-batches 1"
            )


@contextmanager
def watching_forward(model: nn.Module) -> Iterator[None]:
    """While a model is traced. Raises `GraphError` if its own code draws numbers or keeps something, which stages would not do again."""
    forward, name = model.forward, type(model).__name__

    @functools.wraps(forward)
    def watched(*args: Any, **kwargs: Any) -> Any:
        generators, attributes = generators_of(model), Attributes(model)
        before = _states(generators)
        found = forward(*args, **kwargs)
        if _states(generators) != before:
            raise GraphError(
                f"{name}'s forward draws from a generator of Python's or NumPy's, which a pipeline's stages would not"
            )
        if changed := attributes.changed():
            raise GraphError(
                f"{name}'s forward keeps something in {changed}, which a pipeline's stages would not; a buffer can be changed by copy_"
            )
        return found

    own, attributes = vars(model), Attributes(model)
    own["forward"] = watched
    try:
        yield
    finally:
        attributes.put_back()  # torch.export leaves copies


def _states(generators: Sequence[Any]) -> list[Any]:
    numpy = sys.modules.get("numpy")
    of_numpy = [repr(numpy.random.get_state(legacy=False))] if numpy is not None else []
    return [random.getstate(), *of_numpy, *map(state_of, generators)]


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Modes, attributes and PyTorch's generator are as they were afterwards."""
    attributes = Attributes(model)
    with torch.random.fork_rng(devices=[]):
        try:
            for module in model.modules():
                module.training = False
            yield
        finally:
            attributes.put_back()


def check_loss(loss: Tensor, outputs: Sequence[Tensor], leaves: Sequence[Tensor]) -> None:
    """Raises `GraphError` where the loss hangs on parameters directly: no stage would have their gradients."""
    border = {one.grad_fn for one in outputs}
    seen, waiting = set(border), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)
        if variable is not None and not any(variable is leaf for leaf in leaves):
            raise GraphError(
                "the loss function reads parameters itself (its own, or the model's for a penalty), and a pipeline's stages would not "
                "train them by that; have the model return what the loss needs of them"
            )
        waiting += [following for following, _ in node.next_functions]

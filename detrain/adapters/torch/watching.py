"""Seeing weight updates and gradient computations as they happen."""

from __future__ import annotations

import gc
import struct
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader

from detrain.adapters.torch import devices, tensors


def has_optimizer() -> bool:
    """True if the script has made an optimizer, whose steps are reported."""
    # By type, not isinstance: that asks proxies and lazy modules for their __class__, which runs code of theirs.
    return any(issubclass(type(obj), torch.optim.Optimizer) for obj in gc.get_objects())


#: Which of the arguments behind the outputs says to what alone gradients are wanted.
_INPUTS = 3


class Watch:
    """Reports every optimizer step and every computation of gradients."""

    def __init__(self, on_update: Callable[[], None], on_gradient: Callable[[Any], None]) -> None:
        self._on_gradient = on_gradient
        register_optimizer_step_post_hook(lambda *_: on_update())
        self._plain = torch.autograd._engine_run_backward
        torch.autograd._engine_run_backward = self._run_backward

    def _run_backward(self, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        if tensors.GoneGraph.alive and len(args) > _INPUTS and args[_INPUTS]:
            _check_graph(outputs)  # the backward pass does not go where it is not asked to
        self._on_gradient(outputs)
        return self._plain(outputs, *args, **kwargs)


def watch_updates(on_update: Callable[[], None], on_gradient: Callable[[Any], None]) -> None:
    """Begin to watch. `on_gradient` is told of what gradients are computed."""
    Watch(on_update, on_gradient)


def losses(outputs: Any) -> list[Callable[[], devices.Reading]]:
    """Each of the losses: what gives its bits, and the number. What lies on a device is waited for when it is asked for, not now.

    Those of a CUDA graph are not seen: they are computed again at each replay, without Python.
    """
    found: list[Callable[[], devices.Reading]] = []
    with devices.unseen():
        for one in outputs:
            if not _is_plain(one) or one.numel() != 1 or one.is_meta:
                continue
            if devices.is_on_device(one):
                if not devices.is_recording():
                    found.append(partial(devices.read, one.detach().clone()))
            elif one.dtype in _FORMATS:  # nearly every loss: made quick
                found.append(partial(_packed, _FORMATS[one.dtype], one.item()))
            else:
                found.append(partial(_given, devices.read(one)))
    return found


#: How `struct` packs a number to the bits that it has in a tensor.
_FORMATS = {torch.float32: "=f", torch.float64: "=d"}
_PLAIN = torch.Tensor, torch.nn.Parameter


def _packed(form: str, value: float) -> devices.Reading:
    return struct.pack(form, value), [value]


def _given(reading: devices.Reading) -> devices.Reading:
    return reading


def _is_plain(value: Any) -> bool:
    """False for what only stands for a tensor (inside `torch.func.grad`, a fake or a distributed one): it has no memory."""
    return type(value) in _PLAIN and torch._C._has_storage(value) and value.layout is torch.strided


def watch_in_place(on_update: Callable[[], None]) -> None:
    """Report also what changes a trained leaf in place, from the next computation of gradients on: a hand-written SGD.

    For the tracer alone: every operation passes through Python from then on. What an optimizer's step does is left to `Watch`.
    """
    mode = _InPlace(on_update)
    plain = torch.autograd._engine_run_backward

    def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        mode.trained.update((_storage(leaf), weakref.ref(leaf)) for leaf in _leaves(outputs) if _storage(leaf))
        return plain(outputs, *args, **kwargs)

    torch.autograd._engine_run_backward = run_backward
    register_optimizer_step_pre_hook(lambda *_: mode.enter_step())
    register_optimizer_step_post_hook(lambda *_: mode.leave_step())
    mode.__enter__()


class _InPlace(TorchDispatchMode):  # type: ignore[misc]
    """Sees each operation and asks its schema what it writes to."""

    def __init__(self, on_update: Callable[[], None]) -> None:
        super().__init__()
        self._on_update = on_update
        #: Leaves that gradients were computed for, by the addresses of their storages.
        self.trained: dict[int, weakref.ref[torch.Tensor]] = {}
        self._num_steps = 0  # of optimizers, that are running

    def enter_step(self) -> None:
        """An optimizer's step begins."""
        self._num_steps += 1

    def leave_step(self) -> None:
        """An optimizer's step has ended."""
        self._num_steps = max(self._num_steps - 1, 0)  # the first one may have begun before anybody counted

    def _is_trained(self, value: Any) -> bool:
        leaf = self.trained.get(_storage(value)) if isinstance(value, torch.Tensor) else None
        return leaf is not None and leaf() is not None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_update = (
            self.trained
            and not self._num_steps
            and func._schema.is_mutable
            and any(
                self._is_trained(one)
                for value, declared in zip(args, func._schema.arguments, strict=False)
                if declared.alias_info is not None and declared.alias_info.is_write
                for one in (value if isinstance(value, (list, tuple)) else [value])
            )
        )
        result = func(*args, **(kwargs or {}))
        if is_update:
            self._on_update()
        return result


def _storage(tensor: torch.Tensor) -> int:
    """The address of a tensor's storage; 0 for one that has none: sparse, or empty."""
    return int(tensor.untyped_storage().data_ptr()) if tensor.layout is torch.strided else 0


def _check_graph(outputs: Any) -> None:
    """Fail if the graph behind some outputs ends at what a checkpoint did not hold, also if the script asks for other gradients alone."""
    for node in _graph(outputs):
        gone = getattr(node, "gone", None)
        if isinstance(gone, tensors.GoneGraph):
            gone.fail()


def _leaves(outputs: Any) -> Iterator[torch.Tensor]:
    """The leaves that a backward pass from some outputs comes to."""
    for node in _graph(outputs):
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            yield variable


def _graph(outputs: Any) -> Iterator[Any]:
    """The nodes of the graph behind some outputs."""
    given = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    pending = [one.grad_fn for one in given if isinstance(one, torch.Tensor) and one.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)


def is_trained(value: Any) -> bool:
    """True for a module with parameters to train, an optimizer, a scheduler: whatever they hold, they load nothing."""
    kind = type(value)
    if issubclass(kind, torch.nn.Module):
        return any(one.requires_grad for one in value.parameters())
    return issubclass(kind, (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler))


def loader_of(value: Any) -> type | None:
    """`DataLoader` (or the user's subclass of it) for one, or for an iterator over one; else None."""
    kind = type(value)
    if issubclass(kind, DataLoader):
        return kind
    return DataLoader if issubclass(kind, torch.utils.data.dataloader._BaseDataLoaderIter) else None

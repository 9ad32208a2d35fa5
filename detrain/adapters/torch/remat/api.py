"""What `detrain.remat` offers to loops of one's own: a memory budget around them, or around one module, and the graph of a step.

The names are those of the field: a module that keeps to a budget is made as `rockmate.Rockmate(model, sample, budget)` is, and `pin` and
`evict` are what Dynamic Tensor Rematerialization's tensors have.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy
import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook

from detrain.adapters.protocol import Limit, MemoryUse
from detrain.adapters.torch.remat.budget import Budget
from detrain.adapters.torch.remat.recording import StepRecorder, names_of_parameters
from detrain.errors import GraphError, UsageError
from detrain.remat.amounts import amount_of
from detrain.remat.graph import Graph
from detrain.remat.planners import registry


class Held:
    """A budget that is being kept to. Use `budget` or `Budgeted`, which make one."""

    def __init__(self, limit: Limit) -> None:
        self._budget = Budget(limit)
        self._budget.begin()
        self._has_ended = False
        self._hook = register_optimizer_step_post_hook(lambda *_: self.step())
        self._budget.at_header()

    def step(self) -> None:
        """A training step ends here. Called behind each step of an optimizer; call it where a loop has none."""
        self._budget.at_header()

    @property
    def use(self) -> MemoryUse:
        """What was needed so far: the budget and the peak in bytes, evictions, operators run again, steps that followed a plan."""
        return self._budget.use()

    def pin(self, tensor: torch.Tensor) -> None:
        """Have a tensor's memory there, made again if need be, and never evict it. Raises `OverBudget`."""
        self._budget.runtime.revive(tensor)

    def evict(self, tensor: torch.Tensor) -> bool:
        """Empty a tensor's memory now; False if it cannot be made again (a parameter, an input), or is not there."""
        cell = None if self._has_ended else self._budget.runtime.cell_of(tensor)
        if cell is None or not cell.is_evictable:
            return False
        self._budget.runtime.put_away(cell)
        return True

    def is_there(self, tensor: torch.Tensor) -> bool:
        """False while a tensor's memory is evicted."""
        cell = self._budget.runtime.cell_of(tensor)
        return cell is None or cell.is_there

    def end(self) -> None:
        """Everything is made again and stays, whether there is room within the budget or not."""
        if not self._has_ended:
            self._has_ended = True
            self._hook.remove()
            self._budget.end()


def _begun(num_bytes: int, share: float, planner: str, *, is_verified: bool = False) -> Held:
    return Held(Limit(num_bytes, share, is_verified=is_verified, planner=registry.training_planner(planner)))


@contextlib.contextmanager
def budget(limit: str | float, *, planner: str = "auto", is_verified: bool = False) -> Iterator[Held]:
    """Within this, what runs on this thread keeps to so much memory, and has the bits that it has without.

    >>> with detrain.remat.budget("6GiB") as held:
    ...     for x, y in loader:
    ...         loss_of(model(x), y).backward()
    ...         optimizer.step()
    ...         optimizer.zero_grad()

    Args:
        limit: bytes (`"6GiB"`, `"500MB"`, `6e9`), or a share of what the first step takes (`0.6`). A step ends with an optimizer's.
        planner: what plans the steps that come again, in a process beside this one; `"online"` takes each step as it comes.
            `MissingExtra` is raised where it needs what is not installed; `"auto"` is `"online"` then.
        is_verified: compare what is made again with what was evicted.

    Raises `OverBudget` where an operator does not fit, `UsageError` for what is no limit, `NotSupported` within another budget, and
    `RematError` where something comes back with other bits.
    """
    held = _begun(*amount_of(str(limit), "budget"), planner, is_verified=is_verified)
    try:
        yield held
    finally:
        held.end()


class Budgeted(nn.Module):  # type: ignore[misc]
    """A module that trains within a memory budget; `loss.backward()` is called as ever.

    >>> model = detrain.remat.Budgeted(model, sample, "6GiB")
    >>> loss_of(model(x), y).backward()

    The budget holds from here on for everything that this thread runs, until `end()`, and also for the optimizer.
    """

    def __init__(self, model: nn.Module, sample: object, limit: str | float, *, planner: str = "auto") -> None:
        """Keep `model` to a budget.

        Args:
            model: any module; its parameters and buffers keep their names below `model.`.
            sample: an input of it, or a tuple of them; with a share, the memory that a forward and backward pass of it takes is what
                the share is of. The pass changes no parameter, buffer, gradient or generator. May be None where `limit` is in bytes.
            limit: see `budget`.
            planner: see `budget`.
        """
        super().__init__()
        self.model = model
        num_bytes, share = amount_of(str(limit), "budget")
        if share:
            if sample is None:
                raise UsageError("a share of what a step takes needs a sample to know that")
            num_bytes = int(_peak_bytes(model, sample) * share)
        self._held = _begun(num_bytes, 0.0, planner)

    @property
    def held(self) -> Held:
        """The budget."""
        return self._held

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Of the module."""
        return self.model(*args, **kwargs)

    def end(self) -> None:
        """The budget ends; the module goes on without."""
        self._held.end()


def record(model: nn.Module, sample: object, loss_of: Callable[[Any], torch.Tensor] | None = None) -> Graph:
    """The operator graph of one forward and backward pass.

    Args:
        model: any module, in the mode in which it is; nothing of it changes, nor do the generators.
        sample: an input, or a tuple of them.
        loss_of: makes the loss of what the module returns, a tensor of one element; left out, the sum of all that it returns.

    Raises `GraphError` where a tensor has no storage (sparse ones).
    """
    with _undone(model):
        recorder = StepRecorder(names_of_parameters([model]))
        recorder.begin_step()
        try:
            _pass(model, sample, loss_of)
        except BaseException:  # the recorder's mode ends in any case, also at Ctrl-C
            with contextlib.suppress(GraphError):  # nothing ran
                recorder.end()
            raise
        return recorder.end()


def forward_part(graph: Graph) -> list[str]:
    """Names of the operators of the forward pass, in order (`aten::addmm`)."""
    return [one.name for one in graph.operators if not one.is_constant and not one.is_backward]


def backward_part(graph: Graph) -> list[str]:
    """Names of the operators of the backward pass, in order."""
    return [one.name for one in graph.operators if one.is_backward]


def _pass(model: nn.Module, sample: object, loss_of: Callable[[Any], torch.Tensor] | None) -> None:
    found = model(*(sample if isinstance(sample, (tuple, list)) else (sample,)))
    loss = _sum_of(found) if loss_of is None else loss_of(found)
    loss.backward()


def _sum_of(found: Any) -> torch.Tensor:
    if isinstance(found, torch.Tensor):
        return found.float().sum()
    parts: Sequence[Any] = list(found.values()) if isinstance(found, dict) else found
    sums = [_sum_of(one) for one in parts if isinstance(one, (torch.Tensor, dict, tuple, list))]
    return torch.stack(sums).sum()


def _peak_bytes(model: nn.Module, sample: object) -> int:
    with _undone(model):
        one = Budget(Limit(1 << 62))
        one.begin()
        try:
            _pass(model, sample, None)
            return one.runtime.space.peak_bytes
        finally:
            one.end()


@contextlib.contextmanager
def _undone(model: nn.Module) -> Iterator[None]:
    """Parameters' gradients, buffers and the generators of torch, Python and numpy are afterwards what they were."""
    gradients = [(one, one.grad) for one in model.parameters()]
    buffers = [
        (module, name, one, one.detach().clone())
        for module in model.modules()
        for name, one in module._buffers.items()
        if one is not None
    ]
    python, of_numpy = random.getstate(), numpy.random.get_state()
    cuda = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    for one, _ in gradients:
        one.grad = None
    try:
        with torch.random.fork_rng(cuda):
            yield
    finally:
        for one, gradient in gradients:
            one.grad = gradient
        with torch.no_grad():
            for module, name, buffer, before in buffers:
                module._buffers[name] = buffer.copy_(before)
        random.setstate(python)
        numpy.random.set_state(of_numpy)

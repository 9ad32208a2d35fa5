"""The way in of a memory budget: what the program runs comes to the runtime, and what reads memory past the dispatcher finds it there."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode, _pop_mode, _push_mode

from detrain.adapters.protocol import Limit, MemoryUse
from detrain.adapters.torch.remat.following import Plan, PlanFollower
from detrain.adapters.torch.remat.operators import facts_of
from detrain.adapters.torch.remat.planning import Planning
from detrain.adapters.torch.remat.runtime import Runtime
from detrain.errors import NotSupported

_UNBOUNDED = 1 << 62
#: Each operator makes so many times the objects that it makes without a budget, and Python's collector of garbage counts objects; those
#: of a step live until its end, and to look at all of them took a third of the time of long steps.
_MORE_OBJECTS, _RARER = 30, 2
#: Methods of a tensor that read its memory, or hand it out, past the dispatcher.
_READERS = (
    "numpy",
    "tolist",
    "data_ptr",
    "__dlpack__",
    "__array__",
    "untyped_storage",
    "_typed_storage",
    "storage",
    "share_memory_",
)


#: The budget that holds, if one does. A list, so that a forked child finds it by way of one handler, which cannot be taken back.
_ACTIVE: list[Budget] = []


class BudgetMode(TorchDispatchMode):  # type: ignore[misc]
    """Brings every operator to the runtime."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self.runtime = runtime


def _dispatch(mode: BudgetMode, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    """See `TorchDispatchMode`. A subclass is asked first: what it does with its own tensors comes by here again."""
    for one in types:
        if one is not torch.Tensor and one is not torch.nn.Parameter:
            return NotImplemented
    runtime, facts = mode.runtime, facts_of(func)
    if runtime.is_off or facts.is_mark:
        return func(*args, **(kwargs or {}))
    return runtime.run(func, facts, args, kwargs or {})


# Set here: torch wraps what stands in the class, to keep its compiler out, which loads that compiler and costs more than all else;
# nothing is compiled within a budget.
BudgetMode.__torch_dispatch__ = _dispatch


class Budget:
    """A memory budget of one thread, with the backward passes that it starts. From `begin` to `end` its programs keep to it."""

    def __init__(self, limit: Limit, plan: Plan | None = None) -> None:
        """A share is known at the first header behind a backward pass; until then it keeps to nothing.

        `plan`: plans steps, in place of the limit's planner.
        """
        self._given_share = limit.share
        self._share = 0.0 if limit.num_bytes else limit.share
        self.runtime = Runtime(limit.num_bytes or _UNBOUNDED, is_verifying=limit.is_verified)
        self._mode = BudgetMode(self.runtime)
        self._plain: dict[str, Callable[..., Any]] = {}
        if plan is None and limit.planner:
            plan = functools.partial(Planning, planner=limit.planner)
        self._follower = None if plan is None else PlanFollower(self.runtime, plan)
        self.runtime.space.follower = self._follower

    def begin(self) -> None:
        """The tensors that are there count from now on, and stay. Raises `NotSupported` within another budget."""
        if _ACTIVE:
            raise NotSupported("a memory budget", "begin within another")
        there = [one for one in gc.get_objects() if _has_memory(one)]
        with torch._C.DisableTorchFunction():  # what the script's own modes and subclasses see are its calls
            self.runtime.govern(_device_of(there))
            self.runtime.introduce(there)
        for name in _READERS:
            self._plain[name] = getattr(torch.Tensor, name)
            setattr(torch.Tensor, name, _reviving(self.runtime, self._plain[name]))
        first, second, third = gc.get_threshold()
        self._collecting = (first, second, third), (first * _MORE_OBJECTS, second * _RARER, third * _RARER)
        gc.set_threshold(*self._collecting[1])
        with _uncovered(None):
            self._mode.__enter__()
        _ACTIVE.append(self)

    def at_header(self, *, is_first: bool = False) -> None:
        """See `MemoryBudget`."""
        space = self.runtime.space
        if is_first and self._share:  # what ran before was no iteration
            self.runtime.has_seen_backward, space.peak_bytes = False, space.used_bytes
        elif self._share and self.runtime.has_seen_backward:
            space.budget_bytes = int(space.peak_bytes * self._share)
            self._share = 0.0
            space.make_room(0, "what the first iteration has left")
            space.peak_bytes = space.used_bytes
        self.runtime.at_header()
        if self._follower is not None:
            self._follower.at_header(has_budget=space.budget_bytes < _UNBOUNDED)

    def bring_back(self) -> None:
        """See `MemoryBudget`."""
        self.runtime.revive_all()

    def use(self) -> MemoryUse:
        """See `MemoryBudget`."""
        one, space = self.runtime, self.runtime.space
        budget_bytes = space.budget_bytes if space.budget_bytes < _UNBOUNDED else 0
        use = MemoryUse(
            budget_bytes,
            space.peak_bytes,
            space.num_evictions,
            one.num_again,
            one.again_ns / 1e9,
            share=self._given_share,
        )
        if self._follower is None:
            return use
        plans = self._follower
        planner = plans.plan.planner if plans.plan is not None else ""
        return replace(
            use,
            planner=planner,
            num_planned=plans.num_followed,
            num_left=plans.num_left,
            why=plans.why,
            curve_bytes=plans.curve_bytes,
        )

    def end(self) -> None:
        """What is not there is made again, and stays, whether there is room or not; nothing is known of it any more."""
        if self._follower is not None:
            self._follower.end()
        space = self.runtime.space
        kept = space.budget_bytes, space.peak_bytes
        space.budget_bytes = _UNBOUNDED
        try:
            self.runtime.end()
        finally:
            space.budget_bytes, space.peak_bytes = kept
            with _uncovered(self._mode):
                self._mode.__exit__(None, None, None)
            before, ours = self._collecting
            if gc.get_threshold() == ours:  # else the script has set another
                gc.set_threshold(*before)
            self.be_off()
            if self in _ACTIVE:  # not in a forked child
                _ACTIVE.remove(self)

    def be_off(self) -> None:
        """Operators go by unseen from now on, and what reads memory is torch's again."""
        self.runtime.is_off = True
        for name, method in self._plain.items():
            setattr(torch.Tensor, name, method)


@contextlib.contextmanager
def _uncovered(mode: BudgetMode | None) -> Iterator[None]:
    """The script's own dispatch modes above `mode`, all of them for None, are aside: a mode ends by taking the uppermost away.

    So ours lies below them, where those that were there before can end, and ends where others have begun since.
    """
    others = []
    while torch._C._len_torch_dispatch_stack() and _get_current_dispatch_mode() is not mode:
        others.append(_pop_mode())
    try:
        yield
    finally:
        for one in reversed(others):
            _push_mode(one)


def _be_off_in_child() -> None:
    """A worker of a loader reads what lies there, and makes its own."""
    for one in _ACTIVE:
        one.be_off()
    _ACTIVE.clear()


os.register_at_fork(after_in_child=_be_off_in_child)


def _reviving(runtime: Runtime, method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == thread:
            with torch._C.DisableTorchFunction():
                runtime.revive(self)
        return method(self, *args, **kwargs)

    thread = threading.get_ident()
    return read


def _has_memory(one: Any) -> bool:
    """True for a tensor that is no wrapper of others."""
    kind = type(one)
    return issubclass(kind, torch.Tensor) and kind.__torch_dispatch__ is torch._C._disabled_torch_dispatch_impl


def _device_of(tensors: Iterable[torch.Tensor]) -> str:
    """Whose memory counts: that of the device on which the models are."""
    devices = {one.device.type for one in tensors if isinstance(one, torch.nn.Parameter)}
    return next((kind for kind in sorted(devices) if kind not in ("cpu", "meta")), "cpu")


@contextlib.contextmanager
def budget(
    budget_bytes: int, *, is_verified: bool = False, planner: str = "", plan: Plan | None = None
) -> Iterator[Runtime]:
    """Within this, what runs on this thread keeps to so many bytes. Raises `OverBudget` where it cannot.

    `is_verified`: what is made again is compared with what was evicted; raises `RematError` where it differs.

    A step of an optimizer is the border at which the runtime lets go of how older state was made.
    """
    one = Budget(Limit(budget_bytes, is_verified=is_verified, planner=planner), plan)
    hook = register_optimizer_step_post_hook(lambda *_: one.at_header())
    one.begin()
    try:
        yield one.runtime
    finally:
        hook.remove()
        one.end()

"""Reports weight updates and gradient computations as they happen."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from threading import get_ident
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

from detrain.adapters.protocol import LossReader, LossValue, QuietBatches
from detrain.adapters.torch import devices, tensors


def has_optimizer() -> bool:
    """True if the script has made an optimizer, whose steps are reported."""
    # By type, not isinstance: that asks proxies and lazy modules for their __class__, which runs code of theirs.
    return any(issubclass(type(obj), torch.optim.Optimizer) for obj in gc.get_objects())


#: The optimizers that have made a step.
stepped: weakref.WeakSet[torch.optim.Optimizer] = weakref.WeakSet()


def trained() -> list[torch.Tensor]:
    """Their parameters, each once."""
    found = {
        id(one): one for optimizer in list(stepped) for group in optimizer.param_groups for one in group["params"]
        if isinstance(one, torch.Tensor)
    }  # fmt: skip
    return list(found.values())


class Reporter:
    """Reports every optimizer step and every computation of gradients."""

    def __init__(
        self, on_update: Callable[[], None], on_gradient: Callable[[Any], None], quiet: QuietBatches | None = None
    ) -> None:
        self._on_gradient, self._on_update = on_gradient, on_update
        register_optimizer_step_post_hook(_reporting_steps(on_update, quiet))
        torch.autograd._engine_run_backward = _reporting_gradients(
            torch.autograd._engine_run_backward, on_gradient, quiet
        )

    def note_step_of_all(self) -> None:
        """Report gradients and an update."""
        self._on_gradient(())
        self._on_update()


# What these two make runs at every batch, where the training has cooled the processor's caches down: each Python function that is
# called, each method and each packing of arguments then takes half a microsecond, several times what it takes when it is repeated.


def _reporting_steps(on_update: Callable[[], None], quiet: QuietBatches | None) -> Callable[..., None]:
    last_stepped: weakref.ref[torch.optim.Optimizer] | None = None

    def note_step(optimizer: torch.optim.Optimizer, _args: Any, _kwargs: Any) -> None:
        nonlocal last_stepped
        if last_stepped is None or last_stepped() is not optimizer:
            stepped.add(optimizer)
            last_stepped = weakref.ref(optimizer)
        if quiet is None or quiet.loop is None:
            on_update()

    return note_step


_NOT_GIVEN: Any = object()


def _reporting_gradients(
    plain: Callable[..., Any], on_gradient: Callable[[Any], None], quiet: QuietBatches | None
) -> Callable[..., Any]:
    """`plain`: the function through which torch calls its engine."""

    def run_backward(
        outputs: Any, gradients: Any = _NOT_GIVEN, keep: Any = _NOT_GIVEN, create: Any = _NOT_GIVEN, inputs: Any = _NOT_GIVEN, /,
        *more: Any, allow_unreachable: Any = _NOT_GIVEN, accumulate_grad: Any = _NOT_GIVEN, **others: Any,
    ) -> Any:  # fmt: skip
        if inputs is not _NOT_GIVEN and inputs and tensors.GoneGraph.alive:
            _check_graph(outputs)  # the backward pass only visits what leads to the tensors asked for
        if quiet is not None and quiet.loop is not None and len(outputs) == 1 and get_ident() == quiet.thread:
            value = _common(outputs[0])
            if value is not None:
                quiet.losses.running.append(value)
            else:
                on_gradient(outputs)
        else:
            on_gradient(outputs)
        if inputs is _NOT_GIVEN or allow_unreachable is _NOT_GIVEN or accumulate_grad is _NOT_GIVEN or more or others:
            given = [one for one in (gradients, keep, create, inputs) if one is not _NOT_GIVEN]
            named = {"allow_unreachable": allow_unreachable, "accumulate_grad": accumulate_grad}
            named = {name: value for name, value in named.items() if value is not _NOT_GIVEN}
            return plain(outputs, *given, *more, **named, **others)
        # As `Tensor.backward` calls it.
        return plain(
            outputs, gradients, keep, create, inputs, allow_unreachable=allow_unreachable, accumulate_grad=accumulate_grad
        )  # fmt: skip

    return run_backward


_reporters: list[Reporter] = []


def report_updates(
    on_update: Callable[[], None], on_gradient: Callable[[Any], None], quiet: QuietBatches | None = None
) -> None:
    """Report from now on: `on_update` after each optimizer step, `on_gradient` before each backward pass, with its outputs.

    `quiet`: while it lasts, neither is called where the losses are kept without.
    """
    _reporters.append(Reporter(on_update, on_gradient, quiet))


def note_step_of_all() -> None:
    """A step of a training over ranks has ended, in which this one may have had neither gradients nor an update, and others have.

    Ranks that do not see their loops train at the same iterations would be out of step.
    """
    for reporter in _reporters:
        reporter.note_step_of_all()


#: Under which our hook stands among torch's of all modules: a number would be the next one that the script's own hooks get.
_KEY = "detrain"


def on_first_forward(call: Callable[[], None]) -> None:
    """Call this once, before the first module runs that has parameters to train, where gradients can be computed.

    Not before torch has loaded its compiler, as it does where the first optimizer is made: what `call` does may load it, and draws entropy
    then, as the script would at another place.
    """
    hooks = torch.nn.modules.module._global_forward_pre_hooks

    def before(module: torch.nn.Module, _: Any) -> None:
        is_tracing = torch._C._get_tracing_state() is not None  # `torch.jit.trace` of a model is no training
        # Within a transform parameters have no memory of their own.
        is_transformed = torch._C._functorch.peek_interpreter_stack() is not None
        can_begin = torch.is_grad_enabled() and not is_tracing and not is_transformed and "torch._dynamo" in sys.modules
        if can_begin and any(one.requires_grad for one in module.parameters()):
            del hooks[_KEY]
            call()

    hooks[_KEY] = before


def losses(outputs: Any) -> list[LossReader]:
    """What reads each loss among the outputs of a backward pass: the plain tensors of one element.

    The readers wait for a device; this does not. Losses of a CUDA graph are left out: each replay computes them again, without Python.
    """
    if len(outputs) == 1 and (value := _common(outputs[0])) is not None:
        return [value]
    readers: list[LossReader] = []
    with devices.unseen():
        for output in outputs:
            if not _is_plain(output) or output.numel() != 1 or output.is_meta:
                continue
            if devices.is_on_device(output):
                if not devices.is_recording():
                    readers.append(partial(devices.read, output.detach().clone()))
            elif output.dtype is torch.float32:
                readers.append(output.item())
            else:
                readers.append(partial(_given, devices.read(output)))
    return readers


_PLAIN = torch.Tensor, torch.nn.Parameter
_float32 = torch.float32
_num_function_modes = torch._C._len_torch_function_stack
#: This process's memory, as `float32`s: the one at an address takes half as long to read as by `Tensor.item`.
_floats = memoryview((ctypes.c_float * (sys.maxsize // 4)).from_address(0)).cast("B").cast("f")


def _common(output: Any) -> float | None:
    """The value of a loss as nearly every one is: a plain tensor of one `float32` in host memory, and no mode that would see it read.

    None for all others. Every batch pays for it: each call that can be spared costs up to a microsecond where the training has cooled
    it down.
    """
    if (
        type(output) is torch.Tensor
        and not _num_function_modes()
        and output.dtype is _float32
        and output.is_cpu
        and output.numel() == 1
        and not output.is_neg()  # else what lies in memory is another number
    ):
        try:
            address = output.data_ptr()  # which no mode sees that is not one of functions
        except RuntimeError:  # it has no memory of its own: sparse, or a wrapper inside `torch.func.grad`
            return None
        if address and not address % 4:
            value: float = _floats[address >> 2]
            return value
    return None


def _given(value: LossValue) -> LossValue:
    return value


def _is_plain(value: Any) -> bool:
    """False for a tensor without memory of its own: a wrapper inside `torch.func.grad`, a fake tensor, a `DTensor`."""
    return type(value) in _PLAIN and torch._C._has_storage(value) and value.layout is torch.strided


def report_in_place_updates(on_update: Callable[[], None]) -> None:
    """Report also in-place changes of leaves that gradients were computed for (a hand-written SGD), from the next backward pass on.

    For the tracer alone: every operation passes through Python from then on. Optimizer steps are left to `Reporter`.
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
    """Reports each operation whose schema says that it writes to a trained leaf."""

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
        self._num_steps = max(self._num_steps - 1, 0)  # the first one may have begun before this was entered

    def _is_trained(self, value: Any) -> bool:
        leaf = self.trained.get(_storage(value)) if isinstance(value, torch.Tensor) else None
        return leaf is not None and leaf() is not None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_update = (
            self.trained
            and not self._num_steps
            and func._schema.is_mutable
            and any(
                self._is_trained(part)
                for value, declared in zip(args, func._schema.arguments, strict=False)
                if declared.alias_info is not None and declared.alias_info.is_write
                for part in (value if isinstance(value, (list, tuple)) else [value])
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
    """Raise `RestoreError` if the graph behind some outputs, wanted or not, ends at a part that a checkpoint did not hold."""
    for node in _graph(outputs):
        gone = getattr(node, "gone", None)
        if isinstance(gone, tensors.GoneGraph):
            gone.fail()


def _leaves(outputs: Any) -> Iterator[torch.Tensor]:
    """The leaves that a backward pass from some outputs reaches."""
    for node in _graph(outputs):
        variable = getattr(node, "variable", None)
        if isinstance(variable, torch.Tensor):
            yield variable


def _graph(outputs: Any) -> Iterator[Any]:
    """The nodes of the graph behind some outputs."""
    given = outputs if isinstance(outputs, (list, tuple)) else [outputs]
    pending = [output.grad_fn for output in given if isinstance(output, torch.Tensor) and output.grad_fn is not None]
    seen = set(pending)
    while pending:
        node = pending.pop()
        yield node
        for following, _ in node.next_functions:
            if following is not None and following not in seen:
                seen.add(following)
                pending.append(following)


def is_trained(value: Any) -> bool:
    """True for a module with parameters to train, an optimizer or a scheduler."""
    kind = type(value)
    if issubclass(kind, torch.nn.Module):
        return any(parameter.requires_grad for parameter in value.parameters())
    return issubclass(kind, (torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler))

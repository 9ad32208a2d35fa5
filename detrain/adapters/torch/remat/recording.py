"""Records training steps below autograd: operators with their times, and the memory that they read, make, change and let go of.

One mode of `torch.utils._python_dispatch` sees the forward pass, the backward pass and the update alike.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detrain.adapters.torch.remat.operators import changed_by, has_storage, tensors_in
from detrain.adapters.torch.remat.tracing import Result, Trace, View, call_traced, graph_of
from detrain.errors import GraphError
from detrain.remat.graph import Graph


class StepRecorder:
    """Records whole steps, one after the other.

    The graph is that of the step that most others are like, of these the last, with their median times.
    """

    def __init__(self, names: Mapping[int, str] | None = None) -> None:
        """`names`: by address of its storage (`UntypedStorage._cdata`), what a tensor that is there before the steps is called."""
        self._names = dict(names or {})
        self._mode = _Mode(self._on_call)
        self._numbers: dict[int, tuple[int, weakref.ref[Any]]] = {}
        self._num_storages = 0
        self._known_names: dict[int, str] = {}
        self._steps: list[Trace] = []

    def begin_step(self) -> None:
        """See `StepLog`."""
        if self._steps:
            self._end_step()
        else:
            self._mode.__enter__()
        self._steps.append(Trace())

    def _end_step(self) -> None:
        self._steps[-1].held = {number for number, _ in self._numbers.values()}

    def end(self) -> Graph:
        """See `StepLog`."""
        if self._steps:
            self._mode.__exit__(None, None, None)
            self._end_step()
        self._numbers.clear()
        kinds: list[list[Trace]] = []
        for step in self._steps:
            if step.calls:
                kind = next((kind for kind in kinds if kind[0].is_like(step)), None)
                if kind is None:
                    kinds.append([step])
                else:
                    kind.append(step)
        return graph_of(max(reversed(kinds), key=len) if kinds else [], self._known_names)

    # --- called by the mode ---------------------------------------------------------------------------------------------------------

    def _on_call(
        self, func: Any, took_ns: int, inputs: list[torch.Tensor], changed: list[torch.Tensor], result: Any
    ) -> None:
        step = self._steps[-1]
        read = [(self._number(tensor), _view(tensor)) for tensor in inputs]
        results, fresh = [], set[int]()
        for tensor in tensors_in(result):
            if not has_storage(tensor):
                raise GraphError(
                    f"{func} returns a tensor without a storage ({tensor.layout}), which cannot be planned for"
                )
            number = self._known(tensor)
            if number is None:
                number = self._register(tensor)
                fresh.add(number)
            size_bytes = tensor.untyped_storage().nbytes() if number in fresh else 0
            results.append(Result(number, _view(tensor), size_bytes, number in fresh))
        step.call(call_traced(func, read, results, [self._number(tensor) for tensor in changed], took_ns))

    def _number(self, tensor: torch.Tensor) -> int:
        """The number of the storage of what an operator reads; what is not known was there before the step."""
        number = self._known(tensor)
        if number is None:
            number = self._register(tensor)
        self._steps[-1].read(number, tensor.untyped_storage().nbytes())
        return number

    def _known(self, tensor: torch.Tensor) -> int | None:
        found = self._numbers.get(tensor.untyped_storage()._cdata)
        return None if found is None else found[0]

    def _register(self, tensor: torch.Tensor) -> int:
        storage = tensor.untyped_storage()
        address, number = storage._cdata, self._num_storages
        self._num_storages += 1
        if address in self._names:
            self._known_names[number] = self._names[address]
        self._numbers[address] = number, weakref.ref(storage, lambda _: self._ended(address, number))
        return number

    def _ended(self, address: int, number: int) -> None:
        if self._numbers.get(address, (None,))[0] == number:
            del self._numbers[address]
            self._steps[-1].events.append(number)


class _Mode(TorchDispatchMode):  # type: ignore[misc]
    """Runs each operator and reports it."""

    def __init__(self, on_call: Callable[..., None]) -> None:
        super().__init__()
        self._on_call = on_call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`. A subclass (`DTensor`) is asked first: what it does with its own tensors comes by here again."""
        if any(one is not torch.Tensor for one in types):
            return NotImplemented
        kwargs = kwargs or {}
        if func.namespace == "profiler":  # marks that an optimizer sets
            return func(*args, **kwargs)
        inputs = [tensor for tensor in tensors_in((args, kwargs)) if has_storage(tensor)]
        changed = list(changed_by(func, args, kwargs))
        began_ns = perf_counter_ns()
        result = func(*args, **kwargs)
        took_ns = perf_counter_ns() - began_ns
        self._on_call(func, took_ns, inputs, changed, result)
        return result


def _view(tensor: torch.Tensor) -> View:
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


def modules_there() -> list[torch.nn.Module]:
    """All modules of this process that are part of no other one."""
    modules = [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
    inner = {id(child) for module in modules for child in module.children()}
    return [module for module in modules if id(module) not in inner]


def names_of_parameters(roots: Sequence[torch.nn.Module]) -> dict[int, str]:
    """By address of their storages, the names of parameters and buffers of these modules."""
    found: dict[int, str] = {}
    for module in roots:
        prefix = f"{type(module).__name__}." if len(roots) > 1 else ""
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if has_storage(tensor):
                found.setdefault(tensor.untyped_storage()._cdata, f"{prefix}{name}")
    return found

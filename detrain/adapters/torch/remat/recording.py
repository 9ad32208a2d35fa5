"""Records training steps below autograd: operators with their times, and the memory that they read, make, change and let go of.

One mode of `torch.utils._python_dispatch` sees the forward pass, the backward pass and the update alike. A piece of memory is known by its
storage, and ends when that does, whoever held it: a variable of the script, or autograd. What looks into a storage of an input is an alias
of it; what is changed in place is a new version of the tensor in the same memory (`detrain.remat.graph`).
"""

from __future__ import annotations

import gc
import statistics
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from detrain.adapters.torch.remat.operators import changed_by, has_storage, tensors_in
from detrain.errors import GraphError
from detrain.remat.graph import Graph, GraphBuilder

#: Where a tensor lies in its storage.
_View = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]


@dataclass(frozen=True, slots=True)
class _Made:
    """A tensor that a call returns."""

    storage: int
    view: _View
    #: Of the storage, where the call has made that; else 0.
    size_bytes: int
    is_alias: bool


@dataclass(slots=True)
class _Call:
    """One operator that ran."""

    name: str
    inputs: list[tuple[int, _View]]
    made: list[_Made]
    #: Storages of inputs that it has changed.
    changed: list[int]
    is_backward: bool
    is_random: bool
    took_ns: int

    def is_like(self, other: _Call) -> bool:
        """True if another step has made the same call at this place, with whatever storages."""
        return (
            self.name == other.name
            and [view for _, view in self.inputs] == [view for _, view in other.inputs]
            and [(one.view, one.size_bytes, one.is_alias) for one in self.made]
            == [(one.view, one.size_bytes, one.is_alias) for one in other.made]
        )


@dataclass(slots=True)
class _Step:
    """What one step has done, in order: calls, and storages that have ended (their numbers)."""

    events: list[_Call | int] = field(default_factory=list)
    #: Sizes of the storages that were there before it, in bytes.
    constants: dict[int, int] = field(default_factory=dict)
    calls: list[_Call] = field(default_factory=list)
    #: Storages that its calls have made.
    made: set[int] = field(default_factory=set)
    #: Storages that are there when it ends.
    held: set[int] = field(default_factory=set)

    def is_like(self, other: _Step) -> bool:
        """True if both do the same."""
        return len(self.calls) == len(other.calls) and all(map(_Call.is_like, self.calls, other.calls))


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
        self._steps: list[_Step] = []

    def begin_step(self) -> None:
        """See `StepLog`."""
        if self._steps:
            self._end_step()
        else:
            self._mode.__enter__()
        self._steps.append(_Step())

    def _end_step(self) -> None:
        self._steps[-1].held = {number for number, _ in self._numbers.values()}

    def end(self) -> Graph:
        """See `StepLog`."""
        if self._steps:
            self._mode.__exit__(None, None, None)
            self._end_step()
        self._numbers.clear()
        kinds: list[list[_Step]] = []
        for step in self._steps:
            if step.calls:
                kind = next((kind for kind in kinds if kind[0].is_like(step)), None)
                if kind is None:
                    kinds.append([step])
                else:
                    kind.append(step)
        if not kinds:
            raise GraphError("no operator of PyTorch's ran in the step")
        alike = max(reversed(kinds), key=len)
        times_ns = [
            round(statistics.median(call.took_ns for call in calls))
            for calls in zip(*(one.calls for one in alike), strict=True)
        ]
        return _graph(alike[-1], times_ns, self._known_names)

    # --- called by the mode ---------------------------------------------------------------------------------------------------------

    def _on_call(
        self, func: Any, took_ns: int, inputs: list[torch.Tensor], changed: list[torch.Tensor], result: Any
    ) -> None:
        step = self._steps[-1]
        read = [(self._number(tensor), _view(tensor)) for tensor in inputs]
        storages = {number for number, _ in read}
        made, fresh = [], set[int]()
        for tensor in tensors_in(result):
            if not has_storage(tensor):
                raise GraphError(
                    f"{func} returns a tensor without a storage ({tensor.layout}), which cannot be planned for"
                )
            number = self._known(tensor)
            is_alias = number is not None and (number in storages or number in fresh)
            if number is None:
                number = self._register(tensor)
                fresh.add(number)
            made.append(_Made(number, _view(tensor), 0 if is_alias else tensor.untyped_storage().nbytes(), is_alias))
        call = _Call(
            f"{func.namespace}::{func.overloadpacket.__name__}", read, made, [self._number(tensor) for tensor in changed],
            torch._C._current_autograd_node() is not None, torch.Tag.nondeterministic_seeded in func.tags, took_ns,
        )  # fmt: skip
        step.events.append(call)
        step.calls.append(call)
        step.made |= fresh

    def _number(self, tensor: torch.Tensor) -> int:
        """The number of the storage of what an operator reads; what is not known was there before the step."""
        number = self._known(tensor)
        if number is None:
            number = self._register(tensor)
        step = self._steps[-1]
        if number not in step.constants and number not in step.made:
            step.constants[number] = tensor.untyped_storage().nbytes()
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


def _view(tensor: torch.Tensor) -> _View:
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype


# --- from a step to a graph ------------------------------------------------------------------------------------------------------


def _graph(step: _Step, times_ns: list[int], names: Mapping[int, str]) -> Graph:
    """`times_ns`: of each call. `names`: of storages."""
    builder = GraphBuilder()
    #: By storage: its present tensors, by where they lie; the first is what has the memory.
    there: dict[int, dict[_View | None, int]] = {}
    taken: set[str] = set()
    for number, size_bytes in sorted(step.constants.items()):
        name = names.get(number, f"constant{number}")
        there[number] = {None: builder.constant(_free(name, taken), size_bytes)}
    num_tensors = 0

    def named() -> str:
        nonlocal num_tensors
        num_tensors += 1
        return _free(f"t{num_tensors}", taken)

    times = iter(times_ns)
    for event in step.events:
        if isinstance(event, int):
            for tensor in reversed(list(dict.fromkeys(there.pop(event, {}).values()))):
                builder.release(tensor)
            continue
        inputs = [_tensor_of(there[storage], view) for storage, view in event.inputs]
        storages = [storage for storage, _ in event.inputs]
        outputs: list[tuple[str, int, int]] = []
        places: list[tuple[int, _View | None]] = []
        for one in event.made:
            if one.storage in event.changed:
                continue  # what an operator in place returns is its argument
            if one.is_alias and one.storage not in storages:
                continue  # a second tensor in memory that this operator has made
            outputs.append((named(), one.size_bytes, storages.index(one.storage) if one.is_alias else -1))
            places.append((one.storage, one.view))
        mutates = []
        for storage in dict.fromkeys(event.changed):
            position = storages.index(storage)
            mutates.append(position)
            outputs.append((named(), 0, position))
            places.append((storage, None))
        if not outputs:  # a number that is read (`item`), a collective
            outputs.append((named(), 0, -1))
        made = builder.compute(
            event.name, next(times), inputs, outputs,
            is_backward=event.is_backward, is_random=event.is_random, mutates=tuple(mutates),
        )  # fmt: skip
        if not places:
            builder.release(made[0])
        for (storage, view), tensor in zip(places, made, strict=False):
            if view is None:  # a new version: what stood there before is of the past
                for old in dict.fromkeys(there[storage].values()):
                    builder.release(old)
                there[storage] = {None: tensor}
            else:
                old_view = there.setdefault(storage, {}).pop(view, None)
                if old_view is not None and old_view not in there[storage].values():
                    builder.release(old_view)
                there[storage].setdefault(None, tensor)
                there[storage][view] = tensor
    outputs_at_end = [
        tensors[None]
        for number, tensors in there.items()
        if number in step.held and not builder.is_constant(tensors[None])
    ]
    return builder.build(outputs_at_end)


def _tensor_of(tensors: Mapping[_View | None, int], view: _View) -> int:
    return tensors.get(view, tensors[None])


def _free(name: str, taken: set[str]) -> str:
    """The name, or with a number if it is taken."""
    chosen, number = name, 1
    while chosen in taken:
        number += 1
        chosen = f"{name}.{number}"
    taken.add(chosen)
    return chosen


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

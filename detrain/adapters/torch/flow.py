"""Finds out which of the things that a script loads flow into gradients. For the tracer, for a few iterations."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

#: How deep tensors are nested in what a loader gives: a tuple of dicts of lists.
_DEPTH = 4


class Flow(TorchDispatchMode):  # type: ignore[misc]
    """Labels tensors, and what is computed from them, with the keys of what loaded them; a `DataFlow`."""

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[int, frozenset[Hashable]] = {}  # by the address of a storage
        self._held: list[torch.Tensor] = []  # so that no address is used twice
        self.labelled: set[Hashable] = set()
        #: Keys of what has flowed into a backward pass.
        self.arrived: set[Hashable] = set()
        self._plain = torch.autograd._engine_run_backward
        self._mine: Any = None

    def start(self) -> None:
        """Begin to follow tensors."""

        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            self.arrived.update(self._keys_of(outputs))
            return self._plain(outputs, *args, **kwargs)

        self._mine = torch.autograd._engine_run_backward = run_backward
        self.__enter__()

    def stop(self) -> None:
        """End it, and forget the tensors."""
        if torch.autograd._engine_run_backward is self._mine:
            torch.autograd._engine_run_backward = self._plain
        if _get_current_dispatch_mode() is self:
            self.__exit__(None, None, None)
        self._keys.clear()
        self._held.clear()

    def label(self, value: Any, key: Hashable) -> None:
        """Mark every tensor in a loaded value with a key."""
        for tensor in _tensors(value):
            self.labelled.add(key)
            self._mark(tensor, frozenset([key]))

    def _mark(self, tensor: torch.Tensor, keys: frozenset[Hashable]) -> None:
        address = tensor.untyped_storage().data_ptr()
        self._keys[address] = self._keys.get(address, frozenset()) | keys
        self._held.append(tensor)

    def _keys_of(self, value: Any) -> frozenset[Hashable]:
        keys_of_tensors = [self._keys.get(tensor.untyped_storage().data_ptr()) for tensor in _tensors(value)]
        return frozenset().union(*(keys for keys in keys_of_tensors if keys))

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        keys = self._keys_of((args, tuple((kwargs or {}).values())))
        if keys:
            for tensor in _tensors(result):
                self._mark(tensor, keys)
        return result


def _tensors(value: Any, depth: int = _DEPTH) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.layout is torch.strided and value.numel():  # empty ones share the address 0
            yield value
    elif hasattr(value, "__array_interface__"):
        yield from _of_array(value)
    elif depth and isinstance(value, (list, tuple)):
        for part in value:
            yield from _tensors(part, depth - 1)
    elif depth and isinstance(value, dict):
        for part in value.values():
            yield from _tensors(part, depth - 1)


def _of_array(value: Any) -> Iterator[torch.Tensor]:
    """A tensor on an array's own memory, as `torch.from_numpy` makes it."""
    try:
        yield torch.from_numpy(value)
    except (TypeError, ValueError):
        return  # a dtype that torch does not have

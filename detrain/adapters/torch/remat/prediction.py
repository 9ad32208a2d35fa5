"""How much memory an operator will allocate for its results, known before it runs: it is asked on the meta device, once for each kind of call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from detrain.adapters.torch.remat.cells import view_of
from detrain.adapters.torch.remat.operators import has_storage, tensors_in


class Prediction:
    """Remembers what it has asked."""

    def __init__(self) -> None:
        self._known: dict[Any, int] = {}
        #: Calls whose results' sizes depend on what is in the tensors: nobody can tell before.
        self.num_unpredicted = 0

    def fresh_bytes(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        """Bytes of the storages that a call makes; 0 where that depends on values."""
        key = _key(func, args, kwargs)
        if key is not None and key in self._known:
            return self._known[key]
        found = self._ask(func, args, kwargs)
        if key is not None:
            self._known[key] = found
        return found

    def learn(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], fresh_bytes: int) -> None:
        """A call has made more than expected: a library's kernel takes room for itself that the meta device does not know."""
        key = _key(func, args, kwargs)
        if key is not None:
            self._known[key] = fresh_bytes

    def _ask(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
        with _disable_current_modes(), torch._C._AutoDispatchBelowAutograd():
            copies: dict[int, Any] = {}
            on_meta = tuple(_on_meta(part, copies) for part in args)
            named = {name: _on_meta(part, copies) for name, part in kwargs.items()}
            if any(argument.name == "device" for argument in func._schema.arguments):
                named["device"] = torch.device("meta")
            if "generator" in named:
                named["generator"] = None
            given = {id(one.untyped_storage()): one for one in copies.values()}
            addresses = {one.untyped_storage()._cdata for one in given.values()}
            try:
                result = func(*on_meta, **named)
            except (NotImplementedError, RuntimeError):  # what is made depends on values, or there is no kernel for this device
                self.num_unpredicted += 1
                return 0
            fresh = {
                storage._cdata: storage.nbytes()
                for tensor in tensors_in(result)
                if has_storage(tensor) and (storage := tensor.untyped_storage())._cdata not in addresses
            }
        return sum(fresh.values())


def _key(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """What the sizes of its results depend on; None where that cannot be compared."""
    key = (func, _key_of(args), _key_of(kwargs), torch.is_grad_enabled())
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _key_of(tree: Any) -> Any:
    if isinstance(tree, torch.Tensor):
        return (view_of(tree)[1:], tree.device) if has_storage(tree) else (tree.layout, tree.shape)
    if isinstance(tree, (tuple, list)):
        return tuple(_key_of(part) for part in tree)
    if isinstance(tree, dict):
        return tuple((name, _key_of(part)) for name, part in tree.items())
    return (type(tree), tree)


def _on_meta(tree: Any, copies: dict[int, Any]) -> Any:
    """Tensors of one storage become tensors of one storage."""
    if isinstance(tree, torch.Tensor):
        if not has_storage(tree):
            return tree
        address = tree.untyped_storage()._cdata
        if address not in copies:
            size = tree.untyped_storage().nbytes()
            extent = tree.storage_offset() + sum(
                (length - 1) * stride for length, stride in zip(tree.shape, tree.stride(), strict=True)
            ) + 1
            copies[address] = torch.empty(max(size, extent * tree.element_size()), dtype=torch.uint8, device="meta")
        return torch.empty(0, dtype=tree.dtype, device="meta").set_(
            copies[address].untyped_storage(), tree.storage_offset(), tree.shape, tree.stride()
        )
    if isinstance(tree, (tuple, list)):
        return type(tree)(_on_meta(part, copies) for part in tree)
    return tree

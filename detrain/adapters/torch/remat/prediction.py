"""How much memory an operator will allocate for its results, known before it runs: the meta device is asked, once for each kind of call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from detrain.adapters.torch.remat.cells import storage_of
from detrain.adapters.torch.remat.operators import facts_of, has_storage, tensors_in
from detrain.adapters.torch.symbolic import draws_unmoved


@dataclass(eq=False, slots=True)
class Expected:
    """What is known of one kind of call; all calls of the kind have the same object."""

    #: Of the storages that it makes; 0 where that depends on values.
    fresh_bytes: int
    #: The least that a call has taken, and how many were timed.
    cost_ns: int = 0
    num_timed: int = 0

    def add_time(self, took_ns: int) -> None:
        """A call has taken so long."""
        self.cost_ns = min(self.cost_ns, took_ns) if self.num_timed else took_ns
        self.num_timed += 1


class Prediction:
    """Remembers what it has asked, and what calls have made."""

    #: By kind of call; no other budget of this process makes it another.
    _known: ClassVar[dict[Any, Expected]] = {}

    def expected(self, kind: Any, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Expected:
        """What a call of this kind is going to make."""
        try:
            known = self._known.get(kind)
        except TypeError:  # an argument that cannot be compared
            return Expected(_ask(func, args, kwargs) or 0)
        if known is None:
            known = self._known[kind] = Expected(_ask(func, args, kwargs) or 0)
        return known


def _ask(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int | None:
    if facts_of(func).is_collective:  # the group would have to be one of meta tensors
        return None
    with draws_unmoved(), _disable_current_modes(), torch._C._AutoDispatchBelowAutograd():
        copies: dict[int, Any] = {}
        on_meta = tuple(_on_meta(part, copies) for part in args)
        named = {name: _on_meta(part, copies) for name, part in kwargs.items()}
        if any(argument.name == "device" for argument in func._schema.arguments):
            named["device"] = torch.device("meta")
        if "generator" in named:
            named["generator"] = None
        addresses = {storage_of(one)._cdata for one in copies.values()}
        try:
            result = func(*on_meta, **named)
        except (
            NotImplementedError,
            RuntimeError,
        ):  # what is made depends on values, or there is no kernel for this device
            return None
        fresh: dict[int, int] = {
            storage._cdata: storage.nbytes()
            for tensor in tensors_in(result)
            if has_storage(tensor) and (storage := storage_of(tensor))._cdata not in addresses
        }
    return sum(fresh.values())


def _on_meta(tree: Any, copies: dict[int, Any]) -> Any:
    """Tensors of one storage become tensors of one storage."""
    if isinstance(tree, torch.Tensor):
        if not has_storage(tree):
            return tree
        address = storage_of(tree)._cdata
        if address not in copies:
            size = storage_of(tree).nbytes()
            extent = (
                tree.storage_offset()
                + sum((length - 1) * stride for length, stride in zip(tree.shape, tree.stride(), strict=True))
                + 1
            )
            copies[address] = torch.empty(max(size, extent * tree.element_size()), dtype=torch.uint8, device="meta")
        return torch.empty(0, dtype=tree.dtype, device="meta").set_(
            storage_of(copies[address]), tree.storage_offset(), tree.shape, tree.stride()
        )
    if isinstance(tree, (tuple, list)):
        return type(tree)(_on_meta(part, copies) for part in tree)
    return tree

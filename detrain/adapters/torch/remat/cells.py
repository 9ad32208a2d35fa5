"""The memory of a running program, piece by piece, and how each piece was made.

A cell is one storage. It knows the calls that have made it and changed it, in order, and so can be made again. A call holds the cells that
it reads; those hold the calls that made them, also when the program has let go of their memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

#: Where a tensor lies in its storage: offset, sizes, strides, dtype, conjugated, negated.
View = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype, bool, bool]


@dataclass(frozen=True, slots=True)
class Read:
    """A tensor that a call reads, in place of which this stands among its arguments."""

    cell: Cell
    #: How many calls had made and changed the cell then.
    version: int
    view: View
    requires_grad: bool
    #: It is changed by the call, which does not say so: what it returns does not depend on it.
    is_scratch: bool = False


@dataclass(eq=False, slots=True)
class Call:
    """One operator that has run: all that is needed to run it again."""

    func: Any
    args: Any
    kwargs: Any
    reads: list[Read]
    #: The cells that it has made, by their places among its results.
    made: list[tuple[int, weakref.ref[Cell]]]
    #: The state of the generator that it has drawn from, before it did; None if it draws nothing.
    generator: torch.Generator | None
    drawn_from: torch.Tensor | None
    is_grad_enabled: bool
    cost_ns: int
    #: Memory of all that it makes.
    fresh_bytes: int
    #: Storages that it reads and nobody can make again: they stay as long as the call may be run again.
    held: list[Any] = field(default_factory=list)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Cell:
    """One storage."""

    nbytes: int
    device: torch.device
    #: The storage, as long as the program holds it.
    ref: weakref.ref[Any] | None = None
    #: What has made it, and then changed it; empty for what was there before and for what cannot be made again.
    calls: list[Call] = field(default_factory=list)
    #: Its memory is there.
    is_there: bool = True
    #: It is never evicted.
    is_pinned: bool = False
    #: How often it was made and changed.
    version: int = 0
    #: So many calls that are running read it.
    num_locks: int = 0
    last_used: int = 0
    #: Cells whose calls have read this one.
    dependents: weakref.WeakSet[Cell] = field(default_factory=weakref.WeakSet)

    @property
    def storage(self) -> Any:
        """The storage; None if the program has let go of it."""
        return None if self.ref is None else self.ref()

    @property
    def cost_ns(self) -> int:
        """What it takes to make it again of what its calls read."""
        return sum(call.cost_ns for call in self.calls)

    @property
    def is_evictable(self) -> bool:
        """True if its memory can go now and be made again."""
        return self.is_there and not self.is_pinned and not self.num_locks and bool(self.calls) and self.nbytes > 0


class Cells:
    """The cells of all storages that are known."""

    def __init__(self, on_gone: Callable[[Cell], None]) -> None:
        """`on_gone` is called where the program has let go of a storage whose memory was there."""
        self._on_gone = on_gone
        self._by_address: dict[int, Cell] = {}

    def find(self, tensor: torch.Tensor) -> Cell | None:
        """The cell of a tensor's storage, if it is known."""
        return self._by_address.get(tensor.untyped_storage()._cdata)

    def add(self, tensor: torch.Tensor) -> Cell:
        """A new cell for a tensor's storage."""
        storage = tensor.untyped_storage()
        address, cell = storage._cdata, Cell(storage.nbytes(), tensor.device)
        cell.is_pinned = not storage.resizable()
        cell.ref = weakref.ref(storage, lambda _: self._gone(address, cell))
        self._by_address[address] = cell
        return cell

    def evictable(self) -> list[Cell]:
        """Those whose memory can go now."""
        return [cell for cell in self._by_address.values() if cell.is_evictable]

    def all(self) -> list[Cell]:
        """Those whose storage the program holds."""
        return list(self._by_address.values())

    def _gone(self, address: int, cell: Cell) -> None:
        if self._by_address.get(address) is cell:
            del self._by_address[address]
        if cell.is_there:
            cell.is_there = False
            self._on_gone(cell)


def view_of(tensor: torch.Tensor) -> View:
    """Where a tensor lies in its storage."""
    return tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()


def tensor_at(storage: Any, view: View, device: torch.device) -> torch.Tensor:
    """A tensor that lies so in a storage."""
    offset, sizes, strides, dtype, is_conj, is_neg = view
    tensor = torch.empty(0, dtype=dtype, device=device).set_(storage, offset, sizes, strides)
    if is_conj:
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if is_neg else tensor

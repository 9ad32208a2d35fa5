"""The memory of a running program, piece by piece, and how each piece was made.

A cell is one storage. It knows the calls that have made it and changed it, in order, and so can be made again. A call holds the cells that
it reads; those hold the calls that made them, also when the program has let go of their memory.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

#: Where a tensor lies in its storage: offset, sizes, strides, dtype, conjugated, negated.
View = tuple[int, torch.Size, tuple[int, ...], torch.dtype, bool, bool]
#: Before a budget makes the method revive what it is asked for.
storage_of: Callable[[torch.Tensor], Any] = torch.Tensor.untyped_storage
#: A device's allocator gives memory in pieces of this size.
_BLOCK_BYTES = 512
#: What is not larger stays: it gives no room, and a loss that a script keeps would have to be made of all that there is, at a step's end.
NOTHING_BYTES = 64
#: Readers that a cell remembers before it looks which of them are still there.
_MOST_READERS = 64


@dataclass(eq=False, slots=True)
class Read:
    """A tensor that a call reads, in place of which this stands among its arguments."""

    cell: Cell
    #: How many calls had made and changed the cell then.
    version: int
    view: View
    requires_grad: bool
    #: It is changed by the call, which does not say so: what it returns does not depend on it.
    is_scratch: bool


@dataclass(eq=False, slots=True, weakref_slot=True)
class Call:
    """One operator that has run: all that is needed to run it again."""

    func: Any
    args: Any
    kwargs: Any
    reads: list[Read]
    #: The state of the generator that it has drawn from, before it did; None if it draws nothing.
    generator: torch.Generator | None
    drawn_from: torch.Tensor | None
    is_grad_enabled: bool
    #: Storages that it reads and nobody can make again: they stay as long as the call may be run again.
    held: list[Any]
    cost_ns: int = 0
    #: Memory of all that it makes.
    fresh_bytes: int = 0
    #: The cells that it has made, by their places among its results; -1: one that it has changed.
    made: list[tuple[int, weakref.ref[Cell]]] = field(default_factory=list)

    def cells(self) -> Iterator[Cell]:
        """What it has made or changed, of that what still counts."""
        return (cell for _, ref in self.made if (cell := ref()) is not None)


@dataclass(eq=False, slots=True, weakref_slot=True)
class Cell:
    """One storage.

    With slots, and so without a dictionary: where an attribute is the first that an object's own room does not hold, Python 3.11 makes
    its dictionary, may collect garbage for that, and then frees the room a second time if a callback of that collection has set an
    attribute of the same object. Callbacks of storages that go do set attributes of cells.
    """

    #: Bytes of its memory that count.
    nbytes: int
    #: When it was made, and last read, by the runtime's clock.
    born: int
    last_used: int
    #: When the first of all was made that it is made of.
    oldest: int = 0
    #: The storage, as long as the program holds it.
    ref: weakref.ref[Any] | None = None
    #: Its memory, where the program has let go of the storage and something else was made of it since.
    ghost: Any = None
    #: What has made it, and then changed it; empty for what was there before and for what cannot be made again.
    calls: tuple[Call, ...] = ()
    #: Its memory is there.
    is_there: bool = True
    #: Its memory counts: it is that of the device that is governed.
    is_governed: bool = True
    #: It is never evicted.
    is_pinned: bool = False
    #: Its memory belongs to something else (numpy), which may write to it unseen.
    is_foreign: bool = False
    #: Nobody has been seen to write to it: a library's own code may have.
    is_blank: bool = False
    #: Of what it held when it was evicted, where that is to be compared.
    digest: int | None = None
    #: How often it was made and changed.
    version: int = 0
    #: So many calls that are running read it.
    num_locks: int = 0
    #: What it takes to make it again of what its calls read.
    cost_ns: int = 0
    #: Calls that have read it.
    readers: tuple[weakref.ref[Call], ...] | list[weakref.ref[Call]] = ()
    #: Of a cell that is not there: with which others it would have to be made again.
    group: Group | None = None
    #: Made in a backward pass: a gradient, which an optimizer will read, or what leads to one and is read at once.
    is_gradient: bool = False
    #: The kind of call that has made it.
    kind: Any = None
    #: No other has the same.
    serial: int = 0
    #: It is a model's, to be trained.
    is_parameter: bool = False

    @property
    def storage(self) -> Any:
        """The storage; None if the program has let go of it."""
        return None if self.ref is None else self.ref()

    @property
    def is_needed(self) -> bool:
        """True if the program holds it, or something may be made of it."""
        return self.ghost is None or any(True for _ in self.read_by())

    @property
    def is_evictable(self) -> bool:
        """True if its memory can go now and be made again."""
        is_held = self.is_pinned or self.is_blank or self.num_locks
        return self.is_there and not is_held and bool(self.calls) and self.nbytes > NOTHING_BYTES

    def add_reader(self, call: weakref.ref[Call]) -> None:
        """A call reads it."""
        readers = self.readers
        if not isinstance(readers, list):
            readers = self.readers = []
        elif len(readers) >= _MOST_READERS and not len(readers) % _MOST_READERS:
            readers = self.readers = [one for one in readers if one() is not None]
        readers.append(call)

    def read_by(self) -> Iterator[Call]:
        """The calls that have read it and may run again."""
        return (call for ref in self.readers if (call := ref()) is not None)

    @property
    def has_readers_of_before(self) -> bool:
        """True if something was made of what it held before it was changed."""
        reads = (read for call in self.read_by() for read in call.reads)
        return any(read.cell is self and read.version != self.version for read in reads)

    def neighbours(self) -> Iterator[Cell]:
        """What it is made of, and what is made of it."""
        for call in self.calls:
            for read in call.reads:
                if read.cell is not self:
                    yield read.cell
        for call in self.read_by():
            for cell in call.cells():
                if cell is not self:
                    yield cell


#: In a read of a call that changes one cell and makes none, in place of that cell: it would hold itself.
ITSELF = Cell(0, 0, 0)


class Group:
    """Cells that are not there and hang together, with what all of them cost: a class of a union-find forest.

    One that comes back takes its cost along and leaves the group's shape as it is, so the cost is rough (DTR's `eq`).
    """

    __slots__ = ("cost_ns", "parent")

    def __init__(self, cost_ns: int) -> None:
        self.cost_ns = cost_ns
        self.parent: Group | None = None

    def root(self) -> Group:
        """That of the whole."""
        group = self
        while group.parent is not None:
            if group.parent.parent is not None:
                group.parent = group.parent.parent
            group = group.parent
        return group

    def join(self, other: Group) -> None:
        """Two become one."""
        mine, theirs = self.root(), other.root()
        if mine is not theirs:
            theirs.parent = mine
            mine.cost_ns += theirs.cost_ns


class _StorageRef(weakref.ref):  # type: ignore[type-arg]
    """Knows whose storage it was; so that none needs a function of its own."""

    __slots__ = ("address", "cell")
    address: int
    cell: Cell


class Cells:
    """The cells of all storages that are known."""

    def __init__(self, on_gone: Callable[[Cell], None]) -> None:
        """`on_gone` is called where the program has let go of a storage."""
        self._on_gone = on_gone
        #: The type of the devices whose memory counts.
        self.device = "cpu"
        self._by_address: dict[int, Cell] = {}
        self._num_added = 0
        self._gone = self._storage_gone

    def find(self, tensor: torch.Tensor) -> Cell | None:
        """The cell of a tensor's storage, if it is known."""
        return self._by_address.get(storage_of(tensor)._cdata)

    def add(self, storage: Any, born: int) -> Cell:
        """A new cell for a storage."""
        cell = Cell(0, born, born)
        cell.is_governed = storage.device.type == self.device
        if cell.is_governed:
            cell.nbytes = self._rounded(storage.nbytes())
        self._num_added += 1
        cell.serial = self._num_added
        if not storage.resizable():
            cell.is_pinned = True
            cell.is_foreign = not storage.is_shared()
        ref = cell.ref = _StorageRef(storage, self._gone)
        ref.cell, ref.address = cell, storage._cdata
        self._by_address[ref.address] = cell
        return cell

    def _storage_gone(self, ref: _StorageRef) -> None:
        cell = ref.cell
        cell.ref = None  # which knows the cell
        if self._by_address.get(ref.address) is cell:
            del self._by_address[ref.address]
        self._on_gone(cell)

    def bytes_of(self, storage: Any) -> int:
        """What a storage takes of the memory that counts."""
        return self._rounded(storage.nbytes()) if storage.device.type == self.device else 0

    def _rounded(self, nbytes: int) -> int:
        return nbytes if self.device == "cpu" else -(-nbytes // _BLOCK_BYTES) * _BLOCK_BYTES

    def all(self) -> list[Cell]:
        """Those whose storage the program holds."""
        return list(self._by_address.values())


def view_of(tensor: torch.Tensor) -> View:
    """Where a tensor lies in its storage."""
    return tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype, tensor.is_conj(), tensor.is_neg()


def tensor_at(storage: Any, view: View, device: torch.device) -> torch.Tensor:
    """A tensor that lies so in a storage."""
    offset, sizes, strides, dtype, is_conj, is_neg = view
    tensor = torch.empty(0, dtype=dtype, device=device).set_(storage, offset, sizes, strides)
    if is_conj:
        tensor = torch._conj(tensor)
    return torch._neg_view(tensor) if is_neg else tensor

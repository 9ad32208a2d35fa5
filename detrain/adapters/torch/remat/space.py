"""The memory that a budget governs: what is there of it, how room is made for more, and what is to make way for it.

What goes first is chosen by measured times, and so is what is there while something is made again. Whether there is room must not depend on
that: where none is found, what waits for something else to be made gives way, and in the end it is tried once more by sizes alone.
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any, Protocol

import torch

from detrain.adapters.torch.remat.cells import Cell, Cells, Group
from detrain.adapters.torch.remat.choosing import best_to_evict, why_not
from detrain.adapters.torch.remat.replaying import digest_of
from detrain.adapters.torch.remat.waiting import Locks, Waiting
from detrain.errors import OverBudget


class Follower(Protocol):
    """Sees every operator of the program's, and may have something evicted or made again before it runs."""

    def before(self) -> None:
        """An operator comes."""

    def after(
        self, func: Any, token: object, tensors: list[torch.Tensor], cells: list[Cell], result: Any, fresh: Sequence[Cell],
        changed: Sequence[Cell], took_ns: int,
    ) -> None:  # fmt: skip
        """It has run.

        `token`: the same object for the same kind of call; `cells`: of the tensors, as they were before; `fresh`: what it has made.
        """

    def gone(self, cell: Cell) -> None:
        """The program has let go of a storage."""

    def handed_out(self, cell: Cell) -> None:
        """Something else reads it from now on, so it stays."""

    def let_go(self) -> bool:
        """There is no room: what is held for later goes. False if nothing was."""


class Space:
    """Counts what is there, and evicts."""

    def __init__(self, budget_bytes: int, *, is_verifying: bool) -> None:
        """`is_verifying`: of what is evicted a digest is taken."""
        self.budget_bytes, self.is_verifying = budget_bytes, is_verifying
        self.used_bytes = self.peak_bytes = self.num_evictions = 0
        self.follower: Follower | None = None
        self.cells = Cells(self._on_gone)
        #: Operators that the program has run.
        self.clock = 0
        #: Cells that can be made again.
        self.makeable: dict[int, Cell] = {}
        #: Those of them that the program does not hold, and whose memory is there for what is to be made of it.
        self.ghosts: dict[int, Cell] = {}
        #: Kinds of calls whose results had to be made again because what they are made of was about to change.
        self.kept_kinds: set[Any] = set()
        #: What is being made, and what waits for that.
        self.waiting: list[Waiting] = []
        #: What it takes to make something again has a say in what goes.
        self.is_timed = True
        #: What waits for something else to be made may give way to it.
        self.is_patient = True

    def evict_all(self) -> None:
        """All goes that can, but for gradients."""
        for cell in list(self.makeable.values()):
            if cell.is_evictable and not cell.is_gradient:
                self.evict(cell)

    def use(self, nbytes: int) -> None:
        """So many bytes more are there."""
        self.used_bytes += nbytes
        if self.used_bytes > self.peak_bytes:
            self.peak_bytes = self.used_bytes

    def _on_gone(self, cell: Cell) -> None:
        """The program has let go of a storage."""
        if self.follower is not None:
            self.follower.gone(cell)
        self.makeable.pop(id(cell), None)
        if cell.is_there:
            self._is_away(cell)

    def _is_away(self, cell: Cell) -> None:
        cell.is_there = False
        self.used_bytes -= cell.nbytes
        # Before the first eviction nothing is asked for its score.
        if self.num_evictions and cell.calls and any(True for _ in cell.read_by()):
            self._join_group(cell)

    def _join_group(self, cell: Cell) -> None:
        cell.group = Group(cell.cost_ns)
        for neighbour in cell.neighbours():
            if neighbour.group is not None:
                cell.group.join(neighbour.group)

    def make_room(self, nbytes: int, what: str) -> None:
        """So many bytes of the budget are free behind it. Raises `OverBudget`, saying that `what` needs them."""
        while (missing := self.used_bytes + nbytes - self.budget_bytes) > 0 and not self._put_away(missing):
            used_bytes = self.used_bytes
            gc.collect()  # what is garbage is not needed
            if self.used_bytes >= used_bytes:
                raise OverBudget(why_not(self.cells.all(), nbytes, self.used_bytes, self.budget_bytes, what))

    def _put_away(self, nbytes: int) -> bool:
        """Evict so many bytes, whatever the budget is; False if not so many can go."""
        most = self.used_bytes - nbytes
        while True:
            self._drop_ghosts()
            if self.used_bytes <= most:
                return True
            victims = self._best_to_evict(is_last_resort=False)
            if not victims and self._has_let_go():
                continue
            victims = victims or self._best_to_evict(is_last_resort=True)
            if not victims:
                return False
            for cell in victims:
                if self.used_bytes > most:
                    self.evict(cell)

    def _best_to_evict(self, *, is_last_resort: bool) -> list[Cell]:
        return best_to_evict(
            self.makeable.values(), self.clock, self.kept_kinds, is_timed=self.is_timed, is_last_resort=is_last_resort
        )

    def _has_let_go(self) -> bool:
        """Something can go now that was held for later: first what a plan holds, then what waits for something else to be made."""
        if self.follower is not None and self.follower.let_go():
            return True
        return self.is_patient and any(one.give_way() for one in self.waiting)

    def put_some_away(self, busy: list[Cell], nbytes: int) -> bool:
        """Evict so many bytes, but for these, whatever the budget is; False if nothing can go."""
        used_bytes = self.used_bytes
        with Locks(busy):
            self._put_away(nbytes)
        return self.used_bytes < used_bytes

    def _drop_ghosts(self) -> None:
        """What is there for nobody goes first."""
        for key, cell in list(self.ghosts.items()):
            if cell.ghost is None:
                del self.ghosts[key]
            elif cell.is_evictable and not cell.is_needed:
                self.evict(cell)

    def evict(self, cell: Cell) -> None:
        """Its memory goes, unless something reads that past the dispatcher."""
        storage = cell.storage
        if storage is not None and not storage.resizable():  # handed out by code, or in a thread, where nobody saw it
            self.hand_out(cell)
            return
        if self.is_verifying:
            cell.digest = digest_of(cell.ghost if storage is None else storage)
        if storage is not None:
            storage.resize_(0)
        else:
            cell.ghost = None
            self.makeable.pop(id(cell), None)
        self.num_evictions += 1
        self._is_away(cell)

    def hand_out(self, cell: Cell) -> None:
        """Something past the dispatcher reads it from now on."""
        if self.follower is not None and cell.calls and not cell.is_pinned:  # else it would have stayed anyway
            self.follower.handed_out(cell)
        cell.is_pinned = True

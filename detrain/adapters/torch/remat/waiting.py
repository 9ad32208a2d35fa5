"""What has to stay, or to be made first, while something is made again."""

from __future__ import annotations

from collections.abc import Sequence

from detrain.adapters.torch.remat.cells import Cell


class Waiting:
    """Cells that are to be there together: as they are found there, they stay until all are."""

    __slots__ = ("_has_given_way", "_locked", "_not_seen", "cell")

    def __init__(self, cell: Cell | None, needs: Sequence[Cell] = ()) -> None:
        """`cell`: is made of them, which is what it says itself then; None if something else needs them."""
        self.cell = cell
        self._not_seen = list(needs) if cell is None else _made_of(cell)
        self._locked: list[Cell] = []
        self._has_given_way = False

    def next_missing(self) -> Cell | None:
        """One that has to be made first; None once all are there."""
        while self._not_seen:
            if not self._not_seen[-1].is_there:
                return self._not_seen[-1]
            need = self._not_seen.pop()
            need.num_locks += 1
            self._locked.append(need)
        return None

    def give_way(self) -> bool:
        """Those that are there can go while another is made, and are made behind it.

        False if it cannot be so, as all are there, or has been so once: of two that have no room together each would go for the other,
        without an end.
        """
        if self._has_given_way or not self._locked or not self._not_seen:
            return False
        self._has_given_way = True
        self._not_seen[:0] = self._locked
        self.let_go()
        return True

    def let_go(self) -> None:
        """They can go again."""
        for cell in self._locked:
            cell.num_locks -= 1
        self._locked = []


def _made_of(cell: Cell) -> list[Cell]:
    return [
        read.cell
        for call in cell.calls
        for read in call.reads
        if read.cell is not cell and (read.cell.version == read.version or read.is_scratch)
    ]


class Locks:
    """None of these is evicted within."""

    __slots__ = ("_cells",)

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = cells

    def __enter__(self) -> None:
        for cell in self._cells:
            cell.num_locks += 1

    def __exit__(self, *_: object) -> None:
        for cell in self._cells:
            cell.num_locks -= 1

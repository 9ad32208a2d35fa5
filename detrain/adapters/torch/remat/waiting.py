"""What has to stay, or to be made first, while something is made again."""

from __future__ import annotations

from detrain.adapters.torch.remat.cells import Cell


class Waiting:
    """A cell that is to be made, and those that it is made of: as they are found there, they stay until it is."""

    __slots__ = ("_locked", "_needs", "cell")

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self._locked: list[Cell] = []
        self._needs = [
            read.cell
            for call in cell.calls
            for read in call.reads
            if read.cell is not cell and (read.cell.version == read.version or read.is_scratch)
        ]

    def next_missing(self) -> Cell | None:
        """One that has to be made first; None once all are there."""
        while self._needs:
            if not self._needs[-1].is_there:
                return self._needs[-1]
            need = self._needs.pop()
            need.num_locks += 1
            self._locked.append(need)
        return None

    def let_go(self) -> None:
        """They can go again."""
        for cell in self._locked:
            cell.num_locks -= 1
        self._locked = []


class Locks:
    """None of these is evicted within."""

    __slots__ = ("_cells",)

    def __init__(self, cells: list[Cell]) -> None:
        self._cells = cells

    def __enter__(self) -> None:
        for cell in self._cells:
            cell.num_locks += 1

    def __exit__(self, *_: object) -> None:
        for cell in self._cells:
            cell.num_locks -= 1

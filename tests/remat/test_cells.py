"""What a budget knows of memory holds when garbage is collected in the middle of a change of it."""

import gc
import weakref

from detrain.adapters.torch.remat.cells import Cell


class Garbage:
    """Only the collector of garbage frees it."""

    def __init__(self):
        self.itself = self


def test_a_cell_is_changed_by_a_callback_while_it_is_changed():
    """Python 3.11 would make a dictionary for the next attribute of an object without slots: its collection calls the callback within."""
    cells, kept = [Cell(8, 1, 1) for _ in range(50)], []
    dictionaries = [{} for _ in range(200)]  # Python has none left at hand, and looks for garbage when it makes one
    thresholds = gc.get_threshold()
    for cell in cells:
        kept.append(
            weakref.ref(
                Garbage(), lambda _, cell=cell: [setattr(cell, name, 3) for name in ("version", "num_locks", "serial")]
            )
        )
        gc.set_threshold(1, 1, 1)
        try:
            cell.calls, cell.readers, cell.cost_ns, cell.group = (1,), (2,), 4, ()
        finally:
            gc.set_threshold(*thresholds)
    gc.collect()
    found = [
        (cell.version, cell.num_locks, cell.serial, cell.calls, cell.readers, cell.cost_ns, cell.group)
        for cell in cells
    ]
    assert found == [(3, 3, 3, (1,), (2,), 4, ())] * len(cells)
    assert not any(dictionaries)
    assert not any(hasattr(cell, "__dict__") for cell in cells)

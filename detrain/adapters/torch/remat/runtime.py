"""Keeps a running program within a memory budget: what it will need again is evicted in place, and made again before it is read.

Below autograd every operator comes by. Before one runs, the inputs that are not in memory are made again, and room is made for its
results, whose size is known beforehand. Evicting empties a storage; making it again runs the calls that made it, in the state of the
generator that they had, and hands the memory over to the old storage: every tensor that looks into it, the program's and autograd's, is
valid again, and no version counter moves.

The heuristic is DTR's (Kirisame et al., ICLR 2021): first goes what is cheap to make again, large, and has not been read for long.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from detrain.adapters.torch.remat.cells import Call, Cell, Cells, Read, tensor_at, view_of
from detrain.adapters.torch.remat.operators import changed_by, has_storage, tensors_in, undeclared_of
from detrain.adapters.torch.remat.prediction import Prediction
from detrain.errors import OverBudget


class Runtime:
    """One budget, for all that runs on this thread and in the backward passes that it starts."""

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes = budget_bytes
        self.used_bytes = self.peak_bytes = 0
        self.num_evictions = self.num_again = self.again_ns = 0
        self._cells = Cells(self._on_gone)
        self._predict = Prediction()
        self._clock = 0

    def _on_gone(self, cell: Cell) -> None:
        self.used_bytes -= cell.nbytes

    # --- one operator ---------------------------------------------------------------------------------------------------------

    def run(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator of the program's. Raises `OverBudget`."""
        self._clock += 1
        inputs = [tensor for tensor in tensors_in((args, kwargs)) if has_storage(tensor)]
        cells = {id(tensor): self._cell_of(tensor) for tensor in inputs}
        with self._locked(cells.values()):
            for cell in cells.values():
                self._make(cell)
            changed = list(dict.fromkeys(cells[id(tensor)] for tensor in changed_by(func, args, kwargs)))
            scratch = {id(args[place]) for place in undeclared_of(func, args)}
            for cell in changed:
                self._settle_dependents(cell)
            call = _call_of(func, args, kwargs, cells, scratch)
            expected = self._predict.fresh_bytes(func, args, kwargs)
            self._make_room(expected, str(func))
            began_ns = perf_counter_ns()
            result = func(*args, **kwargs)
            call.cost_ns = perf_counter_ns() - began_ns
            self._register(call, result, changed)
            if call.fresh_bytes > expected:
                self._predict.learn(func, args, kwargs, call.fresh_bytes)
        return result

    def _cell_of(self, tensor: torch.Tensor) -> Cell:
        cell = self._cells.find(tensor)
        if cell is None:  # there before the budget was, or made where the program hides it: cannot be made again
            cell = self._cells.add(tensor)
            self._use(cell.nbytes)
        cell.last_used = self._clock
        return cell

    def _register(self, call: Call, result: Any, changed: list[Cell]) -> None:
        for place, tensor in enumerate(tensors_in(result)):
            if not has_storage(tensor):
                continue
            cell = self._cells.find(tensor)
            if cell is None:
                cell = self._cells.add(tensor)
                self._use(cell.nbytes)
                call.fresh_bytes += cell.nbytes
                cell.calls.append(call)
                cell.version = 1
                call.made.append((place, _weak(cell)))
            cell.last_used = self._clock
        for cell in changed:
            cell.version += 1
            if cell.calls:
                cell.calls.append(call)
            if cell.storage is not None and cell.storage.nbytes() != cell.nbytes:  # resized by the program
                self._use(cell.storage.nbytes() - cell.nbytes)
                cell.nbytes = cell.storage.nbytes()
                self._pin(cell)
        made = [cell for _, ref in call.made if (cell := ref()) is not None]
        for read in call.reads:
            if not read.is_scratch:
                for cell in (*made, *(one for one in changed if one.calls)):
                    if cell is not read.cell:
                        read.cell.dependents.add(cell)

    def _settle_dependents(self, cell: Cell) -> None:
        """Before a cell that cannot be made again is changed: what was made of it is made, if it is not there, and stays.

        A cell that can be made again keeps its history, so what depends on an older state of it can be made of that.
        """
        if cell.calls or not cell.dependents:
            return
        seen, waiting = {cell}, [cell]
        while waiting:
            one = waiting.pop()
            for dependent in list(one.dependents):
                if dependent in seen:
                    continue
                seen.add(dependent)
                if dependent.storage is None:
                    waiting.append(dependent)  # what was made of it is made again by way of it
                elif dependent.calls:
                    self._make(dependent)
                    self._pin(dependent)
                    if _has_readers_of_before(dependent):
                        waiting.append(dependent)
        cell.dependents = type(cell.dependents)()

    def _pin(self, cell: Cell) -> None:
        """It cannot be made again from now on, so it stays as long as something may be made of it."""
        cell.calls = []
        for call in {call for one in cell.dependents for call in one.calls}:
            if any(read.cell is cell for read in call.reads):
                call.held.append(cell.storage)

    # --- memory ---------------------------------------------------------------------------------------------------------------

    def _use(self, nbytes: int) -> None:
        self.used_bytes += nbytes
        self.peak_bytes = max(self.peak_bytes, self.used_bytes)

    def _make_room(self, nbytes: int, what: str) -> None:
        while self.used_bytes + nbytes > self.budget_bytes:
            victims = self._cells.evictable()
            if not victims:
                least = self.used_bytes + nbytes
                raise OverBudget(
                    f"{what} needs {nbytes:,} bytes beside {self.used_bytes:,} that have to be there: {least:,} in all, and the memory "
                    f"budget is {self.budget_bytes:,}"
                )
            self._evict(min(victims, key=self._score))

    def _score(self, cell: Cell) -> float:
        """Cost over size and staleness; the cost is that of the cell and of what is not there that it is made of."""
        seen, waiting, cost_ns = {id(cell)}, [cell], 0
        while waiting:
            one = waiting.pop()
            cost_ns += one.cost_ns
            for call in one.calls:
                for read in call.reads:
                    if not read.cell.is_there and id(read.cell) not in seen:
                        seen.add(id(read.cell))
                        waiting.append(read.cell)
        return cost_ns / (cell.nbytes * (self._clock - cell.last_used + 1))

    def _evict(self, cell: Cell) -> None:
        storage = cell.storage
        with _disable_current_modes():
            storage.resize_(0)
        cell.is_there = False
        self.used_bytes -= cell.nbytes
        self.num_evictions += 1

    @contextlib.contextmanager
    def _locked(self, cells: Any) -> Iterator[None]:
        cells = list(cells)
        for cell in cells:
            cell.num_locks += 1
        try:
            yield
        finally:
            for cell in cells:
                cell.num_locks -= 1

    # --- making again ---------------------------------------------------------------------------------------------------------

    def revive(self, tensor: torch.Tensor) -> None:
        """Have a tensor's memory there, for who reads it past the dispatcher, and leave it there."""
        cell = self._cells.find(tensor) if has_storage(tensor) else None
        if cell is not None:
            self._make(cell)
            cell.is_pinned = True

    def _make(self, cell: Cell) -> None:
        """Have a cell's memory there, in its present state. One that the program has let go of is not made."""
        storage = cell.storage  # which lives as long as this works on it
        if cell.is_there or storage is None:
            return
        with self._locked([cell]):
            made = self._replayed(cell, cell.version)
        with _disable_current_modes():
            storage._swap_data_ptr_(made)
        cell.is_there = True  # its bytes were counted as they were made
        cell.last_used = self._clock

    def _replayed(self, cell: Cell, version: int) -> Any:
        """A storage with what the cell held after so many calls; its bytes count as used."""
        storage: Any = None
        for call in cell.calls[:version]:
            storage = self._replay(call, cell, storage)
        return storage

    def _replay(self, call: Call, wanted: Cell, present: Any) -> Any:
        """Run a call again. `present`: the storage that is being made, which the call changes; None if the call makes it."""
        temporary: list[int] = []
        try:
            with contextlib.ExitStack() as stack:
                tensors = []
                for read in call.reads:
                    if read.cell is wanted and present is not None:
                        storage = present
                    else:
                        storage = self._present(read, stack, temporary)
                    tensors.append(storage)
                if present is None:
                    self._make_room(call.fresh_bytes, f"{call.func}, again,")
                    self._use(call.fresh_bytes)
                result = _run_again(call, tensors)
        finally:
            self.used_bytes -= sum(temporary)
        self.num_again += 1
        self.again_ns += call.cost_ns
        if present is not None:
            return present
        place = next(place for place, ref in call.made if ref() is wanted)
        storage = list(tensors_in(result))[place].untyped_storage()
        self.used_bytes -= call.fresh_bytes - wanted.nbytes  # what it makes beside
        return storage

    def _present(self, read: Read, stack: contextlib.ExitStack, temporary: list[int]) -> Any:
        """The storage that a call reads, as it was then."""
        cell = read.cell
        if cell.storage is not None and (cell.version == read.version or read.is_scratch):
            self._make(cell)
            stack.enter_context(self._locked([cell]))
            return cell.storage
        if not cell.calls:
            raise AssertionError("what cannot be made again has changed or is gone, and something is to be made of it")
        storage = self._replayed(cell, read.version)
        temporary.append(cell.nbytes)
        return storage


class BudgetMode(TorchDispatchMode):  # type: ignore[misc]
    """Brings every operator to the runtime."""

    def __init__(self, runtime: Runtime) -> None:
        super().__init__()
        self._runtime = runtime

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """See `TorchDispatchMode`."""
        if any(one is not torch.Tensor and one is not torch.nn.Parameter for one in types):
            return NotImplemented
        kwargs = kwargs or {}
        if func.namespace == "profiler":
            return func(*args, **kwargs)
        return self._runtime.run(func, args, kwargs)


def _has_readers_of_before(cell: Cell) -> bool:
    """True if something was made of what the cell held before it was changed."""
    reads = (read for one in cell.dependents for call in one.calls for read in call.reads)
    return any(read.cell is cell and read.version != cell.version for read in reads)


def _call_of(
    func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], cells: Mapping[int, Cell], scratch: set[int]
) -> Call:
    reads: list[Read] = []

    def replaced(tree: Any) -> Any:
        if isinstance(tree, torch.Tensor):
            if not has_storage(tree):
                return tree
            cell = cells[id(tree)]
            reads.append(Read(cell, cell.version, view_of(tree), tree.requires_grad, id(tree) in scratch))
            return reads[-1]
        if isinstance(tree, (tuple, list)):
            return type(tree)(replaced(part) for part in tree)
        return tree

    own_args = tuple(replaced(part) for part in args)
    own_kwargs = {name: replaced(part) for name, part in kwargs.items()}
    held = [read.cell.storage for read in reads if not read.cell.calls]
    generator = drawn_from = None
    if torch.Tag.nondeterministic_seeded in func.tags:
        generator = kwargs.get("generator") or torch.default_generator
        drawn_from = generator.get_state()
    return Call(func, own_args, own_kwargs, reads, [], generator, drawn_from, torch.is_grad_enabled(), 0, 0, held)


def _run_again(call: Call, storages: Sequence[Any]) -> Any:
    """`storages`: of what it reads, in the order of `call.reads`."""
    waiting = iter(zip(call.reads, storages, strict=True))

    def filled(tree: Any) -> Any:
        if isinstance(tree, Read):
            read, storage = next(waiting)
            tensor = tensor_at(storage, read.view, storage.device)
            return tensor.clone() if read.is_scratch else tensor.requires_grad_(read.requires_grad and call.is_grad_enabled)
        if isinstance(tree, (tuple, list)):
            return type(tree)(filled(part) for part in tree)
        return tree

    with _disable_current_modes(), torch.set_grad_enabled(call.is_grad_enabled), _below_autograd(), _drawing(call):
        args = tuple(filled(part) for part in call.args)
        return call.func(*args, **{name: filled(part) for name, part in call.kwargs.items()})


@contextlib.contextmanager
def _below_autograd() -> Iterator[None]:
    with torch._C._AutoDispatchBelowAutograd():
        yield


@contextlib.contextmanager
def _drawing(call: Call) -> Iterator[None]:
    if call.generator is None:
        yield
        return
    now = call.generator.get_state()
    call.generator.set_state(call.drawn_from)
    try:
        yield
    finally:
        call.generator.set_state(now)


def _weak(cell: Cell) -> Any:
    import weakref

    return weakref.ref(cell)


@contextlib.contextmanager
def budget(budget_bytes: int) -> Iterator[Runtime]:
    """Within this, what runs on this thread keeps to so many bytes. Raises `OverBudget` where it cannot."""
    runtime = Runtime(budget_bytes)
    with BudgetMode(runtime), _readers_revive(runtime):
        yield runtime


#: Methods that read or hand out memory past the dispatcher.
_READERS = ("numpy", "tolist", "data_ptr", "__dlpack__", "__array__", "untyped_storage", "storage", "share_memory_")


@contextlib.contextmanager
def _readers_revive(runtime: Runtime) -> Iterator[None]:
    plain: dict[str, Callable[..., Any]] = {}

    def reviving(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def read(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            runtime.revive(self)
            return method(self, *args, **kwargs)

        return read

    for name in ("numpy", "tolist", "data_ptr", "__dlpack__", "__array__"):
        plain[name] = getattr(torch.Tensor, name)
        setattr(torch.Tensor, name, reviving(name, plain[name]))
    try:
        yield
    finally:
        for name, method in plain.items():
            setattr(torch.Tensor, name, method)

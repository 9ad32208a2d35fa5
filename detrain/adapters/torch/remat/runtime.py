"""Keeps a running program within a memory budget: what it will need again is evicted in place, and made again before it is read.

Below autograd every operator comes by. Before one runs, the inputs that are not in memory are made again, and room is made for its
results, whose size is known beforehand. Evicting empties a storage; making it again runs the calls that made it, in the state of the
generator that they had, and hands the memory over to the old storage: every tensor that looks into it, the program's and autograd's, is
valid again, and no version counter moves.

First goes what is cheap to make again with all around it that is not there, large, and has not been read for long.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from time import perf_counter_ns
from typing import Any

import torch

from detrain.adapters.torch.remat.cells import ITSELF, Call, Cell, Read, storage_of
from detrain.adapters.torch.remat.describing import call_of, given_tensors
from detrain.adapters.torch.remat.operators import Facts, changed_by, has_storage, tensors_in
from detrain.adapters.torch.remat.prediction import Prediction
from detrain.adapters.torch.remat.replaying import digest_of, run_again
from detrain.adapters.torch.remat.retrying import once_more, timed, with_room
from detrain.adapters.torch.remat.space import Space
from detrain.adapters.torch.remat.waiting import Locks, Waiting
from detrain.errors import OverBudget, RematError

#: Memory can be handed from one storage to another (torch 2.13, not 2.11); else it is copied, and both are there for a moment.
_CAN_SWAP = hasattr(torch.UntypedStorage, "_swap_data_ptr_")

#: So many times what there is may run again for one operator; from then on nothing gives way any more. Where each goes for the other there
#: is no room, and no end.
_MOST_TIMES = 4


class Runtime:
    """One budget, for all that runs on this thread and in the backward passes that it starts."""

    def __init__(self, budget_bytes: int, *, is_verifying: bool = False) -> None:
        """`is_verifying`: what is made again is compared with what was evicted."""
        self.space = Space(budget_bytes, is_verifying=is_verifying)
        self.num_again = self.again_ns = self._patient_until = 0
        #: The program's operators go by unseen: in a forked process, or where it has ended.
        self.is_off = False
        self._predict = Prediction()
        #: Of the clock, at the last header.
        self._header = 0
        self._has_gradients = False
        #: Some that are known are.
        self.has_parameters = False
        #: A backward pass has run, or a part of one.
        self.has_seen_backward = False

    def govern(self, device: str) -> None:
        """The memory of devices of this type counts, and no other; "cpu" unless said."""
        self.space.cells.device = device

    def introduce(self, tensors: Iterable[torch.Tensor]) -> None:
        """These are there before the program goes on: they count, and stay."""
        for tensor in tensors:
            if not has_storage(tensor):
                continue
            if (cell := self.space.cells.find(tensor)) is None:
                cell = self.space.cells.add(storage_of(tensor), 0)
                self.space.use(cell.nbytes)
            if isinstance(tensor, torch.nn.Parameter):
                cell.is_parameter = self.has_parameters = True

    # --- one operator ---------------------------------------------------------------------------------------------------------

    def run(self, func: Any, facts: Facts, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Run an operator of the program's. Raises `OverBudget`."""
        self.space.clock += 1
        follower = self.space.follower
        if follower is not None:
            follower.before()
        tensors = given_tensors(args, kwargs)
        cells, is_missing = self._cells_of(tensors)
        if is_missing and facts.reads_memory:
            self._make(*cells)
        if facts.returns_views:
            result = func(*args, **kwargs)
            if follower is not None:
                follower.after(func, func, tensors, cells, result, (), (), 0)
            return result
        if facts.writes_first_only and tensors and args and args[0] is tensors[0] and has_storage(tensors[0]):
            changed = cells[:1]
        else:
            changed = self._changed(func, args, kwargs) if facts.writes or facts.undeclared else []
        is_on_record = False
        for cell in changed:
            if cell.calls:
                is_on_record = True
            elif cell.readers:
                self._settle(cell, cells)
        for cell in cells:
            if cell.is_blank and not facts.is_blank:
                self._look_at_blank(cell, tensors, is_overwritten=facts.is_overwriting and cell in changed)
            if facts.is_collective:
                self._pin(cell)
        if facts.returns_written and not is_on_record:
            began_ns = perf_counter_ns()
            result = func(*args, **kwargs)
            took_ns = perf_counter_ns() - began_ns
            self._changed_in_place(changed)
            if follower is not None:
                follower.after(func, func, tensors, cells, result, (), changed, took_ns)
            return result
        call, kind = call_of(func, facts, args, kwargs, tensors, cells)
        expected = self._predict.expected(kind, func, args, kwargs)
        if self.space.used_bytes + expected.fresh_bytes > self.space.budget_bytes:
            with Locks(cells):
                self.space.make_room(expected.fresh_bytes, str(func))
        try:
            result = timed(expected, func, args, kwargs, is_device=self.space.cells.device != "cpu")
        except torch.OutOfMemoryError as error:
            if changed or facts.is_collective:
                raise  # a part of it may have been done
            again = partial(once_more, call, args, kwargs)
            result = with_room(error, again, expected.fresh_bytes, partial(self.space.put_some_away, cells))
        call.cost_ns = expected.cost_ns
        fresh = self._register(call, facts, kind, result, changed)
        # A library's kernel may take room for itself that the meta device does not know.
        expected.fresh_bytes = max(expected.fresh_bytes, call.fresh_bytes)
        if follower is not None:
            follower.after(func, expected, tensors, cells, result, fresh, changed, call.cost_ns)
        if facts.is_collective:
            for cell in list(call.cells()):
                self._pin(cell)
        return result

    def _cells_of(self, tensors: Iterable[torch.Tensor]) -> tuple[list[Cell], bool]:
        """Of each tensor; whether one of them is not there. What is not known was made where the program hides it, and stays."""
        cells, is_missing, is_new = [], False, False
        for tensor in tensors:
            if tensor.layout is not torch.strided:
                continue
            cell = self.space.cells.find(tensor)
            if cell is None:
                cell, is_new = self.space.cells.add(storage_of(tensor), self.space.clock), True
                self.space.use(cell.nbytes)
            elif cell.is_pinned:
                self._look_at_size(cell)
            cell.last_used = self.space.clock
            is_missing = is_missing or not cell.is_there
            cells.append(cell)
        if is_new and self.space.used_bytes > self.space.budget_bytes:
            with Locks(cells):
                self.space.make_room(0, "what comes from a loader's workers or a library")
        return cells, is_missing

    def _changed(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Cell]:
        found = (self.space.cells.find(tensor) for tensor in changed_by(func, args, kwargs))
        return list(dict.fromkeys(cell for cell in found if cell is not None))

    def _changed_in_place(self, changed: Iterable[Cell]) -> None:
        for cell in changed:
            cell.version += 1
            self._look_at_size(cell)

    def _look_at_size(self, cell: Cell) -> None:
        """The program may have given it another."""
        storage = cell.storage
        if cell.is_there and storage is not None and (nbytes := self.space.cells.bytes_of(storage)) != cell.nbytes:
            self.space.use(nbytes - cell.nbytes)
            cell.nbytes = nbytes
            self._pin(cell)

    def _register(self, call: Call, facts: Facts, kind: Any, result: Any, changed: list[Cell]) -> list[Cell]:
        """Returns the cells of the memory that it has made."""
        fresh, made = list[Cell](), list[Cell]()
        is_complete, is_backward = True, torch._C._current_graph_task_id() >= 0
        for place, tensor in enumerate((result,) if isinstance(result, torch.Tensor) else tensors_in(result)):
            if tensor.layout is not torch.strided:
                is_complete = False
                continue
            cell = self.space.cells.find(tensor)
            if cell is None:
                cell = self.space.cells.add(storage_of(tensor), self.space.clock)
                self.space.use(cell.nbytes)
                fresh.append(cell)
                call.fresh_bytes += cell.nbytes
                cell.version, cell.kind, cell.cost_ns = 1, kind, call.cost_ns
                if is_backward:
                    cell.is_gradient = self._has_gradients = self.has_seen_backward = True
                if cell.is_governed:
                    call.made.append((place, weakref.ref(cell)))
                    made.append(cell)
            cell.last_used = self.space.clock
        changing = [cell for cell in changed if cell.calls]
        if not is_complete:  # a sparse tensor looks into what it was given, where nobody sees it
            for cell in [*made, *(read.cell for read in call.reads)]:
                self._pin(cell)
        elif made or changing:
            self._remember(call, facts, made, changing)
        self._changed_in_place(changed)
        return fresh

    def _remember(self, call: Call, facts: Facts, made: list[Cell], changing: list[Cell]) -> None:
        """What was made and changed can be made again by this call."""
        transient, oldest, is_foreign = 0, self.space.clock, False
        for read in call.reads:
            cell = read.cell
            is_foreign = is_foreign or cell.is_foreign
            if cell.born and not cell.version:
                transient += cell.nbytes
            if cell.calls and cell.oldest < oldest:
                oldest = cell.oldest
        if is_foreign:
            for cell in changing:
                self._forget_calls(cell)
            return  # what it has read may be something else by then, and nobody would know
        if made and not changing and transient >= call.fresh_bytes:
            return  # what it would have to hold for that takes as much
        is_blank = facts.is_blank
        for cell in made:
            cell.is_blank = is_blank
            cell.calls = (*cell.calls, call)
            cell.oldest = oldest
            self.space.makeable[id(cell)] = cell
        for cell in changing:
            cell.calls = (*cell.calls, call)
            cell.cost_ns += call.cost_ns
            cell.oldest = min(cell.oldest, oldest)
            call.made.append((-1, weakref.ref(cell)))
        reader = weakref.ref(call)
        for read in call.reads:
            if not made and len(changing) == 1 and read.cell is changing[0]:
                read.cell, read.version = ITSELF, -1
            elif not read.is_scratch:
                read.cell.add_reader(reader)

    # --- what cannot be made again --------------------------------------------------------------------------------------------

    def _settle(self, cell: Cell, busy: list[Cell]) -> None:
        """Before a cell that cannot be made again is changed: what was made of it is made, if it is not there, and stays.

        A cell that can be made again keeps its history, so what depends on an older state of it can be made of that. Gradients stay
        in any case: an optimizer is at work, and the graph of what they were made of can go.
        """
        if self._has_gradients:
            self._has_gradients = False
            for one in list(self.space.makeable.values()):
                if one.is_gradient and one.is_there and one.ghost is None:
                    self._forget_calls(one)
        seen, waiting = {id(cell)}, [cell]
        while waiting:
            one = waiting.pop()
            for call in list(one.read_by()):
                for dependent in list(call.cells()):
                    if id(dependent) in seen:
                        continue
                    seen.add(id(dependent))
                    if dependent.storage is None:
                        waiting.append(dependent)  # what was made of it is made again by way of it
                    elif dependent.calls:
                        self._keep(dependent, busy)
                        if dependent.has_readers_of_before:
                            waiting.append(dependent)
        cell.readers = ()

    def _keep(self, cell: Cell, busy: list[Cell]) -> None:
        if not cell.is_there:
            if cell.kind is not None:
                self.space.kept_kinds.add(cell.kind)
            with Locks(busy):
                self._make(cell)
        self._forget_calls(cell)

    def _look_at_blank(self, cell: Cell, tensors: list[torch.Tensor], *, is_overwritten: bool) -> None:
        """Memory is used that nobody was seen to write to. Unless all of it is overwritten now, a library's own code may have filled it."""
        cell.is_blank = False
        whole = (
            one.numel() * one.element_size()
            for one in tensors
            if has_storage(one) and self.space.cells.find(one) is cell
        )
        if not is_overwritten or cell.storage.nbytes() not in whole:
            self._forget_calls(cell)

    def _pin(self, cell: Cell) -> None:
        """It is there, and stays: something else may read or write it unseen."""
        self._forget_calls(cell)
        cell.is_pinned = True

    def _forget_calls(self, cell: Cell) -> None:
        """It cannot be made again from now on, so it stays as long as something may be made of it."""
        if not cell.calls:
            return
        cell.calls = ()
        self.space.makeable.pop(id(cell), None)
        storage = cell.storage
        for call in cell.read_by():
            call.held.append(storage)

    def at_header(self) -> None:
        """An iteration begins. What has its origin before the one that has ended belongs to the program's state, and stays."""
        for cell in list(self.space.makeable.values()):
            if cell.oldest < self._header and cell.storage is not None:
                self._keep(cell, [])
            elif cell.ghost is not None and cell.is_evictable:
                self.space.evict(cell)  # what would still be made of it is of the iteration that has ended
        self._header = self.space.clock

    # --- for who follows the program ------------------------------------------------------------------------------------------

    def cell_of(self, tensor: torch.Tensor) -> Cell | None:
        """The cell of a tensor's storage, if it has one that is known."""
        return self.space.cells.find(tensor) if has_storage(tensor) else None

    def cells(self) -> list[Cell]:
        """All whose storage the program holds."""
        return self.space.cells.all()

    def put_away(self, cell: Cell) -> None:
        """Evict it, if it is there and can be made again."""
        if cell.is_evictable:
            self.space.evict(cell)

    def bring(self, cell: Cell) -> None:
        """Have it there, if it can be made again. Raises `OverBudget`."""
        if cell.calls:
            self._make(cell)

    # --- making again ---------------------------------------------------------------------------------------------------------

    def revive(self, tensor: torch.Tensor) -> None:
        """Have a tensor's memory there, for who reads it past the dispatcher, and leave it there."""
        cell = self.space.cells.find(tensor) if has_storage(tensor) else None
        if cell is not None:
            self._make(cell)
            self.space.hand_out(cell)

    def end(self) -> None:
        """All that the program holds is made, and nothing can be made again any more. Raises `OverBudget`."""
        self.revive_all()
        for cell in (*self.space.cells.all(), *self.space.makeable.values()):
            cell.calls, cell.readers, cell.ghost = (), (), None
        self.space.makeable.clear()
        self.space.ghosts.clear()

    def revive_all(self) -> None:
        """Have all memory there that the program holds. Raises `OverBudget`."""
        self._make(*(cell for cell in self.space.cells.all() if cell.storage is not None))

    def _make(self, *cells: Cell) -> None:
        """Have the memory of cells there, in its present state, and before it what it is made of, however far back that goes."""
        if all(cell.is_there for cell in cells):
            return
        try:
            self._make_in_turn(cells)
        except OverBudget:
            if self.space.waiting:
                raise
            # What goes when depends on measured times, and what has room depends on that: once more as it would be in any run.
            with Locks(cells):
                self.space.evict_all()
            self.space.is_timed = False
            try:
                self._make_in_turn(cells)
            finally:
                self.space.is_timed = True

    def _make_in_turn(self, cells: Sequence[Cell]) -> None:
        first = len(self.space.waiting)
        if not first:
            self.space.is_patient = True
            self._patient_until = self.num_again + _MOST_TIMES * len(self.space.makeable)
        self.space.waiting.append(Waiting(None, cells))
        try:
            while len(self.space.waiting) > first:
                one = self.space.waiting[-1]
                missing = one.next_missing()
                if missing is not None:
                    self.space.waiting.append(Waiting(missing))
                    continue
                if one.cell is not None:
                    self._make_now(one.cell)
                self.space.waiting.pop().let_go()
        finally:
            while len(self.space.waiting) > first:
                self.space.waiting.pop().let_go()

    def _make_now(self, cell: Cell) -> None:
        """What it is made of is there."""
        if cell.is_there:  # another result of a call that has run again meanwhile
            return
        storage = cell.storage  # which lives as long as this works on it
        with Locks([cell]):
            made = self._replayed(cell, cell.version)
        self._bring_back(cell, storage, made)

    def _bring_back(self, cell: Cell, storage: Any, memory: Any) -> None:
        """Its bytes were counted as they were made."""
        if cell.is_there:  # another call that ran for this one has made it as well
            self.space.used_bytes -= cell.nbytes
            return
        if cell.digest is not None and cell.digest != digest_of(memory):
            raise RematError(
                f"{cell.calls[-1].func} has other bits when it runs again: {cell.nbytes:,} bytes that were made by it, or were written to "
                "by code that PyTorch does not know of"
            )
        cell.digest = None
        if storage is None:
            cell.ghost = memory
            self.space.makeable[id(cell)] = self.space.ghosts[id(cell)] = cell
        elif _CAN_SWAP:
            storage._swap_data_ptr_(memory)
        else:
            storage.resize_(memory.nbytes())
            storage.copy_(memory)
        cell.is_there = True
        cell.last_used = self.space.clock
        if cell.group is not None:
            cell.group.root().cost_ns -= cell.cost_ns
            cell.group = None

    def _replayed(self, cell: Cell, version: int) -> Any:
        """A storage with what the cell held after so many calls; its bytes count as used."""
        storage: Any = None
        try:
            for call in cell.calls[:version]:
                storage = self._replay(call, cell, storage)
        except OverBudget:
            if storage is not None:
                self.space.used_bytes -= cell.nbytes
            raise
        return storage

    def _replay(self, call: Call, wanted: Cell, present: Any) -> Any:
        """Run a call again. `present`: the storage that is being made, which the call changes; None if the call makes it."""
        temporary = 0
        locked: list[Cell] = []
        try:
            storages = []
            for read in call.reads:
                if read.cell is ITSELF or (read.cell is wanted and present is not None):
                    storages.append(present)
                    continue
                storage, is_temporary = self._present(read)
                storages.append(storage)
                if is_temporary:
                    temporary += read.cell.nbytes
                else:
                    read.cell.num_locks += 1
                    locked.append(read.cell)
            if present is None:
                self.space.make_room(call.fresh_bytes, f"{call.func}, again,")
                self.space.use(call.fresh_bytes)
            try:
                result = run_again(call, storages)
            except torch.OutOfMemoryError as error:
                if present is not None:
                    raise
                result = with_room(
                    error, partial(run_again, call, storages), call.fresh_bytes, partial(self.space.put_some_away, [])
                )
        finally:
            self.space.used_bytes -= temporary
            for cell in locked:
                cell.num_locks -= 1
        self.num_again += 1
        self.again_ns += call.cost_ns
        if self.num_again > self._patient_until:
            self.space.is_patient = False
        if present is not None:
            return present
        return self._results(call, wanted, list(tensors_in(result)))

    def _results(self, call: Call, wanted: Cell, results: list[torch.Tensor]) -> Any:
        """The storage of the wanted one; others that are missing as well come back with it."""
        found: Any = None
        kept = wanted.nbytes
        for place, ref in call.made:
            cell = ref()
            if cell is None or place < 0:
                continue
            if cell is wanted:
                found = storage_of(results[place])
            elif not cell.is_there and cell.version == 1 and cell.calls and (storage := cell.storage) is not None:
                self._bring_back(cell, storage, storage_of(results[place]))
                kept += cell.nbytes
        self.space.used_bytes -= call.fresh_bytes - kept
        return found

    def _present(self, read: Read) -> tuple[Any, bool]:
        """The storage that a call reads, as it was then; True if it is made for this call alone."""
        cell = read.cell
        if not cell.is_there and not cell.calls:
            raise AssertionError("what cannot be made again is gone, and something is to be made of it")
        if cell.version == read.version or read.is_scratch:
            storage = cell.storage
            self._make(cell)
            return cell.ghost if storage is None else storage, False
        if not cell.calls:
            raise AssertionError("what cannot be made again has changed, and something is to be made of what it was")
        return self._replayed(cell, read.version), True

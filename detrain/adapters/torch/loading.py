"""`DataLoader` with worker processes: keyed random numbers, and a position that can be set.

Without workers nothing is special: the loader's iterator is a Python object whose sampler is a generator, and both are captured
like any other. With workers, three things are added to torch's iterator, each by one `_patch_` function:

- every task sent to a worker carries a key (base seed, pass, batch); unpickling it in the worker seeds the worker's
  generators, so that what a batch draws does not depend on which worker draws it, or on what that worker did before;
- tasks that are in flight are remembered, because the sampler is ahead of what the script has received;
- while a run fast-forwards, tasks are drawn but not sent: the iterator is about to be restored, and nothing need be loaded.
"""

from __future__ import annotations

import hashlib
import itertools
import multiprocessing.connection
import os
import threading
import time
import types
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, ClassVar

from torch.utils.data import dataloader as torch_dataloader
from torch.utils.data._utils import worker as torch_worker

from detrain.adapters import names
from detrain.adapters.torch.workers import arrive, changed_numbers, news, numbers_of
from detrain.state.classes import type_name
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import CannotBuild, Capturing, Handler, Restoring, mark_not_saved
from detrain.state.handlers.iterators import on_blind_steps, silent_types
from detrain.state.tree import Node

BaseIterator = torch_dataloader._BaseDataLoaderIter
WorkerIterator = torch_dataloader._MultiProcessingDataLoaderIter

_next_index = BaseIterator._next_index
_try_put_index = WorkerIterator._try_put_index
_next_data = WorkerIterator._next_data
_reset = WorkerIterator._reset


class Holding:
    """Whether tasks for workers are held back."""

    is_on = False


holding = Holding()


#: Numbers of iterators, by which what workers report is assigned to one.
_tokens = itertools.count(1)


class _Extra:
    """What is added to torch's iterator."""

    __slots__ = ("began_with", "entropy", "held", "in_flight", "loader", "passes", "token")

    def __init__(self) -> None:
        self.token = next(_tokens)
        self.loader: Any = None  # gives the DataLoader, or None if it is gone
        self.entropy = 0  # from the script's stream; what workers draw follows from it
        self.passes = -1  # how often the workers have begun a pass over the data set, from 0
        self.began_with: dict[str, Any] = {}  # the data set's numbers when the workers got their copies of it
        self.held: deque[Any] = deque()
        self.in_flight: dict[int, Any] = {}


def _extra(iterator: Any) -> _Extra:
    found = iterator.__dict__.get("_detrain")
    if found is None:
        found = iterator.__dict__["_detrain"] = _Extra()
    return found  # type: ignore[no-any-return]


class KeyedTask:
    """The indices of one batch on their way to a worker. Unpickling it there seeds the worker and gives the plain indices."""

    def __init__(self, index: Any, key: tuple[int, int, int], extra: _Extra, key_entropy: Any) -> None:
        self.args = index, key, extra.token, extra.entropy, key_entropy

    def __reduce__(self) -> Any:
        return arrive, self.args


def loader_of(value: Any) -> type | None:
    """`DataLoader` (or the user's subclass of it) for one, or for an iterator over one; else None."""
    kind = type(value)
    if issubclass(kind, torch_dataloader.DataLoader):
        return kind
    return torch_dataloader.DataLoader if issubclass(kind, BaseIterator) else None


def patch(key_entropy: Callable[[int, int], None]) -> None:
    """Patch torch; a second call changes nothing. `key_entropy`: as in `Settings`."""
    _patch_next_index(key_entropy)
    _patch_try_put_index()
    _patch_next_data()
    _patch_reset()
    _patch_challenge()
    names.seed_now()
    if _hand_out_nothing not in on_blind_steps:
        on_blind_steps.append(_hand_out_nothing)
        silent_types.update(type_name(one) for one in (WorkerIterator, torch_dataloader._SingleProcessDataLoaderIter))


def _patch_next_index(key_entropy: Callable[[int, int], None]) -> None:
    def _next_index_keyed(self: Any) -> Any:
        extra = _extra(self)
        index = extra.held.popleft() if extra.held and not holding.is_on else _next_index(self)
        if holding.is_on:
            return index
        extra.in_flight.pop(self._rcvd_idx - 1, None)
        extra.in_flight[self._send_idx] = index
        return KeyedTask(index, (self._base_seed, extra.passes, self._send_idx), extra, key_entropy)

    WorkerIterator._next_index = _next_index_keyed


def _patch_try_put_index() -> None:
    def _try_put_index_held(self: Any) -> None:
        if not holding.is_on:
            _try_put_index(self)
            return
        try:
            _extra(self).held.append(self._next_index())
        except StopIteration:
            return

    WorkerIterator._try_put_index = _try_put_index_held


def _patch_next_data() -> None:
    def _next_data_sent(self: Any) -> Any:
        held = _extra(self).held
        if held:
            was_on, holding.is_on = holding.is_on, False
            try:
                for _ in range(len(held)):
                    _try_put_index(self)
            finally:
                holding.is_on = was_on
        return _next_data(self)

    WorkerIterator._next_data = _next_data_sent


def _patch_reset() -> None:
    def _reset_counted(self: Any, loader: Any, first_iter: bool = False) -> None:
        extra = _extra(self)
        # A loader with persistent workers holds the iterator; any other may be gone before the iterator is.
        extra.loader = weakref.ref(loader) if self._persistent_workers else lambda: loader
        extra.passes += 1
        if first_iter:
            extra.began_with = numbers_of(self._dataset)
            extra.entropy = int.from_bytes(os.urandom(8))
        extra.held.clear()
        extra.in_flight.clear()
        _reset(self, loader, first_iter)

    WorkerIterator._reset = _reset_counted


def _take_answers(iterator: Any) -> None:
    """Receive what workers still have to send. A worker whose iterable data set is exhausted answers no further task."""
    is_at_work = iterator._workers_status
    waiting = {
        number: info[0] for number, info in iterator._task_info.items() if len(info) == 1 and is_at_work[info[0]]
    }
    while waiting:
        number, data = iterator._get_data()
        worker = waiting.pop(number)
        if isinstance(data, torch_worker._IterableDatasetStopIteration):
            waiting = {one: its for one, its in waiting.items() if its != worker}
    iterator._tasks_outstanding = 0


def _begin_anew(iterator: Any) -> None:
    """Start new workers: what the old ones have taken from an iterable data set cannot be given back."""
    loader = _extra(iterator).loader()
    iterator._shutdown_workers()
    was_on, holding.is_on = holding.is_on, True
    try:
        iterator.__init__(loader)
    finally:
        holding.is_on = was_on


def _patch_challenge() -> None:
    """Give connections between processes nonces of their own.

    Passing tensors between processes draws a nonce from `os.urandom`, at moments that depend on timing, and that must not move the
    stream that the script draws from. Nonces need to be unique, not secret: the key that they are signed with is secret.
    """
    vars(multiprocessing.connection)["os"] = _NonceOs("os")


class _NonceOs(types.ModuleType):
    """`os` for `multiprocessing.connection`."""

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def urandom(self, size: int) -> bytes:
        text = f"{os.getpid()} {threading.get_ident()} {time.monotonic_ns()}"
        return hashlib.shake_128(text.encode()).digest(size)


_plain_next = BaseIterator.__next__


def _nothing(_iterator: Any) -> None:
    """The `__next__` of loaders while nothing is loaded."""


def _hand_out_nothing(is_on: bool) -> None:
    """While a generator is only advanced to its position, loaders inside it yield None and load nothing."""
    BaseIterator.__next__ = _nothing if is_on else _plain_next


class WorkerIteratorHandler(Handler):
    """A loader's iterator with worker processes: its sampler, the batches in flight, and how far it has got.

    The processes themselves are started anew; keyed random numbers make their past irrelevant. Only for a data set that is
    itself an iterator (`IterableDataset`) the workers' past matters: its batches are fetched again.
    """

    kind = "torch.DataLoader iterator"
    fields: ClassVar = {
        **plain_fields("received", "yielded", "base_seed", "passes", "entropy", "iterable", "finished", "len_called"),
        "loader": Holds.ONE,
        "dataset": Holds.ONE,
        "sampler": Holds.ONE,
        "flying": Holds.LIST,
    }
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        extra = _extra(obj)
        what = news.get(extra.token) if not obj._shutdown else None
        if what is not None and not obj._persistent_workers:
            # Workers of a resumed attempt get it by loading the same batches again.
            mark_not_saved(node, f"{what} is kept in worker processes", warns=True)
            return
        if what is not None:
            # Beside the iterator, because taking its elements again would not help: there are other passes.
            walk.warn_of_hidden_state(
                f"{walk.path}.workers",
                "torch.utils.data:DataLoader",
                f"{what} is kept in worker processes that live on",
            )
        node["loader"] = walk.child(extra.loader() if extra.loader is not None else None, ".loader")
        node["dataset"] = walk.child(obj._dataset, ".dataset")
        node["sampler"] = walk.child(obj._sampler_iter, ".sampler_iter")
        first = obj._rcvd_idx
        flying = [extra.in_flight[n] for n in sorted(extra.in_flight) if n >= first] + list(extra.held)
        node["flying"] = [walk.child(index, f".<batch {first + n}>") for n, index in enumerate(flying)]
        node["received"], node["yielded"] = first, obj._num_yielded
        node["base_seed"], node["passes"], node["entropy"] = obj._base_seed, extra.passes, extra.entropy
        node["iterable"] = obj._dataset_kind == torch_dataloader._DatasetKind.Iterable
        node["finished"] = obj._shutdown or (not flying and obj._num_yielded > 0 and obj._tasks_outstanding == 0)
        node["len_called"] = obj._IterableDataset_len_called
        changed = changed_numbers(extra.began_with, numbers_of(obj._dataset))
        if changed and not obj._shutdown and (obj._persistent_workers or not node["finished"]):
            # Beside the iterator, because taking its elements again would not help.
            why = f"{', '.join(changed)} of the data set has changed since worker processes got it, who have the old value"
            walk.warn_of_hidden_state(f"{walk.path}.workers", "torch.utils.data:DataLoader", why)

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and (not live._shutdown or node["finished"])

    def build(self, node: Node, restore: Restoring) -> Any:
        loader = restore.value(node["loader"])
        if not isinstance(loader, torch_dataloader.DataLoader):
            raise CannotBuild("the iterator of a loader that is gone")
        was_on, holding.is_on = holding.is_on, True
        try:
            return WorkerIterator(loader)
        finally:
            holding.is_on = was_on

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        extra = _extra(obj)
        restore.value(node["dataset"], obj._dataset)
        if node["iterable"] and not node["finished"] and obj._send_idx > 0:
            _begin_anew(obj)
        elif not obj._shutdown:
            _take_answers(obj)
        obj._base_seed = node["base_seed"]
        extra.passes, extra.entropy = node["passes"], node["entropy"]
        extra.held.clear()
        extra.in_flight.clear()
        sampler = restore.value(node["sampler"], obj._sampler_iter)
        flying = restore.values(node["flying"])

        def set_position() -> None:
            obj._sampler_iter = sampler
            obj._task_info = {}
            obj._worker_queue_idx_cycle = itertools.cycle(range(obj._num_workers))
            obj._workers_num_tasks = [0] * obj._num_workers
            obj._rcvd_idx = obj._send_idx = node["received"]
            obj._num_yielded = node["yielded"]
            obj._IterableDataset_len_called = node["len_called"]
            extra.held.extend(flying)

        if node["finished"]:
            if not obj._persistent_workers:
                obj._shutdown_workers()
            restore.afterwards(set_position)
        elif node["iterable"]:
            self._fetch_again(obj, node["yielded"])
        else:
            restore.afterwards(set_position)

    def _fetch_again(self, obj: Any, count: int) -> None:
        was_on, holding.is_on = holding.is_on, False
        try:
            obj._rcvd_idx = obj._send_idx = obj._num_yielded = 0
            obj._task_info = {}
            obj._workers_num_tasks = [0] * obj._num_workers
            for _ in range(obj._prefetch_factor * obj._num_workers):
                obj._try_put_index()
            for _ in range(count):
                next(obj)
        finally:
            holding.is_on = was_on

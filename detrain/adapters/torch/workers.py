"""Inside a loader's worker process: generators of random numbers are seeded for each batch, and what would be lost with it is told."""

from __future__ import annotations

import random
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info
from torch.utils.data._utils import worker

from detrain.state.known_source import user_modules

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_NUMBERS = (int, float, bool)
#: Elements of a container that is looked into.
_SMALL = 1000


class _Seen:
    """What the batch before has left in this process."""

    attributes: dict[str, Any] | None = None
    generators: list[Any] | None = None
    has_told = False


_seen = _Seen()


def arrive(index: Any, key: tuple[int, int, int]) -> Any:
    """Seed this worker's generators for one batch; `key` is (base seed, pass, batch). Returns the indices."""
    words = np.random.SeedSequence(key).generate_state(6, dtype=np.uint32)
    random.seed(int(words[0]) | int(words[1]) << 32)
    np.random.seed(words[2:4])
    torch.default_generator.manual_seed(int(words[4]) | int(words[5]) << 32)
    info = get_worker_info()
    if info is not None:
        for position, generator in enumerate(_own_generators(info.dataset)):
            _seed(generator, np.random.SeedSequence((*key, position)))
    return index


def _own_generators(dataset: Any) -> list[Any]:
    """Generators that the data set and `collate_fn` hold, in closures and small containers too, or that the script's modules name."""
    attributes = dict(getattr(dataset, "__dict__", {}))
    before = _seen.attributes
    if before is None or _are_others(before, attributes):
        found = list(_generators_below([dataset, _collate_fn()]))
        found += [one for one in _named_in_modules() if not any(one is other for other in found)]
        if before is not None:
            _tell_of_changes(dataset, before, attributes, found)
        _seen.attributes, _seen.generators = attributes, found
    return _seen.generators or []


def _collate_fn() -> Any:
    """Of the loop in which torch runs a worker, which waits for the indices of a batch now."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not worker._worker_loop.__code__:
        frame = frame.f_back
    return frame.f_locals.get("collate_fn") if frame is not None else None


def numbers_of(dataset: Any) -> dict[str, Any]:
    """The data set's own attributes that are numbers."""
    return {name: value for name, value in getattr(dataset, "__dict__", {}).items() if isinstance(value, _NUMBERS)}


def changed_numbers(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of attributes that are a number, were one before, and have changed. One NaN is no other number."""
    pairs = [(name, before[name], value) for name, value in now.items() if name in before]
    return [
        name
        for name, old, new in pairs
        if old is not new and isinstance(old, _NUMBERS) and isinstance(new, _NUMBERS) and old != new
    ]


def _are_others(before: dict[str, Any], now: dict[str, Any]) -> bool:
    return before.keys() != now.keys() or any(before[name] is not value for name, value in now.items())


def _generators_below(roots: list[Any]) -> Iterator[Any]:
    seen: set[int] = set()
    pending = deque(roots)
    while pending:
        obj = pending.popleft()
        if id(obj) in seen:
            continue
        seen.add(id(obj))
        if isinstance(obj, _GENERATORS):
            yield obj
        elif isinstance(obj, (list, tuple)) and len(obj) < _SMALL:
            pending.extend(obj)
        elif isinstance(obj, dict) and len(obj) < _SMALL:
            pending.extend(obj.values())
        elif isinstance(obj, types.FunctionType):
            pending.extend(_contents(obj.__closure__ or ()))
        elif hasattr(obj, "__dict__") and not isinstance(obj, (type, types.ModuleType, torch.Tensor)):
            pending.extend(vars(obj).values())


def _contents(cells: Any) -> Iterator[Any]:
    for cell in cells:
        try:
            yield cell.cell_contents
        except ValueError:
            continue  # not yet assigned


def _named_in_modules() -> list[Any]:
    modules = [sys.modules.get(name) for name in ["__main__", "__mp_main__", *sorted(user_modules - {"__main__"})]]
    values = [value for module in modules if module is not None for value in vars(module).values()]
    found: list[Any] = []
    for value in values:
        if isinstance(value, _GENERATORS) and not any(value is one for one in found):
            found.append(value)
    return found


def _tell_of_changes(dataset: Any, before: dict[str, Any], now: dict[str, Any], generators: list[Any]) -> None:
    """Counters and generators that the data set has made or moved on here: a resumed attempt's workers begin with the main process'."""
    if _seen.has_told or isinstance(dataset, IterableDataset):  # the batches of those are fetched again
        return
    changed = changed_numbers(before, now)
    known = _seen.generators or []
    if not changed and all(any(one is other for other in known) for one in generators):
        return
    _seen.has_told = True
    what = f"its own {', '.join(changed)}" if changed else "a generator of random numbers that it makes there"
    sys.stderr.write(
        f"detrain: warning: the data set ({type(dataset).__qualname__}) changes {what} in a worker process; a resumed attempt's workers "
        "begin without. Keep it in the main process, or make it in __init__ [worker-state]\n"
    )


def _seed(generator: Any, sequence: Any) -> None:
    word = int(sequence.generate_state(1, dtype=np.uint64)[0])
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = type(generator.bit_generator)(sequence).state
    elif isinstance(generator, np.random.RandomState):
        generator.seed(sequence.generate_state(2))
    elif isinstance(generator, torch.Generator):
        generator.manual_seed(word)
    else:
        generator.seed(word)

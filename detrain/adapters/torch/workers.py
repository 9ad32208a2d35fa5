"""Runs in a loader's worker process: seeds its generators for each batch, and reports state that would be lost with the process."""

from __future__ import annotations

import random
import sys
import types
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterDataPipe, MapDataPipe, get_worker_info
from torch.utils.data._utils.fetch import _MapDatasetFetcher

from detrain.adapters.torch import outlasting
from detrain.state.user_code import user_modules

_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_NUMBERS = (int, float, bool, np.generic)
#: Elements of a container that is looked into.
_SMALL = 1000
#: Arrays up to this size are compared.
_SMALL_BYTES = 4096


class _Seen:
    """What the previous batch left behind in this process."""

    #: Every object that the data set and `collate_fn` are made of, what its attributes were, and what shows changes inside those.
    attributes: list[tuple[Any, dict[str, Any], dict[str, Any]]] | None = None
    generators: list[Any] = []
    token = 0
    has_reported = False


_seen = _Seen()


class Answer:
    """A batch on its way back, with the report that the data set keeps state in this process that later batches may depend on."""

    def __init__(self, batch: Any, token: int, what: str) -> None:
        self.batch, self.token, self.what = batch, token, what

    def __reduce__(self) -> Any:
        return _receive, (self.batch, self.token, self.what)


#: In the main process: what workers have reported, by the iterator's number.
news: dict[int, str] = {}


def _receive(batch: Any, token: int, what: str) -> Any:
    news.setdefault(token, what)
    return batch


def arrive(index: Any, key: tuple[int, int, int], token: int, entropy: int, key_entropy: Any) -> Any:
    """Seed this worker's generators, and the entropy that it draws, for one batch. Returns the indices.

    `key` is (base seed, pass, batch); `token` the iterator's number; `entropy` a number drawn for the iterator, as base seeds may repeat.
    """
    words = np.random.SeedSequence(key).generate_state(6, dtype=np.uint32)
    key_entropy(entropy, int(np.random.SeedSequence(key[1:]).generate_state(1, dtype=np.uint64)[0]))
    random.seed(int(words[0]) | int(words[1]) << 32)
    np.random.seed(words[2:4])
    torch.default_generator.manual_seed(int(words[4]) | int(words[5]) << 32)
    info = get_worker_info()
    if info is not None:
        _scan(info.dataset)
        for position, generator in enumerate(_seen.generators):
            _seed(generator, np.random.SeedSequence((*key, position)))
        _seen.token = token
        _MapDatasetFetcher.fetch = _fetch_and_report
    return index


_plain_fetch = _MapDatasetFetcher.fetch


def _fetch_and_report(self: Any, index: Any) -> Any:
    """Fetch a batch; once with a report, if that has changed a number or a container of the data set, or made a generator."""
    batch = _plain_fetch(self, index)
    if _seen.has_reported or _seen.attributes is None or not _are_others(_seen.attributes):
        return batch
    before, known = _seen.attributes, _seen.generators
    _scan(self.dataset)
    changed = [
        name
        for one, attributes, fingerprints in before
        for name in [*changed_numbers(attributes, dict(vars(one))), *_changed_inside(fingerprints, one)]
    ]
    if changed:
        what = f"{', '.join(sorted(set(changed)))} of the data set"
    elif any(all(one is not other for other in known) for one in _seen.generators):
        what = "a generator of random numbers that the data set has made"
    else:
        return batch
    _seen.has_reported = True
    return Answer(batch, _seen.token, what)


def _scan(dataset: Any) -> None:
    """Record the generators that the data set and `collate_fn` hold (in closures and small containers too) or the script's modules name."""
    if _seen.attributes is not None and not _are_others(_seen.attributes):
        return
    below = list(_below([dataset, _collate_fn()]))
    found = [one for one in below if isinstance(one, _GENERATORS)]
    found += [one for one in _named_in_modules() if not any(one is other for other in found)]
    _seen.generators = found
    _seen.attributes = [(one, dict(vars(one)), _fingerprints(one)) for one in below if _has_attributes(one)]


def _fingerprints(one: Any) -> dict[str, Any]:
    pairs = ((name, _fingerprint(value)) for name, value in dict(vars(one)).items())
    return {name: value for name, value in pairs if value is not None}


def _collate_fn() -> Any:
    """The `collate_fn` of the worker, from the frame of torch's worker loop."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None and frame.f_code is not outlasting.plain_loop.__code__:
        frame = frame.f_back
    return frame.f_locals.get("collate_fn") if frame is not None else None


def numbers_of(dataset: Any) -> dict[str, Any]:
    """The data set's own attributes that are numbers, by name."""
    return {name: value for name, value in getattr(dataset, "__dict__", {}).items() if isinstance(value, _NUMBERS)}


def changed_numbers(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Names of attributes that were a number before, are one now, and differ. NaN does not differ from NaN."""
    pairs = [(name, before[name], value) for name, value in now.items() if name in before]
    return [
        name
        for name, old, new in pairs
        if old is not new and isinstance(old, _NUMBERS) and isinstance(new, _NUMBERS) and old != new
    ]


def _are_others(before: list[tuple[Any, dict[str, Any], dict[str, Any]]]) -> bool:
    """True if an attribute of any of these objects has changed."""
    for one, attributes, fingerprints in before:
        now = dict(vars(one))  # at once: a thread may be changing it
        if now.keys() != attributes.keys() or any(attributes[name] is not value for name, value in now.items()):
            return True
        if any(_fingerprint(now[name]) != old for name, old in fingerprints.items()):
            return True
    return False


def _fingerprint(value: Any) -> Any:
    """What differs once a container, an array or a tensor has been changed in place; None for anything else."""
    if isinstance(value, torch.Tensor):
        return None if value.is_inference() else value._version
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.nbytes <= _SMALL_BYTES else None
    if isinstance(value, (list, dict, set, deque)):
        inside = list(value.values() if isinstance(value, dict) else value) if len(value) < _SMALL else []
        return len(value), [one for one in inside if isinstance(one, _NUMBERS)]
    return None


def _changed_inside(before: dict[str, Any], one: Any) -> list[str]:
    now = dict(vars(one))
    return [name for name, old in before.items() if name in now and _fingerprint(now[name]) != old]


def _below(roots: list[Any]) -> Iterator[Any]:
    """Generators of random numbers and objects with attributes that can be reached from the roots."""
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
        elif _has_attributes(obj):
            yield obj
            is_seeded = _is_seeded_by_the_loader(obj)
            pending.extend(one for one in vars(obj).values() if not (is_seeded and isinstance(one, _GENERATORS)))


def _is_seeded_by_the_loader(obj: Any) -> bool:
    """True for a data pipe that shuffles: in each pass all workers seed theirs alike, or what they take of the data would overlap."""
    return isinstance(obj, (IterDataPipe, MapDataPipe)) and callable(getattr(obj, "set_seed", None))


def _has_attributes(obj: Any) -> bool:
    return hasattr(obj, "__dict__") and not isinstance(
        obj, (type, types.ModuleType, types.FunctionType, torch.Tensor, *_GENERATORS)
    )


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

"""Sizes of what is reachable from an object: what round two compares. Bounded: of long containers only the beginning is looked into."""

from __future__ import annotations

import functools
import gc
import types
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

#: Objects that are looked at from one root, how far from it, and elements of a container that are looked into.
MAX_OBJECTS, MAX_DEPTH, MAX_ELEMENTS = 5000, 8, 16
#: Shorter texts are names and paths, whose lengths say nothing about data.
SHORTEST_TEXT = 1024

_NEVER = (types.ModuleType, type, types.CodeType, types.FrameType, types.BuiltinFunctionType, int, float, complex, bool)

#: Path to type name, length and distance from the root.
Sizes = dict[str, tuple[str, int, int]]


def measure(roots: Mapping[str, Any]) -> Sizes:
    """The size of everything sized that is reachable from some roots, by path."""
    found: Sizes = {}
    seen: set[int] = set()
    pending = deque((name, value, 0) for name, value in roots.items())
    keep_alive = []  # so that no id is used twice
    while pending and len(seen) < MAX_OBJECTS:
        path, value, depth = pending.popleft()
        if value is None or isinstance(value, _NEVER) or id(value) in seen:
            continue
        seen.add(id(value))
        keep_alive.append(value)
        length = length_of(value)
        if length is not None:
            found[path] = (type_name(value), length, depth)
        if depth < MAX_DEPTH:
            pending.extend((path + step, child, depth + 1) for step, child in _children(value))
    return found


def length_of(value: Any) -> int | None:
    """The number of elements, None for what has none; of an array its first dimension."""
    if isinstance(value, (str, bytes)):
        return len(value) if len(value) >= SHORTEST_TEXT else None
    shape = _plain_attribute(value, "shape")
    if isinstance(shape, tuple) and shape and isinstance(shape[0], int):
        return shape[0]
    if getattr(type(value), "__len__", None) is None:
        return None
    try:
        return len(value)
    except Exception:  # noqa: BLE001 - a user's __len__ may raise anything, and then there is no size
        return None


def _plain_attribute(value: Any, name: str) -> Any:
    """An attribute of an array; of other objects only what needs no code of theirs."""
    attribute = getattr(type(value), name, None)
    return getattr(value, name) if attribute is not None and not isinstance(attribute, property) else None


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, (str, bytes, bytearray)) or _plain_attribute(value, "shape") is not None:
        return
    if isinstance(value, Mapping) and isinstance(value, dict):
        yield from ((f"[{_key(key)}]", one) for key, one in _first(value.items()))
    elif isinstance(value, (list, tuple, set, frozenset, deque)):
        yield from ((f"[{number}]", one) for number, one in enumerate(_first(value)))
    elif isinstance(value, types.FunctionType):
        yield from _closure(value)
    elif isinstance(value, types.MethodType):
        yield ".__self__", value.__self__
    elif isinstance(value, functools.partial):
        yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
    elif isinstance(value, types.GeneratorType):
        yield from ((f".{name}", one) for name, one in (value.gi_frame.f_locals if value.gi_frame else {}).items())
    else:
        yield from ((f".{name}", one) for name, one in attributes_of(value))
    if is_c_iterator(value):
        yield from ((f".<{number}>", one) for number, one in enumerate(gc.get_referents(value)))


def attributes_of(value: Any) -> list[tuple[str, Any]]:
    """An instance's attributes and slots, without going through a property."""
    found: list[tuple[str, Any]] = []
    try:
        found.extend(object.__getattribute__(value, "__dict__").items())
    except AttributeError:
        pass
    slots = [(n, one) for cls in type(value).__mro__ for n, one in vars(cls).items() if isinstance(one, types.MemberDescriptorType)]
    for name, slot in slots if not is_c_iterator(value) else ():
        try:
            found.append((name, slot.__get__(value)))
        except AttributeError:
            continue  # not set
    return found


def is_c_iterator(value: Any) -> bool:
    """True for enumerate, zip, map, islice and the like, and the iterators of lists and ranges."""
    kind = type(value)
    return kind.__module__ in ("builtins", "itertools") and hasattr(kind, "__next__") and kind is not types.GeneratorType


def _closure(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield f".{name}", cell.cell_contents
        except ValueError:
            continue  # not set yet


def _first(values: Iterable[Any]) -> list[Any]:
    return [one for _, one in zip(range(MAX_ELEMENTS), values, strict=False)]


def _key(key: Any) -> str:
    return repr(key) if isinstance(key, (str, int, bool, bytes)) else type_name(key)


def type_name(value: Any) -> str:
    """Module and name of a type."""
    kind = type(value)
    return f"{kind.__module__}.{kind.__qualname__}"

"""Which handler takes care of which type. Frameworks add theirs from `detrain.adapters`."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from detrain.state import fields
from detrain.state.classes import is_python_class, type_name
from detrain.state.handler import Handler, MemoryRanges
from detrain.state.tree import Place

#: Give what libraries hold for the whole process and no variable of the script names, by name; each may hold state of the run.
process_roots: list[Callable[[], dict[str, Any]]] = []
#: Beginnings of names under which a compiler of Python code keeps things in the globals of a module; made again where missing.
compiler_globals: list[str] = []
#: Types whose instances work on what belongs to others: an optimizer on a model's weights. They are captured after everything else, so
#: that a weight has its path in the model.
named_last: set[type] = set()
_by_type: dict[type, Handler] = {}
_by_name: dict[str, Handler] = {}
_by_kind: dict[str, Handler] = {}
_handlers: dict[type, Handler] = {}  # of every type that was asked for
_are_named_last: dict[type, bool] = {}


def register(handler: Handler, *handled: type) -> None:
    """Let `handler` take care of these types and of the classes derived from them.

    Raises TypeError if its `fields` contradict `detrain.state.fields`.
    """
    _register_kind(handler)
    _by_type.update(dict.fromkeys(handled, handler))


def register_name(handler: Handler, *handled: str) -> None:
    """The same for types of modules that may not be loaded, as `module:qualname`."""
    _register_kind(handler)
    _by_name.update(dict.fromkeys(handled, handler))


def _register_kind(handler: Handler) -> None:
    fields.check(handler.kind, handler.fields)
    _by_kind[handler.kind] = handler
    _handlers.clear()


def forget_types() -> None:
    """Drop what was looked up for types, which holds classes alive that a script has dropped."""
    _handlers.clear()
    _are_named_last.clear()


def handler_of_kind(kind: str) -> Handler | None:
    """The handler that wrote nodes of this kind; None if it is not loaded."""
    return _by_kind.get(kind)


def handlers_with_memory() -> dict[str, Handler]:
    """By kind, the handlers of objects that have a `memory_range`."""
    return {
        kind: handler for kind, handler in _by_kind.items() if type(handler).memory_range is not Handler.memory_range
    }


def handlers_with_leaves() -> dict[str, Handler]:
    """By kind, the handlers of objects whose elements lie in memory, or on a device."""
    return {
        kind: handler for kind, handler in _by_kind.items()
        if type(handler).memory is not Handler.memory or type(handler).device_memory is not Handler.device_memory
    }  # fmt: skip


def memory_ranges(objs: Sequence[Any]) -> MemoryRanges:
    """`memory_range` of each object; of many of one type it is asked at once."""
    found = MemoryRanges([], [], [])
    for cls, alike in itertools.groupby(objs, type):
        for column, more in zip(found, handler_for(cls).memory_ranges(list(alike)), strict=True):
            column += more
    return found


def are_still(places: Iterable[Place]) -> bool:
    """True if all owners have their memory where it was."""
    places = list(places)
    now = memory_ranges([place.owner for place in places])
    return now.addresses == [place.address for place in places] and now.sizes == [place.num_bytes for place in places]


def handler_for(cls: type) -> Handler:
    """The handler for instances of this type."""
    handler = _handlers.get(cls)
    if handler is None:
        handler = _handlers[cls] = _find(cls)
    return handler


def is_named_last(cls: type) -> bool:
    """True if instances are captured after everything else; see `named_last`."""
    is_last = _are_named_last.get(cls)
    if is_last is None:
        is_last = _are_named_last[cls] = any(base in named_last for base in cls.__mro__)
    return is_last


def _find(cls: type) -> Handler:
    if issubclass(cls, type):
        return _by_type[type]  # also where a metaclass is written in C
    if issubclass(cls, enum.Enum):
        return _by_type[enum.Enum]  # each member exists once, also where it is a text or a number as well
    if issubclass(cls, tuple) and hasattr(cls, "n_sequence_fields"):
        return _by_kind["opaque"]  # os.stat_result, time.struct_time: tuples that only their own type can make
    for base in cls.__mro__:
        if base is object:
            break
        if base in _by_type:
            return _by_type[base]
        if type_name(base) in _by_name:
            return _by_name[type_name(base)]
        if not is_python_class(base):
            # The layout of its memory is unknown: only the type's own pickling can read it.
            return _by_kind["opaque"]
    return _by_kind["object"]

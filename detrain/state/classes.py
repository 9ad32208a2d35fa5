"""Classes by name: how a checkpoint names the type of an object, and how that name is found again in a later attempt."""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Iterator
from typing import Any

from detrain.state.user_code import is_user_module

_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: set for types written in C since 3.10
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


def type_name(cls: type) -> str:
    """`module:qualname`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def resolve(name: str) -> Any:
    """The object of a `module:qualname`, from the modules that are loaded.

    Raises LookupError if there is none. A file can name only what the script itself has loaded.
    """
    module, _, qualname = name.partition(":")
    obj: Any = sys.modules.get(module)
    if obj is None:
        raise LookupError(f"module {module} is not loaded")
    for part in qualname.split("."):
        try:
            obj = getattr(obj, part)
        except AttributeError:
            raise LookupError(f"{module} has no {qualname}") from None
    return obj


def resolve_type(name: str) -> type:
    """The class of a `module:qualname`, also where it stands under another name: a `namedtuple` made inside a class, say.

    Raises LookupError if there is none, or more than one.
    """
    try:
        obj = resolve(name)
        if isinstance(obj, type):
            return obj
        why = "that name means something else now"
    except LookupError as error:
        why = str(error)
    alike = [cls for cls in derived_from(object) if type_name(cls) == name]
    if len(alike) != 1:
        raise LookupError(f"{len(alike)} classes of this name are there" if alike else why)
    return alike[0]


def derived_from(base: type) -> Iterator[type]:
    """A class, and all classes that are derived from it so far."""
    pending, seen = [base], set[type]()
    while pending:
        cls = pending.pop()
        if cls not in seen:
            seen.add(cls)
            yield cls
            pending += type.__subclasses__(cls)


def names_of_several() -> frozenset[str]:
    """Names that more than one class of the script has: what a class factory makes, say."""
    counts = collections.Counter(type_name(cls) for cls in derived_from(object) if is_user_module(cls.__module__))
    return frozenset(name for name, count in counts.items() if count > 1)


def is_local(cls: type) -> bool:
    """True for a class that a function makes whenever it runs."""
    return "<locals>" in cls.__qualname__


def is_made_at_run_time(cls: type) -> bool:
    """True for a class that is not found by its name: who made it did so by calling its metaclass, or in a function."""
    if is_local(cls):
        return True
    if not is_python_class(cls):
        return False
    # Not by `getattr`: a module may have a `__getattr__`, which imports what it is asked for.
    found: Any = sys.modules.get(cls.__module__)
    for part in cls.__qualname__.split("."):
        found = vars(found).get(part) if isinstance(found, (types.ModuleType, type)) else None
    return found is not cls


def is_python_class(cls: type) -> bool:
    """True if instances hold no memory beyond `__dict__`, `__slots__` and what the base class holds.

    Types written in C add fields of their own, which shows in the size of their instances.
    """
    flags = cls.__flags__
    if not flags & _HEAP_TYPE or flags & _IMMUTABLE_TYPE or cls.__base__ is None:
        return False
    own = cls.__dict__
    members = sum(1 for value in own.values() if type(value) is types.MemberDescriptorType)
    size = cls.__basicsize__ - cls.__base__.__basicsize__
    pointers = members + ("__dict__" in own) + ("__weakref__" in own)
    # From 3.12 `__dict__` and `__weakref__` lie before the object and do not count.
    return size <= 8 * pointers

"""Attributes of an object, read without running a property or a `__getattribute__` of the script's."""

from __future__ import annotations

import functools
from typing import Any

from detrain.state.classes import is_python_class


def own_dict(obj: object) -> Any:
    """`obj.__dict__` as it is, also of a class derived from dict; None if there is none."""
    try:
        return object.__getattribute__(obj, "__dict__")
    except AttributeError:
        return None


def instance_dict(obj: object) -> dict[str, Any] | None:
    """`obj.__dict__` if that is a plain dict, else None."""
    attributes = own_dict(obj)
    return attributes if type(attributes) is dict else None


@functools.cache
def slot_descriptors(cls: type[Any]) -> list[tuple[str, Any]]:
    """Name and member descriptor of every `__slots__` entry, as mangled names, base classes first."""
    return [
        (name, value)
        for base in reversed(cls.__mro__)
        if base is not object and is_python_class(base)
        for name, value in base.__dict__.items()
        if type(value).__name__ == "member_descriptor"
    ]


def slot_values(obj: object, cls: type) -> list[tuple[str, Any]]:
    """Name and value of the slots of `obj`, an instance of `cls`, that are set."""
    values = []
    for name, descriptor in slot_descriptors(cls):
        try:
            values.append((name, descriptor.__get__(obj, cls)))
        except AttributeError:
            continue
    return values

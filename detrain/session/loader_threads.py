"""Attributes that a loader's threads may change at any time; they are excluded from comparison.

A loader whose calls are replayed is compared with what it was. One that reads ahead in a thread has a queue that is full one moment
and not the next: that is no difference of the training. Told apart are its attributes: what its threads are told about, assign or
name, and whatever holds a lock, belongs to them; the rest is the loop's and is compared.
"""

from __future__ import annotations

import _thread
import dis
import functools
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field

import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
from detrain.state.attributes import instance_dict, slot_values
from detrain.state.captured import Captured
from detrain.state.handlers.objects import OWNS_THREAD
from detrain.state.tree import is_value
from detrain.state.walk import Walk

#: Who holds one is made for several threads.
_SHARED = (_thread.LockType, _thread.RLock, threading.Condition, threading.Thread)


@dataclass
class _Code:
    """What the code that threads run says of attributes."""

    names: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    seen: set[types.CodeType] = field(default_factory=set)


def is_threaded(captured: Captured) -> bool:
    """True if a thread works on something that was captured."""
    if any(issubclass(type(obj), threading.Thread) for obj in captured.objects):
        return True
    return any(node.get("kept") == OWNS_THREAD for node in captured.tree.nodes)


def changed_beside(owner: object) -> set[str]:
    """Names of the attributes of an object that threads may change; empty if it has none."""
    walk = Walk(leave={id(owner): "looked at"})
    walk.root("attributes", dict(attributes_of(owner)))
    captured = walk.run()
    if not is_threaded(captured):
        return set()
    threads = [obj for obj in captured.objects if issubclass(type(obj), threading.Thread)]
    code, told = _Code(), set[int]()
    for thread in threads:
        _read(_target(thread), type(owner), code)
        told |= _told(thread, owner)
    return code.assigned | {
        name
        for name, value in attributes_of(owner)
        if not is_value(value) and (name in code.names or _is_shared(value, owner, told))
    }


def attributes_of(owner: object) -> Iterator[tuple[str, object]]:
    """Instance attributes, without running code of the class."""
    yield from (instance_dict(owner) or {}).items()
    yield from slot_values(owner, type(owner))


def _target(thread: threading.Thread) -> object:
    if type(thread).run is not threading.Thread.run:
        return type(thread).run
    return vars(thread).get("_target")


def _told(thread: threading.Thread, owner: object) -> set[int]:
    """`id` of every object that a thread was given, but what it reaches through the owner."""
    target = _target(thread)
    plain = _function_of(target)
    given = [vars(thread).get("_args"), vars(thread).get("_kwargs"), thread, getattr(target, "__self__", None)]
    if isinstance(target, functools.partial):
        given += [target.args, target.keywords]
    if plain is not None:
        given += [cell.cell_contents for cell in plain.__closure__ or () if _is_filled(cell)]
    walk = Walk(leave={id(owner): "asked for by name"})
    for number, one in enumerate(given):
        if one is not owner:
            walk.root(str(number), one)
    return {id(obj) for obj in walk.run().objects if obj is not owner}


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - the only way to ask
    except ValueError:
        return False
    return True


def _is_shared(value: object, owner: object, told: set[int]) -> bool:
    walk = Walk(leave={id(owner): "looked at"})
    walk.root("value", value)
    captured = walk.run()
    if any(issubclass(type(obj), _SHARED) or id(obj) in told for obj in captured.objects):
        return True
    return any(node.get("kept") == OWNS_THREAD for node in captured.tree.nodes)


def _function_of(target: object) -> types.FunctionType | None:
    while isinstance(target, functools.partial):
        target = target.func
    plain = getattr(target, "__func__", target)
    return plain if isinstance(plain, types.FunctionType) else None


def _read(target: object, owner: type, code: _Code) -> None:
    """Scan a thread's function and the functions that it calls by name, of its module or its owner's class."""
    pending = [_function_of(target)]
    while pending:
        function = pending.pop()
        if function is None or function.__code__ in code.seen:
            continue
        for name in _scan(function.__code__, code):
            pending.append(_function_of(getattr(owner, name, None)))
            pending.append(_function_of(function.__globals__.get(name)))


def _scan(top: types.CodeType, code: _Code) -> set[str]:
    """Note what a code object and those within it name and assign; returns the names."""
    names, pending = set[str](), [top]
    while pending:
        one = pending.pop()
        code.seen.add(one)
        names.update(one.co_names)
        code.assigned.update(step.argval for step in dis.get_instructions(one) if step.opname == "STORE_ATTR")
        pending.extend(const for const in one.co_consts if isinstance(const, types.CodeType))
    code.names |= names
    return names

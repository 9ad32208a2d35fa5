"""How a set lies in memory: its table's size, which slots are taken or left, and where `pop` goes on.

All of that decides the order of iteration, and nothing of it follows from the elements alone: a set that has shrunk keeps its big
table, and `pop` goes on behind the element that it gave last. The fields are those of CPython 3.11 to 3.13 (Include/cpython/setobject.h);
where a probe does not find them so, tables are not seen.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
import pathlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

#: A table: the finger of `pop`, and for each slot whether it is empty, taken or left by an element that was removed. The finger may
#: point behind the end of a table that has shrunk; it is kept whole, as all of it counts again once the table grows.
Table = list[Any]
_EMPTY, _TAKEN, _LEFT = b"012"
_SMALLEST = 8  # slots
#: What hashes alike in every process with the same hash seed. (None has an address for a hash before Python 3.12.)
_HASHED_BY_VALUE = {kind.__hash__ for kind in (type(None), int, complex, str, bytes, enum.Enum, pathlib.PurePath)} - {
    object.__hash__
}


class _Set(ctypes.Structure):
    """The head of a set object."""

    _fields_ = (
        ("head", ctypes.c_ubyte * object.__basicsize__),
        ("fill", ctypes.c_ssize_t),
        ("used", ctypes.c_ssize_t),
        ("mask", ctypes.c_ssize_t),
        ("table", ctypes.c_void_p),
        ("hash", ctypes.c_ssize_t),
        ("finger", ctypes.c_ssize_t),
    )


#: Where the fields of a set begin, where its smallest table does and ends, and where its table's address stands behind the first field.
_HEAD, _TABLE_IN_OBJECT = _Set.fill.offset, ctypes.sizeof(_Set)
_WITH_TABLE = _TABLE_IN_OBJECT + 16 * _SMALLEST
_TABLE = _Set.table.offset - _HEAD


def hashes_by_value(obj: Any) -> bool:
    """True if an object's hash is made of values, so that it finds the same slot in the next process."""
    kind: Any = type(obj)
    hash_function: Any = kind.__hash__
    if hash_function is tuple.__hash__ or hash_function is frozenset.__hash__:
        return all(map(hashes_by_value, obj))
    if hash_function is float.__hash__ or isinstance(obj, np.generic):
        return bool(obj == obj)  # NaN hashes by its address
    if dataclasses.is_dataclass(kind) and getattr(kind, "__dataclass_params__").frozen:  # noqa: B009 - not in typeshed
        return all(hashes_by_value(getattr(obj, field.name)) for field in dataclasses.fields(kind))
    # Not `in`: what a C library defines may not be hashable.
    return any(hash_function is by_value for by_value in _HASHED_BY_VALUE)


def read(obj: Any) -> Table | None:
    """The table of a set or a frozen set; None if it cannot be seen or the elements would lie elsewhere in another process."""
    if not _can_see() or not all(map(hashes_by_value, elements(obj))):
        return None
    return _read(obj)


def looks(objs: Sequence[Any]) -> list[bytes] | None:
    """What each of these sets is in memory; None unless all of them have the smallest table, which lies in the object itself.

    Two looks at a set are the same only if it has the same elements in the same slots, and `pop` goes on at the same one.
    """
    if not _can_see():
        return None
    addresses = list(map(id, objs))
    found = [ctypes.string_at(address + _HEAD, _WITH_TABLE - _HEAD) for address in addresses]
    tables = [int.from_bytes(look[_TABLE : _TABLE + 8], sys.byteorder) - _TABLE_IN_OBJECT for look in found]
    return found if tables == addresses else None


def write(obj: Any, members: Sequence[Any], table: Table) -> bool:
    """Give a set exactly these elements (in the order of its slots) in this table; False, and an empty set, if they do not lie so."""
    if not _can_see() or table[1].count("1") != len(members):
        return False
    set.clear(obj)
    set.update(obj, _fillers(len(table[1])))
    return _overwrite(obj, members, table)


def make_frozen(cls: type, members: Sequence[Any], table: Table) -> Any:
    """A frozen set with exactly these elements in this table; None if they do not lie so."""
    if not members or not _can_see() or table[1].count("1") != len(members):
        return None
    made: Any = frozenset.__new__(cls, _fillers(len(table[1])))
    return made if _overwrite(made, members, table) else None


def elements(obj: Any) -> Iterable[Any]:
    """What a set or a frozen set holds, in its order; what a class derived from them makes of iteration is passed by."""
    return set.__iter__(obj) if isinstance(obj, set) else frozenset.__iter__(obj)


def _fillers(size: int) -> set[int]:
    """As many numbers as make an empty set take a table of this size when they come in one update."""
    return set(range(size // 4 + 1)) if size > _SMALLEST else {0}


def _keys_and_hashes(head: _Set) -> np.ndarray[Any, Any]:
    size = head.mask + 1
    memory = (ctypes.c_int64 * (2 * size)).from_address(head.table or 0)
    return np.frombuffer(memory, dtype=np.int64).reshape(size, 2)


def _dummy() -> int:
    """The address of what stands in a slot that was left."""
    return ctypes.c_void_p.in_dll(ctypes.pythonapi, "_PySet_Dummy").value or 0


def _read(obj: Any) -> Table:
    head = _Set.from_address(id(obj))
    keys = _keys_and_hashes(head)[:, 0]
    states = np.full(len(keys), _TAKEN, dtype=np.uint8)
    states[keys == 0] = _EMPTY
    states[keys == _dummy()] = _LEFT
    return [head.finger, states.tobytes().decode("ascii")]


def _overwrite(obj: Any, members: Sequence[Any], table: Table) -> bool:
    """Put elements into a set that holds the fillers of this table's size. No code of anybody's runs while the set is not whole."""
    hashes = list(map(hash, members))
    finger, states = table
    slots = np.frombuffer(states.encode("ascii"), dtype=np.uint8)
    fillers = list(elements(obj))
    head = _Set.from_address(id(obj))
    if head.mask + 1 != len(slots):
        return False
    entries = _keys_and_hashes(head)
    entries[:] = 0
    for filler in fillers:
        ctypes.pythonapi.Py_DecRef(ctypes.py_object(filler))
    for element in members:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(element))
    entries[slots == _LEFT] = _dummy(), -1
    entries[slots == _TAKEN] = np.array([list(map(id, members)), hashes], dtype=np.int64).T
    head.used, head.fill, head.finger = len(members), int(np.count_nonzero(slots != _EMPTY)), finger
    contains = set.__contains__ if isinstance(obj, set) else frozenset.__contains__
    if all(contains(obj, element) for element in members):
        return True
    if isinstance(obj, set):
        set.clear(obj)
    return False


@functools.cache
def _can_see() -> bool:
    """True if sets have their fields where they are looked for."""
    probe = set(range(11, 17))  # one by one: the fifth makes the table 32 slots long
    probe.discard(12)
    head = _Set.from_address(id(probe))
    if (head.used, head.fill, head.mask, head.finger) != (5, 6, 31, 0) or not head.table:
        return False
    return _read(probe) == [0, "0" * 11 + "121111" + "0" * 15]

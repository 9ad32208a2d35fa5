"""What a program's variables look like, told without a word of detrain's: values by their bits, and which names share an object."""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import csv
import functools
import io
import logging
import multiprocessing
import random
import struct
import subprocess
import threading
import types
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import h5py
import numpy as np

#: How instances of more classes look, by the class: gives parts to be described.
MORE: dict[type, Callable[[Any], Iterable[Any]]] = {
    multiprocessing.Process: lambda one: (one.is_alive(),),  # it has a number as well
    threading.Thread: lambda one: (one.is_alive(),),
    logging.Logger: lambda one: (one.name, one.level, one.disabled, one.propagate, one.handlers, one.filters),
    subprocess.Popen: lambda one: (one.returncode,),
    h5py.HLObject: lambda one: (one.name if one else None,),
    concurrent.futures.Executor: lambda one: (one._max_workers,),  # its name has a number of the process's
}

_ATOMS = (type(None), bool, int, str, bytes, complex, type(Ellipsis), type(NotImplemented), range, slice)
#: What has no identity that matters, because nobody can change it.
_WITHOUT_IDENTITY = (tuple, frozenset, np.generic)


def describe(roots: dict[str, Any]) -> Any:
    """Values, kinds and sharing of everything that is reached from some variables."""
    return _Describer().of(roots)


class _Describer:
    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._held: list[Any] = []

    def of(self, obj: Any) -> Any:
        cls = type(obj)
        if cls is float:
            return struct.pack("<d", obj).hex()
        if cls is int:
            return hex(obj)
        if cls in _ATOMS:
            return cls.__name__, repr(obj)
        if id(obj) in self._numbers:
            return "the same as", self._numbers[id(obj)]
        if not isinstance(obj, _WITHOUT_IDENTITY):
            self._numbers[id(obj)] = len(self._held)
        self._held.append(obj)
        name, *parts = self._parts(obj, cls)
        return (name, *map(self.of, parts))

    def _parts(self, obj: Any, cls: type) -> tuple[Any, ...]:
        for base in cls.__mro__:
            if base in MORE:
                return f"{cls.__module__}.{cls.__qualname__}", *MORE[base](obj)
        name = f"{cls.__module__}.{cls.__qualname__}"
        for kinds, parts_of in _KINDS:
            if isinstance(obj, kinds):
                if isinstance(obj, io.IOBase) and not isinstance(obj, (io.StringIO, io.BytesIO)):
                    name = "a file"  # made again it may be open for reading as well, or be a closed one of another type
                return name, *parts_of(obj)
        if _is_iterator(obj):
            return ("an iterator",)  # built anew it may be of another type; what it gives next tells
        return name, *_attributes(obj), *_text(obj)


def _is_iterator(obj: Any) -> bool:
    return hasattr(type(obj), "__next__") and hasattr(type(obj), "__iter__") and not isinstance(obj, io.IOBase)


def _text(obj: Any) -> Iterator[str]:
    """How it prints, unless that may tell an address."""
    plain = type(obj).__repr__ is not object.__repr__ and not hasattr(obj, "__dict__")
    if plain and "0x" not in (text := repr(obj)):
        yield text


def _attributes(obj: Any) -> Iterator[Any]:
    """Instance attributes and slots, by name, in the order in which they were set."""
    with contextlib.suppress(AttributeError):
        yield list(object.__getattribute__(obj, "__dict__").items())
    for base in type(obj).__mro__:
        for name, member in vars(base).items():
            if type(member) is types.MemberDescriptorType and base.__module__ == "program":
                with contextlib.suppress(AttributeError):
                    yield name, member.__get__(obj)


def _function(obj: types.FunctionType) -> Iterator[Any]:
    yield obj.__qualname__
    yield from obj.__closure__ or ()
    if obj.__module__ == "program":
        yield from (obj.__defaults__, obj.__kwdefaults__, obj.__dict__)


def _cell(obj: types.CellType) -> Iterator[Any]:
    with contextlib.suppress(ValueError):
        yield obj.cell_contents


def _class(obj: type) -> Iterator[Any]:
    yield f"{obj.__module__}.{obj.__qualname__}"
    if obj.__module__ == "program":
        hidden = ("__dict__", "__weakref__", "__doc__", "__module__", "__annotations__", "__abstractmethods__", "__firstlineno__",
                  "__static_attributes__", "__dataclass_fields__", "__dataclass_params__", "__match_args__")  # fmt: skip
        own = {k: v for k, v in vars(obj).items() if k not in hidden and not k.startswith("_abc_")}
        members = (types.MemberDescriptorType, types.GetSetDescriptorType)
        # In no order: a class that is restored may have got its attributes in another.
        yield sorted((k, v) for k, v in own.items() if isinstance(v, (int, str)))
        for name in sorted(k for k, v in own.items() if not isinstance(v, (int, str, *members))):
            yield name, own[name]


def _array(obj: Any) -> Iterator[Any]:
    yield from (obj.shape, str(obj.dtype), bool(obj.flags.writeable))
    if obj.size > 1:
        yield obj.strides
    yield obj.tolist() if obj.dtype.hasobject else obj.tobytes()
    owner = inner = obj
    while (
        hasattr(inner, "base") and inner.base is not None
    ):  # `as_strided` puts an object of its own between two arrays
        inner = inner.base
        owner = inner if isinstance(inner, np.ndarray) else owner
    if owner is not obj:
        yield owner
        yield _begin(obj) - _begin(owner)
    yield from _attributes(obj)


def _begin(array: Any) -> int:
    return int(array.__array_interface__["data"][0])


def _file(obj: Any) -> Iterator[Any]:
    yield obj.closed
    if not obj.closed:
        yield obj.writable()


def _mapping(obj: Any) -> Iterator[Any]:
    kind: Any = collections.OrderedDict if isinstance(obj, collections.OrderedDict) else dict
    yield from kind.items(obj)
    if isinstance(obj, collections.defaultdict):
        yield obj.default_factory
    yield from _attributes(obj)


def _builtin(obj: Any) -> Iterator[Any]:
    yield obj.__name__
    if not isinstance(obj.__self__, (types.ModuleType, type(None))):
        yield obj.__self__


def _sequence(obj: Any) -> Iterator[Any]:
    """Its elements, whatever a derived class lets be seen."""
    plain: Any = next(kind for kind in (list, tuple, collections.deque) if isinstance(obj, kind))
    yield from plain.__iter__(obj)
    yield getattr(obj, "maxlen", None)
    yield from _attributes(obj)


def _random(obj: random.Random) -> Iterator[Any]:
    yield random.Random.getstate(obj) if not isinstance(obj, random.SystemRandom) else "the system's"
    yield from _attributes(obj)


#: Kinds of objects to what they consist of; the first that fits counts.
_KINDS: list[tuple[Any, Callable[[Any], Any]]] = [
    ((types.ModuleType, types.CodeType), lambda one: (getattr(one, "__name__", None),)),
    (type, _class),
    (types.FunctionType, _function),
    (types.CellType, _cell),
    (types.MethodType, lambda one: (one.__func__, one.__self__)),
    ((types.BuiltinFunctionType, types.MethodWrapperType), _builtin),
    (functools.partial, lambda one: (one.func, one.args, one.keywords, *_attributes(one))),
    ((weakref.ReferenceType,), lambda one: (one(),)),
    ((weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary), lambda one: (len(one),)),
    (types.MappingProxyType, lambda one: (dict(one),)),
    (dict, _mapping),
    ((list, tuple, collections.deque), _sequence),
    ((set, frozenset), lambda one: (*one, *_attributes(one))),
    (np.ndarray, _array),
    (random.Random, _random),
    (io.IOBase, _file),
    (BaseException, lambda one: (one.args, *_attributes(one))),
    (csv.Dialect, lambda one: (repr(vars(type(one))),)),
]  # fmt: skip

"""Handlers for instances, classes, modules, values that are rebuilt from a few atoms, and objects that stay as they are."""

from __future__ import annotations

import _thread
import datetime
import decimal
import enum
import fractions
import functools
import itertools
import multiprocessing.process
import operator
import pathlib
import re
import struct
import sys
import threading
import types
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

from detrain.state import machinery
from detrain.state.attributes import instance_dict
from detrain.state.classes import resolve, resolve_type, type_name
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import MISSING, CannotBuild, Capturing, Glance, Handler, Restoring, mark_not_saved
from detrain.state.registry import register, register_name
from detrain.state.tree import Node
from detrain.state.unrestored import Unrestored
from detrain.state.user_code import is_user_module

OWNS_THREAD = machinery.OWNS_THREAD


class ObjectHandler(Handler):
    """An instance of a class written in Python: its `__dict__` and `__slots__` are all of it."""

    kind = "object"
    is_dropped_silently = True
    fields: ClassVar = plain_fields("name")

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        attrs = instance_dict(obj)
        if is_user_module(type(obj).__module__):
            return  # a thread of the script's own is named beside the loop
        name = _name_of(obj)
        if name is not None:
            node["name"] = name
        if is_bound_elsewhere(obj) or (attrs and any(map(is_bound_elsewhere, attrs.values()))):
            mark_not_saved(node, OWNS_THREAD, warns=False)
        elif attrs and any(isinstance(value, threading.Thread) for value in attrs.values()):
            # What such an object of a library holds belongs to its thread as well; changing it under the thread is no restore.
            has_process = any(is_running(member) for value in attrs.values() for member in _members(value))
            mark_not_saved(
                node, "processes of its own run beside the loop" if has_process else OWNS_THREAD, warns=has_process
            )

    def glance(self, objs: Sequence[Any], cls: type) -> Glance | None:
        """But of those of a library that belong to an event loop, which another thread may run."""
        if is_user_module(cls.__module__):
            return Glance([], [0] * len(objs), [])
        if _is_of_asyncio(cls) or any(map(_is_of_asyncio, set(map(type, _values_in(objs))))):
            return None
        return Glance([list(map(_name_of, objs))], [0] * len(objs), [])

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if "name" in node:
            return self._named(node) is live
        return super().matches(live, node, restore)

    def build(self, node: Node, restore: Restoring) -> Any:
        named = self._named(node) if "name" in node else None
        return object.__new__(restore.find_type(node)) if named is None else named

    def _named(self, node: Node) -> Any:
        try:
            return resolve(node["name"])
        except LookupError:
            return None


def _is_of_asyncio(cls: type) -> bool:
    events = sys.modules.get("asyncio.events")
    module = cls.__module__.partition(".")[0] if type(cls.__module__) is str else ""
    return module in ("asyncio", "_asyncio") or (events is not None and issubclass(cls, events.AbstractEventLoop))


def _values_in(objs: Sequence[Any]) -> Iterator[Any]:
    return itertools.chain.from_iterable(dict.values(instance_dict(obj) or {}) for obj in objs)


def _name_of(obj: Any) -> str | None:
    """Of an object that is told apart by its identity, as the module of its class holds it: `dataclasses.MISSING`."""
    module = type(obj).__module__
    name = _globals_of(module).get(id(obj))
    return f"{module}:{name}" if name is not None and getattr(sys.modules[module], name, None) is obj else None


#: By module: how many globals it had, and their names by `id`.
_named: dict[str, tuple[int, dict[int, str]]] = {}


def _globals_of(name: str) -> dict[int, str]:
    namespace = vars(sys.modules[name]) if name in sys.modules else {}
    known = _named.get(name)
    if known is None or known[0] != len(namespace):
        known = _named[name] = (len(namespace), {id(value): key for key, value in list(namespace.items())})
    return known[1]


def is_running(obj: Any) -> bool:
    """True for a process that has been started by this one and has not ended."""
    process = multiprocessing.process.BaseProcess
    if not isinstance(obj, process) or obj is multiprocessing.process.current_process():
        return False
    popen = vars(obj).get("_popen")
    return popen is not None and popen.poll() is None


def is_bound_elsewhere(obj: Any) -> bool:
    """True for an event loop of asyncio that another thread is running, and for asyncio's events, streams, … that wait in it.

    They belong to that thread.
    """
    if type(obj).__module__.partition(".")[0] not in ("asyncio", "_asyncio"):
        return _is_run_elsewhere(obj)
    bound = obj.get_loop() if hasattr(obj, "get_loop") else (instance_dict(obj) or {}).get("_loop", obj)
    return _is_run_elsewhere(bound)


def _is_run_elsewhere(loop: Any) -> bool:
    events = sys.modules.get("asyncio.events")
    if events is None or not isinstance(loop, events.AbstractEventLoop) or not loop.is_running():
        return False
    return bool(getattr(loop, "_thread_id", None) != threading.get_ident())


def _members(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return list(value) if isinstance(value, (list, tuple, set)) else [value]


class NamespaceHandler(Handler):
    """Types written in C whose state is their `__dict__`."""

    kind = "namespace"
    is_dropped_silently = True

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        """Nothing beyond the attributes."""


class ThreadLocalHandler(Handler):
    """A `threading.local`: what the loop's thread sees of it."""

    kind = "thread local"
    fields: ClassVar = {"attrs": Holds.NAMED}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["attrs"] = walk.attributes(obj.__dict__.items())

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        live = obj.__dict__
        restored = {name: restore.value(ref, live.get(name, MISSING)) for name, ref in node["attrs"]}
        live.clear()
        live.update(restored)


class ModuleHandler(Handler):
    """A module is named, not walked; the globals of the user's modules are roots of their own."""

    kind = "module"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("name"), "attrs": Holds.NAMED}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["name"] = obj.__name__
        if sys.modules.get(obj.__name__) is not obj and obj.__name__ != "__main__":
            # Made or loaded by the script itself: nobody else has its globals for roots.
            node["attrs"] = walk.attributes([(k, v) for k, v in vars(obj).items() if not k.startswith("__")])

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return issubclass(type(live), types.ModuleType) and live.__name__ == node["name"]

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        live = vars(obj)
        if "attrs" not in node:
            return
        saved = dict(node["attrs"])
        for name in [name for name in live if not name.startswith("__") and name not in saved]:
            del live[name]
        for name, ref in saved.items():
            live[name] = restore.value(ref, live.get(name, MISSING))

    def build(self, node: Node, restore: Restoring) -> Any:
        import importlib

        # The loop imported it; the set-up code has not. Only what can be imported by name comes back.
        try:
            return sys.modules.get(node["name"]) or importlib.import_module(node["name"])
        except ImportError as error:
            raise CannotBuild(f"a module that cannot be imported: {error}") from None


class EnumHandler(Handler):
    """Members of an enumeration exist once; by name, flags by value."""

    kind = "enum"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("name"), "v": Holds.ONE, "attrs": Holds.NAMED}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if obj._name_ is not None and obj._name_ in type(obj).__members__:
            node["name"] = obj._name_
        else:
            node["v"] = walk.child(obj._value_, "")
        node["attrs"] = walk.attributes(self._own(obj).items())

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        live = self._own(obj)
        for name in live.keys() - dict(node["attrs"]).keys():
            del obj.__dict__[name]
        for name, ref in node["attrs"]:
            obj.__dict__[name] = restore.value(ref, live.get(name, MISSING))

    def _own(self, obj: Any) -> dict[str, Any]:
        """What the script has put on a member, beside what makes it one."""
        return {k: v for k, v in (instance_dict(obj) or {}).items() if k not in _OF_EVERY_MEMBER}

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and live is self.build(node, restore)

    def build(self, node: Node, restore: Restoring) -> Any:
        cls: Any = restore.find_type(node)
        return cls[node["name"]] if "name" in node else cls(restore.value(node["v"]))


_OF_EVERY_MEMBER = frozenset({"_value_", "_name_", "__objclass__", "_sort_order_"})


class ValueHandler(Handler):
    """Immutable values of a known type: `encode` gives arguments, `decode` makes an equal value of them."""

    kind = "value"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("codec"), "args": Holds.ONE}
    has_attributes = False
    codecs: ClassVar[dict[type, tuple[Callable[[Any], Any], Callable[..., Any]]]] = {}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        cls = self._registered(type(obj))
        node["codec"] = type_name(cls)
        node["args"] = walk.child(tuple(self.codecs[cls][0](obj)), "")

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        args = restore.value(node["args"])
        return repr(tuple(self.codecs[self._registered(type(live))][0](live))) == repr(args)

    def build(self, node: Node, restore: Restoring) -> Any:
        cls = restore.find_type(node)
        args = restore.value(node["args"])
        base = self._registered(cls)
        return self.codecs[base][1](*args) if cls is base else cls(*args)

    def _registered(self, cls: type) -> type:
        return next(base for base in cls.__mro__ if base in self.codecs)


_values = ValueHandler()


def register_value(cls: type, encode: Callable[[Any], Any], decode: Callable[..., Any] | None = None) -> None:
    """Let values of `cls` be written as the atoms that `encode` yields and made again by `decode(*atoms)`."""
    _values.codecs[cls] = (encode, decode or cls)
    register(_values, cls)


class KeptHandler(Handler):
    """Objects that hold no state of the training: compiled code, descriptors, connections. The set-up code makes them again."""

    kind = "kept"
    is_dropped_silently = True
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        mark_not_saved(node, "holds no state of the training", warns=False)


class DescriptorHandler(Handler):
    """A property, class method or static method: the functions in it, which may hold state. User classes derived from it may hold more."""

    kind = "descriptor"
    is_dropped_silently = True
    fields: ClassVar = {"fget": Holds.ONE, "fset": Holds.ONE, "fdel": Holds.ONE, "__func__": Holds.ONE}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        for name in ("fget", "fset", "fdel", "__func__"):
            function = getattr(obj, name, None)
            if function is not None:
                node[name] = walk.child(function, "")

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        parts = [(name, getattr(live, name, None)) for name in ("fget", "fset", "fdel", "__func__")]
        return all(restore.value(node[name], part) is part if name in node else part is None for name, part in parts)

    def build(self, node: Node, restore: Restoring) -> Any:
        cls = restore.find_type(node)
        if "__func__" in node:
            return cls(restore.value(node["__func__"]))
        return cls(*(restore.value(node.get(name)) for name in ("fget", "fset", "fdel")))


class LockHandler(KeptHandler):
    """A lock; one that the loop has made is made anew, and is free."""

    kind = "lock"
    is_dropped_silently = True

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        """Nothing: who holds it is a matter of the threads."""

    def build(self, node: Node, restore: Restoring) -> Any:
        return threading.RLock() if node["t"].endswith("RLock") else threading.Lock()


class OwnPartHandler(Handler):
    """An object of the standard library that is left as it is, but for what a class or the code of the script has added to it."""

    kind = "own part"
    fields: ClassVar = {"attrs": Holds.NAMED}
    has_attributes = False
    #: Attributes of the base classes that are not the script's.
    theirs: ClassVar[dict[type, frozenset[str]]] = {}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["attrs"] = walk.attributes(self._own(obj).items())

    def build(self, node: Node, restore: Restoring) -> Any:
        raise CannotBuild("it works together with the process that made it")

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        live = self._own(obj)
        for name, ref in node["attrs"]:
            obj.__dict__[name] = restore.value(ref, live.get(name, MISSING))

    def _own(self, obj: Any) -> dict[str, Any]:
        theirs = next(names for base, names in self.theirs.items() if isinstance(obj, base))
        return {name: value for name, value in (instance_dict(obj) or {}).items() if name not in theirs}


class ConditionHandler(OwnPartHandler):
    """A `threading.Condition`, also inside an event or a queue: its lock. Who waits for it is a matter of the threads."""

    kind = "condition"
    fields: ClassVar = {**OwnPartHandler.fields, "lock": Holds.ONE}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        super().capture(obj, node, walk)
        node["lock"] = walk.child(obj._lock, "._lock")

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and restore.value(node["lock"], live._lock) is live._lock

    def build(self, node: Node, restore: Restoring) -> Any:
        cls: Any = restore.find_type(node)
        made = cls.__new__(cls)
        threading.Condition.__init__(made, restore.value(node["lock"]))
        return made


class BesideHandler(KeptHandler):
    """What `Walk.warn_of_hidden_state` has added; there is nothing to restore."""

    kind = "beside"


class UnrestoredHandler(Handler):
    """What an earlier resume could not make again stays unmade."""

    kind = "unrestored"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        mark_not_saved(node, "an earlier resume could not make it again", warns=False)


def _method_of(cls: str, name: str) -> Any:
    try:
        return vars(resolve_type(cls))[name]
    except LookupError as error:
        raise CannotBuild(f"{cls}.{name} is not there: {error}") from None


def _found(match: re.Match[Any]) -> tuple[Any, ...]:
    return (match.re.pattern, match.re.flags, match.string, match.start(), match.endpos, match.regs)


def _find_again(pattern: Any, flags: int, string: Any, start: int, end: int, regs: Any) -> re.Match[Any]:
    match = re.compile(pattern, flags).match(string, start, end)
    if match is None or match.regs != regs:
        raise CannotBuild("a match that hangs on what stands before it")
    return match


register(UnrestoredHandler(), Unrestored)
register(BesideHandler())
register_name(KeptHandler(), "_json:Scanner", "_json:Encoder", "_ctypes:CField", "ctypes:CDLL", "numpy:ufunc")
# Have threads of their own, which draw on the terminal and read nothing.
register_name(KeptHandler(), "rich.progress:_TrackThread", "rich.live:Live")
register(NamespaceHandler(), types.SimpleNamespace)
register(ThreadLocalHandler(), _thread._local)
register(ModuleHandler(), types.ModuleType)
register(EnumHandler(), enum.Enum)
register(
    KeptHandler(),
    types.CodeType, types.FrameType, types.TracebackType,
    types.GetSetDescriptorType, types.MemberDescriptorType, functools.cached_property,
    type(sys.flags), type(sys.version_info), type(sys.float_info), type(sys.hash_info),
    type(sys.int_info),
)  # fmt: skip

OwnPartHandler.theirs = {
    # With a name, or it would take a number that the script's first thread has without detrain.
    threading.Thread: frozenset({*vars(threading.Thread(name="named")), "interval", "function", "args", "kwargs", "finished"}),
    threading.Condition: frozenset({
        "_lock", "acquire", "release", "_release_save", "_acquire_restore", "_is_owned", "_waiters",
    }),
}  # fmt: skip
register(OwnPartHandler(), threading.Thread)
register(ConditionHandler(), threading.Condition)
register(DescriptorHandler(), property, classmethod, staticmethod)
register(LockHandler(), _thread.LockType, _thread.RLock)
for _cls in (types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType):  # `str.upper`
    register_value(_cls, lambda v: (type_name(v.__objclass__), v.__name__), _method_of)
register_value(type(Ellipsis), lambda _: ())
register_value(type(NotImplemented), lambda _: ())
register_value(types.GenericAlias, lambda v: (v.__origin__, v.__args__), types.GenericAlias)
register_value(types.UnionType, lambda v: v.__args__, lambda *args: functools.reduce(operator.or_, args))
register_value(slice, lambda v: (v.start, v.stop, v.step))
register_value(range, lambda v: (v.start, v.stop, v.step))
register_value(pathlib.PurePath, lambda v: (str(v),))
register_value(re.Pattern, lambda v: (v.pattern, v.flags), re.compile)
register_value(re.Match, _found, _find_again)
register_value(decimal.Decimal, lambda v: (str(v),))
register_value(fractions.Fraction, lambda v: (v.numerator, v.denominator))
register_value(struct.Struct, lambda v: (v.format,))
register_value(uuid.UUID, lambda v: (str(v),))
register_value(datetime.timedelta, lambda v: (v.days, v.seconds, v.microseconds))
register_value(operator.itemgetter, lambda v: v.__reduce__()[1])
register_value(operator.attrgetter, lambda v: v.__reduce__()[1])

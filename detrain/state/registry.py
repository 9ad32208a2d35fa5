"""Who captures what: a handler for each kind of object, found by type.

A handler is the whole knowledge about one kind of object. Frameworks add theirs from `detrain.adapters`.
"""

from __future__ import annotations

import collections
import sys
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from detrain.state.tree import Node
from detrain.state.user_code import is_user_module

if TYPE_CHECKING:
    from detrain.state.restore import Restore
    from detrain.state.walk import Walk

_IMMUTABLE_TYPE = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE: set for types written in C since 3.10
_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


class Stretch(NamedTuple):
    """A stretch of memory."""

    address: int
    num_bytes: int
    claim: int  # of several over the same bytes, the one with the least owns them


class Handler:
    """Captures and restores one kind of object.

    `capture` fills the node; `is_twin` says whether a live object may be brought to the saved state in place; `build` makes an
    object for which there is no twin; `fill` gives the object, live or just built, the saved state. Attributes
    (`__dict__`, `__slots__`) of classes derived from the handled type are added by the walk itself where `has_attributes` is set.
    """

    kind: ClassVar[str]
    has_attributes: ClassVar[bool] = True
    #: True: prepared and filled after everything else. Generators of random numbers, because restoring must not disturb them, and what
    #: may stand already where running something else has taken it.
    is_last: ClassVar[bool] = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        raise NotImplementedError

    def prepare(self, number: int, node: Node, restore: Restore) -> None:
        """Before anything is restored: take to its place what can be taken there only by running it."""

    def is_twin(self, live: Any, node: Node, restore: Restore) -> bool:
        return bool(type_name(type(live)) == node["t"])

    def build(self, node: Node, restore: Restore) -> Any:
        cls = restore.find_type(node)
        return cls.__new__(cls)

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        """Bring `obj` to the saved state."""

    def memory(self, obj: Any) -> tuple[int, int] | None:
        """Address and bytes of the one stretch of memory that holds the object's numbers; None if there is no such."""
        return None

    def stretch(self, obj: Any) -> Stretch | None:
        """The memory that an object owns, or looks into without saying whose it is; None if it names who owns it, or has none."""
        return None

    def device_memory(self, obj: Any) -> tuple[int, int] | None:
        """As `memory`, for numbers that lie on a device: what `fetch` gives bytes of."""
        return None

    def fetch(self, obj: Any, start: int, end: int) -> Any:
        """Some of the bytes that `device_memory` tells of, once the device has done all that it was told to."""
        raise NotImplementedError(f"{self.kind} lies on no device")

    def fingerprint(self, obj: Any) -> bytes:
        """The state of a generator of random numbers, quickly."""
        raise NotImplementedError(f"{self.kind} has no fingerprint")


#: Give what libraries hold for the whole process and no variable of the script names, by name; each may hold state of its.
process_roots: list[Callable[[], dict[str, Any]]] = []
#: Beginnings of names under which a compiler of Python code keeps things in the globals of a module; made again where missing.
compiler_globals: list[str] = []
#: Types whose instances work on what belongs to others, and do not name it.
named_last: set[type] = set()
_is_named_last: dict[type, bool] = {}
_by_type: dict[type, Handler] = {}
_by_name: dict[str, Handler] = {}
_by_kind: dict[str, Handler] = {}
_found: dict[type, Handler] = {}


def register(handler: Handler, *handled: type) -> None:
    """Let `handler` take care of these types and of the classes derived from them."""
    _by_kind[handler.kind] = handler
    for cls in handled:
        _by_type[cls] = handler
    _found.clear()


def register_name(handler: Handler, *handled: str) -> None:
    """The same for types of modules that may not be loaded, as `module:qualname`."""
    _by_kind[handler.kind] = handler
    _by_name.update(dict.fromkeys(handled, handler))
    _found.clear()


def handler_of_kind(kind: str) -> Handler | None:
    """The handler that wrote nodes of this kind."""
    return _by_kind.get(kind)


def handlers_with_stretches() -> dict[str, Handler]:
    """By kind, the handlers of objects that have stretches of memory."""
    return {kind: handler for kind, handler in _by_kind.items() if type(handler).stretch is not Handler.stretch}


def handler_for(cls: type) -> Handler:
    """The handler for instances of this type."""
    handler = _found.get(cls)
    if handler is None:
        handler = _found[cls] = _find(cls)
    return handler


def is_named_last(cls: type) -> bool:
    """True if instances are looked into when everything else has been."""
    found = _is_named_last.get(cls)
    if found is None:
        found = _is_named_last[cls] = any(base in named_last for base in cls.__mro__)
    return found


def _find(cls: type) -> Handler:
    if issubclass(cls, type):
        return _by_type[type]  # also where a metaclass is written in C
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
            # Memory of a layout that nobody here knows: only the type's own pickling can tell what is in it.
            return _by_kind["opaque"]
    return _by_kind["object"]


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


def type_name(cls: type) -> str:
    """`module:qualname`."""
    return f"{cls.__module__}:{cls.__qualname__}"


def resolve_type(name: str) -> type:
    """The class of a `module:qualname`, also where it stands under another name: a `namedtuple` made inside a class, say.

    Raises LookupError if there is none, or more than one.
    """
    try:
        found = resolve(name)
        if isinstance(found, type):
            return found
        why = "that name means something else now"
    except LookupError as error:
        why = str(error)
    alike = [cls for cls in _all_classes() if type_name(cls) == name]
    if len(alike) != 1:
        raise LookupError(f"{len(alike)} classes of this name are there" if alike else why)
    return alike[0]


def names_of_several() -> frozenset[str]:
    """Names that more than one class of the script's has: what a class factory makes, say."""
    found = collections.Counter(type_name(cls) for cls in _all_classes() if is_user_module(cls.__module__))
    return frozenset(name for name, count in found.items() if count > 1)


def _all_classes() -> Iterator[type]:
    return derived_from(object)


def derived_from(base: type) -> Iterator[type]:
    """A class, and all classes that are derived from it so far."""
    pending, seen = [base], set[type]()
    while pending:
        cls = pending.pop()
        if cls not in seen:
            seen.add(cls)
            yield cls
            pending += type.__subclasses__(cls)


def resolve(name: str) -> Any:
    """The object of a `module:qualname`, from the modules that are loaded.

    Raises LookupError if there is none. A file can name only what the script itself has loaded.
    """
    module, _, qualname = name.partition(":")
    found: Any = sys.modules.get(module)
    if found is None:
        raise LookupError(f"module {module} is not loaded")
    for part in qualname.split("."):
        try:
            found = getattr(found, part)
        except AttributeError:
            raise LookupError(f"{module} has no {qualname}") from None
    return found

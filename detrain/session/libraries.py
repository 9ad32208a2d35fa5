"""State that a library keeps in a global of one of its own modules, or in an attribute of one of its classes.

No variable of the script leads to it: to a store of parameters (Pyro), to a generator of random numbers (imgaug). It is found from its
other end: from the parameters that an optimizer has stepped, and the generators that are there, by who refers to them, up to a module. Its
names go into the checkpoint, so that a later attempt looks there before it has trained anything. So do the names of the modules that the
loops have loaded.
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
import types
from collections.abc import Collection, Iterable, Iterator
from importlib.machinery import ModuleSpec
from typing import TYPE_CHECKING, Any

from detrain.errors import RestoreError
from detrain.state.attributes import instance_dict
from detrain.state.classes import resolve
from detrain.state.user_code import user_modules

if TYPE_CHECKING:
    from detrain.state.captured import Captured

#: Begins the names of these roots: `<library pyro.primitives>.STORE`.
_START = "<library "
#: Places where libraries that hold no parameters keep what the script makes without naming it: pyplot its figures.
_KNOWN = ("<library matplotlib._pylab_helpers>.Gcf.figs",)
#: Parameters that are followed: of those that an optimizer steps, all are kept in the same places.
_NUM_FOLLOWED = 8
#: Generators that are followed.
_NUM_GENERATORS = 64
#: How far up, and how many objects at most: a store is near what it stores.
_FURTHEST, _MOST = 8, 200


def load(names: Iterable[str]) -> None:
    """Load the modules that the loops had loaded: one that is loaded later draws from the stream of entropy behind the checkpoint."""
    for name in names:
        if name not in sys.modules:
            try:
                importlib.import_module(name)
            except ImportError:
                continue  # it was there by other means than its name; whoever needs it loads it


def _can_be_loaded(name: str, module: Any) -> bool:
    spec = vars(module).get("__spec__") if type(module) is types.ModuleType else None
    is_named = isinstance(spec, ModuleSpec) and spec.name == name
    return is_named and name not in user_modules and name.partition(".")[0] != "detrain"


def is_name(name: str) -> bool:
    """True for the name of such a root."""
    return name.startswith(_START)


class Libraries:
    """The places that are known so far."""

    def __init__(self, frameworks: Collection[str] = ()) -> None:
        """`frameworks`: packages whose own globals their adapters look after; more may be added to it later."""
        self._frameworks = frameworks
        self._names: list[str] = []
        self._seen: tuple[int, ...] = ()
        self._num_modules = self._num_captures = 0
        self._num_before = 0
        #: How long looking has taken, all in all. Seconds.
        self.looked_s = 0.0
        self._loaded: tuple[int, list[str]] = (0, [])

    def begin(self, num_modules: int) -> None:
        """The training begins; `num_modules` were loaded when its loops were entered, and they load those after them."""
        self._num_before = num_modules

    def loaded(self) -> list[str]:
        """Modules of libraries that the loops have loaded and that can be by their names, in that order."""
        if self._loaded[0] != len(sys.modules):
            later = list(sys.modules.items())[self._num_before :]
            self._loaded = len(sys.modules), [name for name, module in later if _can_be_loaded(name, module)]
        return self._loaded[1]

    def roots(self) -> dict[str, Any]:
        """What stands at these places now; of a module that is not loaded, nothing."""
        found = {}
        for name in (*_KNOWN, *self._names):
            try:
                found[name] = resolve(_place(name))
            except LookupError:
                continue
        return found

    def expect(self, names: Iterable[str]) -> None:
        """Add the roots of a checkpoint. Raises `RestoreError` if this attempt does not have one of them."""
        names = {name for name in names if is_name(name)}
        self._names += sorted(names - {*self._names, *_KNOWN})
        load(_place(name).partition(":")[0] for name in sorted({*names, *self._names}))
        for name in sorted({*names, *self._names}):
            try:
                resolve(_place(name))
            except LookupError as error:
                raise RestoreError(f"{name}: the library keeps no state there in this attempt: {error}") from None

    def put(self, restored: dict[str, Any]) -> None:
        """Put restored values where the live ones stood, if they are not the same objects."""
        for name, value in restored.items():
            if is_name(name) and resolve(_place(name)) is not value:
                owner, _, attribute = _place(name).rpartition("." if "." in _place(name).partition(":")[2] else ":")
                setattr(resolve(owner) if ":" in owner else sys.modules[owner], attribute, value)

    def look(self, trained: list[Any], kinds: Collection[type], captured: Captured) -> bool:
        """Look who refers to the parameters that are trained, and to generators of these types; True if a place was not known before.

        `captured`: what the known roots lead to. Looks again for parameters when others are trained; for generators when modules were
        loaded, and else ever less often: all objects of the process are looked through.
        """
        began_s, found = time.monotonic(), set[str]()
        now = tuple(map(id, trained))
        if now != self._seen:
            self._seen = now
            followed = trained[:: max(1, len(trained) // _NUM_FOLLOWED)][:_NUM_FOLLOWED]
            ignored = {id(one) for one in (trained, followed, captured.objects)}
            found.update(self._places_above(followed, captured, ignored))
        self._num_captures += 1
        is_turn = not self._num_captures & (self._num_captures - 1)  # the first, second, fourth, eighth …
        if is_turn or len(sys.modules) != self._num_modules:
            self._num_modules = len(sys.modules)
            found.update(self._places_of_generators(kinds, captured))
        new = sorted(found - {*self._names, *_KNOWN})
        self._names += new
        self.looked_s += time.monotonic() - began_s
        return bool(new)

    def _places_of_generators(self, kinds: Collection[type], captured: Captured) -> Iterator[str]:
        """Of those that nothing captured leads to: in a module or a class, or an attribute of what is there."""
        lone = [one for one in gc.get_objects() if type(one) in kinds and id(one) not in captured.numbers]
        lone = lone[:_NUM_GENERATORS]
        holders: list[tuple[Any, str]] = []
        for one in gc.get_referrers(*lone) if lone else ():
            name = self._name_of(one)
            for attribute, value in _attributes(one):
                if any(value is generator for generator in lone):
                    if name is not None:
                        yield f"{name}.{attribute}"
                    else:
                        holders.append((one, attribute))
        dicts = [one for one, _ in holders if type(one) is dict]
        for one in gc.get_referrers(*dicts) if dicts else ():
            own = instance_dict(one)
            holders += [(one, attribute) for space, attribute in holders if space is own]
        instances = [one for one, _ in holders if type(one) is not dict]
        for one in gc.get_referrers(*instances) if instances else ():
            name = self._name_of(one)
            for attribute, value in _attributes(one) if name is not None else ():
                yield from (f"{name}.{attribute}.{inner}" for holder, inner in holders if holder is value)

    def _places_above(self, objects: list[Any], captured: Captured, ignored: set[int]) -> Iterator[str]:
        seen = {*ignored, id(objects), *map(id, objects)}
        for _ in range(_FURTHEST):
            above = [
                one for one in gc.get_referrers(*objects) if id(one) not in seen and type(one) is not types.FrameType
            ]
            seen.update(map(id, above))
            # One that has been captured needs no other way to it. An instance's dict is none that a walk goes to: its instance is.
            unknown = [one for one in above if id(one) not in captured.numbers]
            named = {id(one): name for one in unknown if (name := self._name_of(one)) is not None}
            for one in unknown:
                if id(one) in named:
                    yield from (
                        f"{named[id(one)]}.{key}" for key, value in one.items() if any(value is it for it in objects)
                    )
            objects = [one for one in unknown if id(one) not in named and not _is_of_python(one)]
            if not objects or len(objects) > _MOST:
                return
            seen.add(id(objects))
            seen.add(id(above))
            seen.add(id(unknown))

    def _name_of(self, namespace: Any) -> str | None:
        """The name of a library's module or class, of whose dict this is one."""
        if type(namespace) is not dict or ("__module__" not in namespace and "__name__" not in namespace):
            return None
        module = namespace.get("__name__", namespace.get("__module__"))
        owner = sys.modules.get(module) if isinstance(module, str) else None
        if owner is None or not self._is_of_library(owner.__name__):
            return None
        if vars(owner) is namespace:
            return f"{_START}{module}>"
        qualname = next(
            (
                one.__qualname__
                for one in gc.get_referrers(namespace)
                if isinstance(one, type) and one.__module__ == module
            ),
            None,
        )
        return None if qualname is None or "<locals>" in qualname else f"{_START}{module}>.{qualname}"

    def _is_of_library(self, module: str) -> bool:
        package = module.partition(".")[0]
        others = user_modules, self._frameworks, sys.stdlib_module_names, {"detrain"}
        return module not in user_modules and not any(package in names for names in others)


def _attributes(obj: Any) -> list[tuple[str, Any]]:
    """What stands in a namespace, or in the attributes of an instance, under names."""
    found = obj if type(obj) is dict else None if isinstance(obj, (type, types.ModuleType)) else instance_dict(obj)
    return [(name, value) for name, value in (found or {}).items() if type(name) is str and name.isidentifier()]


def _is_of_python(obj: Any) -> bool:
    """True for the dict of a module that is no library's."""
    return isinstance(obj, types.ModuleType) or (type(obj) is dict and "__builtins__" in obj)


def _place(name: str) -> str:
    """`pyro.primitives:STORE` of `<library pyro.primitives>.STORE`."""
    module, _, qualname = name.removeprefix(_START).partition(">.")
    return f"{module}:{qualname}"

"""Handler for classes: where one cannot be found by its name, it is made again of its bases and its namespace."""

from __future__ import annotations

import types
from typing import Any, ClassVar

from detrain.state import patches
from detrain.state.classes import derived_from, is_made_at_run_time, resolve, type_name
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import MISSING, Capturing, Handler, Restoring
from detrain.state.registry import register
from detrain.state.tree import Node
from detrain.state.user_code import PYTHONS_OWN, is_user_module, without_own


class ClassHandler(Handler):
    """A class is made by the set-up code. Those of the user's own modules may hold state in data attributes.

    One that the set-up code has not made, because the loop's code did or a function does whenever it runs, is made again.
    """

    kind = "class"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("name"), "data": Holds.NAMED, "made": Holds.NAMED, "parts": Holds.LIST}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["name"] = type_name(obj)
        if is_made_at_run_time(obj) or is_user_module(obj.__module__):
            node["data"] = walk.attributes(self._own(obj).items())
            node["parts"] = walk.children(obj.__bases__)
            node["made"] = walk.attributes((name, vars(obj)[name]) for name in _OF_DECORATORS if name in vars(obj))

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return issubclass(type(live), type) and type_name(live) == node["name"]

    def build(self, node: Node, restore: Restoring) -> Any:
        if "parts" not in node:
            return restore.find_type({**node, "t": node["name"]})
        found = self._find(node, restore)
        if found is not None:
            return found
        module, _, qualname = node["name"].partition(":")
        namespace = {"__module__": module, "__qualname__": qualname}
        namespace.update({name: restore.value(ref) for name, ref in node["data"] if name == "__slots__"})
        bases, metaclass = tuple(restore.values(node["parts"])), restore.find_type(node)
        return types.new_class(
            qualname.rpartition(".")[2], bases, {"metaclass": metaclass}, lambda own: own.update(namespace)
        )

    def _find(self, node: Node, restore: Restoring) -> type | None:
        """The class that its name leads to, or that a decorator has put something else in the place of."""
        name = node["name"]
        if "<locals>" in name:
            return None
        try:
            found = resolve(name)
            if isinstance(found, type) and type_name(found) == name:
                return found
        except LookupError:
            pass
        names = {name for name, _ in node["data"]}
        alike = [
            cls for cls in derived_from(object)
            if type_name(cls) == name and not restore.is_claimed(cls) and self._own(cls).keys() == names
        ]  # fmt: skip
        return alike[0] if len(alike) == 1 else None

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "data" not in node:
            return
        live = self._own(obj)
        if is_new:
            for name, ref in node.get("made", ()):
                type.__setattr__(obj, name, restore.value(ref))
        if "parts" in node:
            restore.values(node["parts"], obj.__bases__)  # they hold state as well
        for name, ref in node["data"]:
            value = restore.value(ref, live.get(name, MISSING))
            if name not in live or live[name] is not value:
                type.__setattr__(obj, name, value)
        for name in live.keys() - {name for name, _ in node["data"]}:
            type.__delattr__(obj, name)

    def _own(self, obj: Any) -> dict[str, Any]:
        added = patches.added_to_class(obj)
        return {
            name: without_own(value)
            for name, value in vars(obj).items()
            if (_is_data(name, value) or _is_special(name, value)) and name not in added
        }


#: What decorators and factories of the standard library keep in a class, under names that are Python's.
_OF_DECORATORS = ("__dataclass_fields__", "__dataclass_params__", "__match_args__", "__doc__", "__orig_bases__")
_SPECIAL = ("__slots__", "__hash__")
_NOT_DATA = (
    types.GetSetDescriptorType, types.MemberDescriptorType, types.WrapperDescriptorType, types.MethodDescriptorType,
)  # fmt: skip


def _is_dunder(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_special(name: str, value: Any) -> bool:
    """A method with a name like `__len__`, or `__slots__`."""
    is_method = isinstance(value, (types.FunctionType, classmethod, staticmethod))
    return _is_dunder(name) and (is_method or name in _SPECIAL)


def _is_data(name: str, value: Any) -> bool:
    return (
        name not in PYTHONS_OWN
        and not (_is_dunder(name) and callable(value))
        and not name.startswith("_abc_")
        and not isinstance(value, _NOT_DATA)
    )


register(ClassHandler(), type)

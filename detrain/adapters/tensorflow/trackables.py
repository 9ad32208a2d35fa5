"""Containers that TensorFlow puts around those that a module's attributes are given."""

from __future__ import annotations

from typing import Any

import wrapt
from tensorflow.python.trackable import data_structures

from detrain.state.registry import Handler
from detrain.state.restore import MISSING, Restore
from detrain.state.tree import Node
from detrain.state.walk import Walk

WRAPPERS = (data_structures._DictWrapper, data_structures._TupleWrapper)


class WrapperHandler(Handler):
    """A proxy around a dict or a tuple, and what it notes about it."""

    kind = "tensorflow.wrapper"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        node["wrapped"] = walk.child(obj.__wrapped__, "")
        node["attrs"] = walk.attributes(_own(obj).items())

    def build(self, node: Node, restore: Restore) -> Any:
        cls = restore.find_type(node)
        made = cls.__new__(cls)
        wrapt.ObjectProxy.__init__(made, restore.value(node["wrapped"]))
        return made

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        live = _own(obj)
        wrapped = restore.value(node["wrapped"], obj.__wrapped__)
        if wrapped is not obj.__wrapped__:
            obj.__wrapped__ = wrapped
        restored = {name: restore.value(ref, live.get(name, MISSING)) for name, ref in node["attrs"]}
        live.clear()
        live.update(restored)


def _own(wrapper: Any) -> dict[str, Any]:
    found: dict[str, Any] = object.__getattribute__(wrapper, "__dict__")
    return found

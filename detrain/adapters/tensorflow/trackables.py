"""What TensorFlow puts around objects: around containers that a module's attributes are given, and around results that are to be used."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf
import wrapt
from tensorflow.python.trackable import base, data_structures
from tensorflow.python.util import tf_should_use

from detrain.state.fields import Holds
from detrain.state.handler import MISSING, Capturing, Handler, Restoring
from detrain.state.tree import Node

#: The proxies' own: a property of the same name gives what they stand for.
_DICT = vars(base.Trackable)["__dict__"]

WRAPPERS = (data_structures._DictWrapper, data_structures._TupleWrapper)


class WrapperHandler(Handler):
    """A proxy around a dict or a tuple, and what it notes about it."""

    kind = "tensorflow.wrapper"
    fields: ClassVar = {"wrapped": Holds.ONE, "attrs": Holds.NAMED}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["wrapped"] = walk.child(obj.__wrapped__, "")
        node["attrs"] = walk.attributes(_own(obj).items())

    def build(self, node: Node, restore: Restoring) -> Any:
        cls = restore.find_type(node)
        made = cls.__new__(cls)
        wrapt.ObjectProxy.__init__(made, restore.value(node["wrapped"]))
        return made

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        live = _own(obj)
        wrapped = restore.value(node["wrapped"], obj.__wrapped__)
        if wrapped is not obj.__wrapped__:
            obj.__wrapped__ = wrapped
        restored = {name: restore.value(ref, live.get(name, MISSING)) for name, ref in node["attrs"]}
        live.clear()
        live.update(restored)


def _used(wrapped: Any) -> Any:
    """A wrapper of a result, for which nothing is to be said any more when nobody uses it."""
    helper = tf_should_use._TFShouldUseHelper(None, None, None, error_in_function=False, warn_in_eager=False)
    helper.sate()
    return tf_should_use._get_wrapper(wrapped, helper)


#: Of an array that has been written to: the only result that eager code gets wrapped. Making a real one would start TensorFlow's devices.
RESULT = type(_used(tf.TensorArray.__new__(tf.TensorArray)))


class ResultHandler(Handler):
    """A wrapper that warns if what it stands for is never used."""

    kind = "tensorflow.result"
    fields: ClassVar = {"wrapped": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["wrapped"] = walk.child(_wrapped(obj), "")

    def build(self, node: Node, restore: Restoring) -> Any:
        return _used(restore.value(node["wrapped"]))

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        object.__setattr__(obj, _WRAPPED, restore.value(node["wrapped"], _wrapped(obj)))


_WRAPPED = "_tf_should_use_wrapped_value"


def _wrapped(result: Any) -> Any:
    return object.__getattribute__(result, _WRAPPED)


def _own(wrapper: Any) -> dict[str, Any]:
    found: dict[str, Any] = _DICT.__get__(wrapper)
    return found

"""SavedModels of functions that draw at counters.

A loaded model begins at 0, as TensorFlow's kernels do: two variables at 0, of the two shapes that counters have, are saved in place of all
counters, so that the file does not depend on what each attempt has traced. What TensorFlow traces for a SavedModel alone begins at 0 as
well, and is no part of the training.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.framework import ops
from tensorflow.python.ops import resource_variable_ops
from tensorflow.python.saved_model import save
from tensorflow.python.trackable import autotrackable

from detrain.adapters.tensorflow.counters import counters
from detrain.adapters.tensorflow.functions import functions

#: Of the root of what is saved, beside the names that the script gives.
_CHILD = "detrain_counters"


class _Beginning(resource_variable_ops.ResourceVariable):  # type: ignore[misc]
    """A variable that is saved in place of counters."""

    stands_for: tuple[Any, ...] = ()

    def _export_to_saved_model_graph(self, object_map: Any = None, tensor_map: Any = None, **kwargs: Any) -> Any:
        tensors = super()._export_to_saved_model_graph(object_map=object_map, tensor_map=tensor_map, **kwargs)
        for handle in self.stands_for:
            tensor_map[handle] = tensor_map[self.handle]
        return [*tensors, *self.stands_for]


def patch() -> None:
    """Patch saving."""
    view_type = save._AugmentedGraphView
    plain = view_type._breadth_first_traversal

    @wraps(plain)
    def traverse(view: Any) -> Any:
        found = plain(view)
        children = view._children_cache
        handles = _handles_in(children) if _CHILD not in children[view.root] else []
        if not handles:
            return found
        children[view.root][_CHILD] = _beginnings(handles)
        return plain(view)

    view_type._breadth_first_traversal = traverse
    _patch_save()


def _handles_in(children: Any) -> list[Any]:
    """The counters that functions were traced with, over all objects that are to be saved."""
    held = (child for of_one in children.values() for child in of_one.values())
    traced = (child for child in held if isinstance(child, concrete_function.ConcreteFunction))
    return list(
        {id(handle): handle for one in traced for handle in one.captured_inputs if counters.has(handle)}.values()
    )


def _beginnings(handles: list[Any]) -> Any:
    holder = autotrackable.AutoTrackable()
    for name, shape in (("of_counters", []), ("of_kernels", [2])):
        with ops.init_scope(), tf.device("/cpu:0"):
            one = _Beginning(tf.zeros(shape, tf.int64), trainable=False, name=name)
        one.stands_for = tuple(handle for handle in handles if counters.variable(handle).shape == shape)
        setattr(holder, name, one)
    return holder


def _patch_save() -> None:
    plain = save.save_and_return_nodes

    @wraps(plain)
    def save_and_return_nodes(*args: Any, **kwargs: Any) -> Any:
        functions.is_exporting = True
        try:
            return plain(*args, **kwargs)
        finally:
            functions.is_exporting = False

    save.save_and_return_nodes = save_and_return_nodes

"""A SavedModel of functions that draw at counters: the counters' variables go into it with the variables of the script.

TensorFlow traces for it what has not been traced yet as it needs it. Such a trace is not for the training, and begins at 0.
"""

from __future__ import annotations

from functools import wraps
from typing import Any

from tensorflow.python.eager.polymorphic_function import concrete_function
from tensorflow.python.saved_model import save
from tensorflow.python.trackable import autotrackable

from detrain.adapters.tensorflow.counters import counters
from detrain.adapters.tensorflow.functions import functions

#: Of the root of what is saved, beside the names that the script gives.
_CHILD = "detrain_counters"


def watch() -> None:
    """Let it be so from now on."""
    view_type = save._AugmentedGraphView
    plain = view_type._breadth_first_traversal

    @wraps(plain)
    def traverse(view: Any) -> Any:
        found = plain(view)
        children = view._children_cache
        captured = {
            id(handle): handle
            for of_one in list(children.values())
            for child in of_one.values()
            if isinstance(child, concrete_function.ConcreteFunction)
            for handle in child.captured_inputs
            if counters.has(handle)
        }
        if not captured or _CHILD in children[view.root]:
            return found
        holder = autotrackable.AutoTrackable()
        holder.variables = [counters.variable(handle) for handle in captured.values()]
        children[view.root][_CHILD] = holder
        return plain(view)

    view_type._breadth_first_traversal = traverse
    _tell_of_traces()


def _tell_of_traces() -> None:
    plain = save.save_and_return_nodes

    @wraps(plain)
    def save_and_return_nodes(*args: Any, **kwargs: Any) -> Any:
        functions.is_exporting = True
        try:
            return plain(*args, **kwargs)
        finally:
            functions.is_exporting = False

    save.save_and_return_nodes = save_and_return_nodes

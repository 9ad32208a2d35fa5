"""Initial values of variables that a `tf.function` makes, where they are drawn at a counter.

TensorFlow initialises such a variable before the function runs, by a copy of the operations that compute the value. It refuses to copy
operations that depend on an argument of the function, and a counter's variable is one; so the copy gets that variable as well.
"""

from __future__ import annotations

from collections import defaultdict
from functools import wraps
from typing import Any

from tensorflow.python.eager import lift_to_graph
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import op_selector
from tensorflow.python.util import object_identity

from detrain.adapters.tensorflow.counters import counters


def patch() -> None:
    """Patch the copying."""
    plain = lift_to_graph.lift_to_graph

    @wraps(plain)
    def lift(tensors: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        handles = _handles_below(tensors)
        if handles and not args and kwargs.keys() <= {"op_map"} and isinstance(graph, func_graph.FuncGraph):
            kwargs.update(sources=handles, handle_captures=True)
        return plain(tensors, graph, *args, **kwargs)

    lift_to_graph.lift_to_graph = lift


def _handles_below(tensors: Any) -> list[Any]:
    """Placeholders of the counters that tensors depend on; none if they also depend on another argument of the graph."""
    found = object_identity.ObjectIdentitySet()
    for one in tensors:
        if not isinstance(getattr(one, "graph", None), func_graph.FuncGraph):
            return []
        given = object_identity.ObjectIdentitySet()
        given.update(
            op_selector.map_subgraph(
                one, sources=object_identity.ObjectIdentitySet(), disallowed_placeholders=None, visited_ops=set(),
                op_outputs=defaultdict(set), add_sources=True,
            )
        )  # fmt: skip
        captured = {inside.ref(): outside for outside, inside in one.graph.captures}
        if not all(counters.has(captured.get(tensor.ref())) for tensor in given):
            return []
        found.update(given)
    return list(found)

"""Lookup tables that the script changes: their keys and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import lookup_ops

from detrain.state.registry import Handler
from detrain.state.restore import CannotBuild, Restore
from detrain.state.tree import Node
from detrain.state.walk import Walk

TABLES = (lookup_ops.MutableHashTable, lookup_ops.DenseHashTable)


class TableHandler(Handler):
    """A table that can be inserted into. In which order it gives its keys is TensorFlow's business: they are stored in their own."""

    kind = "tensorflow.table"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        keys, values = obj.export()
        rows = keys.numpy()
        order = np.lexsort(rows.T) if rows.ndim > 1 else np.argsort(rows, kind="stable")
        node["parts"] = [
            walk.child(tf.gather(part, order), f".<{name}>") for part, name in ((keys, "keys"), (values, "values"))
        ]

    def build(self, node: Node, restore: Restore) -> Any:
        raise CannotBuild("a table that TensorFlow holds")

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        keys, values = restore.values(node["parts"])
        obj.remove(obj.export()[0])
        obj.insert(keys, values)

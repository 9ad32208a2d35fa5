"""Lookup tables that the script changes: their keys and values."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
import tensorflow as tf
from tensorflow.python.ops import lookup_ops

from detrain.state.fields import Holds
from detrain.state.handler import CannotBuild, Capturing, Handler, Restoring
from detrain.state.tree import Node

TABLES = (lookup_ops.MutableHashTable, lookup_ops.DenseHashTable)


class TableHandler(Handler):
    """A table that can be inserted into. In which order it gives its keys is TensorFlow's business: they are stored in their own."""

    kind = "tensorflow.table"
    fields: ClassVar = {"parts": Holds.LIST}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        keys, values = _entries(obj)
        rows = keys.numpy()
        order = np.lexsort(rows.T) if rows.ndim > 1 else np.argsort(rows, kind="stable")
        node["parts"] = [
            walk.child(tf.gather(part, order), f".<{name}>") for part, name in ((keys, "keys"), (values, "values"))
        ]

    def build(self, node: Node, restore: Restoring) -> Any:
        raise CannotBuild("a table that TensorFlow holds")

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        keys, values = restore.values(node["parts"])
        obj.remove(_entries(obj)[0])
        obj.insert(keys, values)


def _entries(table: Any) -> tuple[Any, Any]:
    """Keys and values. Those that mark what is free or removed, which some tables hand out with the others, are none."""
    keys, values = table.export()
    marks = [mark for name in ("_empty_key", "_deleted_key") if (mark := getattr(table, name, None)) is not None]
    for mark in marks:
        differs = tf.reshape(keys != mark, [tf.shape(keys)[0], -1])
        is_one = tf.reduce_any(differs, axis=1)
        keys, values = tf.boolean_mask(keys, is_one), tf.boolean_mask(values, is_one)
    return keys, values

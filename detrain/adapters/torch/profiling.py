"""Spans that a script marks for the profiler. What the profiler itself has recorded is no state of the training."""

from __future__ import annotations

from typing import Any

import torch

from detrain.state.registry import Handler
from detrain.state.restore import Restore
from detrain.state.tree import Node
from detrain.state.walk import Walk


class SpanHandler(Handler):
    """`record_function`: its name, and whether it is going on. The handle that says so is C++'s, and made anew."""

    kind = "torch.profiler span"
    has_attributes = False

    def capture(self, obj: torch.autograd.profiler.record_function, node: Node, walk: Walk) -> None:
        node["name"], node["is_on"] = obj.name, obj.record is not None
        node["parts"] = [walk.child(obj.args, ".args")]

    def build(self, node: Node, restore: Restore) -> Any:
        return torch.autograd.profiler.record_function(node["name"])

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        obj.name, obj.args = node["name"], restore.value(node["parts"][0], obj.args)
        if node["is_on"] and obj.record is None:
            obj.__enter__()
        elif not node["is_on"]:
            obj.record = None

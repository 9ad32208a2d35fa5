"""CUDA streams and events that the loop has made, as `fully_shard` does in its first forward pass.

A checkpoint waits for every device, so nothing is left to do on a stream, and every event that was recorded has happened: new ones of the
same kind stand for them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from detrain.state.fields import plain_fields
from detrain.state.handler import CannotBuild, Capturing, Handler, Restoring, mark_not_saved
from detrain.state.tree import Node


class StreamHandler(Handler):
    """A stream: its device and priority, and whether it is the device's default one."""

    kind = "torch.cuda.Stream"
    is_dropped_silently = True
    fields: ClassVar = plain_fields("device", "priority", "is_default")
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if type(obj) is not torch.cuda.Stream:  # of another library
            mark_not_saved(node, "holds no state of the training", warns=False)
            return
        node["device"], node["priority"], node["is_default"] = str(obj.device), obj.priority, not obj.cuda_stream

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        if "device" not in node:
            return True
        found = str(live.device), live.priority, not live.cuda_stream
        return found == (node["device"], node["priority"], node["is_default"])

    def build(self, node: Node, restore: Restoring) -> Any:
        if not torch.cuda.is_available():
            raise CannotBuild("a stream of a CUDA device, of which there is none here")
        if node["is_default"]:
            return torch.cuda.default_stream(node["device"])
        return torch.cuda.Stream(device=node["device"], priority=node["priority"])

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        pass


class EventHandler(Handler):
    """An event: whether it was recorded. One that is made anew is recorded at once, and takes the time; which times, no bits depend on."""

    kind = "torch.cuda.Event"
    is_dropped_silently = True
    fields: ClassVar = plain_fields("is_recorded")
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["is_recorded"] = bool(obj.cuda_event)

    def build(self, node: Node, restore: Restoring) -> Any:
        if not torch.cuda.is_available():
            raise CannotBuild("an event of a CUDA device, of which there is none here")
        event = torch.cuda.Event(enable_timing=True)
        if node["is_recorded"]:
            event.record()
        return event

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        pass

"""Torch's profiler: the spans that a script marks, and whether it is recording. What it has recorded is no state of the training."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch.autograd import profiler

from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import MISSING, Capturing, Handler, Restoring
from detrain.state.tree import Node


class SpanHandler(Handler):
    """`record_function`: its name, and whether it is going on. The handle that says so is C++'s, and made anew."""

    kind = "torch.profiler span"
    fields: ClassVar = {**plain_fields("name", "is_on"), "parts": Holds.LIST}
    has_attributes = False

    def capture(self, obj: torch.autograd.profiler.record_function, node: Node, walk: Capturing) -> None:
        node["name"], node["is_on"] = obj.name, obj.record is not None
        node["parts"] = [walk.child(obj.args, ".args")]

    def build(self, node: Node, restore: Restoring) -> Any:
        return torch.autograd.profiler.record_function(node["name"])

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        obj.name, obj.args = node["name"], restore.value(node["parts"][0], obj.args)
        if node["is_on"] and obj.record is None:
            obj.__enter__()
        elif not node["is_on"]:
            obj.record = None


#: Attributes of a recording that hold what was recorded.
_RECORDED = frozenset({"kineto_results", "_function_events", "_old_function_events"})


class RecordingHandler(Handler):
    """One recording of the profiler, under `torch.profiler.profile` too: its settings, and how far it has come.

    The session itself is C++'s, one for the process, and takes each step for granted: started before it was prepared it ends the process.
    """

    kind = "torch.profiler recording"
    fields: ClassVar = {**plain_fields("is_on", "is_prepared"), "attrs": Holds.NAMED}
    has_attributes = False

    def capture(self, obj: profiler.profile, node: Node, walk: Capturing) -> None:
        node["is_on"], node["is_prepared"] = _is_on(obj), _is_prepared(obj)
        node["attrs"] = walk.attributes((name, value) for name, value in vars(obj).items() if name not in _RECORDED)

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        live = vars(obj)
        was_on, was_prepared = not is_new and _is_on(obj), not is_new and _is_prepared(obj)
        live.update({name: restore.value(ref, live.get(name, MISSING)) for name, ref in node["attrs"]})
        for name in _RECORDED:
            live.setdefault(name, None)

        def go_on() -> None:
            if was_on and node["is_on"]:
                return
            if was_on:
                profiler._disable_profiler()
                profiler._run_on_profiler_stop()
            if (node["is_on"] or node["is_prepared"]) and not was_prepared:
                _prepare(obj)
            if node["is_on"]:
                obj._start_trace()

        # With all its settings there: a set among them is filled afterwards as well.
        restore.afterwards(lambda: restore.afterwards(go_on))


def _is_on(recording: Any) -> bool:
    return bool(recording.entered) and recording.profiling_start_time_ns > recording.profiling_end_time_ns


def _is_prepared(recording: Any) -> bool:
    """True if the next thing to come is its start. One with `acc_events` may be; it can be prepared twice."""
    return (
        bool(recording.entered)
        and not _is_on(recording)
        and (recording.profiling_end_time_ns == 0 or recording.acc_events)
    )


def _prepare(recording: Any) -> None:
    """Under the name that it has: a new one would be drawn from the system's entropy, which is to be as at the checkpoint."""
    name, named_by = getattr(recording, "trace_id", None), getattr(recording, "custom_trace_id_callback", None)
    recording.custom_trace_id_callback = lambda: name
    try:
        recording._prepare_trace()
    finally:
        recording.custom_trace_id_callback = named_by

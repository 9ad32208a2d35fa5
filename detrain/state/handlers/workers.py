"""Handlers for pools of threads, their results, and the queues between threads."""

from __future__ import annotations

import _queue
import concurrent.futures
import time
from typing import Any, ClassVar

from detrain.errors import CaptureError
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import Capturing, Handler, Restoring, mark_not_saved
from detrain.state.registry import register
from detrain.state.tree import Node


class SimpleQueueHandler(Handler):
    """`queue.SimpleQueue`: its elements, taken out and put back."""

    kind = "simple queue"
    fields: ClassVar = {"seq": Holds.LIST}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["seq"] = walk.children(_elements(obj))

    def build(self, node: Node, restore: Restoring) -> Any:
        return _queue.SimpleQueue()

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        live = _elements(obj)
        while not obj.empty():
            obj.get_nowait()
        for element in restore.values(node["seq"], live):
            obj.put(element)


def _elements(queue: Any) -> list[Any]:
    """The elements of a queue. No other thread uses it meanwhile: one of the script's would be reported as running beside the loop."""
    elements = []
    try:
        for _ in range(queue.qsize()):
            elements.append(queue.get_nowait())
    except _queue.Empty:
        pass
    for element in elements:
        queue.put(element)
    return elements


class ExecutorHandler(Handler):
    """A pool of threads or processes. Threads that wait for work hold nothing; a pool that the loop has made is made anew."""

    kind = "executor"
    fields: ClassVar = plain_fields("workers")
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if getattr(obj, "_processes", None):
            mark_not_saved(node, "processes of its own run beside the loop", warns=True)
        elif isinstance(obj, concurrent.futures.ThreadPoolExecutor) and _is_busy(obj):
            mark_not_saved(node, "work is under way in it", warns=True)
            walk.wait_for(obj)
        else:
            node["workers"] = getattr(obj, "_max_workers", None)

    def build(self, node: Node, restore: Restoring) -> Any:
        return restore.find_type(node)(node["workers"])

    def wait(self, obj: Any, until_s: float) -> None:
        while _is_busy(obj) and time.monotonic() < until_s:
            time.sleep(_LOOK_S)


#: Between two looks at a pool.
_LOOK_S = 0.001


def _is_busy(pool: Any) -> bool:
    idle: int = pool._idle_semaphore._value
    return bool(pool._work_queue.qsize() or len(pool._threads) > idle)


class FutureHandler(Handler):
    """The result of work that is done; one that is not cannot be waited for by another process."""

    kind = "future"
    fields: ClassVar = {**plain_fields("cancelled"), "error": Holds.ONE, "result": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if not obj.done():
            walk.wait_for(obj)
            raise CaptureError("work that is not done yet")
        error = None if obj.cancelled() else obj.exception()
        node["cancelled"] = obj.cancelled()
        node["error"] = walk.child(error, ".exception()")
        node["result"] = walk.child(None if error is not None or obj.cancelled() else obj.result(), ".result()")

    def build(self, node: Node, restore: Restoring) -> Any:
        return concurrent.futures.Future()

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if obj.done():
            return
        error, result = restore.value(node["error"]), restore.value(node["result"])
        if node["cancelled"]:
            obj.cancel()
        elif error is not None:
            obj.set_exception(error)
        else:
            obj.set_result(result)

    def wait(self, obj: Any, until_s: float) -> None:
        concurrent.futures.wait([obj], max(until_s - time.monotonic(), 0))

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return False  # a live one has a result of its own, or none


register(SimpleQueueHandler(), _queue.SimpleQueue)
register(ExecutorHandler(), concurrent.futures.Executor)
register(FutureHandler(), concurrent.futures.Future)

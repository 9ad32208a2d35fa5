"""Handlers for other processes: what runs beside the loop, and what names a process by its number."""

from __future__ import annotations

import itertools
import multiprocessing.connection
import multiprocessing.process
import multiprocessing.synchronize
import os
import subprocess
from typing import Any, ClassVar

from detrain.errors import CaptureError, RestoreError
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import CannotBuild, Capturing, Handler, Restoring, mark_not_saved
from detrain.state.handlers.objects import KeptHandler, is_running
from detrain.state.registry import register, register_name
from detrain.state.tree import Node

_synchronize: Any = multiprocessing.synchronize
_SemLock = _synchronize._multiprocessing.SemLock
_numbers = itertools.count()


class ProcessHandler(Handler):
    """A process that the script has started. It goes on beside the loop, and nobody knows how far it is."""

    kind = "process"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if is_running(obj):
            mark_not_saved(node, "a process of the script runs beside the loop", warns=True)
        else:
            mark_not_saved(node, "belongs to the process that started it", warns=False)


class CommandHandler(Handler):
    """A program that the script has started; its pipes are files that cannot be brought back."""

    kind = "command"
    fields: ClassVar = {"attrs": Holds.NAMED}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["attrs"] = walk.attributes([(name, getattr(obj, name)) for name in ("stdin", "stdout", "stderr")])

    def build(self, node: Node, restore: Restoring) -> Any:
        raise CannotBuild("a program that was started in the loop")

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        for name, ref in node["attrs"]:
            restore.value(ref, getattr(obj, name))  # a pipe is named as not restored


class ProxyHandler(Handler):
    """What stands for an object of another process (`multiprocessing.Manager`)."""

    kind = "proxy of a process"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        mark_not_saved(node, "the object that it stands for lives in another process", warns=True)


register(ProcessHandler(), multiprocessing.process.BaseProcess)
register(CommandHandler(), subprocess.Popen)


class SemaphoreHandler(Handler):
    """A semaphore of the system's, in every lock, event and queue of `multiprocessing`: how often it is held here, and its value."""

    kind = "semaphore"
    fields: ClassVar = {**plain_fields("kind", "most", "held", "value"), "told": Holds.ONE}
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        held, value = obj._count(), obj._get_value()
        free = _free(obj.kind, held, value)
        if walk.has_changed(free):
            raise CaptureError("another process takes it and lets it go")
        node["told"] = walk.child(free, "")
        node["kind"], node["most"], node["held"], node["value"] = obj.kind, obj.maxvalue, held, value

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and (live.kind, live.maxvalue) == (node["kind"], node["most"])

    def build(self, node: Node, restore: Restoring) -> Any:
        free, name = _free(node["kind"], node["held"], node["value"]), f"/detrain-{os.getpid()}-{next(_numbers)}"
        return _SemLock(node["kind"], free, node["most"], name, True)  # nobody else needs its name

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        held, value = node["held"], node["value"]
        if _free(obj.kind, obj._count(), obj._get_value()) != _free(obj.kind, held, value):
            raise RestoreError(
                f"{restore.path_of(node)}: another process holds this semaphore, or did at the checkpoint"
            )
        for _ in range(obj._count(), held):
            obj.acquire(False)
        for _ in range(held, obj._count()):
            obj.release()


def _free(kind: int, held: int, value: int) -> int:
    """Its value if this process did not hold it."""
    return value + (held > 0 if kind == _synchronize.RECURSIVE_MUTEX else held)


register(SemaphoreHandler(), _SemLock)
register(KeptHandler(), multiprocessing.connection._ConnectionBase)
register_name(KeptHandler(), "psutil:Process")
register_name(ProxyHandler(), "multiprocessing.managers:BaseProxy", "multiprocessing.managers:BaseManager")

"""Handlers for other processes: what runs beside the loop, and what names a process by its number."""

from __future__ import annotations

import multiprocessing.connection
import multiprocessing.process
import subprocess
from typing import Any

from detrain.state.objects import KeptHandler, is_running
from detrain.state.registry import Handler, register, register_name
from detrain.state.restore import CannotBuild, Restore
from detrain.state.tree import Node
from detrain.state.walk import Walk, keep


class ProcessHandler(Handler):
    """A process that the script has started. It goes on beside the loop, and nobody knows how far it is."""

    kind = "process"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        if is_running(obj):
            keep(node, "a process of the script runs beside the loop", is_loud=True)
        else:
            keep(node, "belongs to the process that started it", is_loud=False)


class CommandHandler(Handler):
    """A program that the script has started; its pipes are files that cannot be brought back."""

    kind = "command"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        node["attrs"] = walk.attributes([(name, getattr(obj, name)) for name in ("stdin", "stdout", "stderr")])

    def build(self, node: Node, restore: Restore) -> Any:
        raise CannotBuild("a program that was started in the loop")

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        for name, ref in node["attrs"]:
            restore.value(ref, getattr(obj, name))  # a pipe is named as not restored


class ProxyHandler(Handler):
    """What stands for an object of another process (`multiprocessing.Manager`)."""

    kind = "proxy of a process"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        keep(node, "the object that it stands for lives in another process", is_loud=True)


register(ProcessHandler(), multiprocessing.process.BaseProcess)
register(CommandHandler(), subprocess.Popen)
register(KeptHandler(), multiprocessing.connection._ConnectionBase)
register_name(KeptHandler(), "psutil:Process")
register_name(ProxyHandler(), "multiprocessing.managers:BaseProxy", "multiprocessing.managers:BaseManager")

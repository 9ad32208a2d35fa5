"""Handlers for other processes: what runs beside the loop, and what names a process by its number."""

from __future__ import annotations

import multiprocessing.connection
import multiprocessing.process
import subprocess
from typing import Any

from detrain.state.known_source import is_user_module
from detrain.state.objects import KeptHandler
from detrain.state.registry import Handler, register, register_name
from detrain.state.restore import CannotBuild, Restore
from detrain.state.tree import Node
from detrain.state.walk import Walk, keep


class ProcessHandler(Handler):
    """A process that the script has started. It goes on beside the loop, and nobody knows how far it is."""

    kind = "process"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        is_own = isinstance(obj, multiprocessing.process.BaseProcess) and obj is not multiprocessing.current_process()
        if is_own and obj._popen is not None and obj._popen.poll() is None and _is_the_script_s(walk, node):
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


def _is_the_script_s(walk: Walk, node: Node) -> bool:
    """True if the object is held by the script's own variables and objects, not by a library's."""
    number = node["p"]
    while number is not None:
        holder = walk.tree.nodes[number]
        module = holder["t"].partition(":")[0]
        if module != "builtins" and not is_user_module(module):
            return False
        number = holder["p"]
    return True


register(ProcessHandler(), multiprocessing.process.BaseProcess)
register(CommandHandler(), subprocess.Popen)
register(KeptHandler(), multiprocessing.connection._ConnectionBase)
register_name(KeptHandler(), "psutil:Process")

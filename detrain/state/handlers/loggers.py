"""Handlers for loggers and for the handlers that they pass their records to.

The root logger is a root of every run's state, and its node lists the others. A logger at its defaults is the same as none:
`logging.getLogger` makes one for any name, also where a library is merely installed. A library configures its own loggers again when it
is imported; of these only the levels are captured, as a script may choose them.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, ClassVar

from detrain.state import patches
from detrain.state.attributes import instance_dict
from detrain.state.classes import type_name
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import MISSING, CannotBuild, Capturing, Restoring
from detrain.state.handlers.objects import OwnPartHandler
from detrain.state.registry import register
from detrain.state.tree import Node
from detrain.state.user_code import user_modules

_PLACE = frozenset({"parent", "manager", "root", "_cache", "name"})
OwnPartHandler.theirs |= {logging.Handler: frozenset({"lock", "_closed"}), logging.Logger: _PLACE}
#: Attributes of every logger; a script may add its own.
_OF_EVERY_LOGGER = _PLACE | vars(logging.Logger("new")).keys()


class LoggerHandler(OwnPartHandler):
    """A logger, which exists once for its name. The root logger's node also lists those that no variable names."""

    kind = "logger"
    fields: ClassVar = {
        **OwnPartHandler.fields,
        **plain_fields("levels", "libraries", "disable", "name"),
        "loggers": Holds.NAMED,
    }

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        super().capture(obj, node, walk)
        manager: Any = logging.root.manager
        if obj is logging.root:
            known = _known()
            node["levels"] = {name: logger.level for name, logger in known.items()}
            node["libraries"] = [name for name, logger in known.items() if logger.level and is_of_library(name)]
            node["loggers"] = [
                [name, walk.child(logger, f".<loggers>[{name!r}]")]
                for name, logger in known.items() if _is_configured(logger) and not is_of_library(name)
            ]  # fmt: skip
            node["disable"] = manager.disable
        elif manager.loggerDict.get(obj.name) is obj:
            node["name"] = obj.name

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and node.get("name", live.name) == live.name

    def build(self, node: Node, restore: Restoring) -> Any:
        if "name" not in node:
            raise CannotBuild("it is nobody's but the process's that made it")
        made = logging.getLogger(node["name"])
        if type_name(type(made)) != node["t"]:
            raise CannotBuild("loggers of this name are of another class now")
        return made

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if patches.are_used():
            return  # the other source logs what it wants, where it wants
        super().fill(obj, node, restore, is_new)
        manager: Any = logging.root.manager
        if "disable" in node:
            manager.disable = node["disable"]
            live = _known()
            for name, level in node["levels"].items():
                if level != (live[name].level if name in live else logging.NOTSET):
                    logging.getLogger(name).setLevel(level)
            self._fill_others(node, restore)
        manager._clear_cache()  # loggers cache which levels they are enabled for

    def _fill_others(self, node: Node, restore: Restoring) -> None:
        """Loggers that no variable names: those that the loop has configured, and those that it has put back to their defaults."""
        live = _known()
        saved = dict(node.get("loggers", ()))
        for name, ref in saved.items():
            restore.value(ref, live.get(name, MISSING))
        if "loggers" not in node:
            return  # a checkpoint of an earlier detrain, which did not list them
        for name in node["levels"].keys() & live.keys() - saved.keys():
            logger = live[name]
            if _is_configured(logger) and not is_of_library(name):
                logger.handlers[:] = [handler for handler in logger.handlers if _is_silent(handler)]
                logger.filters.clear()
                logger.propagate, logger.disabled = True, False


def _known() -> dict[str, logging.Logger]:
    """The loggers by name, without the placeholders for missing parents."""
    named = list(logging.root.manager.loggerDict.items())
    return {name: logger for name, logger in named if isinstance(logger, logging.Logger)}


def _is_configured(logger: logging.Logger) -> bool:
    """True if a record may be handled otherwise than by a new logger. Levels are captured apart."""
    is_otherwise = logger.disabled or not logger.propagate or bool(logger.filters)
    is_extended = bool((instance_dict(logger) or {}).keys() - _OF_EVERY_LOGGER)
    return is_otherwise or is_extended or not all(map(_is_silent, logger.handlers))


def _is_silent(handler: logging.Handler) -> bool:
    return type(handler) is logging.NullHandler


def is_of_library(name: str) -> bool:
    """True for a logger that has the name of a loaded module, or of one in it, that is not the user's own."""
    top = name.partition(".")[0]
    return top in sys.modules and not any(module.partition(".")[0] == top for module in user_modules)


class LogHandlerHandler(OwnPartHandler):
    """A handler of log records. The first message of a script that configures nothing makes one, wherever it is written."""

    kind = "log handler"

    def build(self, node: Node, restore: Restoring) -> Any:
        cls: Any = restore.find_type(node)
        made = cls.__new__(cls)
        logging.Handler.__init__(made)
        return made

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        super().fill(obj, node, restore, is_new)
        if is_new and obj.name:
            obj.set_name(obj.name)  # by which `logging` finds it


register(LogHandlerHandler(), logging.Handler)
register(LoggerHandler(), logging.Logger)

"""What belongs to the user: filled by the launcher as the script's modules are loaded, read by the walk."""

from __future__ import annotations

import os
import types
from typing import Any

#: Names of the modules whose source is the user's own: their globals, classes and functions may hold the run's state.
user_modules: set[str] = {"__main__"}

#: Their compiled code, by file name; searched when a function is built anew.
user_code: dict[str, types.CodeType] = {}


_OWN = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep


def without_own(function: Any) -> Any:
    """What the script had before detrain wrapped it."""
    while type(function) is types.FunctionType and function.__code__.co_filename.startswith(_OWN):
        function = getattr(function, "__wrapped__", None)
    return function


def is_user_module(name: str | None) -> bool:
    """True if the module's source is the user's own."""
    return name in user_modules

"""What belongs to the user: filled by the launcher as the script's modules are loaded, read by the walk."""

from __future__ import annotations

import types

#: Names of the modules whose source is the user's own: their globals, classes and functions may hold the run's state.
user_modules: set[str] = {"__main__"}

#: Their compiled code, by file name; searched when a function is built anew.
user_code: dict[str, types.CodeType] = {}


def is_user_module(name: str | None) -> bool:
    """True if the module's source is the user's own."""
    return name in user_modules

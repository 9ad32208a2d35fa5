"""Which modules and code are the user's own: filled by the launcher as the script's modules are loaded, read by the walk."""

from __future__ import annotations

import os
import types
from typing import Any

#: Names of the modules whose source is the user's own: their globals, classes and functions may hold the run's state.
user_modules: set[str] = {"__main__"}

#: Their compiled code, by file name; searched when a function is built anew.
user_code: dict[str, types.CodeType] = {}


#: Names that Python gives modules and classes; a script's own may have two underscores on each side as well.
PYTHONS_OWN = frozenset({
    "__abstractmethods__", "__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__", "__bases__", "__basicsize__",
    "__builtins__", "__cached__", "__class__", "__classcell__", "__dataclass_fields__", "__dataclass_params__", "__dict__", "__doc__",
    "__file__", "__firstlineno__", "__loader__", "__match_args__", "__module__", "__mro__", "__name__", "__orig_bases__", "__package__",
    "__parameters__", "__path__", "__qualname__", "__slots__", "__spec__", "__static_attributes__", "__type_params__", "__weakref__",
    "__weakrefoffset__", "__all__", "__conditional_annotations__", "__debug__", "__warningregistry__", "__version__",
})  # fmt: skip


_OWN = os.path.dirname(os.path.dirname(os.path.realpath(__file__))) + os.sep


def is_own(function: types.FunctionType) -> bool:
    """True for a function of detrain's, which stands in the place of a library's."""
    return function.__code__.co_filename.startswith(_OWN)


def without_own(function: Any) -> Any:
    """The script's function inside detrain's wrappers; `function` itself if there are none."""
    while type(function) is types.FunctionType and function.__code__.co_filename.startswith(_OWN):
        function = getattr(function, "__wrapped__", None)
    return function


def is_user_module(name: str | None) -> bool:
    """True if the module's source is the user's own."""
    return name in user_modules

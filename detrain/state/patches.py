"""Of a replay with another source than the run had: what of the source's places and names the run knew.

Filled before the script begins; empty in every other attempt. A checkpoint names functions by file and line, and variables by name. Where
lines were added, the same function begins on another line; and a variable that only the other source has is none of the run's state.
"""

from __future__ import annotations

import os
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Patch:
    """One source file that is another text now."""

    #: Line now, to the line of the same code in the run. Lines that were added are not there.
    lines: Mapping[int, int] = field(default_factory=dict)
    #: Names that are bound now and were not, by the qualified name of the function or class; those of the module under `<module>`.
    added: Mapping[str, frozenset[str]] = field(default_factory=dict)
    #: Attributes that the source sets now, of whatever objects, and did not name.
    attributes: frozenset[str] = frozenset()

    def encode(self) -> dict[str, Any]:
        """As JSON."""
        added = {name: sorted(names) for name, names in self.added.items()}
        return {"lines": list(self.lines.items()), "added": added, "attributes": sorted(self.attributes)}

    @classmethod
    def decode(cls, document: dict[str, Any]) -> Patch:
        """The inverse of `encode`."""
        added = {name: frozenset(names) for name, names in document["added"].items()}
        return cls(dict(document["lines"]), added, frozenset(document["attributes"]))


#: By file name, normalised.
_patches: dict[str, Patch] = {}
#: Attributes that objects of the run did not have.
added_attributes: set[str] = set()
_NONE: frozenset[str] = frozenset()
_MODULE = "<module>"


def use(patches: Mapping[str, Patch]) -> None:
    """From now on, these source files are other ones than the run's."""
    _patches.clear()
    _patches.update({os.path.normpath(name): patch for name, patch in patches.items()})
    added_attributes.clear()
    added_attributes.update(*(patch.attributes for patch in patches.values()))


def are_used() -> bool:
    """True if any source file is another text than in the run."""
    return bool(_patches)


def is_patched(filename: str) -> bool:
    """True if the file is another text than in the run."""
    return bool(_patches) and os.path.normpath(filename) in _patches


def line_now(filename: str, line: int) -> int:
    """Where the code stands that stood on a line of the run's source; 0 if it is gone."""
    patch = _patches.get(os.path.normpath(filename)) if _patches else None
    if patch is None:
        return line
    return next((now for now, then in patch.lines.items() if then == line), 0)


def first_line(code: types.CodeType) -> int:
    """The first line that a function had in the run; negative for one that was not there."""
    patch = _patches.get(os.path.normpath(code.co_filename)) if _patches else None
    return code.co_firstlineno if patch is None else patch.lines.get(code.co_firstlineno, -code.co_firstlineno)


def added_in(code: types.CodeType) -> frozenset[str]:
    """Variables of a function that the run did not have."""
    return _added(code.co_filename, code.co_qualname) if _patches else _NONE


def added_to_module(module: types.ModuleType) -> frozenset[str]:
    """Globals of a module that the run did not have."""
    return _added(getattr(module, "__file__", None) or "", _MODULE) if _patches else _NONE


def added_to_class(cls: type) -> frozenset[str]:
    """Methods and attributes that the statement of a class did not have in the run."""
    if not _patches:
        return _NONE
    import sys

    return _added(getattr(sys.modules.get(cls.__module__), "__file__", None) or "", cls.__qualname__)


def left_alone(live: Mapping[str, Any], saved: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> set[str]:
    """Of an object's attributes those that a restore leaves as they are: what the other source has attached.

    `live` and `saved`: attributes, and what the tree says of them; `nodes`: of the tree. A library's table of hooks that was empty in the
    run (`_forward_hooks` of a module) keeps those that the other source's set-up code has registered.
    """
    return {
        name
        for name in live
        if (name in added_attributes and name not in saved) or _has_new_hooks(name, live[name], saved.get(name), nodes)
    }


def _has_new_hooks(name: str, live: Any, saved: Any, nodes: Sequence[Mapping[str, Any]]) -> bool:
    if not (name.endswith("_hooks") and isinstance(live, dict) and live):
        return False
    return type(saved) is list and len(saved) == 2 and saved[0] == "@" and not nodes[saved[1]].get("items")


def _added(filename: str, qualname: str) -> frozenset[str]:
    patch = _patches.get(os.path.normpath(filename))
    return patch.added.get(qualname, _NONE) if patch is not None else _NONE

"""A handler for objects that cannot be set, but tell whether they have changed: so it is known whether a resume is exact."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, ClassVar

from detrain.errors import CaptureError, RestoreError
from detrain.state.registry import Handler, register_name, type_name
from detrain.state.restore import CannotBuild, Restore
from detrain.state.tree import Node
from detrain.state.walk import Walk


class TelltaleHandler(Handler):
    """Compared, not set: the live object must tell what the saved one told."""

    kind = "telltale"
    has_attributes = False
    tells: ClassVar[dict[str, Callable[[Any], tuple[Any, ...]]]] = {}  # by the type's name

    def capture(self, obj: Any, node: Node, walk: Walk) -> None:
        told = self._told(obj)
        if not walk.is_as_first_told(told):
            raise CaptureError("the loop has changed it, and it cannot be set")
        node["told"] = walk.child(told, "")

    def build(self, node: Node, restore: Restore) -> Any:
        raise CannotBuild("it can only be compared")

    def fill(self, obj: Any, node: Node, restore: Restore, is_new: bool) -> None:
        told, saved = self._told(obj), restore.value(node["told"])
        if told != saved:
            raise RestoreError(
                f"{restore.path_of(node)} ({node['t']}) cannot be set: it was {saved} at the checkpoint and is {told} now"
            )

    def _told(self, obj: Any) -> tuple[Any, ...]:
        names = map(type_name, type(obj).__mro__)
        return next(self.tells[name] for name in names if name in self.tells)(obj)


_telltale = TelltaleHandler()


def _register(name: str, told: Callable[[Any], tuple[Any, ...]]) -> None:
    """Compare objects of a type, given as `module:qualname`, by what `told` says of them: atoms."""
    _telltale.tells[name] = told
    register_name(_telltale, name)


for _made in {type(hashlib.new(name)) for name in ("md5", "sha256")} | {hashlib.blake2b, hashlib.blake2s}:
    _register(type_name(_made), lambda v: (v.name, v.digest() if v.digest_size else b""))
_register("sqlite3:Connection", lambda v: (v.total_changes, v.in_transaction))

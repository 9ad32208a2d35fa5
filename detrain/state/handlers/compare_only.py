"""A handler for objects that cannot be set, but whose state can be compared: so it is known whether a resume is exact."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any, ClassVar

from detrain.errors import CaptureError, RestoreError
from detrain.state.classes import type_name
from detrain.state.fields import Holds
from detrain.state.handler import CannotBuild, Capturing, Handler, Restoring
from detrain.state.registry import register_name
from detrain.state.tree import Node


class CompareOnlyHandler(Handler):
    """Compared, not set: the live object must have the fingerprint of the saved one."""

    kind = "telltale"
    fields: ClassVar = {"told": Holds.ONE}
    has_attributes = False
    #: By a type's name: the fingerprint of an object, a tuple of atoms.
    fingerprints: ClassVar[dict[str, Callable[[Any], tuple[Any, ...]]]] = {}

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        fingerprint = self._fingerprint(obj)
        if walk.has_changed(fingerprint):
            raise CaptureError("the loop has changed it, and it cannot be set")
        node["told"] = walk.child(fingerprint, "")

    def build(self, node: Node, restore: Restoring) -> Any:
        raise CannotBuild("it can only be compared")

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        live, saved = self._fingerprint(obj), restore.value(node["told"])
        if live != saved:
            raise RestoreError(
                f"{restore.path_of(node)} ({node['t']}) cannot be set: it was {saved} at the checkpoint and is {live} now"
            )

    def _fingerprint(self, obj: Any) -> tuple[Any, ...]:
        names = map(type_name, type(obj).__mro__)
        return next(self.fingerprints[name] for name in names if name in self.fingerprints)(obj)


_compare_only = CompareOnlyHandler()


def _register(name: str, fingerprint: Callable[[Any], tuple[Any, ...]]) -> None:
    """Compare objects of a type, given as `module:qualname`, by `fingerprint` of them, a tuple of atoms."""
    _compare_only.fingerprints[name] = fingerprint
    register_name(_compare_only, name)


for _hash in {type(hashlib.new(name)) for name in ("md5", "sha256")} | {hashlib.blake2b, hashlib.blake2s}:
    _register(type_name(_hash), lambda v: (v.name, v.digest() if v.digest_size else b""))


def _of_database(connection: Any) -> tuple[Any, ...]:
    """Rows that were changed, and how often tables were made or dropped."""
    import sqlite3

    cursor = sqlite3.Connection.cursor(connection)
    cursor.row_factory = None  # the script's own is not to be called
    (version,) = cursor.execute("PRAGMA schema_version").fetchone()
    cursor.close()
    return connection.total_changes, connection.in_transaction, version


_register("sqlite3:Connection", _of_database)

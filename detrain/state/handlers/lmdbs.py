"""Handlers for what a script reads from LMDB: environments (data bases) that are open for reading, and transactions."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from detrain.errors import CaptureError, RestoreError
from detrain.state.fields import plain_fields
from detrain.state.handler import CannotBuild, Capturing, Handler, Restoring
from detrain.state.registry import register_name
from detrain.state.tree import Node

#: What `lmdb.open` is given and `Environment.flags` tells; it has no say in what is read.
_FLAGS = ("subdir", "readonly", "lock", "readahead", "meminit")


class LMDBHandler(Handler):
    """An environment. What is in the data base is not the run's."""

    kind = "lmdb"
    fields: ClassVar = plain_fields("closed", "place")
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        _check_type(obj, "Environment")
        place = _place_of(obj)
        if place is None:
            node["closed"] = True
            return
        if not obj.flags()["readonly"]:
            raise CaptureError("an LMDB environment that is open for writing cannot be cut back to what it was")
        node["place"] = place

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        return "closed" in node or (_place_of(live) == node["place"] and live.flags()["readonly"])

    def build(self, node: Node, restore: Restoring) -> Any:
        lmdb = sys.modules["lmdb"]
        if "closed" in node:
            raise CannotBuild("an LMDB environment that has been closed")
        name, flags, map_bytes = node["place"]
        try:
            return lmdb.open(name, map_size=map_bytes, **dict(zip(_FLAGS, flags, strict=True)))
        except lmdb.Error as error:
            raise RestoreError(f"{restore.path_of(node)}: {name} cannot be opened: {error}") from None

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "closed" in node:
            obj.close()


class TransactionHandler(Handler):
    """A transaction that is over: behind `with environment.begin() as transaction` it has still a name."""

    kind = "lmdb transaction"
    fields: ClassVar = plain_fields()
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        _check_type(obj, "Transaction")
        if not _is_over(obj):
            raise CaptureError(
                "an LMDB transaction that is under way, which tells nobody what it sees; begin one for each look"
            )

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and _is_over(live)

    def build(self, node: Node, restore: Restoring) -> Any:
        raise CannotBuild("an LMDB transaction that is over cannot be made")


def _check_type(obj: Any, name: str) -> None:
    """A type of LMDB's says only that it is written in C; one of another library may have the same name."""
    lmdb = sys.modules.get("lmdb")
    if lmdb is None or not isinstance(obj, getattr(lmdb, name)):
        raise CaptureError("its type is written in C and says nothing of its state")


def _is_over(transaction: Any) -> bool:
    try:
        transaction.id()
    except sys.modules["lmdb"].Error:
        return True
    return False


def _place_of(environment: Any) -> list[Any] | None:
    """Path, flags and size of the map in bytes; None of an environment that has been closed."""
    try:
        flags = environment.flags()
        map_bytes: int = environment.info()["map_size"]
        return [os.path.abspath(environment.path()), [flags[name] for name in _FLAGS], map_bytes]
    except sys.modules["lmdb"].Error:
        return None


register_name(LMDBHandler(), "builtins:Environment", "lmdb.cffi:Environment")
register_name(TransactionHandler(), "builtins:Transaction", "lmdb.cffi:Transaction")

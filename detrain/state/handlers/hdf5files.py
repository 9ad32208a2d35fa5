"""Handler for what a script reads from HDF5 files by h5py: files, groups and data sets by their names."""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

from detrain.errors import CaptureError, RestoreError
from detrain.state.fields import plain_fields
from detrain.state.handler import Capturing, Handler, Restoring
from detrain.state.registry import register_name
from detrain.state.tree import Node


class HDF5Handler(Handler):
    """A file that is open for reading, or something in it. What is in the file is not the run's."""

    kind = "hdf5"
    fields: ClassVar = plain_fields("closed", "file", "name")
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if not obj:
            node["closed"] = True
            return
        file = obj.file
        if file.mode != "r":
            raise CaptureError("an HDF5 file that is open for writing cannot be cut back to what it was")
        if obj.name is None:
            raise CaptureError("an object without a name in its file")
        node["file"], node["name"] = os.path.abspath(os.fsdecode(file.filename)), obj.name

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore) or bool(live) == node.get("closed", False):
            return False
        return "closed" in node or (os.path.abspath(os.fsdecode(live.file.filename)), live.name) == (
            node["file"],
            node["name"],
        )

    def build(self, node: Node, restore: Restoring) -> Any:
        if "closed" in node:
            made = object.__new__(restore.find_type(node))
            made._id = _NoObject()
            return made
        try:
            file = sys.modules["h5py"].File(node["file"], "r")
            return file if node["t"].endswith(":File") else file[node["name"]]
        except (OSError, KeyError) as error:
            raise RestoreError(
                f"{restore.path_of(node)}: {node['file']}{node['name']} cannot be opened: {error}"
            ) from None

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "closed" in node and obj:
            obj.close()


class _NoObject:
    """The identifier of a file that has been closed."""

    valid = 0

    def __bool__(self) -> bool:
        return False


register_name(HDF5Handler(), "h5py._hl.base:HLObject")

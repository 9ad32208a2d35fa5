"""Where each object stood when the loops were entered, so that one that the loop has moved is recognised later."""

from __future__ import annotations

from typing import Any

from detrain.state.captured import Captured
from detrain.state.tree import Node, decode_value


class Census:
    """The paths of the objects of one walk.

    Objects are remembered by address without being held alive. If an address is used again by an object of the same type, the
    old object was unreachable, so nothing that is restored can tell the two apart.
    """

    def __init__(self, captured: Captured) -> None:
        self._numbers = captured.numbers
        self._types = [node["t"] for node in captured.tree.nodes]
        self._paths = [path.removeprefix(".") for path in captured.paths]
        #: By path: of objects that can only be compared, or only as long as nobody else changes them.
        self._fingerprints = {
            self._paths[number]: decode_value(node["told"])
            for number, node in enumerate(captured.tree.nodes) if "told" in node
        }  # fmt: skip
        self._by_path: dict[str, int] = {}
        for number, path in enumerate(self._paths):
            if not path.startswith("loops["):
                self._by_path.setdefault(path, number)

    def has_changed(self, path: str, fingerprint: Any) -> bool:
        """True if the object at `path` had another fingerprint; False if there was none."""
        return bool(self._fingerprints.get(path, fingerprint) != fingerprint)

    def mark(self, obj: object, node: Node, path: str) -> None:
        """Write into `node`, in `from`, where its object comes from if that is not `path`, where it stands now.

        "" says that another object stood there and was replaced: restoring must build a new one.
        """
        number = self._numbers.get(id(obj))
        if number is not None and self._types[number] == node["t"]:
            origin = self._paths[number]
            if origin != path:
                node["from"] = origin
        elif path in self._by_path:
            node["from"] = ""

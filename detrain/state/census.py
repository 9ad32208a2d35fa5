"""Where each object stood when the loops were entered, so that one that the loop has moved is recognised later."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from typing import Any

from detrain.state.captured import Captured
from detrain.state.registry import handlers_with_memory
from detrain.state.tree import Node, decode_value


class Census:
    """The paths of the objects of one walk.

    Objects are remembered by address without being held alive. An address that is used again by an object of the same type is told by
    a weak reference. Lists, numbers and the like have none: what is restored of them is all that there is, so the two are the same. The
    same holds of what owns memory, to which there must be none: numpy and torch refuse to resize or to swap it then.
    """

    def __init__(self, captured: Captured) -> None:
        self._numbers = captured.numbers
        plain = handlers_with_memory()
        self._references = {
            number: weakref.ref(obj)
            for number, obj in enumerate(captured.objects)
            if type(obj).__weakrefoffset__ and captured.tree.nodes[number]["k"] not in plain
        }
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

    def numbers_at(self, addresses: Iterable[int]) -> list[int | None]:
        """What was known under the `id` of each object: the number of a node, or nothing."""
        return list(map(self._numbers.get, addresses))

    def references_at(self, numbers: Sequence[int | None]) -> dict[int, weakref.ref[Any]]:
        """By position among these numbers: what tells whether the object there is the one that is known, where something does."""
        known = self._references
        return {at: known[number] for at, number in enumerate(numbers) if number is not None and number in known}

    def has_changed(self, path: str, fingerprint: Any) -> bool:
        """True if the object at `path` had another fingerprint; False if there was none."""
        return bool(self._fingerprints.get(path, fingerprint) != fingerprint)

    def mark(self, obj: object, node: Node, path: str) -> None:
        """Write into `node`, in `from`, where its object comes from if that is not `path`, where it stands now.

        "" says that another object stood there and was replaced: restoring must build a new one.
        """
        number = self._numbers.get(id(obj))
        if number is not None and self._types[number] == node["t"] and self._is_same(number, obj):
            origin = self._paths[number]
            if origin != path:
                node["from"] = origin
        elif path in self._by_path:
            node["from"] = ""

    def _is_same(self, number: int, obj: object) -> bool:
        reference = self._references.get(number)
        return reference is None or reference() is obj

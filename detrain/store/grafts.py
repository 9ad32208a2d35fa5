"""Taking pieces of one state tree over into another, as a merge does (`detrain.store.merge`)."""

from __future__ import annotations

from typing import Any

from detrain.state.fields import map_refs
from detrain.state.tree import Array, Ref, Tree, is_node
from detrain.store.sides import MISSING


class Made:
    """A field's value, in place of a ref."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Grafts:
    """From `source` to `target`. `known`: nodes of the one that stand for nodes of the other, by number."""

    def __init__(self, source: Tree, target: Tree, known: dict[int, int]) -> None:
        self._source, self._target, self._known = source, target, known
        self._added: dict[int, int] = {}

    def graft(self, ref: Ref) -> Ref:
        """A ref of the source in the target; nodes that are not known are added, with all that they lead to."""
        if isinstance(ref, Made):
            return ref.value
        if ref is MISSING or not is_node(ref):
            return ref
        pending: list[int] = []
        found = ["@", self._number(ref[1], pending)]
        while pending:
            number = pending.pop()
            node = self._target.nodes[self._added[number]]
            for name, value in self._source.nodes[number].items():
                node[name] = self._mapped(name, value, pending)
        return found

    def add_array(self, number: int) -> int:
        """Take bulk data over; the number that it has in the target."""
        array = self._source.arrays[number]
        # A copy: it may be a view of live memory, which restoring writes to.
        self._target.arrays.append(Array(array.path, array.data.copy(), array.label, array.digest, is_copy=True))
        return len(self._target.arrays) - 1

    def _number(self, number: int, pending: list[int]) -> int:
        if number in self._known:
            return self._known[number]
        if number not in self._added:
            self._added[number] = len(self._target.nodes)
            self._target.nodes.append({})
            pending.append(number)
        return self._added[number]

    def _mapped(self, name: str, value: Any, pending: list[int]) -> Any:
        if name == "array":
            return self.add_array(value)
        if name == "p":
            return None if value is None else self._number(value, pending)
        return map_refs(name, value, lambda ref: ["@", self._number(ref[1], pending)] if is_node(ref) else ref)

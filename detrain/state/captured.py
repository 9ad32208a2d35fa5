"""What a walk has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detrain.state.tree import Place, Tree


@dataclass(frozen=True, slots=True)
class Captured:
    """The result of one walk: the state tree, and the live objects that its nodes stand for.

    It holds the objects alive, and the arrays of its tree may be views of their memory: whoever keeps it longer than the script stands
    still copies these first. Nothing is added to it; only the session marks single nodes of the tree, as *replayed* for instance.
    """

    tree: Tree
    #: By node number.
    objects: Sequence[Any]
    #: By node number: where the object stands, by the shortest way from a root; a root's name comes first (`.` may begin it).
    paths: Sequence[str]
    #: `id(obj)` to node number, of every object that was met.
    numbers: Mapping[int, int]
    #: Objects in which work is under way.
    unfinished: Sequence[Any] = ()
    #: By node number: memory that is not copied yet.
    places: Mapping[int, Place] = field(default_factory=dict)

    def path(self, number: int) -> str:
        """Path of a node, as messages and files have it."""
        return self.paths[number].removeprefix(".")

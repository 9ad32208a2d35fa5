"""Replicas: tensors that several ranks have, and that are the same on all of them as long as nothing has gone wrong.

With each part of a cut a rank sends one digest over its replicas. Where two differ, rank 0 asks for those of the single tensors, once in
an attempt, and names the first that has parted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import xxhash

from detrain.job.messages import Explain, Explained, Part


@dataclass(frozen=True)
class Replica:
    """One tensor of one rank."""

    path: str
    #: The ranks that have it as well, as text.
    group: str
    digest: str


def combined(replicas: Iterable[Replica]) -> tuple[tuple[str, str], ...]:
    """By group, one digest over all."""
    states: dict[str, xxhash.xxh3_128] = {}
    for one in replicas:
        states.setdefault(one.group, xxhash.xxh3_128()).update(f"{one.path} {one.digest} ".encode())
    return tuple((group, state.hexdigest()) for group, state in states.items())


def explained(name: str, replicas: Sequence[Replica]) -> Explained:
    """The message that says what the replicas in a cut were."""
    return Explained(name, tuple((one.path, one.group, one.digest) for one in replicas))


class Replicas:
    """Rank 0 compares."""

    def __init__(self, size: int, ask_all: Callable[[Explain], None], on_parted: Callable[[str], None]) -> None:
        """`on_parted` is told, once, which tensor has parted and where."""
        self._size, self._ask_all, self._on_parted = size, ask_all, on_parted
        self._parts: dict[tuple[str, int], dict[int, Part]] = {}
        self._asked = ""
        self._answers: dict[int, Explained] = {}

    def add(self, rank: int, part: Part) -> None:
        """A rank has written its part of a cut."""
        key = part.name, part.sequence
        parts = self._parts.setdefault(key, {})
        parts[rank] = part
        if len(parts) < self._size:
            return
        for one in list(self._parts)[: list(self._parts).index(key) + 1]:
            del self._parts[one]
        if not self._asked and self._differ(parts):
            self._asked = part.name
            self._ask_all(Explain(part.name))

    @staticmethod
    def _differ(parts: dict[int, Part]) -> bool:
        digests: dict[str, set[str]] = {}
        for part in parts.values():
            for group, digest in part.replicas:
                digests.setdefault(group, set()).add(digest)
        return any(len(found) > 1 for found in digests.values())

    def on_explained(self, rank: int, message: Explained) -> None:
        """A rank's answer."""
        if message.name != self._asked:
            return
        self._answers[rank] = message
        if len(self._answers) == self._size:
            self._on_parted(self._first_difference())

    def _first_difference(self) -> str:
        by_rank = {
            rank: {(path, group): digest for path, group, digest in answer.replicas}
            for rank, answer in sorted(self._answers.items())
        }
        for rank, replicas in by_rank.items():
            for key, digest in replicas.items():
                for other in range(rank + 1, self._size):
                    theirs = by_rank[other].get(key)
                    if theirs is not None and theirs != digest:
                        return f"{key[0]} is not the same on ranks {rank} and {other} in {self._asked}"
        return f"the ranks' replicas do not have the same names in {self._asked}"

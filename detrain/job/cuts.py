"""Cuts: checkpoints of all ranks at one header. A cut exists from the moment that its manifest does, on rank 0's disk.

Each rank writes its own file as it would alone. When all have said so, and that they stood at the same place, rank 0 writes the manifest
under a temporary name and renames it. What a killed job has left without a manifest is not resumed from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from detrain.job.messages import Part
from detrain.store.job import Held, Manifest, Manifests

#: What must be the same in all parts of a cut.
_COMMON = ("sequence", "epoch", "batch", "batches", "chain", "position")


@dataclass(frozen=True)
class Kept:
    """Which parts of cuts are needed."""

    #: Names of those that may be resumed from.
    names: frozenset[str]
    #: Up to which number it is known which are whole.
    sequence: int
    #: Names of those that have failed on some rank.
    dropped: frozenset[str] = frozenset()

    def needs(self, name: str, sequence: int) -> bool:
        """True for the part of a cut that is whole and kept, or that may still become whole."""
        return name in self.names or (sequence > self.sequence and name not in self.dropped)


@dataclass(frozen=True)
class Verdict:
    """All ranks have said how their parts of a cut stand.

    `manifest` is None if the cut does not exist; `trouble` then says why, and is "" if some rank has another part of the same name already,
    or all ranks have a cut of the same place.
    """

    manifest: Manifest | None
    trouble: str = ""


class Cuts:
    """Collects the parts of the cuts that the ranks are writing. Used under one lock."""

    def __init__(
        self, manifests: Manifests, places: list[tuple[str, str]], keep: int, there: Iterable[Manifest]
    ) -> None:
        """`places`: host and directory of each rank. `keep`: cuts to keep. `there`: those that the job goes on from."""
        self._manifests, self._places, self._keep = manifests, places, keep
        self._whole = {one.name: one for one in there}
        #: By name and rank, in the order in which they were written. Where a loop begins an iteration that turns out to be none, what is
        #: behind the loop has the same name, and a rank may be that far when another has said nothing of the first yet.
        self._parts: dict[str, dict[int, deque[Part]]] = {}

    def add(self, rank: int, part: Part) -> Verdict | None:
        """A rank has written its part, or failed; None unless it was the last. Raises OSError if the manifest cannot be written."""
        queues = self._parts.setdefault(part.name, {number: deque() for number in range(len(self._places))})
        queues[rank].append(part)
        if not all(queues.values()):
            return None
        parts = {number: queue.popleft() for number, queue in queues.items()}
        is_overwritten = any(queues.values())
        # A rank writes one after the other, so what all have said nothing of by now some have passed over.
        names = list(self._parts)
        for name in names[: names.index(part.name) + (not is_overwritten)]:
            del self._parts[name]
        trouble = "" if is_overwritten else self._trouble(parts)
        if trouble or is_overwritten or any(part.is_there for part in parts.values()):
            return Verdict(None, trouble)
        manifest = Manifest(
            part.name, part.sequence, part.epoch, part.batch, part.batches, part.chain,
            tuple(Held(number, *self._places[number], parts[number].digest) for number in sorted(parts)),
        )  # fmt: skip
        self._manifests.write(manifest)
        self._whole[manifest.name] = manifest
        return Verdict(manifest)

    def kept(self) -> tuple[str, ...]:
        """Names of the cuts that may be resumed from."""
        return tuple(self._whole)

    def _trouble(self, parts: dict[int, Part]) -> str:
        if all(part.is_there for part in parts.values()):
            return ""
        for rank, part in sorted(parts.items()):
            if part.trouble:
                return f"rank {rank}: {part.trouble}"
        first = parts[0]
        for rank, part in sorted(parts.items()):
            for name in _COMMON:
                mine, theirs = getattr(first, name), getattr(part, name)
                if mine != theirs:
                    return f"the ranks were not at the same place: {name} is {theirs} on rank {rank}, {mine} on rank 0"
        lacking = [name for name in first.chain if name not in self._whole]
        if lacking:
            return f"a resume would pass through {lacking[0]}, which is not whole"
        return ""

    def set_future_aside(self, sequence: int) -> None:
        """What lies behind the cut of this number is of a future that the job does not come from. Raises OSError."""
        self._manifests.set_aside(sequence)

    def retain(self) -> None:
        """Remove the manifests of cuts that are needed no more. Raises OSError."""
        newest = sorted(self._whole.values(), key=lambda one: one.sequence, reverse=True)
        wanted = {name for one in newest[: self._keep] for name in (one.name, *one.chain)}
        # First the manifest, then the parts: a cut that exists is whole.
        self._manifests.remove(one.name for one in newest if one.name not in wanted)
        self._whole = {name: one for name, one in self._whole.items() if name in wanted}

"""Cuts: checkpoints of all ranks at one header. A cut exists from the moment that its manifest does, on rank 0's disk.

Each rank writes its own file as it would alone. When all have said so, and that they stood at the same place, rank 0 writes the manifest
under a temporary name and renames it. What a killed job has left without a manifest is not resumed from.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from detrain.errors import CheckpointError
from detrain.job.messages import Part
from detrain.store.directory import sync_folder, write_atomically

#: Folder of the manifests, in the job's directory on rank 0's host.
FOLDER = "cuts"
_FORMAT = 1
#: What must be the same in all parts of a cut.
_COMMON = ("sequence", "epoch", "batch", "batches", "chain", "position")


@dataclass(frozen=True)
class Held:
    """Where a rank's part of a cut is."""

    rank: int
    host: str
    directory: str
    digest: str


@dataclass(frozen=True)
class Manifest:
    """A cut that is whole."""

    name: str
    sequence: int
    epoch: int
    batch: int
    batches: int
    #: Names of the cuts that a resume passes through, in order.
    chain: tuple[str, ...]
    parts: tuple[Held, ...] = field(default=())

    @property
    def size(self) -> int:
        """Number of ranks."""
        return len(self.parts)

    def dumps(self) -> str:
        """The text of its file."""
        return json.dumps({"format": _FORMAT, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def loads(cls, text: str) -> Manifest:
        """The inverse of `dumps`. Raises `ValueError`."""
        document: dict[str, Any] = json.loads(text)
        try:
            if document.pop("format") != _FORMAT:
                raise ValueError("it is of another format")
            parts = tuple(Held(**part) for part in document.pop("parts"))
            return cls(**{**document, "chain": tuple(document["chain"]), "parts": parts})
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"it is no manifest: {error!r}") from None


class Manifests:
    """The manifests on rank 0's disk."""

    def __init__(self, job: Path) -> None:
        """`job`: the job's directory."""
        self.path = job / FOLDER

    def read(self) -> list[Manifest]:
        """All, the newest first. Raises `CheckpointError` for one that cannot be read."""
        found = []
        for path in self.path.glob("*.json") if self.path.is_dir() else ():
            try:
                found.append(Manifest.loads(path.read_text(encoding="utf-8")))
            except ValueError as error:
                raise CheckpointError(f"the manifest {path} cannot be used: {error}") from None
        return sorted(found, key=lambda one: one.sequence, reverse=True)

    def write(self, manifest: Manifest) -> None:
        """Make the cut exist. Raises OSError."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / f"{manifest.name}.json", manifest.dumps())
        sync_folder(self.path)

    def remove(self, names: Iterable[str]) -> None:
        """Cuts that are not resumed from any more; their parts may be deleted then. Raises OSError."""
        for name in names:
            (self.path / f"{name}.json").unlink(missing_ok=True)
        sync_folder(self.path)


class Cuts:
    """Collects the parts of the cuts that the ranks are writing. Used under one lock."""

    def __init__(
        self, manifests: Manifests, places: list[tuple[str, str]], keep: int, there: Iterable[Manifest]
    ) -> None:
        """`places`: host and directory of each rank. `keep`: cuts to keep. `there`: those that the job goes on from."""
        self._manifests, self._places, self._keep = manifests, places, keep
        self._whole = {one.name: one for one in there}
        self._parts: dict[str, dict[int, Part]] = {}

    @property
    def num_open(self) -> int:
        """Cuts of which some ranks have said what others have not."""
        return len(self._parts)

    def add(self, rank: int, part: Part) -> tuple[Manifest | None, str]:
        """A rank has written its part, or failed.

        Returns the manifest once the cut is whole, and why it will not be, if so; both at the last part. Raises OSError.
        """
        parts = self._parts.setdefault(part.name, {})
        parts[rank] = part
        if len(parts) < len(self._places):
            return None, ""
        # A rank writes one after the other, so what all have said nothing of by now some have passed over.
        names = list(self._parts)
        for name in names[: names.index(part.name) + 1]:
            del self._parts[name]
        trouble = self._trouble(parts)
        if trouble:
            return None, trouble
        manifest = Manifest(
            part.name, part.sequence, part.epoch, part.batch, part.batches, part.chain,
            tuple(Held(number, *self._places[number], parts[number].digest) for number in sorted(parts)),
        )  # fmt: skip
        self._manifests.write(manifest)
        self._whole[manifest.name] = manifest
        self._retain()
        return manifest, ""

    def kept(self) -> tuple[str, ...]:
        """Names of the cuts that may be resumed from."""
        return tuple(self._whole)

    def _trouble(self, parts: dict[int, Part]) -> str:
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

    def _retain(self) -> None:
        newest = sorted(self._whole.values(), key=lambda one: one.sequence, reverse=True)
        wanted = {name for one in newest[: self._keep] for name in (one.name, *one.chain)}
        # First the manifest, then the parts: a cut that exists is whole.
        self._manifests.remove(one.name for one in newest if one.name not in wanted)
        self._whole = {name: one for name, one in self._whole.items() if name in wanted}

"""A state of a job's directory that another machine can go on from: a snapshot of each rank's, and the cuts that are whole in them.

The manifests of the cuts are taken first: when one is there, the parts of all ranks are. What the ranks have deleted until their own
snapshots were taken belongs to cuts that are needed no more, and these are left out.
"""

from __future__ import annotations

import contextlib
import shutil
from pathlib import Path

from detrain.errors import CheckpointError
from detrain.remote.manifest import Identity, Saved
from detrain.remote.runs import OfJob, cut_name
from detrain.remote.snapshot import MOST_TRIES, Item, NotNow, Snapshot, Snapshots, item_of, link
from detrain.store.checkpoint import fingerprint
from detrain.store.directory import JOB_RECORD
from detrain.store.job import CUTS, JobDirectory, Manifest, read_manifest


class JobSnapshots:
    """Takes snapshots of the directory of a job whose ranks are all on this host."""

    def __init__(self, directory: Path, staging: Path) -> None:
        """`staging`: see `Snapshots`."""
        self._job, self._staging = JobDirectory(directory), staging
        self._ranks: dict[int, Snapshots] = {}

    def take(self, *, is_going_on: bool) -> Snapshot:
        """Raises like `Snapshots.take`."""
        for _ in range(MOST_TRIES):
            taken = self._try(is_going_on=is_going_on)
            if taken is not None:
                return taken
        raise NotNow("there is no cut that all ranks have")

    def clear(self) -> None:
        """Take away what lies in the staging folder."""
        shutil.rmtree(self._staging, ignore_errors=True)

    def _try(self, *, is_going_on: bool) -> Snapshot | None:
        """None where there is no cut of which every rank has its part."""
        self.clear()
        (self._staging / CUTS).mkdir(parents=True)
        is_finished = bool(self._job.finished_at())
        cuts = self._link_cuts()
        ranks = {
            number: self._snapshots(number).take(is_going_on=is_going_on, is_finished=is_finished)
            for number in range(self._job.size())
        }
        record = OfJob(self._job.path).record()
        whole = self._whole(cuts, ranks)
        if record is None or not (whole or is_finished):
            return None
        items = [item_of(self._staging / CUTS / f"{name}.json", cut_name(name)) for name in whole]
        for name in (JOB_RECORD, *(["finished"] if is_finished else [])):
            shutil.copyfile(self._job.path / name, self._staging / name)
            items.append(item_of(self._staging / name, name))
        for number, snapshot in ranks.items():
            items += [Item(_of_rank(number, one.name), one.path, one.size, one.digest) for one in snapshot.items]
        checkpoints = {
            cut_name(cut.name): Saved(cut.sequence, cut.epoch, cut.batch, _needs(cut, ranks)) for cut in whole.values()
        }
        return Snapshot(Identity.of(record), record.attempts, is_finished, tuple(items), checkpoints)

    def _snapshots(self, number: int) -> Snapshots:
        name = f"rank_{number}"
        return self._ranks.setdefault(number, Snapshots(self._job.path / name, self._staging / name))

    def _link_cuts(self) -> dict[str, Manifest]:
        found = {}
        for name in self._job.manifests.names():
            staged = self._staging / CUTS / f"{name}.json"
            # Deleted meanwhile; or damaged, which the next attempt says.
            with contextlib.suppress(FileNotFoundError, CheckpointError):
                link(self._job.manifests.path / staged.name, staged)
                found[name] = read_manifest(staged)
        return found

    def _whole(self, cuts: dict[str, Manifest], ranks: dict[int, Snapshot]) -> dict[str, Manifest]:
        """Cuts whose parts are in the ranks' snapshots, with all that they need."""
        whole = {name: cut for name, cut in cuts.items() if self._has_parts(cut, ranks)}
        return {name: cut for name, cut in whole.items() if whole.keys() >= set(cut.chain)}

    def _has_parts(self, cut: Manifest, ranks: dict[int, Snapshot]) -> bool:
        return all(
            part.rank in ranks
            and cut.name in ranks[part.rank].checkpoints
            and fingerprint(self._staging / f"rank_{part.rank}" / cut.name) == part.digest
            for part in cut.parts
        )


def _needs(cut: Manifest, ranks: dict[int, Snapshot]) -> tuple[str, ...]:
    """Files without which a cut cannot be resumed from, beside its manifest."""
    found = {cut_name(name) for name in cut.chain}
    for number, snapshot in ranks.items():
        left, seen = [cut.name], set[str]()
        while left:
            name = left.pop()
            if name not in seen:
                seen.add(name)
                left += snapshot.checkpoints[name].needs
        found |= {_of_rank(number, name) for name in seen}
    return tuple(sorted(found))


def _of_rank(number: int, name: str) -> str:
    return f"rank_{number}/{name}"

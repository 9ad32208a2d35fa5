"""From a manifest to a run directory: each file under a temporary name, its size and digest checked, then all at once."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from detrain.errors import CheckpointError
from detrain.remote.manifest import Manifest, Stored
from detrain.remote.objects import MissingError, Store
from detrain.remote.snapshot import digest_of
from detrain.store.directory import sync_folder

#: As often an object is asked for whose bytes came otherwise than they were sent.
_TRIES = 3


@dataclass(frozen=True)
class Fetched:
    """What has come: bytes over the network, and for each checkpoint that has not, why."""

    num_bytes: int
    missing: dict[str, str]


def fetch(store: Store, manifest: Manifest, target: Path, local: Path | None = None) -> Fetched:
    """Write the run of a manifest into the folder `target`, which is made; what is damaged of its checkpoints is left out.

    `local`: a run directory that may have some of the files already. Raises `CheckpointError` where the run cannot be resumed from what
    there is, and `StoreError`.
    """
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    missing: dict[str, str] = {}
    num_bytes = 0
    replaceable = manifest.checkpoints.keys() | {
        name for saved in manifest.checkpoints.values() for name in saved.needs
    }
    for name, stored in sorted(manifest.files.items()):
        place = _place(target, name)
        if local is not None and name in replaceable and _take_local(local / name, place, stored):
            continue
        why = _fetch_one(store, stored, place)
        num_bytes += stored.size
        if not why:
            continue
        if name not in replaceable:
            raise CheckpointError(
                f"{store.url}: {why}. Without {name} no resume is exact. Nothing was changed; start over with --fresh, or give another URL"
            )
        missing[name] = why
    usable = {
        name
        for name, saved in manifest.checkpoints.items()
        if name not in missing and missing.keys().isdisjoint(saved.needs) and manifest.files.keys() >= set(saved.needs)
    }
    if manifest.checkpoints and not usable:
        raise CheckpointError(
            f"{store.url}: no checkpoint can be used: {'; '.join(missing.values())}. Nothing was changed; start over with --fresh, or "
            "give another URL"
        )
    for folder, _, _ in os.walk(target):
        sync_folder(Path(folder))
    return Fetched(num_bytes, missing)


def _place(target: Path, name: str) -> Path:
    """Where a file goes. Raises `CheckpointError` for a name that leads out of the folder."""
    place = target / name
    if os.path.isabs(name) or ".." in Path(name).parts or len(Path(name).parts) > 3:
        raise CheckpointError(f"the manifest names a file outside the run directory: {name}")
    place.parent.mkdir(parents=True, exist_ok=True)
    return place


def _take_local(source: Path, place: Path, stored: Stored) -> bool:
    try:
        if source.stat().st_size != stored.size or digest_of(source) != stored.digest:
            return False
        os.link(source, place)
    except OSError:
        return False
    return True


def _fetch_one(store: Store, stored: Stored, place: Path) -> str:
    """What is wrong with the object; "" if nothing is."""
    temporary = place.with_name(f".{place.name}.tmp")
    why = ""
    for _ in range(_TRIES):
        try:
            store.get(stored.object, temporary)
        except MissingError:
            why = f"{stored.object} is missing"
            continue
        size = temporary.stat().st_size
        if size == stored.size and digest_of(temporary) == stored.digest:
            with open(temporary, "rb") as file:
                os.fsync(file.fileno())
            temporary.replace(place)
            return ""
        why = (
            f"{stored.object} is damaged ({size} bytes of {stored.size})"
            if size != stored.size
            else f"{stored.object} is damaged"
        )
    temporary.unlink(missing_ok=True)
    return why


def swap(fetched: Path, directory: Path) -> None:
    """Put a fetched run in the place of an older state of the same run, or where there is none."""
    replaced = fetched.with_name(f"{fetched.name}.replaced")
    shutil.rmtree(replaced, ignore_errors=True)
    directory.parent.mkdir(parents=True, exist_ok=True)
    if directory.exists():
        for name in ("cache", "aside"):  # of this machine
            if (directory / name).is_dir() and not (fetched / name).exists():
                (directory / name).rename(fetched / name)
        directory.rename(replaced)
    fetched.rename(directory)
    sync_folder(directory.parent)
    shutil.rmtree(replaced, ignore_errors=True)

"""`detrain remote push` and `pull`: a run to a store and back, by hand."""

from __future__ import annotations

import shutil
from pathlib import Path

from detrain.errors import CheckpointError, ResumeRefused, UsageError
from detrain.messages import warn
from detrain.remote import beginning
from detrain.remote import manifest as manifests
from detrain.remote.beginning import Base
from detrain.remote.fetch import fetch, swap
from detrain.remote.lease import Lost
from detrain.remote.manifest import Manifest
from detrain.remote.objects import StoreError, open_store
from detrain.remote.publish import Publication
from detrain.remote.runs import published
from detrain.remote.side import Side
from detrain.remote.snapshot import NotNow
from detrain.remote.upload import SomebodyElse

#: As often a run is fetched anew that is published while it is.
_TRIES = 5


def push(directory: Path, url: str) -> Manifest:
    """Publish a run directory as it is. Raises `DetrainError`."""
    run = published(directory)
    if not run.resumable() and not run.finished_at():
        raise UsageError(f"there is no checkpoint in {directory}")
    publication = Publication(directory, open_store(url))
    if not publication.side.lock(2.0):
        raise ResumeRefused(
            f"{directory} is being published already; its publisher ends a while after the training does"
        )
    try:
        publication.begin(is_fresh=False, may_fetch=False)
        return publication.publish_once()
    except (Lost, SomebodyElse):
        raise ResumeRefused(f"{url} is published from another machine") from None
    except NotNow as error:
        raise UsageError(f"{directory} cannot be published now: {error}") from None
    except OSError as error:
        raise UsageError(f"{directory} could not be published to {url}: {error}") from None
    finally:
        publication.side_clear()
        publication.side.unlock()


def pull(url: str, directory: Path) -> Manifest:
    """Fetch a run into a directory that has none. Takes no lease: the run may be going on elsewhere. Raises `DetrainError`."""
    if beginning.read_local(directory).has_something:
        raise ResumeRefused(f"there is a run in {directory} already; name another directory")
    if directory.is_dir() and any(entry.name not in ("inst.info", "lock") for entry in directory.iterdir()):
        raise ResumeRefused(f"{directory} is not empty; name another directory")
    store, side = open_store(url), Side(directory)
    before: Manifest | None = None
    why: Exception = CheckpointError(f"there is no run in {url}")
    for _ in range(_TRIES):
        try:
            manifest = manifests.read(store)
            if manifest is None or manifest == before:
                break
            before = manifest
            done = fetch(store, manifest, side.incoming)
        except StoreError as error:
            raise UsageError(f"{url} cannot be read: {error}") from None
        except CheckpointError as error:
            why = error  # it may have been published again meanwhile, and what was no longer needed was deleted
            continue
        for name, text in done.missing.items():
            warn("checkpoint-passed-over", f"{name} could not be fetched: {text}")
        shutil.rmtree(directory, ignore_errors=True)
        swap(side.incoming, directory)
        side.write_base(Base.of(manifest).encode())
        return manifest
    raise why

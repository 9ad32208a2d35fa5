"""From a snapshot to a manifest: objects first, the manifest next, and what no manifest names any more is deleted last.

A publisher that ends between any two of these steps leaves a store in which the manifest before, or the new one, is whole.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

from detrain.errors import CheckpointError
from detrain.remote import manifest as manifests
from detrain.remote.manifest import CURRENT, DATA, Manifest, Stored
from detrain.remote.objects import ExistsError, MissingError, Store
from detrain.remote.snapshot import Item, Snapshot

_DATA = re.compile(rf"{DATA}/.+\.[0-9a-f]{{32}}$")


class SomebodyElse(Exception):  # noqa: N818 - what has happened, and no mistake of this process's
    """Another publisher has published this run in the meantime."""


@dataclass(frozen=True)
class Publisher:
    """Who publishes, and from where; see `Manifest`."""

    owner: str
    where: str


def publish(
    store: Store,
    snapshot: Snapshot,
    before: Manifest | None,
    who: Publisher,
    *,
    first_number: int = 1,
    protected: Collection[str] = (),
    check: Callable[[], None] = lambda: None,
) -> Manifest:
    """Publish a snapshot after the manifest `before`; returns its manifest, which is `before` where nothing has changed.

    `check` is called before each step, and may raise. `first_number`: of the manifest where there is none before. `protected`: objects that
    are not deleted. Raises `StoreError` where the store fails, and `SomebodyElse`.
    """
    files = {item.name: Stored(_object_of(item), item.size, item.digest) for item in snapshot.items}
    number = first_number if before is None else before.number + 1
    new = Manifest(
        number, snapshot.run, snapshot.attempts, snapshot.sequence, snapshot.is_finished, who.owner, who.where,
        time.strftime("%Y-%m-%d %H:%M:%S %z"), files, snapshot.checkpoints,
    )  # fmt: skip
    if before is not None and _says(before) == _says(new):
        return before
    present = set() if before is None else before.objects
    for item in snapshot.items:
        if files[item.name].object not in present:
            check()
            store.put(files[item.name].object, item.path)
    check()
    _commit(store, new)
    check()
    delete_unnamed(store, new, before, protected)
    return new


def _object_of(item: Item) -> str:
    return f"{DATA}/{item.name}.{item.digest}"


def _says(manifest: Manifest) -> tuple[object, ...]:
    return manifest.run, manifest.files, manifest.checkpoints, manifest.owner, manifest.is_finished


def _commit(store: Store, new: Manifest) -> None:
    """Raises `SomebodyElse` where a manifest of this number is there that is not this one."""
    name, content = manifests.numbered(new.number), new.encode()
    try:
        store.create(name, content)
    except ExistsError:
        if _is_of_other(store, name, new):
            raise SomebodyElse(f"{store.url} was published from elsewhere in the meantime") from None
        store.write(name, content)  # this process has been here before, and was cut off
    store.write(CURRENT, content)


def _is_of_other(store: Store, name: str, new: Manifest) -> bool:
    """False for what the same owner has written, wholly or half."""
    try:
        return Manifest.decode(store.read(name), name).owner != new.owner
    except CheckpointError:
        return False  # half a manifest: of somebody who was cut off, and who does not have the lease any more
    except MissingError:
        return False


def delete_unnamed(store: Store, new: Manifest, before: Manifest | None, protected: Collection[str]) -> None:
    """Delete what the manifest before named and the new one does not."""
    if before is None:
        return
    for name in sorted(before.objects.difference(new.objects, protected)):
        store.delete(name)
    if before.number < new.number:
        store.delete(manifests.numbered(before.number))


def sweep(store: Store, current: Manifest, protected: Collection[str]) -> int:
    """Delete what earlier publishers have left that were cut off; returns how many objects. Only under names that are this package's."""
    num_deleted, named = 0, current.objects.union(protected)
    for name in store.names(DATA):
        if _DATA.match(name) and name not in named:
            store.delete(name)
            num_deleted += 1
    for number in manifests.numbers(store):
        if number < current.number:
            store.delete(manifests.numbered(number))
            num_deleted += 1
    return num_deleted

"""`detrain ls URL`: runs in a store."""

from __future__ import annotations

import posixpath
import time
from typing import Any

from detrain.errors import CheckpointError, UsageError
from detrain.plans.units import size_text
from detrain.remote import manifest as manifests
from detrain.remote.lease import Terms, current
from detrain.remote.objects import Store, StoreError, open_store


def describe_all(url: str) -> list[dict[str, Any]]:
    """The run of a URL, or those in the folders below it. Raises `UsageError` where the store cannot be read."""
    store = open_store(url.rstrip("/"))
    try:
        if _is_run(store):
            return [_describe(store)]
        folders = sorted({name.partition("/")[0] for name in store.names() if name.count("/") >= 1})
        below = [open_store(f"{store.url}/{folder}") for folder in folders]
        return [_describe(one) for one in below if _is_run(one)]
    except StoreError as error:
        raise UsageError(f"{url} cannot be read: {error}") from None


def _is_run(store: Store) -> bool:
    return bool(manifests.numbers(store)) or manifests.CURRENT in store.names()


def _describe(store: Store) -> dict[str, Any]:
    try:
        manifest = manifests.read(store)
    except CheckpointError as error:
        return {"url": store.url, "damage": str(error)}
    if manifest is None:
        return {"url": store.url, "damage": "there is no manifest"}
    holder = current(store)
    checkpoints = [
        {
            "file": name, "sequence": saved.sequence, "epoch": saved.epoch, "batch": saved.batch,
            "needs": list(saved.needs), "bytes": _bytes_of(manifest, name, saved), "object": manifest.files[name].object,
        }
        for name, saved in sorted(manifest.checkpoints.items(), key=lambda one: one[1].sequence)
    ]  # fmt: skip
    return {
        "url": store.url,
        "script": manifest.run.script,
        "arguments": list(manifest.run.arguments),
        "began": manifest.run.began,
        "attempts": manifest.attempts,
        "is_finished": manifest.is_finished,
        "number": manifest.number,
        "published_at": manifest.at,
        "published_from": manifest.where,
        "held_by": _held_text(holder),
        "bytes": sum(stored.size for stored in manifest.files.values()),
        "checkpoints": checkpoints,
        "damage": None,
    }


def _bytes_of(manifest: manifests.Manifest, name: str, saved: manifests.Saved) -> int:
    """Of a checkpoint's file; of a cut with its parts, the files of that name of the ranks."""
    part = posixpath.basename(name).removesuffix(".json")
    parts = [other for other in saved.needs if other != part and posixpath.basename(other) == part]
    return sum(manifest.files[one].size for one in (name, *parts))


def _held_text(holder: Terms | None) -> str | None:
    return None if holder is None or holder.expires < time.time() else str(holder)


def format_run(run: dict[str, Any]) -> str:
    """A run as lines of text."""
    if run["damage"]:
        return f"{run['url']}\n  damaged: {run['damage']}"
    state = "finished" if run["is_finished"] else "not finished"
    if run["held_by"]:
        state = f"held by {run['held_by']}"
    lines = [
        f"{run['url']}: {' '.join([run['script'], *run['arguments']])}",
        f"  {state}; began {run['began']}; attempts: {run['attempts']}; checkpoints: {len(run['checkpoints'])}; "
        f"{size_text(run['bytes'])}",
        f"  published {run['published_at']} from {run['published_from']}",
    ]
    width = max((len(found["file"]) for found in run["checkpoints"]), default=0)
    for found in run["checkpoints"]:
        where = f"epoch {found['epoch']}, batch {found['batch']}"
        lines.append(f"  {found['file']:{max(width, 24)}} {where:24} {size_text(found['bytes']):>10}")
    return "\n".join(lines)

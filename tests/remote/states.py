"""States of a run that grow, published one by one; `python -m tests.remote.states URL FOLDER` does so in a process to be killed."""

from __future__ import annotations

import sys
from pathlib import Path

from detrain.remote import manifest as manifests
from detrain.remote import upload
from detrain.remote.fetch import fetch
from detrain.remote.manifest import Identity, Manifest, Saved
from detrain.remote.objects import Store, StoreError, open_store
from detrain.remote.snapshot import Item, Snapshot, digest_of

RUN = Identity("/work/train.py", (), "2026-11-28 02:00:00 +0000", 17)
WHO = upload.Publisher("me", "here:/work/.detrain/train")


def state_of(number: int) -> dict[str, bytes]:
    """A run after `number` checkpoints: two are kept, the second needs the first; logs grow."""
    first = max(1, number - 1)
    files = {f"checkpoint_0_{one}.h5": f"state {one} ".encode() * 20 for one in range(first, number + 1)}
    files["run.json"] = f'{{"attempts": {number}}}'.encode()
    files["ledger"] = b"".join(f"batch {one}\n".encode() for one in range(number * 3))
    files["kept/0-log.txt"] = b"what the log had"
    return files


def snapshot_of(folder: Path, number: int) -> Snapshot:
    items = []
    for name, content in state_of(number).items():
        path = folder / str(number) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        items.append(Item(name, path, len(content), digest_of(path)))
    names = sorted(name for name in state_of(number) if name.startswith("checkpoint_"))
    saved = {
        name: Saved(
            int(name.split("_")[2][:-3]), 0, 0, tuple(names[:1]) if name == names[-1] and len(names) > 1 else ()
        )
        for name in names
    }
    return Snapshot(RUN, number, False, tuple(items), saved)


def publish_all(
    store: Store, snapshots: list[Snapshot], before: Manifest | None = None, done: list[int] | None = None
) -> int:
    """As the publisher does: again what has failed. Returns which has been published last, and notes it in `done` at once."""
    for snapshot in snapshots:
        for _ in range(4):
            try:
                before = upload.publish(store, snapshot, before, WHO)
            except StoreError:
                continue
            if done is not None:
                done.append(before.attempts)
            break
    return 0 if before is None else before.attempts


def fetched(store: Store, target: Path) -> dict[str, bytes]:
    manifest = manifests.read(store)
    assert manifest is not None
    done = fetch(store, manifest, target)
    assert not done.missing
    return {str(path.relative_to(target)): path.read_bytes() for path in target.rglob("*") if path.is_file()}


def main() -> None:
    """Publish the second and the third state, and print the number of each that is."""
    url, folder = sys.argv[1:]
    store = open_store(url)
    before = manifests.read(store)
    for number in (2, 3):
        publish_all(store, [snapshot_of(Path(folder), number)], before)
        before = manifests.read(store)
        print(number, flush=True)


if __name__ == "__main__":
    main()

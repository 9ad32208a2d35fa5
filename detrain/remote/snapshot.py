"""A state of a run directory that another machine can go on from, taken while the run goes on.

Checkpoints and what the journal keeps never change once they have their names; everything else is copied, in an order that makes it fit:

1. the checkpoints' names, each held by a second link, so that the run may delete it meanwhile;
2. what the script's own files hold now, as the journal knows them by then;
3. the logs, which may be longer than at the newest of these checkpoints, and never shorter;
4. what the journal keeps.

On another machine the script's own files are not there. So their present state goes into the journal, as it does on this machine before
a resume puts them back: the journal of a snapshot ends with one record for each of them, and `kept/` has their contents. A change between
2 and 3 was recorded before it was made, and the records of 3 go before those of 2.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
import time
from dataclasses import astuple, dataclass, field
from pathlib import Path

import xxhash

from detrain.errors import CheckpointError, RestoreError
from detrain.outputs.journal import FILE, FOLDER, GROWN, LINK, Journal, Record, kind_and_stat, outputs
from detrain.remote.manifest import Identity, Saved
from detrain.store import checkpoint as checkpoint_file
from detrain.store.directory import OWN_NAMES, RunDirectory

#: Of detrain's names in a run directory, those that mean nothing on another machine, or are no files.
_LOCAL = {"lock", "cache", "aside", "kept", "rewinding", "files.log"}
#: As often a snapshot is begun again where the run was quicker.
MOST_TRIES = 8
_PIECE = 1 << 20
JOURNAL, KEPT, REWINDING = "files.log", "kept", "rewinding"


class NotNow(Exception):  # noqa: N818 - no mistake
    """There is no state to publish at the moment: no checkpoint yet, or a resume that is under way."""


@dataclass(frozen=True)
class Item:
    """One file of a snapshot."""

    name: str
    path: Path
    size: int
    digest: str


@dataclass(frozen=True)
class Snapshot:
    """Files and what is to be known of them; they lie where they are until the next one is taken."""

    run: Identity
    attempts: int
    is_finished: bool
    items: tuple[Item, ...]
    checkpoints: dict[str, Saved] = field(default_factory=dict)

    @property
    def sequence(self) -> int:
        """Of the newest checkpoint; 0 where there is none."""
        return max((saved.sequence for saved in self.checkpoints.values()), default=0)


class Snapshots:
    """Takes snapshots of one run directory, and reads nothing twice that has not changed."""

    def __init__(self, directory: Path, staging: Path) -> None:
        """`staging`: a folder of its own, on the directory's file system if possible."""
        self._directory, self._staging = RunDirectory(directory), staging
        self._digests: dict[tuple[int, ...], str] = {}
        self._saved: dict[tuple[int, ...], tuple[Saved, int]] = {}

    def take(self, *, is_going_on: bool, is_finished: bool | None = None) -> Snapshot:
        """Raises `NotNow`, `CheckpointError` for a record that cannot be read, `RestoreError` for such a journal, and `OSError`.

        `is_going_on`: an attempt may be changing the directory. `is_finished`: the run has come to its end; None if the directory says so.
        """
        for _ in range(MOST_TRIES):
            self._clear()
            taken = self._try(is_going_on=is_going_on, is_finished=is_finished)
            if taken is not None:
                return taken
        raise NotNow("the run has changed its files faster than they could be copied")

    def clear(self) -> None:
        """Take away what lies in the staging folder."""
        shutil.rmtree(self._staging, ignore_errors=True)

    def _clear(self) -> None:
        self.clear()
        (self._staging / KEPT).mkdir(parents=True)

    def _try(self, *, is_going_on: bool, is_finished: bool | None) -> Snapshot | None:
        """None where the run was quicker."""
        path = self._directory.path
        if is_going_on and (path / REWINDING).exists():
            raise NotNow("an attempt is resuming")
        items: list[Item] = []
        checkpoints, offsets = self._link_checkpoints(items)
        if is_finished is None:
            is_finished = bool(self._directory.finished_at())
        if not checkpoints and not is_finished:
            raise NotNow("there is no checkpoint yet")
        present = self._copy_outputs()
        # A run that has come to its end just now is not at its end here.
        for name in sorted(OWN_NAMES - _LOCAL - (set() if is_finished else {"finished"})):
            with contextlib.suppress(FileNotFoundError, IsADirectoryError):
                items.append(self._copied(path / name, name))
        is_whole = self._copy_journal(present, offsets, is_finished=is_finished)
        if is_going_on and (path / REWINDING).exists():
            raise NotNow("an attempt is resuming")
        if not is_going_on:
            with contextlib.suppress(FileNotFoundError):
                items.append(self._copied(path / REWINDING, REWINDING))
        record = RunDirectory(self._staging).read_record()
        if record is None or not is_whole:
            return None
        if (self._staging / JOURNAL).exists():
            items.append(self._item(self._staging / JOURNAL, JOURNAL))
        items += [self._item(kept, f"{KEPT}/{kept.name}") for kept in sorted((self._staging / KEPT).iterdir())]
        return Snapshot(Identity.of(record), record.attempts, is_finished, tuple(items), checkpoints)

    # --- checkpoints -----------------------------------------------------------------------------------------------------------

    def _link_checkpoints(self, items: list[Item]) -> tuple[dict[str, Saved], dict[str, int]]:
        """Those there are with all that they need, and how long the journal was at each."""
        for path in self._directory.checkpoint_paths():
            with contextlib.suppress(FileNotFoundError):
                link(path, self._staging / path.name)
        found: dict[str, tuple[Saved, int]] = {}
        for path in RunDirectory(self._staging).checkpoint_paths():
            with contextlib.suppress(CheckpointError):  # damaged: what the next attempt says
                found[path.name] = self._outline(path)
        is_changed = True
        while is_changed:
            whole = {name: one for name, one in found.items() if found.keys() >= set(one[0].needs)}
            is_changed, found = len(whole) < len(found), whole
        items += [self._item(self._staging / name, name) for name in found]
        return {name: saved for name, (saved, _) in found.items()}, {
            name: number for name, (_, number) in found.items()
        }

    def _outline(self, path: Path) -> tuple[Saved, int]:
        key = _key(os.stat(path))
        if key not in self._saved:
            header = checkpoint_file.read_outline(path)
            meta = header.meta
            saved = Saved(meta.sequence, meta.epoch, meta.batch, tuple(sorted(header.needs)))
            self._saved[key] = saved, meta.files
        return self._saved[key]

    # --- the script's own files ------------------------------------------------------------------------------------------------

    def _copy_outputs(self) -> dict[str, Record | None]:
        """What they are now, with their contents in the staging folder; None for what is no file, link or folder."""
        journal = Journal(self._directory.path)
        journal.read(is_own=False)
        present: dict[str, Record | None] = {}
        for path in sorted(_wanted(journal)):
            kind, found = kind_and_stat(path)
            if not kind:
                present[path] = None  # a pipe, a socket
                continue
            size, content = 0, ""
            if kind == FILE:
                content = f"{len(present)}-{os.fsdecode(os.fsencode(os.path.basename(path))[-100:])}"
                target = self._staging / KEPT / f"now-{content}"
                try:
                    shutil.copyfile(path, target)
                except FileNotFoundError:
                    kind, found, content = "absent", None, ""
                else:
                    size = target.stat().st_size
            elif kind == LINK:
                with contextlib.suppress(OSError):  # it has just become something else, which the journal knows
                    content = os.readlink(path)
            look = (-1, -1) if found is None else (stat.S_IMODE(found.st_mode), found.st_mtime_ns)
            if kind == LINK or (kind != FOLDER and found is None):
                look = (-1, -1)
            content = f"now-{content}" if kind == FILE else content
            present[path] = Record(path, kind, size, content, path in journal.touched, *look, time.time_ns())
        return present

    def _copy_journal(self, present: dict[str, Record | None], offsets: dict[str, int], *, is_finished: bool) -> bool:
        """The journal, with what the files are now at its end, and what it keeps. False where the run was quicker."""
        try:
            content = (self._directory.path / JOURNAL).read_bytes()
        except FileNotFoundError:
            return True  # the script has changed no file, or the run does not follow them
        staged = self._staging / JOURNAL
        staged.write_bytes(content[: content.rfind(b"\n") + 1])
        journal = Journal(self._staging)
        journal.read(is_own=False)
        if any(
            (first := journal.state(path, 0)) is not None and first.kind == GROWN
            for path in _wanted(journal) - present.keys()
        ):
            return False  # its present content would be needed
        end = len(journal.records)
        known = [record for record in present.values() if record is not None]
        with staged.open("ab") as log:
            for number, record in enumerate(known, end):
                log.write(json.dumps([number, *astuple(record)]).encode() + b"\n")
        journal = Journal(self._staging)
        journal.read(is_own=False)
        # Of a run at its end, also what the script has left behind.
        needed = journal.contents([*offsets.values(), *([end] if is_finished else [])])
        for name in sorted(needed - {record.content for record in known}):
            with contextlib.suppress(FileNotFoundError):
                self._copy_kept(self._directory.path / KEPT / name, self._staging / KEPT / name)
        for entry in list((self._staging / KEPT).iterdir()):
            if entry.name not in needed:
                entry.unlink()
        return self._has_contents(journal, offsets)

    def _has_contents(self, journal: Journal, offsets: dict[str, int]) -> bool:
        """False where something is missing here that the run has, or that it has dropped together with a checkpoint."""
        original = Journal(self._directory.path)
        original.read(is_own=False)
        for name, offset in offsets.items():
            for path in _wanted(journal):
                record = journal.state(path, offset)
                if record is None or record.kind not in (FILE, GROWN):
                    continue
                try:
                    journal.content_of(path, offset)
                except RestoreError:
                    if not (self._directory.path / name).exists():
                        return False
                    with contextlib.suppress(RestoreError):  # what is lost to the run itself, a resume says
                        original.content_of(path, offset)
                        return False
        return True

    def _copy_kept(self, source: Path, target: Path) -> None:
        """It may be a second link of a file that the script is about to change, which is then replaced by a copy."""
        while True:
            shutil.copy2(source, target)
            before = os.stat(source)
            if before.st_size == target.stat().st_size and before.st_mtime_ns == target.stat().st_mtime_ns:
                return

    # --- bytes -----------------------------------------------------------------------------------------------------------------

    def _copied(self, path: Path, name: str) -> Item:
        target = self._staging / name
        shutil.copyfile(path, target)
        return self._item(target, name)

    def _item(self, path: Path, name: str) -> Item:
        found = os.stat(path)
        key = _key(found)
        if name.startswith("checkpoint_"):  # never changed
            if key not in self._digests:
                self._digests[key] = digest_of(path)
            return Item(name, path, found.st_size, self._digests[key])
        return item_of(path, name)


def _wanted(journal: Journal) -> set[str]:
    """The script's files that a resume gives back. What set-up code has made, and would make again, is not among them if it is large."""
    paths = set(journal.paths())
    before = {path for path in paths if (first := journal.state(path, 0)) is not None and first.kind != "absent"}
    return paths & (outputs([journal]) | before)


def item_of(path: Path, name: str) -> Item:
    """A file as it is now."""
    return Item(name, path, path.stat().st_size, digest_of(path))


def digest_of(path: Path) -> str:
    """xxh3-128 of a file's content."""
    digest = xxhash.xxh3_128()
    with open(path, "rb") as file:
        while piece := file.read(_PIECE):
            digest.update(piece)
    return digest.hexdigest()


def link(source: Path, target: Path) -> None:
    """A second name for a file that never changes; a copy where there can be none. Raises `FileNotFoundError`."""
    try:
        os.link(source, target)
    except FileNotFoundError:
        raise
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)


def _key(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns

"""What happened to the script's own files: `files.log`, and what they held in `kept/`.

An undo journal. Before a file, link or folder of the script's is changed for the first time since a checkpoint, a record of what it was
is appended, and its content is kept if the change destroys it. So the state of every path at the moment when the journal was *n*
records long can be told for each *n* from which nothing was pruned: it is what its first record from *n* on says, and what is on the
disk if there is none. Putting files back is a change like any other and is recorded likewise; the journal is only ever appended to.
"""

from __future__ import annotations

import bisect
import contextlib
import errno
import json
import os
import shutil
import stat
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import IO

from detrain.errors import RestoreError

#: What a path is. GROWN: a file that was only appended to afterwards, so that its content is the beginning of what it is next.
ABSENT, FOLDER, LINK, FILE, GROWN = "absent", "folder", "link", "file", "grown"
#: Larger files are given back by a link, and what set-up code destroys of them is not kept for long. Bytes.
LARGE = 64 * 2**20
#: A folder with less in it is soon made again. Bytes.
LITTLE = 2**20
_KINDS = (ABSENT, FOLDER, LINK, FILE, GROWN)


@dataclass(frozen=True)
class Record:
    """What a path was before a change. `content` is a name in `kept/` ("" if not kept) or what a link points to.

    `is_output`: changed by the training loop, or appended to, so not there yet when the script is set up again.
    `mode`: permissions of a file or a folder, and `changed_ns` when it was last changed; -1 in journals that do not tell. `recorded_ns`:
    when the record was made, by the system's clock and no finer than a few milliseconds; 0 in journals that do not tell.
    """

    path: str
    kind: str
    size: int = 0  # bytes, of a file
    content: str = ""
    is_output: bool = False
    mode: int = -1
    changed_ns: int = -1  # since 1970
    recorded_ns: int = 0  # since 1970

    @property
    def moment(self) -> tuple[int, bool]:
        """To compare records of several ranks by: of two that the clock does not tell apart, what was not there yet came first."""
        return self.recorded_ns, self.kind != ABSENT


#: In place of a record that was interrupted before it was written.
_INTERRUPTED = Record("", ABSENT)


class Journal:
    """The records of one run directory. Not safe among threads."""

    def __init__(self, directory: Path) -> None:
        self._log = directory / "files.log"
        self.kept = directory / "kept"
        self.records: list[Record] = []
        self._of: dict[str, list[int]] = {}
        self._with_content: set[int] = set()
        self.touched: set[str] = set()  # by the loop, or appended to
        self._linked: dict[tuple[int, int], set[Path]] = {}

    def read(self, *, is_own: bool = True) -> None:
        """Learn what earlier attempts have recorded; a torn last line, whose change has not been made, is cut off if the journal `is_own`.

        Raises `RestoreError` for a file that is no journal.
        """
        try:
            content = self._log.read_bytes()
        except FileNotFoundError:
            return
        whole = content[: content.rfind(b"\n") + 1]
        try:
            found = {number: Record(*fields) for number, *fields in map(json.loads, whole.splitlines())}
        except (ValueError, TypeError) as error:
            raise RestoreError(f"{self._log} cannot be read ({error}); start over with --fresh") from None
        for number in range(max(found, default=-1) + 1):
            self._add(found.get(number, _INTERRUPTED))
        if is_own and len(whole) < len(content):
            with contextlib.suppress(OSError):  # a journal that is only looked at may not be ours to write
                os.truncate(self._log, len(whole))
        for index in self._with_content:
            path = self.kept / self.records[index].content
            with contextlib.suppress(FileNotFoundError):
                self._record_inode(path, os.lstat(path))

    def _add(self, record: Record) -> None:
        index = len(self.records)
        if record.kind not in _KINDS:
            raise RestoreError(f"{self._log} holds a record of the unknown kind {record.kind!r}")
        self.records.append(record)
        if record is _INTERRUPTED:
            return
        self._of.setdefault(record.path, []).append(index)
        if record.is_output:
            self.touched.add(record.path)
        if record.kind == FILE and record.content:
            self._with_content.add(index)

    def append(self, record: Record) -> None:
        """Record what a path was; before it is changed. Raises `OSError`, and has then recorded nothing."""
        with open(self._log, "ab", buffering=0) as log:
            os.utime(log.fileno())  # the system's time, which is not the one that the script is told
            record = replace(record, recorded_ns=os.fstat(log.fileno()).st_mtime_ns)
            number = len(self.records)
            self._add(record)  # first: an interruption leaves a number without a line, and no line without a number
            line = json.dumps([number, *astuple(record)]).encode() + b"\n"
            start = log.tell()
            try:
                if log.write(line) < len(line):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._log))
            except OSError:
                os.ftruncate(log.fileno(), start)
                self._take_back(number)
                raise

    def _take_back(self, number: int) -> None:
        path = self.records[number].path
        self._of[path].remove(number)
        if not self._of[path]:
            del self._of[path]
        self._with_content.discard(number)
        self.records[number] = _INTERRUPTED

    # --- contents --------------------------------------------------------------------------------------------------------------

    def keep(self, path: str, *, by_copy: bool) -> str:
        """Keep what a file holds, for the record that comes next; returns the name. By a second link where that is enough."""
        name = f"{len(self.records)}-{os.fsdecode(os.fsencode(os.path.basename(path))[-100:])}"
        self.kept.mkdir(exist_ok=True)
        place = self.kept / name
        place.unlink(missing_ok=True)  # of an attempt that was killed between this and the record
        if by_copy or not _link(path, place):
            shutil.copy2(path, place)
        else:
            self._record_inode(place, os.lstat(place))
        return name

    def give(self, source: str, size: int, place: str) -> None:
        """Make a new file of the first bytes of another one: a large one by a second link, if that is enough."""
        found = os.stat(source)
        if found.st_size == size and size > LARGE and Path(source).parent == self.kept and _link(source, Path(place)):
            self._record_inode(Path(source), os.stat(source))
            return
        with open(source, "rb") as old, open(place, "xb") as new:
            copy_bytes(old, new, size)
        shutil.copystat(source, place)

    def _record_inode(self, kept: Path, found: os.stat_result) -> None:
        if found.st_nlink > 1:
            self._linked.setdefault((found.st_dev, found.st_ino), set()).add(kept)

    def is_linked(self, found: os.stat_result) -> bool:
        """True if a file is kept by a link to it."""
        return (found.st_dev, found.st_ino) in self._linked

    def part(self, found: os.stat_result) -> None:
        """A file is about to be changed in place: what is kept of it by a link becomes a copy."""
        for kept in self._linked.pop((found.st_dev, found.st_ino), ()):
            if kept.exists():
                copy = kept.with_name(f".{kept.name}.tmp")
                shutil.copy2(kept, copy)
                copy.replace(kept)

    def prune(self, offsets: Iterable[int]) -> None:
        """Drop contents that no state at one of these lengths of the journal is made of.

        At its beginning, those of outputs and of what is not large count: what set-up code removes to make room is gone.
        """
        needed = self._needed(offsets)
        self._with_content &= needed
        names = {self.records[index].content for index in self._with_content}
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self.kept):
                if name not in names:
                    (self.kept / name).unlink()

    def _needed(self, offsets: Iterable[int]) -> set[int]:
        """The records with contents that the states at these lengths, and at the beginning, are made of."""
        needed: set[int] = set()
        for path in {self.records[index].path for index in self._with_content}:
            first = self.records[self._of[path][0]]
            is_kept_from_start = path in self.touched or first.size <= LARGE
            for offset in {*offsets, 0} if is_kept_from_start else offsets:
                needed.update(self._chain(path, offset))
        return needed & self._with_content

    def contents(self, offsets: Iterable[int]) -> set[str]:
        """Names in `kept/` of what the states at these lengths of the journal, and at its beginning, are made of."""
        return {self.records[index].content for index in self._needed(offsets)}

    # --- states ----------------------------------------------------------------------------------------------------------------

    def paths(self) -> Iterator[str]:
        """All paths that have been changed."""
        return iter(self._of)

    def changed_since(self, offset: int) -> set[str]:
        """Paths that have been changed since the journal was `offset` records long."""
        return {record.path for record in self.records[offset:]}

    def _from(self, path: str, offset: int) -> list[int]:
        indices = self._of.get(path, [])
        return indices[bisect.bisect_left(indices, offset) :]

    def state(self, path: str, offset: int) -> Record | None:
        """What the path was when the journal was `offset` records long; None if it has not been changed since."""
        return next((self.records[index] for index in self._from(path, offset)), None)

    def since(self, path: str, offset: int) -> list[Record]:
        """What has been recorded of a path since the journal was `offset` records long."""
        return [self.records[index] for index in self._from(path, offset)]

    def _chain(self, path: str, offset: int) -> Iterator[int]:
        """The records that the state at `offset` is made of: of a file that has grown, also the next ones."""
        for index in self._from(path, offset):
            yield index
            if self.records[index].kind != GROWN:
                return

    def content_of(self, path: str, offset: int) -> tuple[str, int]:
        """The file that begins with what this one held at `offset`, and how many bytes of it. Raises `RestoreError` if it is lost."""
        first = self.state(path, offset)
        assert first is not None
        last = first
        for index in self._chain(path, offset):
            last = self.records[index]
        source = path if last.kind == GROWN else str(self.kept / last.content)
        try:
            found = os.stat(source).st_size if last.kind == GROWN or (last.kind == FILE and last.content) else -1
        except FileNotFoundError:
            found = -1
        if found < first.size:
            raise RestoreError(
                f"the file {path} had {first.size} bytes at the checkpoint and "
                + (f"has {found} now" if found >= 0 else "is gone")
                + "; restore it, or resume without it with --trust-changes"
            )
        return source, first.size


def outputs(journals: Sequence[Journal]) -> set[str]:
    """Paths that are no part of what a later attempt's set-up code is to find, by the journals of all ranks of a job, or of one process.

    What the loop has changed, and folders that the run has made, with everything that it has put there, if the loop has changed
    anything in them or there is little in them. So a script that refuses to write into a folder that is there can go on, while what
    has been downloaded is not downloaded again.
    """
    touched = set[str]().union(*(journal.touched for journal in journals))
    made = made_by(journals)
    within: dict[str, int] = {}
    for path in made:
        kind, found = kind_and_stat(path)
        if kind == FILE and found is not None:
            for folder in made.intersection(_parents(path)):
                within[folder] = within.get(folder, 0) + found.st_size
    above = {parent for path in touched for parent in _parents(path)}
    folders = {path for path in made if kind_and_stat(path)[0] == FOLDER}
    hidden = {path for path in folders if path in above or within.get(_topmost(path, folders), 0) <= LITTLE}
    changed = {path for journal in journals for path in journal.paths()}
    return touched | hidden | {path for path in changed if not hidden.isdisjoint(_parents(path))}


def made_by(journals: Sequence[Journal]) -> set[str]:
    """Paths at which there was nothing before the run."""
    first: dict[str, Record] = {}
    for journal in journals:
        for path in journal.paths():
            record = journal.state(path, 0)
            if record is not None and (path not in first or record.moment < first[path].moment):
                first[path] = record
    return {path for path, record in first.items() if record.kind == ABSENT}


def paths_in(directory: Path) -> set[str]:
    """All paths that a run has changed so far. Only looks, so the run may be going on."""
    found: set[str] = set()
    with contextlib.suppress(FileNotFoundError, ValueError):  # what cannot be read any more ends it
        for line in (directory / "files.log").read_bytes().splitlines():
            found.add(json.loads(line)[1])
    return found


def _topmost(path: str, folders: set[str]) -> str:
    return next((parent for parent in reversed(list(_parents(path))) if parent in folders), path)


def _parents(path: str) -> Iterator[str]:
    while (parent := os.path.dirname(path)) != path:
        yield parent
        path = parent


def copy_bytes(old: IO[bytes], new: IO[bytes], size: int) -> None:
    """Copy so many bytes, or as many as there are."""
    while size > 0 and (part := old.read(min(size, 2**20))):
        new.write(part)
        size -= len(part)


def kind_and_stat(path: str) -> tuple[str, os.stat_result | None]:
    """What a path is now; "" for what is neither a file, nor a folder, nor a link."""
    try:
        found = os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return ABSENT, None
    for kind, is_one in ((FILE, stat.S_ISREG), (FOLDER, stat.S_ISDIR), (LINK, stat.S_ISLNK)):
        if is_one(found.st_mode):
            return kind, found
    return "", found


def _link(source: str, place: Path) -> bool:
    try:
        os.link(source, place, follow_symlinks=False)
    except OSError:  # another file system, or one without links, or not allowed to: see what copying says
        return False
    return True

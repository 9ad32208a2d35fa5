"""The script's own files: put back to what they were, so that no log holds a batch twice and no old file is missing or one too many.

An audit hook sees what the script opens for writing, removes, renames, links and makes; what was there before goes into the journal
(`detrain.outputs.journal`). A later attempt begins with the outputs as the first one found them, so that set-up code does what it did
then; at its checkpoint they get the state that they had there.

Beyond Python's sight is what other processes and libraries that call the system by themselves do to files.
"""

from __future__ import annotations

import contextlib
import functools
import os
import stat
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import xxhash

from detrain.errors import RestoreError
from detrain.messages import warn
from detrain.outputs.journal import (
    ABSENT,
    FILE,
    FOLDER,
    GROWN,
    LARGE,
    LINK,
    Journal,
    Record,
    copy_bytes,
    kind_and_stat,
    made_by,
    outputs,
)  # fmt: skip
from detrain.outputs.others import OtherRanks
from detrain.store.directory import write_atomically
from detrain.world.signal_deferral import handlers_deferred

_NOT_FILES = ("/dev/", "/proc/", "/sys/")
#: What is kept to save time, of whatever program (XDG base directories); it may be used by others at the same time.
_CACHES = os.path.realpath(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")) + os.sep
#: Warnings of one kind.
_MOST_SAID = 10
_WRITING = os.O_WRONLY | os.O_RDWR
#: How much of a path's state the journal holds since the last checkpoint.
_BEGINNING, _WHOLE = 1, 2


class OutputFiles:
    """Follows the files of one attempt."""

    def __init__(self, directory: Path, around: Path | None = None) -> None:
        """`around`: a directory that `directory` is a part of and that is nobody's but detrain's, if there is one."""
        self.journal = Journal(directory)
        self._others = OtherRanks(directory, around)
        self._mark_of_rewinding = directory / "rewinding"
        self._not_followed = (*_NOT_FILES, _CACHES, f"{os.path.realpath(around or directory)}{os.sep}")
        self._lock = threading.RLock()
        self._changed: dict[str, int] = {}
        self._is_stopped = False
        self._blind_thread = 0
        self._num_said = 0
        self._has_said_copied = False
        #: Set when the training loop begins.
        self.is_in_loop = False
        #: Length of the journal when this attempt began; until the attempt has resumed.
        self._began: int | None = None
        #: What this attempt's set-up code has found as the first one's did.
        self._outputs: set[str] = set()
        #: What set-up code of earlier attempts has made, is still there, and has not been made again.
        self._made_before: set[str] = set()
        self._on: dict[str, Callable[..., None]] = {
            "open": self._opens, "os.remove": self._removes, "os.rmdir": self._removes, "os.rename": self._renames,
            "os.mkdir": self._makes, "os.link": self._links, "os.symlink": self._links, "os.truncate": self._truncates,
            "os.chmod": self._permits,
        }  # fmt: skip

    # --- seeing ----------------------------------------------------------------------------------------------------------------

    def handlers(self) -> dict[str, Callable[..., None]]:
        """Audit events to what hears them."""
        return {event: functools.partial(self._on_event, event) for event in self._on}

    def stop(self) -> None:
        """See nothing any more; in a forked child, or when the script has ended."""
        self._is_stopped = True

    def _on_event(self, event: str, *args: object) -> None:
        if self._is_stopped or self._blind_thread == threading.get_ident():
            return
        if event == "open" and len(args) > 2 and isinstance(args[2], int) and not args[2] & _WRITING:
            return  # quick, for the many files that are only read
        with handlers_deferred():  # else what they raise would be taken for a disk's or an argument's error
            self._follow(event, args)

    def _follow(self, event: str, args: tuple[object, ...]) -> None:
        try:
            with self._lock:
                self._on[event](*args)
        except OSError as error:
            self._num_said += 1
            if self._num_said <= _MOST_SAID:
                warn(
                    "file-not-followed",
                    f"{event} of {args[0]!r}: its content before the change could not be kept: {error}",
                )
        except (TypeError, ValueError):
            return  # such arguments are refused by the function itself

    def _opens(self, path: str | bytes, mode: object, flags: object, *_: object) -> None:
        if not isinstance(flags, int) or not isinstance(path, (str, bytes, os.PathLike)):
            return
        name = os.fsdecode(path)
        place = os.path.realpath(name)
        if name.startswith(_NOT_FILES) or kind_and_stat(place)[0] == FOLDER:
            return  # a standard stream by its name; a file without a name
        if flags & os.O_EXCL and flags & os.O_CREAT:
            # `os.open` reports no mode, and not which folder a relative path is in.
            if mode is not None or os.path.isabs(name):
                self._make_room(place)
            if kind_and_stat(place)[0] == ABSENT:
                self._before(place)
        else:
            is_emptied = bool(flags & os.O_TRUNC)
            self._before(
                place, is_appended=bool(flags & os.O_APPEND) and not is_emptied, in_place=True, is_emptied=is_emptied
            )

    def _truncates(self, path: str | bytes | int, length: int) -> None:
        place = _place_of_open(path) if isinstance(path, int) else os.path.realpath(os.fsdecode(path))
        if place is not None and kind_and_stat(place)[0] != ABSENT:
            self._before(place, in_place=True, is_emptied=length == 0)

    def _permits(self, path: str | bytes | int, _mode: int, folder: object = -1) -> None:
        place = _place_of_open(path) if isinstance(path, int) else os.path.realpath(_place(path, folder))
        if place is not None and kind_and_stat(place)[0] != ABSENT:
            self._before(place, keeps_content=True)

    def _removes(self, path: str | bytes, folder: object = -1) -> None:
        place = _place(path, folder)
        if kind_and_stat(place)[0] != ABSENT:
            self._before(place)

    def _renames(
        self, source: str | bytes, target: str | bytes, source_folder: object = -1, target_folder: object = -1
    ) -> None:
        old, new = _place(source, source_folder), _place(target, target_folder)
        if kind_and_stat(old)[0] == ABSENT:
            return  # an error, as the script will see
        for below in _below(old):
            self._before(f"{old}{below}")
            self._before(f"{new}{below}")

    def _makes(self, path: str | bytes, _mode: object = 0, folder: object = -1) -> None:
        place = _place(path, folder)
        if kind_and_stat(place)[0] == ABSENT:
            self._before(place)

    def _links(self, _source: str | bytes, target: str | bytes, *folders: object) -> None:
        place = _place(target, folders[-1] if folders else -1)
        self._make_room(place)
        if kind_and_stat(place)[0] == ABSENT:
            self._before(place)

    def _make_room(self, path: str) -> None:
        """Remove what set-up code of an earlier attempt created, before the script creates it again."""
        if path in self._made_before and kind_and_stat(path)[0] in (FILE, LINK):
            self._made_before.discard(path)
            self._changed.pop(path, None)
            self._before(path)
            with self._blind():
                os.unlink(path)

    @contextlib.contextmanager
    def _blind(self) -> Iterator[None]:
        """What this thread does now is ours."""
        before, self._blind_thread = self._blind_thread, threading.get_ident()
        try:
            yield
        finally:
            self._blind_thread = before

    def _before(
        self, path: str, *, in_place: bool = False, is_appended: bool = False, is_emptied: bool = False,
        keeps_content: bool = False,
    ) -> None:  # fmt: skip
        """A path is about to change: record what it is, unless the journal knows that since the last checkpoint.

        `keeps_content`: only who may read and write it, or when it was changed.
        """
        if path.startswith(self._not_followed) or f"{os.sep}__pycache__{os.sep}" in path:
            return
        kind, found = kind_and_stat(path)
        if not kind:
            return
        # What is large and written in the middle is not copied: of it only the length is known.
        keeps_beginning = kind == FILE and (
            is_appended
            or keeps_content
            or (in_place and not is_emptied and found is not None and found.st_size > LARGE)
        )
        is_new_output = (self.is_in_loop or is_appended) and path not in self.journal.touched
        known = self._changed.get(path, 0)
        if in_place and not keeps_beginning and found is not None and kind == FILE:
            self.journal.part(found)
        if known >= (_BEGINNING if keeps_beginning else _WHOLE) and not is_new_output:
            return
        size, content = 0, ""
        if kind == FILE and found is not None:
            size = found.st_size
            if known == _WHOLE or keeps_beginning:
                kind = GROWN
            else:
                content = self.journal.keep(path, by_copy=in_place)
                if size > LARGE and not in_place and not self.journal.is_linked(found):
                    self._say_copied(path)
        elif kind == LINK:
            content = os.readlink(path)
        look_of = (-1, -1) if found is None else (stat.S_IMODE(found.st_mode), found.st_mtime_ns)
        self.journal.append(Record(path, kind, size, content, self.is_in_loop or is_appended, *look_of))
        self._changed[path] = max(known, _BEGINNING if kind == GROWN else _WHOLE)

    def _say_copied(self, path: str) -> None:
        if not self._has_said_copied:
            self._has_said_copied = True
            warn(
                "file-copied",
                f"{path} and what else the script removes has to be copied to {self.journal.kept}, because it lies on another file system; "
                "with --ckpt-dir on the same one it costs nothing",
            )

    # --- at a checkpoint -------------------------------------------------------------------------------------------------------

    def capture(self) -> int:
        """Mark the present state; returns the length of the journal, by which it is found again."""
        with self._lock:
            offset = len(self.journal.records)
            self._mark()
            return offset

    def _mark(self) -> None:
        """Begin a new record of changes; of files that are open for writing it holds the length."""
        self._changed = {}
        for path in _open_files(for_writing=True):
            if self.journal.state(path, 0) is not None:
                self._before(path, is_appended=True)

    def retain(self, offsets: list[int]) -> None:
        """Keep what is needed to go back to checkpoints at these lengths of the journal, and no more."""
        with self._lock:
            self.journal.prune([*offsets, *([] if self._began is None else [self._began])])

    # --- at a later attempt ----------------------------------------------------------------------------------------------------

    def rewind(self, *, is_resuming: bool) -> None:
        """Before the script begins: learn what earlier attempts did, and give it the outputs as the first one found them.

        Raises `RestoreError` if that cannot be done.
        """
        self.journal.read()
        self._others.read()
        if not self.journal.records:
            return
        first = {path: self.journal.state(path, 0) for path in self.journal.paths()}
        for path in first:
            with contextlib.suppress(NotADirectoryError):  # a file has taken the place of the folder
                _temporary(path).unlink(missing_ok=True)  # of an attempt that was killed when it made it
        if is_resuming:
            self._began = self._begin_rewinding()
        else:
            self._end_rewinding()  # there is no checkpoint any more that an attempt could have been on its way to
        journals = [self.journal, *self._others.journals]
        self._outputs = outputs(journals) | {path for path, record in first.items() if not _is_absent(record)}
        self._made_before = first.keys() - self._outputs
        # What set-up code makes again of the others is as good as what is there.
        self._changed = dict.fromkeys(self._made_before, _WHOLE)
        # What was dropped, because it was large and set-up code has destroyed it, is as that has left it.
        self._bring(self._wanted(self._outputs, 0), 0, if_lost=lambda _, __: None)
        if self._others.journals:
            self._remove_empty(self._outputs & made_by(journals))

    def _remove_empty(self, paths: set[str]) -> None:
        """Folders that the ranks have made together; the last that removes what it has put there removes them."""
        with self._blind():
            for path in sorted(paths, key=len, reverse=True):
                with contextlib.suppress(OSError):  # another rank has removed it, or is still to remove something in it
                    if kind_and_stat(path)[0] == FOLDER and not os.listdir(path):
                        self._before(path)
                        os.rmdir(path)

    def _begin_rewinding(self) -> int:
        """Length of the journal when the files were last as a dead attempt had left them, also if this attempt is killed now."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            return int(self._mark_of_rewinding.read_text(encoding="ascii"))
        number = len(self.journal.records)
        with self._blind():
            write_atomically(self._mark_of_rewinding, str(number))
        return number

    def _end_rewinding(self) -> None:
        self._began = None
        with self._blind():
            self._mark_of_rewinding.unlink(missing_ok=True)

    def put_back(self, offset: int, *, is_trusting: bool, offsets: Mapping[str, int] | None = None) -> None:
        """At a checkpoint: give each output the state that it had there; `offsets`: of the other ranks, by the name of their directories.

        Raises `RestoreError` if it cannot be had; where the user trusts what has changed, leaves such a file as it is.
        """
        self._others.read()  # all have begun, so what they had to put away is recorded

        lost: dict[str, RestoreError] = {}

        def note(path: str, error: RestoreError) -> None:
            if not is_trusting and not self._others.knows(path):
                raise error
            lost[path] = error

        wanted = self._wanted(self._outputs | self.journal.touched, offset, offsets)
        self._bring(wanted, offset, if_lost=note, offsets=offsets)
        self._leave(lost)

    def _leave(self, lost: Mapping[str, RestoreError]) -> None:
        """Files that cannot be had are as the dead attempt left them, and the user is told."""
        began = len(self.journal.records) if self._began is None else self._began
        wanted = {path: record for path in lost if (record := self.journal.state(path, began)) is not None}
        missing = lost.keys() - wanted.keys()
        self._bring(wanted, began, if_lost=lambda path, _: missing.add(path))
        for path, error in lost.items():
            how = "has been put into the folder kept/ of another rank" if path in missing else "is left as it is"
            warn("file-lost", f"{path} {how}: {error}")

    def _wanted(self, paths: set[str], offset: int, offsets: Mapping[str, int] | None = None) -> dict[str, Record]:
        """What they were when the journal was `offset` records long; without what another rank has changed first, and so puts back."""
        wanted = {path: record for path in paths if (record := self.journal.state(path, offset)) is not None}
        return {path: record for path, record in wanted.items() if not self._others.is_first(record, offsets)}

    def end_rewind(self) -> None:
        """The attempt has resumed."""
        with self._lock:
            self._end_rewinding()
            self._made_before = set()
            self._mark()

    def give_up(self) -> None:
        """The checkpoint was not reached: leave the files as the dead attempt left them."""
        if self._began is None:
            return

        def tell(path: str, error: RestoreError) -> None:
            warn("file-lost", f"{path} cannot be restored to its content at the checkpoint: {error}")

        try:
            paths = self.journal.changed_since(self._began)
            self._bring(self._wanted(paths, self._began, {}), self._began, if_lost=tell)
        except RestoreError as error:
            warn("file-lost", f"{error}; the kept content of the script's files is in {self.journal.kept}")
            return
        self._end_rewinding()

    def folders(self) -> list[str]:
        """Folders that earlier attempts of this run have made, and that are there."""
        return [path for path in sorted(self.journal.paths()) if self._is_own_folder(path)]

    def _is_own_folder(self, path: str) -> bool:
        return _is_absent(self.journal.state(path, 0)) and kind_and_stat(path)[0] == FOLDER

    def _bring(
        self, wanted: Mapping[str, Record], offset: int, if_lost: Callable[[str, RestoreError], None],
        offsets: Mapping[str, int] | None = None,
    ) -> None:  # fmt: skip
        """Give paths the state that they had when the journal was `offset` records long, which is what is `wanted`."""
        try:
            with self._lock, self._blind():
                from_above, from_below = sorted(wanted, key=len), sorted(wanted, key=len, reverse=True)
                # Of a folder, when it was changed is noted before what is in it goes.
                gone = {path for path in from_above if self._is_in_the_way(path, wanted[path])}
                for path in from_above:
                    if path in gone:
                        self._before(path)
                for path in from_below:  # what is in a folder before the folder
                    if path in gone:
                        _clear_away(path)
                is_open = _open_files()
                lost = set()
                for path in from_above:
                    try:
                        self._make(wanted[path], offset, is_open, offsets)
                    except RestoreError as error:
                        lost.add(path)
                        if_lost(path, error)
                for path in from_below:  # what is made in a folder changes it
                    if path not in lost:
                        self._give_metadata(wanted[path])
        except OSError as error:
            raise RestoreError(f"the script's files cannot be restored: {error}") from error

    def _make(self, wanted: Record, offset: int, is_open: set[str], offsets: Mapping[str, int] | None) -> None:
        path = wanted.path
        if wanted.kind in (FILE, GROWN):
            self._bring_content(path, offset, is_open, offsets)
        elif wanted.kind != ABSENT and kind_and_stat(path)[0] == ABSENT:
            self._before(path)
            if wanted.kind == FOLDER:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                os.mkdir(path, 0o777 if wanted.mode < 0 else wanted.mode | stat.S_IRWXU)  # until all that was in it is
            else:
                os.symlink(wanted.content, path)

    def _is_in_the_way(self, path: str, wanted: Record) -> bool:
        kind, _ = kind_and_stat(path)
        is_same = kind == (FILE if wanted.kind == GROWN else wanted.kind)
        return kind != ABSENT and not (is_same and (kind != LINK or os.readlink(path) == wanted.content))

    def _give_metadata(self, wanted: Record) -> None:
        """Let who may read and write a file or a folder, and when it was changed, be as it was, where the journal knows."""
        kind, found = kind_and_stat(wanted.path)
        if wanted.mode < 0 or found is None or kind not in (FILE, FOLDER):
            return
        is_permitted = stat.S_IMODE(found.st_mode) == wanted.mode
        if is_permitted and found.st_mtime_ns == wanted.changed_ns:
            return
        if not is_permitted or kind == FILE:  # a folder's time has been changed by what was just made in it
            self._before(wanted.path, keeps_content=True)
        if not is_permitted:
            os.chmod(wanted.path, wanted.mode)
        os.utime(wanted.path, ns=(found.st_atime_ns, wanted.changed_ns))

    def _bring_content(self, path: str, offset: int, is_open: set[str], offsets: Mapping[str, int] | None) -> None:
        source, size = self._content_of(path, offset, offsets)
        kind, found = kind_and_stat(path)
        if found is not None and found.st_size == size and os.path.samefile(source, path):
            return
        # By set-up code, which goes on writing to it; that of another rank may have it open as well.
        in_place = path in is_open or self._others.knows(path)
        self._before(path, in_place=in_place, is_emptied=True)
        source, size = self._content_of(path, offset, offsets)  # it may be kept only now
        if in_place and kind == FILE:
            with open(source, "rb") as old, open(path, "r+b") as new:
                copy_bytes(old, new, size)
                new.truncate()
            _go_to_end(path, size)
            return
        temporary = _temporary(path)
        temporary.parent.mkdir(parents=True, exist_ok=True)
        self.journal.give(source, size, str(temporary))
        temporary.replace(path)

    def _content_of(self, path: str, offset: int, offsets: Mapping[str, int] | None) -> tuple[str, int]:
        """See `Journal.content_of`; where what it names is gone, another rank may have put it away."""
        try:
            return self.journal.content_of(path, offset)
        except RestoreError:
            wanted = self.journal.state(path, offset)
            source = self._others.content_of(path, wanted.size, offsets) if wanted is not None else None
            if wanted is None or source is None:
                raise
            return source, wanted.size


def _clear_away(path: str) -> None:
    kind, _ = kind_and_stat(path)
    if kind == ABSENT:
        return  # it had another name
    if kind != FOLDER:
        os.unlink(path)
        return
    with contextlib.suppress(OSError):  # something is in it that the script did not make, or not where it is seen
        os.rmdir(path)


def _temporary(path: str) -> Path:
    """Beside a file, what is to take its place."""
    return Path(path).parent / f".detrain-{xxhash.xxh3_64_hexdigest(os.fsencode(os.path.basename(path)))}.tmp"


def _is_absent(record: Record | None) -> bool:
    return record is not None and record.kind == ABSENT


def _place_of_open(number: int) -> str | None:
    """Where an open file lies; None for a pipe, or a file that has no name any more."""
    place = os.readlink(f"/proc/self/fd/{number}")
    return place if os.path.isabs(place) and os.path.exists(place) else None


def _place(path: str | bytes, folder: object = -1) -> str:
    """Absolute path, links resolved but for the last part; `folder` is a descriptor as of `dir_fd`."""
    name = os.fsdecode(path)
    if isinstance(folder, int) and folder >= 0 and not os.path.isabs(name):
        name = os.path.join(os.readlink(f"/proc/self/fd/{folder}"), name)
    above, last = os.path.split(os.path.join(os.getcwd(), name).rstrip(os.sep))
    if last in ("", os.curdir, os.pardir):
        return os.path.realpath(name)
    return os.path.join(os.path.realpath(above), last)


def _below(path: str) -> Iterator[str]:
    """The path itself, as "", and everything in it if it is a folder, as "/…"."""
    yield ""
    if kind_and_stat(path)[0] == FOLDER:
        for folder, folders, names in os.walk(path):
            for name in (*folders, *names):
                yield os.path.join(folder, name)[len(path) :]


def _open_files(*, for_writing: bool = False) -> set[str]:
    """Absolute paths of the files that this process has open (or mapped, unless only those for writing are asked for), from /proc."""
    found: set[str] = set()
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for number in numbers:
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
            if path.startswith("/") and (not for_writing or _is_for_writing(number)):
                found.add(path)
        except (OSError, StopIteration, ValueError):
            continue
    if not for_writing:
        with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
            found.update(line.split(maxsplit=5)[5].rstrip("\n") for line in maps if line.count("/"))
    return found


def _go_to_end(path: str, size: int) -> None:
    """Whoever has a file open for writing goes on behind what it has been given.

    Where the state knows a file object, it sets its place after this; a library's thread has files that the state knows nothing of.
    """
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError, StopIteration, ValueError):  # closed meanwhile
            if os.readlink(f"/proc/self/fd/{number}") == path and _is_for_writing(number):
                os.lseek(int(number), size, os.SEEK_SET)


def _is_for_writing(number: str) -> bool:
    with open(f"/proc/self/fdinfo/{number}", encoding="ascii") as info:
        flags = next(int(line.split()[1], 8) for line in info if line.startswith("flags:"))
    return bool(flags & _WRITING)

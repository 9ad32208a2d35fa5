"""The script's own output files: put back to what they were, so that no log holds a batch twice.

An audit hook sees every file that the script opens for writing. Before the first write of the run to a file, how long it was
is noted in `files.log`. A later attempt begins with those files as the first one found them; when it has reached its checkpoint,
they get the content that they had at the checkpoint. Files that were written and closed again (not appended to) are left alone: the
script writes them again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import xxhash

from detrain.errors import RestoreError
from detrain.session.messages import warn


class OutputFiles:
    """Files that this run has appended to, or holds open for writing."""

    def __init__(self, directory: Path) -> None:
        self._directory = Path(os.path.abspath(directory))
        self._own_folders = tuple({f"{self._directory}{os.sep}", f"{os.path.realpath(directory)}{os.sep}"})
        self._log = self._directory / "files.log"
        self._folders_log = self._directory / "folders.log"
        #: Absolute path to [size before the run's first write or -1 if it did not exist, whether it was ever appended to].
        self.known: dict[str, list[Any]] = {}
        self._is_watching = False
        self._is_own = False
        self._held: dict[str, Path] = {}

    def read_log(self) -> None:
        """Learn what earlier attempts of this run have opened."""
        try:
            lines = self._log.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                path, size, is_appended = json.loads(line)
            except ValueError:
                continue  # a torn last line of a killed attempt: its file had not been opened yet
            before = self.known.get(path)
            self.known[path] = [before[0] if before else size, bool(is_appended or (before and before[1]))]

    def watch(self) -> None:
        """Begin to see what the script opens."""
        if not self._is_watching:
            sys.addaudithook(self._on_event)
            self._is_watching = True

    def stop(self) -> None:
        """See nothing any more; in a forked child, or when the script has ended."""
        self._is_own = True

    def _on_event(self, event: str, args: tuple[Any, ...]) -> None:
        if event not in ("open", "os.mkdir") or self._is_own or len(args) < 3:
            return
        if event == "os.mkdir":
            self._note_folder(os.path.realpath(os.fsdecode(args[0])))
            return
        path, _, flags = args[:3]
        if (
            not isinstance(flags, int)
            or not flags & (os.O_WRONLY | os.O_RDWR)
            or not isinstance(path, (str, bytes, os.PathLike))
        ):
            return
        self._note(os.path.abspath(os.fsdecode(path)), bool(flags & os.O_APPEND))

    def _note(self, path: str, is_appended: bool) -> None:
        known = self.known.get(path)
        if known is not None and (known[1] or not is_appended):
            return
        if path.startswith((*self._own_folders, "/dev/", "/proc/", "/sys/")):
            return
        try:
            size = os.stat(path).st_size
        except OSError:
            size = -1
        self.known[path] = [known[0] if known else size, is_appended]
        self._is_own = True
        try:
            with open(self._log, "a", encoding="utf-8") as log:
                log.write(json.dumps([path, size, is_appended]) + "\n")
        except OSError:
            return  # the run directory cannot be written; saving a checkpoint will say so
        finally:
            self._is_own = False

    def folders(self) -> list[str]:
        """Folders that earlier attempts of this run have made, and that are there."""
        try:
            lines = self._folders_log.read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        known = {json.loads(line) for line in lines if line.endswith('"')}
        return sorted(path for path in known if os.path.isdir(path))

    def _note_folder(self, path: str) -> None:
        if os.path.lexists(path) or path.startswith(self._own_folders):
            return
        self._is_own = True
        try:
            with open(self._folders_log, "a", encoding="utf-8") as log:
                log.write(json.dumps(path) + "\n")
        except OSError:
            return  # as for files
        finally:
            self._is_own = False

    def capture(self) -> dict[str, int]:
        """Length of every file that a resumed attempt must bring back; -1 for one that does not exist any more."""
        sizes = {}
        still_open = _open_for_writing()
        for path, (_, is_appended) in self.known.items():
            if is_appended or path in still_open:
                try:
                    sizes[path] = os.stat(path).st_size
                except OSError:
                    sizes[path] = -1
        return sizes

    def rewind(self, at_checkpoint: dict[str, int]) -> None:
        """Before the script begins: give it the files as the first attempt found them, and hold what is in them now."""
        wanted = {path for path, (_, is_appended) in self.known.items() if is_appended} | at_checkpoint.keys()
        for path in sorted(wanted):
            held = self._directory / "held" / f"{xxhash.xxh3_64_hexdigest(path.encode())}-{os.path.basename(path)}"
            before = self.known.get(path, [-1, True])[0]
            if not held.exists() and os.path.isfile(path):
                held.parent.mkdir(exist_ok=True)
                temporary = held.with_suffix(".tmp")
                shutil.copyfile(path, temporary)
                temporary.replace(held)
            if os.path.isfile(path):
                if before < 0:
                    os.unlink(path)
                else:
                    os.truncate(path, min(before, os.stat(path).st_size))
            if held.exists():
                self._held[path] = held

    def put_back(self, sizes: dict[str, int]) -> None:
        """At the checkpoint: give each file the content that it had there. Raises `RestoreError` if it is gone."""
        self._is_own = True
        try:
            for path, size in sizes.items():
                if size >= 0:
                    self._put_back_one(path, size)
            self.forget_held()
        except OSError as error:
            raise RestoreError(
                f"a file of the script cannot be brought back to what it was at the checkpoint: {error}"
            ) from error
        finally:
            self._is_own = False

    def _put_back_one(self, path: str, size: int) -> None:
        held = self._held.get(path)
        content = held.read_bytes()[:size] if held is not None else b""
        if len(content) < size:
            raise RestoreError(
                f"the file {path} had {size} bytes at the checkpoint and has {len(content)} now; put it back, or go on without it by "
                "--trust-changes"
            )
        # In place: the script may have it open.
        with open(path, "r+b" if os.path.exists(path) else "w+b") as file:
            file.write(content)
            file.truncate(size)

    def give_up(self) -> None:
        """The checkpoint was not reached: leave the files as the dead attempt left them."""
        self._is_own = True
        for path, held in list(self._held.items()):
            try:
                shutil.copyfile(held, path)
                del self._held[path]
            except OSError as error:
                warn("file-held", f"{path} cannot be put back ({error}); its content is in {held}")
        if not self._held:
            self.forget_held()

    def forget_held(self) -> None:
        """What was held is in place again."""
        self._held = {}
        shutil.rmtree(self._directory / "held", ignore_errors=True)


def _open_for_writing() -> set[str]:
    """Absolute paths of the files that this process has open for writing, from /proc."""
    found: set[str] = set()
    try:
        numbers = os.listdir("/proc/self/fd")
    except OSError:
        return found
    for number in numbers:
        try:
            path = os.readlink(f"/proc/self/fd/{number}")
            with open(f"/proc/self/fdinfo/{number}", encoding="ascii") as info:
                flags = next(int(line.split()[1], 8) for line in info if line.startswith("flags:"))
        except (OSError, StopIteration, ValueError):
            continue
        if path.startswith("/") and flags & (os.O_WRONLY | os.O_RDWR):
            found.add(path)
    return found

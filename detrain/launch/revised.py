"""An attempt that goes on with other sources than its checkpoints were made with: which line of now is which line of then.

With `--trust-changes` a user may have added a line above the loop, and every line below is another one. What is known by lines is moved:
the loops (inst.info, the positions of checkpoints), and the functions of the state (`detrain.state.patches`). Each checkpoint and inst.info
say with which versions they were made; the texts of those are in `sources.log`. Of a run that has none, the lines are taken as they are.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from detrain.launch import patched
from detrain.loops import alignment, instfile
from detrain.loops.alignment import Alignment
from detrain.state.patches import Patch
from detrain.store import sources

if TYPE_CHECKING:  # loads numpy, which the script may not
    from detrain.store.checkpoint import Checkpoint

_RULE = "as they did. Put them back, or start over with --fresh (the old run is kept)"


class Revised:
    """The sources of now, and what the run knows of those of then."""

    def __init__(self, folder: Path, now: Mapping[str, str]) -> None:
        """`folder`: the run directory. `now`: digests of source files as far as they are known, by path."""
        self._folder, self._now = folder, dict(now)
        self._texts: dict[str, bytes] | None = None
        self._aligned: dict[tuple[str, str], Alignment | None] = {}

    def move(self, chain: Sequence[Checkpoint]) -> dict[str, dict[str, Patch]]:
        """Let the positions of checkpoints name the lines of now. Raises `UsageError` where a loop is not there any more.

        Returns by the names of those with other sources what is elsewhere in each file, by its path.
        """
        found: dict[str, dict[str, Patch]] = {}
        for one in chain:
            moved = {
                os.path.normpath(path): aligned
                for path, digest in one.meta.sources.items()
                if (aligned := self._alignment(path, digest)) is not None
            }
            if moved:
                one.meta.position[:] = [
                    loop._replace(line=aligned.loop(loop.line, loop.filename, loop.filename, rule=_RULE))
                    if (aligned := moved.get(os.path.normpath(loop.filename))) is not None
                    else loop
                    for loop in one.meta.position
                ]
                found[one.name] = {path: aligned.patch() for path, aligned in moved.items()}
        return found

    def move_info(self, info: instfile.InstInfo) -> None:
        """Let what is known of the loops name the lines of now. Raises `DetrainError` where one is not there any more."""
        parts, files = info.parts(), []
        for path, digest in info.sources.items():
            aligned = self._alignment(path, digest)
            if aligned is not None:
                loops = {
                    line: aligned.loop(line, path, path, rule=_RULE) for line in parts.get(os.path.normpath(path), {})
                }
                files.append(patched.PatchedFile(path, "", aligned.patch(), loops))
        patched.move_loops(files, info)

    def told(self, path: str, digest: str) -> str:
        """The file of a version that is not that of now, for a message: with the lines that are other ones, where they are known."""
        before = sources.read(self._folder).get(digest)
        try:
            lines = alignment.changed_lines(before, Path(path).read_bytes()) if before is not None else []
        except OSError:
            lines = []
        return f"{path} (line{'s' if len(lines) > 1 else ''} {alignment.shown(lines)})" if lines else path

    def _alignment(self, path: str, digest: str) -> Alignment | None:
        """Of the version of then with that of now; None where they are the same, or one is not known."""
        if path not in self._now:
            self._now[path] = instfile.digest_of(path)
        now = self._now[path]
        if now == digest or not now:
            return None
        if (path, digest) not in self._aligned:
            if self._texts is None:
                self._texts = sources.read(self._folder)
            before = self._texts.get(digest)
            self._aligned[path, digest] = (
                alignment.align(before, Path(path).read_bytes(), path, has_other_headers=True)
                if before is not None
                else None
            )
        return self._aligned[path, digest]

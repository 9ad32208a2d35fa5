"""`sources.log`: the texts of a run's source files, by digest.

A checkpoint and inst.info name loops and functions by lines, and say of which version of a file. An attempt that goes on with another
(`--trust-changes`) finds by these texts where the lines are now, and a refusal tells which have changed. Each line of the file is a JSON
list of a digest and a text; a line that a kill has torn is none.
"""

from __future__ import annotations

import json
from pathlib import Path

NAME = "sources.log"


class SourceTexts:
    """Those of one attempt. Kept in memory until the first checkpoint: before, there is nothing that could go on with others."""

    def __init__(self, folder: Path) -> None:
        """`folder`: the run directory."""
        self._folder = folder
        self._pending: dict[str, bytes] = {}

    def add(self, digest: str, content: bytes) -> None:
        """The attempt runs a file with this content."""
        self._pending[digest] = content

    def write(self) -> None:
        """Append what is not in the file yet. Raises `OSError`."""
        pending = self._pending.copy()  # the script's thread may add to it meanwhile
        if not pending:
            return
        known = read(self._folder)
        new = {digest: content for digest, content in pending.items() if digest not in known}
        with (self._folder / NAME).open("ab+") as file:
            end = file.seek(0, 2)
            if end and file.seek(end - 1) >= 0 and file.read(1) != b"\n":
                file.write(b"\n")
            for digest, content in new.items():
                file.write(json.dumps([digest, content.decode("utf-8", "surrogateescape")]).encode() + b"\n")
        for digest in pending:
            del self._pending[digest]


def read(folder: Path) -> dict[str, bytes]:
    """By digest, the texts that are kept in a run directory; none where there is no such file."""
    try:
        lines = (folder / NAME).read_bytes().splitlines()
    except OSError:
        return {}
    found = {}
    for line in lines:
        try:
            digest, text = json.loads(line)
            found[str(digest)] = text.encode("utf-8", "surrogateescape")
        except (ValueError, AttributeError, TypeError):
            continue  # torn by a kill
    return found

"""The script's own files on a machine that a finished run is fetched to: no attempt will put them there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from detrain.messages import say, warn
from detrain.outputs.journal import FILE, FOLDER, LINK, Journal, kind_and_stat


def give_back(directory: Path) -> None:
    """Make what the journal of a fetched run at its end says that was there, unless something is there already, which is said."""
    journal = Journal(directory)
    journal.read()
    made, kept = 0, []
    for path in sorted(journal.paths(), key=len):
        last = journal.since(path, 0)[-1]
        source = journal.kept / last.content
        kind, _ = kind_and_stat(path)
        if last.kind not in (FILE, FOLDER, LINK) or (last.kind == FILE and not source.is_file()):
            continue
        if kind != "absent":
            if last.kind == FILE and not (kind == FILE and _is_equal(Path(path), source)):
                kept.append(path)
            continue
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if last.kind == FOLDER:
            os.mkdir(path)
        elif last.kind == LINK:
            os.symlink(last.content, path)
        else:
            shutil.copyfile(source, path)
            if last.mode >= 0:
                os.chmod(path, last.mode)
                os.utime(path, ns=(last.changed_ns, last.changed_ns))
            made += 1
    if made:
        say(
            f"the run is finished; {made} file{'s' if made != 1 else ''} that the script wrote {'are' if made != 1 else 'is'} here again"
        )
    for path in kept:
        warn(
            "file-lost",
            f"{path} is another than the run has left, and stays as it is; what the run left is in {journal.kept}",
        )


def _is_equal(one: Path, other: Path) -> bool:
    return one.stat().st_size == other.stat().st_size and one.read_bytes() == other.read_bytes()

"""Where a run goes that was not told where: one directory for each script and its arguments, below `.detrain` in the working folder.

    detrain run train.py                     .detrain/train
    detrain run train.py --lr 0.1            .detrain/train-lr-0.1-9c1b7d30
    detrain run examples/digits/train.py     .detrain/examples-digits-train
    detrain run ../other/train.py            .detrain/train-5b0e3a11
    detrain run -m pkg.train                 .detrain/pkg.train

The digest at the end stands for what the readable part leaves out, so two commands never share a directory and the same command always
finds its own.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import xxhash

#: Below the working folder.
HOME = ".detrain"
#: Characters of the arguments that are readable in a name.
_MOST_READABLE = 32
_UNREADABLE = re.compile(r"[^A-Za-z0-9._=+]+")


def default_directory(script: str, module: str | None, arguments: Sequence[str] = ()) -> str:
    """The run directory of a command; `script` is a path, `module` a dotted name in its place.

    MODEL_NAME in the environment names it instead, as in the prototype.
    """
    return os.path.join(HOME, os.environ.get("MODEL_NAME") or run_name(script, module, arguments))


def run_name(script: str, module: str | None, arguments: Sequence[str] = ()) -> str:
    """A name for the runs of one command, readable and short."""
    place = module if module is not None else _place(script)
    words = [] if module is not None else place.split(os.sep)
    readable = module if module is not None else "-".join(words)
    is_outside = words[:1] == [os.pardir] or os.path.isabs(place)
    if is_outside:
        readable = words[-1]
    is_ambiguous = len(words) > 1 and any("-" in word for word in words)
    if arguments:
        said = "-".join(filter(None, (_UNREADABLE.sub("-", word).strip("-") for word in arguments)))
        readable = "-".join(filter(None, (readable, said[:_MOST_READABLE].rstrip("-."))))
    if not (arguments or is_outside or is_ambiguous):
        return readable
    whole = "\0".join([os.path.realpath(script) if is_outside else place, *arguments])
    return f"{readable}-{xxhash.xxh3_64_hexdigest(os.fsencode(whole))[:8]}"


def _place(script: str) -> str:
    """A script's path from the working folder, links in its folder resolved, without what every script's name has."""
    folder, name = os.path.split(os.path.abspath(script))
    place = os.path.relpath(os.path.join(os.path.realpath(folder), name), os.getcwd())
    place = place.removesuffix(".py")
    above, last = os.path.split(place)
    if last == "__main__" and above:
        return above
    return place if last not in ("", os.curdir, "__main__") else os.path.join(os.pardir, os.path.basename(folder))


def latest_directory(script: str) -> str:
    """Where a script was run last, with whatever arguments; where a run without any would go, if it was not."""
    own = default_directory(script, None)
    runs = [] if os.environ.get("MODEL_NAME") else runs_below(Path(own).parent, os.path.abspath(script))
    return str(runs[0][0]) if runs else own


def runs_below(folder: Path, script: str) -> list[tuple[Path, list[str]]]:
    """Runs of one script (an absolute path, or a module's name) in a folder of runs, with their arguments; the latest begun first."""
    from detrain.errors import CheckpointError
    from detrain.store.directory import RunDirectory
    from detrain.store.job import JobDirectory

    found: list[tuple[float, Path, list[str]]] = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        job = JobDirectory(path)
        directory = job.rank(job.ranks_here()[0]) if job.ranks_here() else RunDirectory(path)
        try:
            record = directory.read_record()
            began_s = (directory.path / "run.json").stat().st_mtime
        except (CheckpointError, OSError):
            continue
        if record is not None and record.script == script:
            found.append((began_s, path, record.arguments))
    return [(path, arguments) for _, path, arguments in sorted(found, key=lambda one: -one[0])]

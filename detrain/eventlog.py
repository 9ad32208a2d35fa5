"""What happens to a run, as JSON lines for other programs: `detrain run --log-json FILE`.

Each line has `at` (seconds since 1970), `event` and, of several ranks, `rank`:

    said        text            a line that detrain has printed
    warning     slug, text      a warning; docs/messages.md has the slugs
    error       text
    began       attempt, directory, script, arguments
    resumed     checkpoint, epoch, batch, batches, seconds since the start
    progress    epoch, batch, batches, loss or null: about once a second
    saved       checkpoint, batches, bytes, stall_s
    ended       status, is_finished; none if the process was killed

The file is added to, by every attempt. It is no output of the script's: a resume leaves it as it is.
"""

from __future__ import annotations

import json
import os
from time import time  # the plain one: later, the script has one of its own

_file = -1
_rank = 0


def log_to(path: str, rank: int = 0) -> None:
    """From now on events of this rank go to this file. Raises `OSError`."""
    global _file, _rank
    _file, _rank = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644), rank


def is_on() -> bool:
    """True if somebody wants to know."""
    return _file >= 0


def note(event: str, **facts: object) -> str:
    """Add a line. Returns why that cannot be done any more, once; "" otherwise."""
    global _file
    if _file < 0:
        return ""
    found = {"at": round(time(), 3), "event": event, **({"rank": _rank} if _rank else {}), **facts}
    try:
        os.write(_file, json.dumps(found).encode() + b"\n")  # one call: lines of several ranks in one file stay whole
    except OSError as error:
        _file = -1
        return str(error)
    return ""

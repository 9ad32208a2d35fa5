"""At the end of a training: until its last checkpoint is published, for a while. All that the training itself does for the store."""

from __future__ import annotations

import os
import time
from pathlib import Path

from detrain.messages import say, warn
from detrain.remote.runs import published
from detrain.remote.side import Side

#: Where the command is all that a container runs, the publisher ends with it. Seconds.
LONGEST_S = 60.0
_POLL_S = 0.05
#: Before it is worth a line. Seconds.
_SILENT_S = 1.0


def wait_until_published(directory: Path, url: str, longest_s: float = LONGEST_S) -> None:
    """Wait until every checkpoint of the run directory is in the store, and say how far it is where it is not."""
    side, run = Side(directory), published(directory)
    began_s, has_said = time.monotonic(), False
    while True:
        state = side.read_state()
        missing = [
            name for name, path in run.resumable().items() if state is None or state.published.get(name) != _stat(path)
        ]
        if not missing:
            numbers = run.sequences()
            if numbers:
                newest = os.path.basename(max(numbers, key=lambda name: numbers[name])).removesuffix(".json")
                say(f"published in {url}, up to {newest}")
            return
        if state is None or state.is_over or not os.path.exists(f"/proc/{state.process}"):
            why = state.trouble if state is not None and state.trouble else "the process that publishes it is gone"
            warn("remote-lost", f"{', '.join(missing)} of {directory} is not in {url}: {why}")
            return
        waited_s = time.monotonic() - began_s
        if waited_s > longest_s:
            why = f" ({state.trouble})" if state.trouble else ""
            warn(
                "remote-behind",
                f"{', '.join(missing)} is not in {url} yet{why}; process {state.process} goes on publishing, and writes what it has to say "
                f"to {side.log}",
            )
            return
        if waited_s > _SILENT_S and not has_said:
            has_said = True
            say(f"waiting up to {longest_s:.0f} s until {', '.join(missing)} is in {url}")
        time.sleep(_POLL_S)


def _stat(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_ino, found.st_size, found.st_mtime_ns]

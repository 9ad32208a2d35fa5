"""What detrain itself says: on standard error, one prefix, so that the script's own output stays what it is."""

from __future__ import annotations

import sys


def say(text: str) -> None:
    """Print a line to standard error; never fails the run."""
    stream = sys.__stderr__
    if stream is None:
        return
    try:
        stream.write(f"detrain: {text}\n")
        stream.flush()
    except (OSError, ValueError):
        return


def warn(slug: str, text: str) -> None:
    """A warning; docs/messages.md explains each slug."""
    say(f"warning: {text} [{slug}]")

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
    except (OSError, ValueError) as error:
        here = error.__traceback__
        if (
            here is not None and here.tb_next is not None
        ):  # not the stream's: a signal handler of the script's has raised it
            raise


def warn(slug: str, text: str) -> None:
    """A warning; docs/messages.md explains each slug."""
    say(f"warning: {text} [{slug}]")

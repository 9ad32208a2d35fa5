"""Ending an attempt where it stands, because going on would not be exact, or because it has done what it was to do."""

from __future__ import annotations

import os
import sys
from typing import NoReturn

from detrain.errors import DetrainError, InexactResume
from detrain.messages import say
from detrain.outputs.following import OutputFiles
from detrain.session.context import Context
from detrain.world import aside


def fail(files: OutputFiles, error: DetrainError) -> NoReturn:
    """Say what is wrong, and end the process with the error's exit status. `files`: the script's own, whose tracking ends."""
    sys.stdout.flush()
    aside.end_all()
    say(f"error: {error}")
    leave(files, error.exit_status)


def leave(files: OutputFiles, status: int) -> NoReturn:
    """End the process with this exit status.

    Not by an exception: hooks are called from the middle of the script, and a script may catch everything.
    """
    files.give_up()
    kill_children()
    aside.end_all()
    sys.stdout.flush()
    os._exit(status)


def refuse(context: Context, error: InexactResume) -> NoReturn:
    """The resume cannot be exact: end the process, or start the run over where that is what the user wants."""
    if context.start_over is None:
        fail(context.files, error)
    context.files.give_up()
    kill_children()
    sys.stdout.flush()
    context.start_over(error)


def kill_children() -> None:
    """What the set-up code has started would wait for ever for an attempt that does not go on."""
    import multiprocessing

    for child in multiprocessing.active_children():
        child.kill()

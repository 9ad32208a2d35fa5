"""Starting the publisher, and waiting until it says that the training may begin. Loads nothing of the store's libraries."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

from detrain.errors import DetrainError, UsageError
from detrain.world.aside import start_aside


class _Refused(DetrainError):  # noqa: N818 - a refusal, not a mistake
    """What the publisher has said."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.exit_status = status


def start(directory: Path, url: str, command: tuple[str, list[str]] | None, *, is_fresh: bool, is_quiet: bool) -> None:
    """Start the publisher of this very process, which becomes the training. Raises `DetrainError` where that may not begin.

    `command`: script and arguments that the run in the store has to have; None where it may be of others.
    """
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    options = [*(["--fresh"] if is_fresh else []), *(["--quiet"] if is_quiet else [])]
    words = [
        str(directory), url,
        "--process", str(os.getpid()), "--answer", str(writer), "--command", json.dumps(command) if command else "", *options,
    ]  # fmt: skip
    start_aside("detrain.remote.publish", words)
    os.close(writer)
    _wait_for_answer(reader)


def _wait_for_answer(reader: int) -> None:
    process = 0
    try:
        with open(reader, encoding="utf-8") as lines:
            for line in lines:
                answer = json.loads(line)
                process = answer.get("process", process)
                if "error" in answer:
                    raise _Refused(answer["error"], answer["status"])
                if "ready" in answer:
                    return
    except KeyboardInterrupt:
        if process:
            os.kill(process, signal.SIGKILL)
        raise
    raise UsageError("the process that publishes the run has ended before it began; nothing was started")

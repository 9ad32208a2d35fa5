"""Starting the publisher, and waiting until it says that the training may begin. Loads nothing of the store's libraries."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

from detrain.errors import DetrainError, UsageError

#: The package may have been found in the working folder, which is searched last here: the script's modules are not the publisher's.
_CODE = "import sys; sys.path.append(sys.argv.pop(1)); from detrain.remote.publish import main; main()"


class _Refused(DetrainError):  # noqa: N818 - a refusal, not a mistake
    """What the publisher has said."""

    def __init__(self, text: str, status: int) -> None:
        super().__init__(text)
        self.exit_status = status


def start(directory: Path, url: str, command: tuple[str, list[str]] | None, *, is_fresh: bool, is_quiet: bool) -> None:
    """Start the publisher of this very process, which becomes the training. Raises `DetrainError` where that may not begin.

    `command`: script and arguments that the run in the store has to have; None where it may be of others.

    It is no child of this process: the script may wait for any of its own. It is in a session of its own: what ends the training does not
    end it.
    """
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    options = [*(["--fresh"] if is_fresh else []), *(["--quiet"] if is_quiet else [])]
    words = [
        sys.executable, "-P", "-c", _CODE, str(Path(__file__).parents[2]), str(directory), url,
        "--process", str(os.getpid()), "--answer", str(writer), "--command", json.dumps(command) if command else "", *options,
    ]  # fmt: skip
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child == 0:
        _become(words)
    os.close(writer)
    os.waitpid(child, 0)
    _wait_for_answer(reader)


def _become(words: list[str]) -> None:
    """In the child: have a child of its own become the publisher, and end."""
    try:
        os.setsid()
        if os.fork() == 0:
            nothing = os.open(os.devnull, os.O_RDWR)
            os.dup2(nothing, 0)
            os.dup2(nothing, 1)
            os.execv(words[0], words)
    finally:
        os._exit(0)


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

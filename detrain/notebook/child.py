"""Runs a script by `detrain run` in a process of its own, which shows what it prints here and ends when this process does."""

from __future__ import annotations

import codecs
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from detrain.errors import DetrainError, UsageError
from detrain.launch.supervising import end_with_parent

#: Below the folder in which the notebook or the program runs.
FOLDER = Path(".detrain")
_HEADER = """\
# Made by detrain; what is changed here is lost.
import os
import sys

sys.path[0] = os.getcwd()
sys.stdout.reconfigure(line_buffering=True, write_through=False)  # whole lines, and at once
"""
_RESULTS = """\


import pickle

with open({path!r}, "wb") as file:
    pickle.dump({value}, file)
"""


@dataclass(frozen=True)
class Files:
    """Where the script of a run lies, its run directory, and what it has handed back."""

    script: Path
    directory: Path
    results: Path

    @classmethod
    def of(cls, name: str) -> Files:
        """Those of a name that the user has chosen. Raises `UsageError`."""
        if not name.isidentifier():
            raise UsageError(f"{name!r} cannot name a run: use letters, digits and _")
        return cls(FOLDER / f"{name}.py", FOLDER / name, FOLDER / f"{name}.results")


class NotEnded(DetrainError):  # noqa: N818 - the run goes on with the next call
    """The run has not come to its end."""

    def __init__(self, status: int, name: str) -> None:
        """`status`: the exit status of `detrain run`, negative for a signal."""
        how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
        super().__init__(f"the run {name} {how}; what it has said stands above")
        self.status = status


def run(name: str, source: str, value: str, options: Sequence[str], folders: Sequence[str] = ()) -> object:
    """Run a script until it ends, from its latest checkpoint if there is one, and return what it hands back.

    Args:
        name: of the run: its script is `.detrain/NAME.py`, its run directory `.detrain/NAME`.
        source: of the script.
        value: an expression: what the script hands back. "" for nothing.
        options: for `detrain run`.
        folders: where the script finds modules beside the working directory.

    Raises:
        UsageError: the name cannot be used.
        NotEnded: the script has failed, or the run was refused or killed.
        KeyboardInterrupt: this process was interrupted, as the run has been then.
    """
    files = Files.of(name)
    FOLDER.mkdir(exist_ok=True)
    header = _HEADER + "".join(f"sys.path.insert(1, {folder!r})\n" for folder in folders)
    end = _RESULTS.format(path=str(files.results), value=value) if value else ""
    files.script.write_text(f"{header}\n\n{source}{end}", encoding="utf-8")
    words = ["run", "--ckpt-dir", str(files.directory), *options, str(files.script)]
    status = _start([sys.executable, "-m", "detrain", *words])
    if status:
        raise NotEnded(status, name)
    if not value:
        return None
    try:
        with files.results.open("rb") as file:
            result: object = pickle.load(file)  # made by the user's own script
    except FileNotFoundError:
        raise UsageError(
            f"the run {name} has ended before, and {files.results} is gone: give --fresh to run it again"
        ) from None
    return result


def _start(words: Sequence[str]) -> int:
    """The exit status. What the process prints appears where this one's `print` does, which in a notebook is below the cell."""
    is_shown = sys.stdout is not sys.__stdout__
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if is_shown else None,
        stderr=subprocess.STDOUT if is_shown else None,
        start_new_session=True,  # a notebook's server interrupts the kernel's whole group: the run is asked once, below
        preexec_fn=end_with_parent,
    )
    try:
        if process.stdout is not None:
            _show(process.stdout)
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)  # it says where it goes on
        if process.stdout is not None:
            _show(process.stdout)
        process.wait()
        raise
    finally:
        if process.poll() is None:
            process.kill()


def _show(stream: IO[bytes]) -> None:
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while content := os.read(stream.fileno(), 1 << 16):
        sys.stdout.write(decoder.decode(content))
        sys.stdout.flush()

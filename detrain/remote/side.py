"""What this machine knows of a run's publication, in a folder beside the run directory: `.<name>.remote/`.

    lock         held by the process that publishes
    base.json    the manifest that this directory and the store had in common last
    state.json   what is published, for the training's last message
    log          what the publisher had to say after the training's end
    snapshot/    files on their way
    begun.json   see `detrain.remote.together`

Nothing of it is imported by fsspec's side alone: the training reads `state.json`.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from detrain.store.directory import write_atomically


@dataclass(frozen=True)
class State:
    """How far the publisher is. `published`: of each checkpoint that a manifest names, [inode, size, time of change in ns]."""

    process: int
    published: dict[str, list[int]] = field(default_factory=dict)
    #: What is wrong at present; "" if nothing is.
    trouble: str = ""
    #: Nothing more will be published by this process.
    is_over: bool = False


class Side:
    """The folder. It is made when it is first written to."""

    def __init__(self, directory: Path) -> None:
        """`directory`: of the run, absolute."""
        self.path = directory.with_name(f".{directory.name}.remote")
        self._lock: Any = None

    @property
    def snapshot(self) -> Path:
        """Where a snapshot lies."""
        return self.path / "snapshot"

    @property
    def incoming(self) -> Path:
        """Where a run is fetched to."""
        return self.path / "incoming"

    @property
    def log(self) -> Path:
        """Of the publisher, once nobody reads its standard error."""
        return self.path / "log"

    def owner(self) -> str:
        """Names this directory on this machine, until it is started anew: what holds a lease."""
        self.path.mkdir(parents=True, exist_ok=True)
        found = self.path.stat()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{os.uname().nodename} {boot} {found.st_dev}:{found.st_ino}"

    def lock(self, longest_s: float) -> bool:
        """Be the one that publishes; False where another process is, for so long."""
        self.path.mkdir(parents=True, exist_ok=True)
        if self._lock is None:
            self._lock = open(self.path / "lock", "a+", encoding="ascii")  # noqa: SIM115 - held until the process ends
        end_s = time.monotonic() + longest_s
        while True:
            try:
                fcntl.lockf(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except (BlockingIOError, PermissionError):
                if time.monotonic() >= end_s:
                    return False
                time.sleep(0.05)
                continue
            return True

    def unlock(self) -> None:
        """Let the next one publish."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def read_state(self) -> State | None:
        """None where nobody has published yet, or a file of another version lies there."""
        document = self.read("state.json")
        try:
            return State(**document) if document is not None else None
        except TypeError:
            return None

    def write_state(self, state: State) -> None:
        """Replace it."""
        self.write("state.json", asdict(state))

    def read_base(self) -> dict[str, Any] | None:
        """See `detrain.remote.beginning.Base`."""
        return self.read("base.json")

    def write_base(self, document: dict[str, Any]) -> None:
        """Replace it."""
        self.write("base.json", document)

    def read(self, name: str) -> dict[str, Any] | None:
        """A JSON file of the folder; None if there is none, or half of one."""
        try:
            document = json.loads((self.path / name).read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError):
            return None
        return document if isinstance(document, dict) else None

    def write(self, name: str, document: dict[str, Any]) -> None:
        """Replace a JSON file of the folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        write_atomically(self.path / name, json.dumps(document, indent=1, sort_keys=True) + "\n")


def is_alive(process: int, started: str) -> bool:
    """True while this very process runs; `started` tells it from a later one of the same number."""
    return started_at(process) == started


def started_at(process: int) -> str:
    """When a process was started, in ticks since the machine was; "" if there is none, or it has ended and nobody has asked how."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] in "ZX" else fields[19]

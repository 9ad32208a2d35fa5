"""Which rank of which job this process is, as its launcher says in the environment."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from detrain.adapters.launchers import HOW, LAUNCHERS, SLURM, Launcher
from detrain.errors import UsageError

#: Port of rank 0 where the launcher names none.
_PORT = 29500
#: How many ports, from the one above the launcher's, rank 0 tries for itself.
NUM_PORTS = 16


@dataclass(frozen=True)
class Place:
    """One rank's place in its job."""

    rank: int
    #: Number of ranks, at least 2.
    size: int
    #: Host of rank 0, and the first port that it may listen at.
    address: str
    port: int
    #: The same for all ranks of one start of a job, and for no other that may be met at the same ports.
    token: str
    launcher: str
    #: All ranks are on this host, as far as the launcher says.
    is_one_host: bool = False

    @property
    def is_first(self) -> bool:
        """True for rank 0, which decides for all."""
        return self.rank == 0


def place_of(environment: Mapping[str, str]) -> Place | None:
    """The place of this process; None if it trains alone.

    Raises `UsageError` where the environment tells of several ranks, and not which this one is or where the first is to be met.
    """
    for launcher in LAUNCHERS:
        size = _number(environment, launcher.size)
        if size is None or size < 2:
            continue
        if launcher is SLURM and "MASTER_ADDR" not in environment:
            continue  # its tasks may have nothing to do with each other
        return _place(environment, launcher, size)
    return None


def _place(environment: Mapping[str, str], launcher: Launcher, size: int) -> Place:
    rank = _number(environment, launcher.rank)
    said = f"{launcher.size}={size}: this process is one of {size} ranks"
    if rank is None or rank >= size:
        what = "is not set" if rank is None else f"is {rank}"
        raise UsageError(f"{said}, but {launcher.rank} {what}; start the ranks by `{HOW}`")
    is_one_host = _number(environment, launcher.local_size) == size
    address = environment.get("MASTER_ADDR", "127.0.0.1" if is_one_host else "")
    if not address:
        raise UsageError(f"{said} on several hosts; MASTER_ADDR has to name the host of rank 0")
    port = _number(environment, "DETRAIN_PORT") or (_number(environment, "MASTER_PORT") or _PORT) + 1
    start = [environment.get(name, "") for name in launcher.start]
    token = " ".join([str(size), environment.get("MASTER_PORT", ""), *start])
    return Place(rank, size, address, port, token, launcher.name, is_one_host)


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    return int(text) if text.isdigit() else None


def host() -> str:
    """The name of this host."""
    return os.uname().nodename

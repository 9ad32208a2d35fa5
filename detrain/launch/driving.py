"""`detrain pipeline drive`: the command that starts each rank of a job, on this host, on another, or in a container."""

from __future__ import annotations

import os
import shlex
import shutil
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from detrain.adapters import launchers
from detrain.errors import UsageError

#: A login never asks anything here; a host that does not answer is given up, also one that has been lost later. Seconds. With a terminal
#: (-tt) the rank ends with the connection, by SIGHUP.
_SSH_OPTIONS = (
    "-o", "BatchMode=yes", "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=5", "-o", "ServerAliveCountMax=3",
    "-o", "LogLevel=ERROR",
)  # fmt: skip
#: ssh's own exit status, where there is no connection or none any more.
SSH_FAILED = 255
#: The first line of a rank on another host: this word, the job's run id, and the rank's process id there.
PROCESS_LINE = "detrain-rank-process"
_CONTAINER, _MOUNTS = "{container}", "{mounts}"
#: Where rank 0 listens on another host, where nobody can see which ports are free.
DEFAULT_PORT = 29500
_LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Job:
    """What is to be started. Raises `UsageError` for what cannot be."""

    #: By rank: host, and number of its GPU. A host may be a login (`user@host`).
    machines: Sequence[tuple[str, int]]
    #: Of each rank, behind the name of the interpreter.
    words: Sequence[str]
    #: The working directory, on all hosts.
    folder: str
    run_id: str
    #: Where rank 0 listens.
    port: int
    #: The interpreter of ranks on this host, and of those on other hosts or in containers.
    python: str
    other_python: str
    #: The environment of this process.
    environment: Mapping[str, str] = field(default_factory=dict)
    #: The command by which a rank on another host is started.
    ssh: Sequence[str] = ("ssh",)
    #: Words before the command of each rank, as `docker run IMAGE` is.
    launcher: Sequence[str] = ()

    def __post_init__(self) -> None:
        if any(not is_local(host) for host, _ in self.machines) and shutil.which(self.ssh[0]) is None:
            host = next(host for host, _ in self.machines if not is_local(host))
            raise UsageError(
                f"{self.ssh[0]} is not installed, and {host} is another host; give another command with --ssh"
            )
        if self.launcher and is_local(self.machines[0][0]) and shutil.which(self.launcher[0]) is None:
            raise UsageError(f"{self.launcher[0]}, which the launcher begins with, is not installed")

    def hosts(self) -> list[str]:
        """Each once, in the order in which they are named."""
        return list(dict.fromkeys(host for host, _ in self.machines))

    def address(self) -> str:
        """Where the other ranks meet rank 0."""
        first = self.machines[0][0]
        if all(is_local(host) for host in self.hosts()):
            return _LOOPBACK
        if not is_local(first):
            return _without_login(first)
        return socket.gethostname() if _is_loopback(_without_login(first)) else _without_login(first)

    def spot(self, rank: int) -> launchers.Spot:
        """Where a rank runs."""
        host = self.machines[rank][0]
        beside = [other for other, (name, _) in enumerate(self.machines) if name == host]
        hosts = self.hosts()
        return launchers.Spot(
            rank, len(self.machines), beside.index(rank), len(beside), hosts.index(host), len(hosts), self.address(),
            self.port, self.run_id,
        )  # fmt: skip

    def variables(self, rank: int) -> dict[str, str]:
        """What a rank finds in its environment beside what is there: its place, its host's GPUs, one thread as `torchrun` gives it."""
        host = self.machines[rank][0]
        spot, devices = self.spot(rank), [device for name, device in self.machines if name == host]
        hidden_by = launchers.hidden_by(self.environment) if is_local(host) else None
        threads = {"OMP_NUM_THREADS": "1"} if spot.local_size > 1 and "OMP_NUM_THREADS" not in self.environment else {}
        unbuffered = {} if "PYTHONUNBUFFERED" in self.environment else {"PYTHONUNBUFFERED": "1"}
        return {**spot.variables(), **launchers.visible_devices(devices, hidden_by), **threads, **unbuffered}

    def commands(self) -> list[RankCommand]:
        """By rank."""
        return [self._command(rank) for rank in range(len(self.machines))]

    def _command(self, rank: int) -> RankCommand:
        host, device = self.machines[rank]
        if not is_local(host):
            return self._there(rank, host, f"{host}:{device}")
        if self.launcher:
            words = (*self.launcher, "sh", "-c", self._line(self.variables(rank)))
            return RankCommand(rank, f"{host}:{device}", words, self.environment)
        inherited = {name: value for name, value in self.environment.items() if name not in launchers.NOT_INHERITED}
        words = (self.python, *self.words)
        return RankCommand(rank, f"{host}:{device}", words, {**inherited, **self.variables(rank)})

    def _there(self, rank: int, host: str, place: str) -> RankCommand:
        """The terminal is there for the sake of its hang-up; nobody sits at it."""
        line = self._line({**self.variables(rank), "TERM": "dumb"})
        if self.launcher:
            line = f"exec {shlex.join([*self.launcher, 'sh', '-c', line])}"
        line = f"echo {PROCESS_LINE} {self.run_id} $$ && {line}"
        ssh = (*self.ssh, *_SSH_OPTIONS)
        # The login shell may be any; what it is given is one word to `sh`.
        words = (*ssh, "-tt", host, f"exec sh -c {shlex.quote(line)}")
        return RankCommand(rank, place, words, self.environment, (*ssh, "-n", host), self.run_id)

    def _line(self, variables: Mapping[str, str]) -> str:
        """For a shell that has inherited nothing from here, not even the folder."""
        given = {**launchers.passed_on(self.environment), **variables}
        named = (f"{name}={value}" for name, value in given.items())
        return f"cd {shlex.quote(self.folder)} && exec {shlex.join(['env', *named, self.other_python, *self.words])}"


@dataclass(frozen=True)
class RankCommand:
    """How one rank is started from here."""

    rank: int
    #: Its machine, as the configuration names it.
    place: str
    words: Sequence[str]
    environment: Mapping[str, str]
    #: Runs a command on its host; empty where that is this one.
    reach: Sequence[str] = ()
    run_id: str = ""

    def kill_words(self, process: int, number: int) -> list[str]:
        """Sends a signal to the rank's process on another host."""
        return [*self.reach, f"kill -{number} {process}"]

    def text(self) -> str:
        """As a person may type it; of a rank here without the environment that it inherits."""
        return shlex.join(self.words)


def launcher_words(launcher: str, container: str, mounts: Sequence[str]) -> list[str]:
    """A launcher's words with its placeholders replaced: `{mounts}` by `-v FROM:TO` for each mount, `{container}` by the image.

    Raises `UsageError` for a placeholder for which there is nothing, and for a container or mounts that the launcher has no place for.
    """
    try:
        words = shlex.split(launcher)
    except ValueError as error:
        raise UsageError(f"--launcher {launcher}: {error}") from None
    if container and not any(_CONTAINER in word for word in words):
        raise UsageError(
            f"the launcher {launcher!r} has no {_CONTAINER}, and the container is {container}; give --no-container without one"
        )
    if not container and any(_CONTAINER in word for word in words):
        raise UsageError(f"the launcher {launcher!r} has {_CONTAINER}, and the configuration names none")
    if mounts and _MOUNTS not in words:
        raise UsageError(f"the launcher {launcher!r} has no {_MOUNTS} for --mount {mounts[0]}")
    replaced: list[str] = []
    for word in words:
        if word == _MOUNTS:
            for mount in mounts:
                source, _, target = mount.partition(":")
                replaced += ["-v", f"{os.path.abspath(source)}:{target or os.path.abspath(source)}"]
        else:
            replaced.append(word.replace(_CONTAINER, container))
    return replaced


def is_local(host: str) -> bool:
    """True for this host, by a name of its own or by an address of one of its interfaces."""
    name = socket.gethostname()
    return _is_loopback(host) or host in (name, name.partition(".")[0]) or _is_own_address(host)


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def _is_own_address(host: str) -> bool:
    """True where a socket may have this address; what is no address is nothing of ours."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.inet_pton(family, host)
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((host, 0))
    except OSError:
        return False
    return True


def _without_login(host: str) -> str:
    return host.rpartition("@")[2]


def free_port() -> int:
    """A port of this host at which nobody listens."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port

"""What ranks tell each other: one JSON document a line. A message says which it is by the name of its class."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, ClassVar


@dataclass(frozen=True)
class Message:
    """Whatever goes over the line."""

    _kinds: ClassVar[dict[str, type[Message]]] = {}

    def __init_subclass__(cls) -> None:
        Message._kinds[cls.__name__] = cls

    def encode(self) -> bytes:
        """One line."""
        return json.dumps([type(self).__name__, asdict(self)], separators=(",", ":")).encode() + b"\n"

    @staticmethod
    def decode(line: bytes) -> Message:
        """The inverse. Raises `ValueError` for what is no message of ours."""
        try:
            kind, values = json.loads(line)
            cls = Message._kinds[kind]
            known = {one.name for one in fields(cls)}
            return cls(**{name: _frozen(value) for name, value in values.items() if name in known})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"not a message: {line[:80]!r}") from error


def _frozen(value: Any) -> Any:
    return tuple(_frozen(one) for one in value) if isinstance(value, list) else value


@dataclass(frozen=True)
class Hello(Message):
    """The first word of a rank: what it is about to run, and what its run directory holds."""

    token: str
    rank: int
    #: Name of the host; process.
    host: str = ""
    process: int = 0
    #: detrain's version; the script or module as the job names it; digest of the program with its arguments and seed.
    version: str = ""
    program: str = ""
    arguments: tuple[str, ...] = ()
    seed: int = 0
    every: str = ""
    key: str = ""
    #: Further options that all ranks have to be given alike, as text.
    options: str = ""
    #: Digest of the loops that it knows from earlier; "" if it knows none.
    loops: str = ""
    #: The rank's own directory, as this host names it.
    directory: str = ""
    #: Names of the checkpoints that it holds; what keeps the rank from beginning, "" if nothing does.
    checkpoints: tuple[str, ...] = ()
    trouble: str = ""


@dataclass(frozen=True)
class Welcome(Message):
    """Rank 0 knows the job by its token."""


@dataclass(frozen=True)
class Propose(Message):
    """Can this cut be resumed from? `digests`: of the ranks' parts."""

    name: str
    digests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Answer(Message):
    """The answer to a proposal; `trouble` is "" if it can."""

    name: str
    trouble: str = ""


@dataclass(frozen=True)
class Start(Message):
    """All ranks begin, from the cut of this name, or from the beginning if it is ""; or none does, as `refusal` says.

    `aside`: the name beside the job's directory under which what lies there is kept first; "" if it stays. `status`: that of a refusal.
    """

    name: str = ""
    aside: str = ""
    refusal: str = ""
    status: int = 2
    #: Names of all cuts that are whole.
    whole: tuple[str, ...] = ()
    #: The ranks do not know the same loops from earlier: all look for them.
    forgets_loops: bool = False


@dataclass(frozen=True)
class Ready(Message):
    """The rank has put back the files that the script will find; or, from rank 0: all have."""


@dataclass(frozen=True)
class Tick(Message):
    """What the policies of all ranks go by from the header with this number on, until the header `until`."""

    header: int
    until: int
    #: Seconds of rank 0's monotonic clock.
    now_s: float
    #: A checkpoint was asked for; one is being written, by some rank.
    is_asked: bool = False
    is_writing: bool = False
    #: The ranks end behind the checkpoint that was asked for.
    is_last: bool = False
    #: To how many checkpoints the attempt has come.
    num_jumps: int = 0


@dataclass(frozen=True)
class Saved(Message):
    """Rank 0 has taken its part of a cut, or held one: what that cost, and when. In seconds."""

    name: str
    now_s: float
    cost_s: float


@dataclass(frozen=True)
class Leave(Message):
    """Rank 0 publishes nothing more in this attempt: no cut is taken any more."""


@dataclass(frozen=True)
class Ask(Message):
    """A checkpoint is wanted as soon as possible. `is_last`: behind it all ranks end."""

    is_last: bool = False


@dataclass(frozen=True)
class Part(Message):
    """A rank's part of a cut is on its disk; `trouble` is "" unless it could not be written."""

    name: str
    sequence: int = 0
    epoch: int = 0
    batch: int = 0
    batches: int = 0
    #: Names of the cuts that a resume passes through.
    chain: tuple[str, ...] = ()
    #: File, line, ordinal and iteration of each of the training's loops.
    position: tuple[tuple[str, int, int, int], ...] = ()
    digest: str = ""
    trouble: str = ""
    #: Of the tensors that several ranks have alike: which ranks, and one digest over all.
    replicas: tuple[tuple[str, str], ...] = ()
    #: The trouble is only that a checkpoint of this very place is on the disk already.
    is_there: bool = False


@dataclass(frozen=True)
class Explain(Message):
    """The digests of the replicas in this cut differ; which of them do is wanted."""

    name: str


@dataclass(frozen=True)
class Explained(Message):
    """Path, ranks that have it, and digest of each replica in a cut."""

    name: str
    replicas: tuple[tuple[str, str, str], ...] = ()


@dataclass(frozen=True)
class Committed(Message):
    """The cut is whole: its manifest is on rank 0's disk. Of the parts up to this one, only those of the cuts in `kept` are needed."""

    name: str
    sequence: int = 0
    kept: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Dropped(Message):
    """The cut will not be whole; its parts can go."""

    name: str


@dataclass(frozen=True)
class OutOfStep(Message):
    """The rank is at another place of the script than rank 0; it has said so."""


@dataclass(frozen=True)
class Ended(Message):
    """The script has ended on this rank. `is_finished`: with status 0, its training done."""

    status: int = 0
    is_finished: bool = False


@dataclass(frozen=True)
class AllEnded(Message):
    """The script has ended on all ranks. `is_finished`: on all as it should."""

    is_finished: bool = False


@dataclass(frozen=True)
class Lost(Message):
    """A rank is gone that had not ended."""

    rank: int
    why: str = ""

"""What an attempt is asked to do, on its way from the command line to the process that runs the script."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import xxhash

from detrain.session.goal import Goal
from detrain.store.record import Change, Invocation
from detrain.world.machine import Machine


@dataclass
class Request:
    """One start of a script. The command line fills the first fields, the launch the others; `encode` is taken over by `execve`."""

    #: The script as it was named, or "" with `-m`; the module, or "".
    script: str
    module: str
    arguments: list[str]
    #: What the run is called: the script's stem, or the module.
    name: str
    #: The run directory, as it was named.
    ckpt_dir: str
    #: The URL that the run directory is published at; "" for none.
    remote: str = ""
    every: str = "auto"
    #: Checkpoints to keep.
    keep: int = 3
    seed: int = 0
    fresh: bool = False
    #: `--from`: the checkpoint to resume from; None for the latest.
    start: str | None = None
    nondeterministic: bool = False
    trust_changes: bool = False
    keep_trained: bool = False
    no_pickle: bool = False
    leave_files: bool = False
    #: What to do where a resume cannot be exact: refuse, restart or trust.
    on_inexact: str = "refuse"
    #: `--memory-budget`; "" for none.
    memory_budget: str = ""
    remat_planner: str = "auto"
    remat_verify: bool = False
    #: `--pipeline`: the file of a plan; "" for none. Then the number of micro-batches, and whether one process plays all devices.
    pipeline: str = ""
    micro_batches: int = 1
    emulate: bool = False
    #: `--time-limit`: when it is reached, by this machine's monotonic clock. Seconds.
    ends_s: float = math.inf
    #: The scheduler is asked to start the job again when it has to end.
    requeue: bool = False
    #: Only warnings and errors are said.
    quiet: bool = False
    #: `--progress`: the process that shows it, which ends with the attempt; 0 for none.
    statusline: int = 0
    #: `--log-json`: where events go; "" for nowhere.
    log_json: str = ""
    #: Why the run starts over by itself; "" if it does not.
    restarts: str = ""
    #: The directory that `detrain trace` of this script writes to; "" where the user has named one.
    traced_in: str = ""
    #: Said if the script does not know its arguments and some are options of detrain's.
    hint: str = ""

    #: The job's directory, of which `ckpt_dir` is this rank's part; "" where the process trains alone. Then the rank, and their number.
    job: str = ""
    rank: int = 0
    size: int = 1
    #: The process that has started this rank.
    launcher: int = 0

    #: The interpreter's own flags (-O, -X …); None for those of this process.
    interpreter: list[str] | None = None
    #: This machine, and the key of the stream of entropy; set before the process is replaced.
    machine: Machine | None = None
    entropy: str = ""
    is_address_space_fixed: bool = False
    #: Environment variables that detrain has set, because the user has not.
    defaults: list[str] = field(default_factory=list)
    #: Decisions to go on with other arguments; None: those on record.
    changes: list[Change] | None = None
    #: A file, by name or by descriptor, that says what the old arguments made; None where none are taken over.
    olds: str | int | None = None
    #: Of an attempt that only does a part of a run again.
    goal: Goal | None = None
    #: Of a round of the tracer: the file that it leaves its report in.
    report: str = ""

    @property
    def invocation(self) -> Invocation:
        """Arguments and seed."""
        return Invocation(tuple(self.arguments), self.seed)

    @property
    def rank_seed(self) -> int:
        """The base seed of this rank's generators: each rank draws numbers of its own, the first those that it would draw alone."""
        if not self.rank:
            return self.seed
        return int(xxhash.xxh3_64_hexdigest(f"{self.seed} rank {self.rank}".encode())[:8], 16)

    @property
    def trusts(self) -> bool:
        """True if a resume goes on that may not be exact."""
        return self.trust_changes or self.on_inexact == "trust"

    @property
    def may_restart(self) -> bool:
        """True if the run starts over where a resume cannot be exact. Who names a checkpoint wants that one."""
        return (
            self.on_inexact == "restart"
            and not self.start
            and not self.fresh
            and self.goal is None
            and self.olds is None
        )

    def restarted(self, why: str) -> Request:
        """The same, from the beginning."""
        return replace(self, fresh=True, restarts=why)

    def encode(self) -> str:
        """As one line of JSON."""
        changes = None if self.changes is None else [change.encode() for change in self.changes]
        return json.dumps({**asdict(self), "changes": changes})

    @classmethod
    def decode(cls, text: str) -> Request:
        """The inverse of `encode`."""
        document: dict[str, Any] = json.loads(text)
        unknown = document.keys() - {one.name for one in fields(cls)}
        assert not unknown, unknown
        if document["machine"] is not None:
            document["machine"] = Machine(**document["machine"])
        if document["changes"] is not None:
            document["changes"] = [Change.decode(change) for change in document["changes"]]
        if document["goal"] is not None:
            document["goal"] = Goal.decode(document["goal"])
        return cls(**document)

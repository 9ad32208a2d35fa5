"""What a checkpoint says beside the state: where in the run it stands, how it is reached, and the surroundings that it was taken in."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any, NamedTuple

from detrain.store.record import Invocation


class LoopPosition(NamedTuple):
    """Where one loop of the training stands.

    It is the `for` or `while` at `line` of `filename`, which was entered `ordinal` times before in the present iteration of the loop around
    it, in its iteration `iteration`. Both count from 0, the line from 1.
    """

    filename: str
    line: int
    ordinal: int
    iteration: int


@dataclass(frozen=True)
class Meta:
    """The document `/meta` of a checkpoint file. Names and values are those of `docs/format.md`."""

    #: Number of the save within the run, from 1.
    sequence: int
    #: The training's loops, outermost first.
    position: list[LoopPosition] = field(default_factory=list)
    #: Names of the other files that hold arrays of the state, so that it is known without the state; written by the store. None in a file
    #: of an earlier detrain's.
    holders: list[str] | None = field(default=None, compare=False)
    #: The innermost of them has come to its end.
    is_exhausted: bool = False
    #: Names of the checkpoints to pass through on the way here, in order.
    chain: list[str] = field(default_factory=list)
    #: Of each frame of the script's from the module to the loop: name, qualified name, first line.
    call_path: list[list[Any]] = field(default_factory=list)
    #: The script's own modules that were loaded; an earlier detrain did not write them.
    modules: list[str] = field(default_factory=list)
    #: Modules of libraries that were loaded since the loops were entered, in that order.
    libraries: list[str] = field(default_factory=list)
    #: In the file's name: the epoch, and the batch in it, before which the checkpoint stands. From 0.
    epoch: int = 0
    batch: int = 0
    #: Iterations of the epoch loop, and of the batch loop, begun in the run; batches begun in the epoch.
    epochs: int = 0
    batches: int = 0
    batch_in_epoch: int = 0
    #: Seconds that the training had waited for the checkpoint before.
    cost_s: float = 0.0
    #: What the bits depend on beside the script: versions, instruction sets.
    facts: dict[str, Any] = field(default_factory=dict)
    #: Process-wide switches, by framework.
    flags: dict[str, dict[str, Any]] = field(default_factory=dict)
    #: Bytes drawn from the stream of entropy by the main thread, and by others; empty without the preload.
    entropy: list[int] = field(default_factory=list)
    entropy_of_threads: list[int] = field(default_factory=list)
    #: How much had been read from the clocks (`detrain.world.clocks.Clocks.tell`); empty without the preload.
    clocks: list[int] = field(default_factory=list)
    #: The working folder.
    folder: str = ""
    #: Process id; None in a file of an earlier detrain's.
    process: int | None = None
    #: Length of `files.log`, in records.
    files: int = 0
    arguments: list[str] = field(default_factory=list)
    seed: int = 0
    #: Digests of the script's source files, by path.
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def invocation(self) -> Invocation:
        """The arguments and the seed that it was made with."""
        return Invocation(tuple(self.arguments), self.seed)

    def encode(self) -> dict[str, object]:
        """As JSON."""
        return {**asdict(self), "position": [list(loop) for loop in self.position]}

    @classmethod
    def decode(cls, document: dict[str, Any]) -> Meta:
        """The inverse of `encode`; names that this version does not know are left out. Raises `TypeError` or `ValueError`."""
        known = {one.name: document[one.name] for one in fields(cls) if one.name in document}
        if type(known.get("sequence")) is not int or type(known.get("chain")) is not list:
            raise ValueError("neither `sequence` nor `chain` may be missing")
        return cls(**{**known, "position": [LoopPosition(*loop) for loop in known.get("position", ())]})

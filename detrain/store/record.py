"""`run.json`: how a run was started. Written at the begin of each attempt, read by whoever goes on with the run or looks at it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

from detrain.errors import CheckpointError
from detrain.world.machine import Machine


class Invocation(NamedTuple):
    """The arguments and the seed that a script is started with: with others its set-up code makes other values."""

    arguments: tuple[str, ...] = ()
    seed: int = 0

    def encode(self) -> dict[str, object]:
        """As JSON, under the names that a record has them."""
        return {"arguments": list(self.arguments), "seed": self.seed}

    @classmethod
    def decode(cls, document: dict[str, Any]) -> Invocation:
        """The inverse of `encode`; what is missing has its default."""
        return cls(tuple(document.get("arguments", ())), document.get("seed", 0))

    def __str__(self) -> str:
        return " ".join(self.arguments) or "none"


@dataclass(frozen=True)
class Change:
    """A decision to go on with other arguments.

    `keeps` says what of a checkpoint of the old ones wins over what the new ones make: "" (nothing that both have changed: the attempt is
    refused), "conflicts" or "everything".
    """

    old: Invocation
    new: Invocation
    keeps: str

    def encode(self) -> dict[str, object]:
        """As JSON."""
        return {"from": self.old.encode(), "to": self.new.encode(), "keeps": self.keeps}

    @classmethod
    def decode(cls, document: dict[str, Any]) -> Change:
        """The inverse of `encode`."""
        return cls(Invocation.decode(document["from"]), Invocation.decode(document["to"]), document["keeps"])


@dataclass(frozen=True)
class Command:
    """What of the command line, beside the arguments, decides how the script runs. `interpreter`: flags of Python's own (-O, -X …)."""

    script: str = ""
    module: str = ""
    nondeterministic: bool = False
    leave_files: bool = False
    interpreter: tuple[str, ...] = ()
    #: The file of the plan over whose stages the model is trained; "" for none.
    pipeline: str = ""
    micro_batches: int = 1

    @classmethod
    def decode(cls, document: dict[str, Any]) -> Command:
        """From JSON; what an earlier detrain did not write has its default."""
        known = {name: document[name] for name in _names(cls) if name in document}
        return cls(**{**known, "interpreter": tuple(known.get("interpreter", ()))})


@dataclass
class RunRecord:
    """How a run was started, and what its attempts have found out about it; an earlier detrain may not have written all of it."""

    #: Absolute path of the script, or name of the module.
    script: str = ""
    #: What the run is called: the script's stem, or the module.
    name: str = ""
    #: None in a run of an earlier detrain's, which cannot be done again.
    command: Command | None = None
    arguments: list[str] = field(default_factory=list)
    #: The working folder that it was started in.
    folder: str = ""
    seed: int = 0
    #: The key of the run's stream of entropy; None in a run of an earlier detrain's.
    entropy: str | None = None
    #: `--every` of the last attempt.
    every: str = ""
    #: When the first attempt began, local time.
    began: str = ""
    #: Process id of the first attempt, which later ones are told as theirs; None in a run of an earlier detrain's.
    process: int | None = None
    attempts: int = 1
    machine: Machine | None = None
    is_address_space_fixed: bool | None = None
    is_preloaded: bool | None = None
    #: Whether only the loops of the nest carry hooks: the same in all attempts, as hooks move the positions inside generators' code.
    #: None until the first attempt has decided.
    only_known: bool | None = None
    #: Batches that the first attempt had counted when it found its loop: what it read from the clocks until then it took for set-up's.
    found_after: int | None = None
    #: What was decided where the run went on with other arguments (`detrain.session.trusting`), oldest first.
    changes: list[Change] = field(default_factory=list)
    #: Batches begun in the run where it went on with other sources (`--trust-changes`), in order.
    sources_changed_at: list[int] = field(default_factory=list)

    def go_on(self, batches: int, *, has_other_sources: bool) -> None:
        """The run goes on from a checkpoint; what was trained behind it is done again."""
        self.sources_changed_at = [one for one in self.sources_changed_at if one < batches]
        if has_other_sources:
            self.sources_changed_at.append(batches)

    @property
    def invocation(self) -> Invocation:
        """Arguments and seed."""
        return Invocation(tuple(self.arguments), self.seed)

    def with_invocation(self, invocation: Invocation) -> RunRecord:
        """The same with other arguments and seed."""
        return replace(self, arguments=list(invocation.arguments), seed=invocation.seed)

    def encode(self) -> dict[str, object]:
        """As JSON. What an earlier detrain did not write is still missing."""
        document = asdict(self)
        for name in ("command", "entropy", "process", "machine"):
            if document[name] is None:
                del document[name]
        return {**document, "changes": [change.encode() for change in self.changes]}

    @classmethod
    def decode(cls, document: dict[str, Any]) -> RunRecord:
        """The inverse of `encode`. Raises `CheckpointError` for what is no record of a run."""
        known = {name: document[name] for name in _names(cls) if name in document}
        try:
            if "command" in known:
                known["command"] = Command.decode(known["command"])
            if known.get("machine") is not None:
                known["machine"] = Machine(**known["machine"])
            known["changes"] = [Change.decode(change) for change in known.get("changes", ())]
        except (TypeError, KeyError, AttributeError) as error:
            raise CheckpointError(f"run.json holds no record of a run: {type(error).__name__}: {error}") from None
        known.setdefault("only_known", False)  # an earlier detrain gave hooks to every loop
        return cls(**known)

    def dumps(self) -> str:
        """The text of `run.json`."""
        return json.dumps(self.encode(), indent=1, sort_keys=True) + "\n"


def _names(cls: type[Command | RunRecord]) -> list[str]:
    return [one.name for one in fields(cls)]

"""Going on with other arguments than a checkpoint was made with: what the loop has not changed takes the new values.

A checkpoint holds the whole state, also what set-up code has made of the arguments: `args.epochs`, the end of the loop's range, an
optimizer's rate. A resume with others merges three states at the checkpoint's header (`detrain.store.merge`): the checkpoint's, what the
script has made of the new arguments by then, and what it had made of the old ones, which is found by doing that again in a sandbox
(`detrain.proof.probing`). The run directory keeps what was decided: a later attempt that comes by the same checkpoint decides alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from detrain.errors import ResumeRefused
from detrain.messages import say, warn

if TYPE_CHECKING:  # they load numpy
    from detrain.adapters.loaded import Frameworks
    from detrain.state.tree import Tree
    from detrain.store.checkpoint import Checkpoint
    from detrain.store.merge import Conflict, Followed

#: Leaves that a message names.
_MOST_CONFLICTS, _MOST_FOLLOWED = 10, 5
#: Begin the names of what a checkpoint holds beside its tree, among the roots.
_FLAG, _FOLDER = "flags.", "process.folder"


class Way(NamedTuple):
    """How a script is told to train: what its set-up code makes of it is another in each way."""

    arguments: tuple[str, ...]
    seed: int

    @classmethod
    def of(cls, record: dict[str, Any]) -> Way:
        """Of a run's record, a request or a checkpoint's `meta`."""
        return cls(tuple(record.get("arguments", ())), record.get("seed", 0))

    def told(self) -> dict[str, Any]:
        """As JSON, under the names that a record has them."""
        return {"arguments": list(self.arguments), "seed": self.seed}

    def __str__(self) -> str:
        return " ".join(self.arguments) or "none"


@dataclass(frozen=True)
class Change:
    """A decision to go on another way: `keeps` is "" or what of the checkpoint wins, "conflicts" or "everything"."""

    old: Way
    new: Way
    keeps: str

    def told(self) -> dict[str, Any]:
        """As JSON."""
        return {"from": self.old.told(), "to": self.new.told(), "keeps": self.keeps}

    @classmethod
    def read(cls, record: dict[str, Any]) -> list[Change]:
        """Those that a run's record holds, in order."""
        return [cls(Way.of(one["from"]), Way.of(one["to"]), one["keeps"]) for one in record.get("changes", ())]


class Trusting:
    """What one attempt takes over at the checkpoints that were made another way."""

    def __init__(self, way: Way, changes: Iterable[Change], olds: dict[str, Any]) -> None:
        """`olds`: by a checkpoint's name, what the script had made of the arguments of then when it came there, as `Side` writes it."""
        self._way, self._olds = way, olds
        self._keeps = {(one.old, one.new): one.keeps for one in changes}
        self._followed: list[Followed] = []
        self._kept: dict[str, Conflict] = {}

    def is_other(self, target: Checkpoint) -> bool:
        """True if the checkpoint was made another way."""
        return Way.of(target.meta) != self._way

    def is_needed(self, target: Checkpoint) -> bool:
        """True if so, and it does not win in everything."""
        return self.is_other(target) and self._keeps.get((Way.of(target.meta), self._way)) != "everything"

    def merge(self, target: Checkpoint, saved: Tree, new: Tree, beside: Beside) -> Tree:
        """What is restored in place of the checkpoint's tree; raises `ResumeRefused` naming what cannot take the new value."""
        from detrain.store import merge, sides

        if target.name not in self._olds:
            raise ResumeRefused(
                f"what the old arguments ({Way.of(target.meta)}) made at {target.name} was not found out, so that nobody can tell what "
                f"the new ones change. {OTHER_WAYS}"
            )
        saved.roots.update(beside.saved)
        new.roots.update(beside.here)
        found = merge.merge(sides.Side.decode(self._olds[target.name]), saved, new)
        for name in beside.saved.keys() | beside.here.keys():
            new.roots.pop(name, None)
            if name in found.tree.roots:
                beside.decide(name, found.tree.roots.pop(name))
        keeps = self._keeps.get((Way.of(target.meta), self._way), "")
        refused = [one for one in found.conflicts if one.is_structural or not keeps]
        if refused:
            raise ResumeRefused(_refusal(refused, target, self._way))
        # Of the last checkpoint on the way: an earlier one's values have come there.
        self._followed = [one for one in found.followed if not (one.path.startswith("loops[") and one.old == "nothing")]
        self._kept |= {one.path: one for one in found.conflicts}
        return found.tree

    def tell(self, goal: Checkpoint) -> None:
        """The attempt goes on from a checkpoint: say what it took over there."""
        if not self.is_needed(goal):
            return
        count = len(self._followed)
        listed = _listed([str(one) for one in self._followed])
        say(
            f"new arguments: {count or 'no'} {'value follows' if count == 1 else 'values follow'} them{f' ({listed})' if count else ''}"
        )
        if self._kept:
            listed = _listed([*self._kept])
            warn("arguments-ignored", f"the checkpoint's values are kept where the loop has changed them: {listed}")


#: What a person can do who may not go on.
OTHER_WAYS = (
    "Start over with --fresh (the old run is kept), go on with the old arguments, or with the checkpoint's values in place of what the new "
    "arguments make by --keep-trained"
)


class Beside:
    """What a checkpoint holds beside its tree and set-up code may make of arguments: switches of frameworks, and the working folder."""

    def __init__(self, meta: dict[str, Any], frameworks: Frameworks) -> None:
        """At a header, before anything is restored."""
        #: As roots of a tree: plain values, each of which is compared by itself.
        self.saved = _as_roots(meta["flags"], meta["folder"])
        self.here = _as_roots(frameworks.flags(), os.getcwd())
        #: What is set in the end.
        self.flags: dict[str, Any] = {name: dict(values) for name, values in meta["flags"].items()}
        self.folder: str = meta["folder"]

    def decide(self, name: str, value: Any) -> None:
        """Take what a merge has decided for a root."""
        if name == _FOLDER:
            self.folder = value
            return
        framework, _, flag = name.removeprefix(_FLAG).partition(".")
        self.flags.setdefault(framework, {})[flag] = value


def _as_roots(flags: dict[str, Any], folder: str) -> dict[str, Any]:
    found = {f"{_FLAG}{name}.{flag}": value for name, values in flags.items() for flag, value in values.items()}
    return {**found, _FOLDER: folder}


def side_of(tree: Tree, here: dict[str, Any]) -> dict[str, Any]:
    """What an attempt of the old way found when it came to a checkpoint, as JSON."""
    from detrain.store.sides import Side

    side = Side.of(tree)
    return {**side.encode(), "roots": {**side.roots, **here}}


def _listed(names: Sequence[str]) -> str:
    shown = [
        *names[:_MOST_FOLLOWED],
        *([f"and {len(names) - _MOST_FOLLOWED} more"] if len(names) > _MOST_FOLLOWED else []),
    ]
    return ", ".join(shown)


def _refusal(conflicts: Sequence[Conflict], target: Checkpoint, new: Way) -> str:
    old = Way.of(target.meta)
    first = sorted(conflicts, key=lambda one: one.is_structural)
    shown = [str(one) for one in first[:_MOST_CONFLICTS]]
    if len(first) > len(shown):
        shown.append(f"… and {len(first) - len(shown)} more")
    told = (
        f"the arguments were {old}, are {new}"
        if old.arguments != new.arguments
        else f"--seed was {old.seed}, is {new.seed}"
    )
    earlier = (
        f"begin with --from {target.meta['chain'][-1]}"
        if target.meta["chain"]
        else "begin at another checkpoint with --from"
    )
    others = f"start over with --fresh (the old run is kept), go on with the old arguments, or {earlier}"
    if any(one.is_structural for one in conflicts):
        what = f"Some of these are of another shape or kind, so that the checkpoint's cannot stay either: {others}"
    else:
        what = f"Go on with the checkpoint's values for these with --keep-trained, {others}"
    return f"{told}, and the loop has changed what they would make otherwise:\n  " + "\n  ".join(shown) + f"\n{what}"


def way_changes(before: dict[str, Any] | None, request: dict[str, Any]) -> bool:
    """True if a request tells a run to go on another way than the run's record says."""
    return before is not None and Way.of(before) != Way.of(request)


def changes_of(before: dict[str, Any], request: dict[str, Any], targets: Sequence[Checkpoint]) -> list[Change]:
    """The decisions that an attempt comes by: those on record, and where it is told to trust it, new ones."""
    found = Change.read(before)
    if not request["trust_changes"]:
        return found
    known = {(one.old, one.new): one.keeps for one in found}
    way = Way.of(request)
    for target in targets:
        old = Way.of(target.meta)
        keeps = known.get((old, way), "") or ("conflicts" if request["keep_trained"] else "")
        if old != way and known.get((old, way)) != keeps:
            known[old, way] = keeps
            found.append(Change(old, way, keeps))
    return found

"""Going on with other arguments than a checkpoint was made with: what the loop has not changed takes the new values.

A checkpoint holds the whole state, also what set-up code has made of the arguments: `args.epochs`, the end of the loop's range, an
optimizer's rate. A resume with others merges three states at the checkpoint's header (`detrain.store.merge`): the checkpoint's, what the
script has made of the new arguments by then, and what it had made of the old ones, which is found by doing that again in a sandbox
(`detrain.proof.probing`). The run directory keeps what was decided: a later attempt that comes by the same checkpoint decides alike.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from detrain.adapters.loaded import Frameworks
from detrain.errors import ResumeRefused
from detrain.messages import say, warn
from detrain.store.meta import Meta
from detrain.store.record import Change, Invocation, RunRecord

if TYPE_CHECKING:  # they load numpy
    from detrain.state.tree import Tree
    from detrain.store.checkpoint import Checkpoint
    from detrain.store.merge import Conflict, Followed

#: Leaves that a message names.
_MOST_CONFLICTS, _MOST_FOLLOWED = 10, 5
#: Prefixes of names under which `Beside` stands among the roots.
_FLAG, _FOLDER = "flags.", "process.folder"


class Trusting:
    """What one attempt takes over at the checkpoints that were made with other arguments or another seed."""

    def __init__(self, invocation: Invocation, changes: Iterable[Change], olds: dict[str, Any]) -> None:
        """`olds`: by a checkpoint's name, what the script had made of the arguments of then when it came there, as `Side` writes it."""
        self._invocation, self._olds = invocation, olds
        self._keeps = {(one.old, one.new): one.keeps for one in changes}
        self._followed: list[Followed] = []
        self._kept: dict[str, Conflict] = {}

    def is_other(self, target: Checkpoint) -> bool:
        """True if the checkpoint was made with other arguments or another seed."""
        return target.meta.invocation != self._invocation

    def is_needed(self, target: Checkpoint) -> bool:
        """True if so, and it does not win in everything."""
        return self.is_other(target) and self._keeps.get((target.meta.invocation, self._invocation)) != "everything"

    def merge(self, target: Checkpoint, saved: Tree, new: Tree, beside: Beside) -> Tree:
        """What is restored in place of the checkpoint's tree; raises `ResumeRefused` naming what cannot take the new value."""
        from detrain.store import merge, sides

        if target.name not in self._olds:
            raise ResumeRefused(
                f"what the old arguments ({target.meta.invocation}) made at {target.name} was not found out, so that nobody can tell what "
                f"the new ones change. {OTHER_WAYS}"
            )
        saved.roots.update(beside.saved)
        new.roots.update(beside.here)
        found = merge.merge(sides.Side.decode(self._olds[target.name]), saved, new)
        for name in beside.saved.keys() | beside.here.keys():
            new.roots.pop(name, None)
            if name in found.tree.roots:
                beside.decide(name, found.tree.roots.pop(name))
        keeps = self._keeps.get((target.meta.invocation, self._invocation), "")
        refused = [one for one in found.conflicts if one.is_structural or not keeps]
        if refused:
            raise ResumeRefused(_refusal(refused, target, self._invocation))
        # Of the last checkpoint on the way: an earlier one's values have come there.
        self._followed = [one for one in found.followed if not (one.path.startswith("loops[") and one.old == "nothing")]
        self._kept |= {one.path: one for one in found.conflicts}
        return found.tree

    def report(self, goal: Checkpoint) -> None:
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
    """State outside the tree that may depend on arguments: switches of frameworks, and the working folder."""

    def __init__(self, meta: Meta, frameworks: Frameworks) -> None:
        """At a header, before anything is restored."""
        #: As roots of a tree: plain values, each of which is compared by itself.
        self.saved = _as_roots(meta.flags, meta.folder)
        self.here = _as_roots(frameworks.flags(), os.getcwd())
        #: What is set in the end.
        self.flags: dict[str, Any] = {name: dict(values) for name, values in meta.flags.items()}
        self.folder: str = meta.folder

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
    """The state that an attempt with the old arguments had when it reached a checkpoint, as JSON."""
    from detrain.store.sides import Side

    side = Side.of(tree)
    return {**side.encode(), "roots": {**side.roots, **here}}


def _listed(names: Sequence[str]) -> str:
    shown = [
        *names[:_MOST_FOLLOWED],
        *([f"and {len(names) - _MOST_FOLLOWED} more"] if len(names) > _MOST_FOLLOWED else []),
    ]
    return ", ".join(shown)


def _refusal(conflicts: Sequence[Conflict], target: Checkpoint, new: Invocation) -> str:
    old = target.meta.invocation
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
        f"begin with --from {target.meta.chain[-1]}" if target.meta.chain else "begin at another checkpoint with --from"
    )
    others = f"start over with --fresh (the old run is kept), go on with the old arguments, or {earlier}"
    if any(one.is_structural for one in conflicts):
        what = f"Some of these are of another shape or kind, so that the checkpoint's cannot stay either: {others}"
    else:
        what = f"Go on with the checkpoint's values for these with --keep-trained, {others}"
    return f"{told}, and the loop has changed what they would make otherwise:\n  " + "\n  ".join(shown) + f"\n{what}"


def changes_of(
    record: RunRecord, invocation: Invocation, targets: Sequence[Checkpoint], *, trusts: bool, keep_trained: bool
) -> list[Change]:
    """The decisions that an attempt with these arguments comes by on its way through `targets`.

    They are those on `record`, and with `trusts` (--trust-changes) new ones, in which with `keep_trained` the checkpoint wins.
    """
    changes = list(record.changes)
    if not trusts:
        return changes
    known = {(change.old, change.new): change.keeps for change in changes}
    for target in targets:
        old = target.meta.invocation
        keeps = known.get((old, invocation), "") or ("conflicts" if keep_trained else "")
        if old != invocation and known.get((old, invocation)) != keeps:
            known[old, invocation] = keeps
            changes.append(Change(old, invocation, keeps))
    return changes

"""What a script had made of its old arguments, found by doing its set-up again in a sandbox.

Before a run goes on with other arguments: each checkpoint on the way that was made with others than the new ones needs, for the merge
(`detrain.store.merge`), what an attempt with its own arguments finds when it comes to the checkpoint's header, before it restores. Such an
attempt passes the earlier checkpoints of the chain as any other does; where those were made with yet other arguments, it merges as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detrain.errors import DetrainError, ResumeRefused
from detrain.launch.arguments import are_others
from detrain.launch.request import Request
from detrain.loops import instfile
from detrain.messages import say, warn
from detrain.proof.worker import Order
from detrain.session.goal import Goal
from detrain.session.resume import plan
from detrain.session.trusting import OTHER_WAYS, changes_of
from detrain.store.checkpoint import Checkpoint
from detrain.store.directory import RunDirectory
from detrain.store.record import Change, Invocation, RunRecord


def prepare(request: Request) -> None:
    """Add to a request to start a script what it needs to go on with other arguments, if it does.

    `changes`: which other arguments' checkpoints are taken over, and how; `olds`: a file, by its descriptor, of what the old ones made.
    Raises `ResumeRefused` where that cannot be found out.
    """
    directory = RunDirectory(Path(os.path.abspath(request.ckpt_dir)))
    before = directory.read_record() if are_others(request) else None
    if before is None:
        return
    with directory.shared():
        targets, _ = plan(directory, request.start)
        changes = changes_of(
            before, request.invocation, targets, trusts=request.trust_changes, keep_trained=request.keep_trained
        )
        request.changes = changes
        keeps = {(one.old, one.new): one.keeps for one in changes}
        if all(keeps.get((one.meta.invocation, request.invocation), "everything") == "everything" for one in targets):
            return
        say("new arguments: finding the values that the script computed from the old ones")
        try:
            olds = _Probes(directory, replace(before, changes=changes), targets).olds_for(request.invocation)
        except DetrainError as error:
            why = f"what the script made of the old arguments cannot be told here: {error}"
            if not request.keep_trained:
                raise ResumeRefused(f"{why}. {OTHER_WAYS}") from None
            warn("arguments-ignored", f"{why}. The checkpoint's values are used for everything in it")
            everything = [Change(one.old, one.new, "everything") for one in changes if one.new == request.invocation]
            request.changes = [*changes, *everything]
            return
    request.olds = _in_memory(json.dumps(olds))


def _in_memory(text: str) -> int:
    """A descriptor of a file without a name, for what this process becomes."""
    number = os.memfd_create("detrain-olds", 0)
    with open(number, "w", encoding="utf-8", closefd=False) as file:
        file.write(text)
    os.lseek(number, 0, os.SEEK_SET)
    return number


class _Probes:
    """Attempts in the sandbox, up to a checkpoint of a chain."""

    def __init__(self, directory: RunDirectory, record: RunRecord, targets: Sequence[Checkpoint]) -> None:
        self._directory, self._record, self._targets = directory, record, targets
        self._olds: dict[str, Any] = {}

    def olds_for(self, invocation: Invocation) -> dict[str, Any]:
        """By checkpoint, what its own arguments made there: of all that an attempt with these arguments comes by."""
        self._check_sources()
        self._find(len(self._targets), invocation)
        return self._olds

    def _check_sources(self) -> None:
        sources = self._targets[-1].meta.sources
        changed = instfile.changed_sources(sources)
        if changed:
            raise ResumeRefused(f"the source has changed as well ({', '.join(changed)}); change one at a time")

    def _find(self, count: int, invocation: Invocation) -> None:
        """What an attempt with these arguments needs to pass the first checkpoints of the chain."""
        for number in range(count):
            own = self._targets[number].meta.invocation
            if own == invocation or self._targets[number].name in self._olds:
                continue
            end = number + 1
            while end < count and self._targets[end].meta.invocation == own:
                end += 1
            self._find(end, own)
            arrivals = self._probe(own, self._targets[end - 1])
            for target in self._targets[:end]:
                if target.meta.invocation == own:
                    self._olds.setdefault(target.name, arrivals[target.name])

    def _probe(self, invocation: Invocation, target: Checkpoint) -> dict[str, Any]:
        checkpoints = [path.name for path in self._directory.checkpoint_paths()]
        order = Order(
            str(self._directory.path), self._record.with_invocation(invocation), Goal(reports_arrivals=True), target.name, None,
            checkpoints, self._olds,
        )  # fmt: skip
        found = order.carry_out()
        if "arrivals" not in found:
            why = found["said"].strip() or f"the script ended with status {found['status']}"
            raise ResumeRefused(f"repeated with them, it did not reach {target.name}: {why}")
        arrivals: dict[str, Any] = found["arrivals"]
        return arrivals

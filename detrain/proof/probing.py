"""What a script had made of its old arguments, found by doing its set-up again in a sandbox.

Before a run goes on with other arguments: each checkpoint on the way that was made with others than the new ones needs, for the merge
(`detrain.store.merge`), what an attempt with its own arguments finds when it comes to the checkpoint's header, before it restores. Such an
attempt passes the earlier checkpoints of the chain as any other does; where those were made with yet other arguments, it merges as well.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from detrain.errors import DetrainError, ResumeRefused
from detrain.loops import instfile
from detrain.messages import say, warn
from detrain.proof.worker import Order
from detrain.session.resume import plan
from detrain.session.trusting import OTHER_WAYS, Change, Way, changes_of, way_changes
from detrain.store.checkpoint import Checkpoint
from detrain.store.directory import RunDirectory


def prepare(request: dict[str, Any]) -> None:
    """Add to a request to start a script what it needs to go on with other arguments, if it does.

    `changes`: which other arguments' checkpoints are taken over, and how; `olds`: a file, by its descriptor, of what the old ones made.
    Raises `ResumeRefused` where that cannot be found out.
    """
    directory = RunDirectory(Path(os.path.abspath(request["ckpt_dir"])))
    before = None if request["fresh"] else directory.read_record()
    if before is None or not directory.checkpoint_paths():
        return
    is_changed = way_changes(before, request)
    if (is_changed and not request["trust_changes"]) or not (is_changed or before.get("changes")):
        return
    if directory.finished_at() and not is_changed:
        return
    with directory.shared():
        targets, _ = plan(directory, request["from"])
        changes = changes_of(before, request, targets)
        request["changes"] = [one.told() for one in changes]
        keeps = {(one.old, one.new): one.keeps for one in changes}
        if all(keeps.get((Way.of(one.meta), Way.of(request)), "everything") == "everything" for one in targets):
            return
        say("new arguments: finding the values that the script computed from the old ones")
        try:
            olds = _Probes(directory, {**before, "changes": request["changes"]}, targets).olds_for(Way.of(request))
        except DetrainError as error:
            why = f"what the script made of the old arguments cannot be told here: {error}"
            if not request["keep_trained"]:
                raise ResumeRefused(f"{why}. {OTHER_WAYS}") from None
            warn("arguments-ignored", f"{why}. The checkpoint's values are used for everything in it")
            everything = [Change(one.old, one.new, "everything") for one in changes if one.new == Way.of(request)]
            request["changes"] = [one.told() for one in [*changes, *everything]]
            return
    request["olds"] = _in_memory(json.dumps(olds))


def _in_memory(text: str) -> int:
    """A descriptor of a file without a name, for what this process becomes."""
    number = os.memfd_create("detrain-olds", 0)
    with open(number, "w", encoding="utf-8", closefd=False) as file:
        file.write(text)
    os.lseek(number, 0, os.SEEK_SET)
    return number


class _Probes:
    """Attempts in the sandbox, up to a checkpoint of a chain."""

    def __init__(self, directory: RunDirectory, record: dict[str, Any], targets: Sequence[Checkpoint]) -> None:
        self._directory, self._record, self._targets = directory, record, targets
        self._olds: dict[str, Any] = {}

    def olds_for(self, way: Way) -> dict[str, Any]:
        """By checkpoint, what its own arguments made there: of all that an attempt of this way comes by."""
        self._check_sources()
        self._find(len(self._targets), way)
        return self._olds

    def _check_sources(self) -> None:
        sources = self._targets[-1].meta["sources"]
        changed = sorted(name for name, digest in sources.items() if instfile.digest_of(name) != digest)
        if changed:
            raise ResumeRefused(f"the source has changed as well ({', '.join(changed)}); change one at a time")

    def _find(self, count: int, way: Way) -> None:
        """What an attempt of this way needs to pass the first checkpoints of the chain."""
        for number in range(count):
            own = Way.of(self._targets[number].meta)
            if own == way or self._targets[number].name in self._olds:
                continue
            end = number + 1
            while end < count and Way.of(self._targets[end].meta) == own:
                end += 1
            self._find(end, own)
            arrivals = self._probe(own, self._targets[end - 1])
            for target in self._targets[:end]:
                if Way.of(target.meta) == own:
                    self._olds.setdefault(target.name, arrivals[target.name])

    def _probe(self, way: Way, goal: Checkpoint) -> dict[str, Any]:
        record = {**self._record, **way.told()}
        nothing = {"until": None, "operators": None, "is_whole": False}
        checkpoints = [path.name for path in self._directory.checkpoint_paths()]
        order = Order(
            str(self._directory.path), record, {**nothing, "tells_arrivals": True}, goal.name, None, checkpoints, self._olds,
        )  # fmt: skip
        found = order.carry_out()
        if "arrivals" not in found:
            why = found["said"].strip() or f"the script ended with status {found['status']}"
            raise ResumeRefused(f"repeated with them, it did not reach {goal.name}: {why}")
        arrivals: dict[str, Any] = found["arrivals"]
        return arrivals

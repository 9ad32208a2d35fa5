"""Whether a run goes on with other arguments than it was begun with: asked at each start, so that few starts load what it takes then."""

from __future__ import annotations

import os
from pathlib import Path

from detrain.launch.request import Request
from detrain.store.directory import RunDirectory


def are_others(request: Request) -> bool:
    """True if the run has a checkpoint, and this request or an earlier one has other arguments than the checkpoints were made with."""
    directory = RunDirectory(Path(os.path.abspath(request.ckpt_dir)))
    before = None if request.fresh else directory.read_record()
    if before is None or not directory.checkpoint_paths():
        return False
    is_changed = before.invocation != request.invocation
    if (is_changed and not request.trust_changes) or not (is_changed or before.changes):
        return False
    return is_changed or not directory.finished_at()

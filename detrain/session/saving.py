"""Taking a checkpoint: capture and copy the state around a header, write it beside the training, keep what is needed, say what is missing.

The training waits while the state is looked at and copied. One checkpoint is written at a time: the next that is due waits for it, so
that which checkpoints there are, and what is in them, does not hang on how fast the disk was.
"""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detrain.loops.running import Loop
from detrain.messages import Trouble, warn
from detrain.session import roots
from detrain.session.background import Background
from detrain.state import user_code
from detrain.state.collector import collector_paused
from detrain.state.walk import Census
from detrain.store.checkpoint import Checkpoint
from detrain.store.commit import commit
from detrain.store.staging import Staging

if TYPE_CHECKING:
    from detrain.session.session import Session
    from detrain.state.tree import Tree


#: Whether the training goes on only when a checkpoint is on the disk.
WAITS_FOR_DISK = os.environ.get("DETRAIN_WAIT_FOR_DISK", "0") == "1"
#: Objects that are named one by one at a checkpoint.
_MOST_WARNINGS = 10


@dataclass(frozen=True)
class _Taken:
    """A checkpoint that is to be written."""

    path: Path
    tree: Tree
    meta: dict[str, Any]
    #: Names of the files that must stay.
    needed: set[str]
    batches: int
    #: The interval that `auto` had chosen when it was due; 0 if the user counts.
    interval_s: float
    #: When the training stopped for it and went on; 0 if that is when it is written.
    began_s: float
    went_on_s: float


class Saver:
    """Saves for one attempt."""

    def __init__(self, session: Session) -> None:
        import detrain.state.handlers.standard  # noqa: F401 - registers the handlers

        self._session = session
        self._last: Checkpoint | None = session.resume.checkpoint
        self._sequence = self._last.sequence if self._last is not None else 0
        self._checkpoints = self._set_future_aside()
        self._said: set[str] = set()
        self._staging, self._background = Staging(), Background()
        #: What leads to a loop's header instead of a checkpoint that could not be written, by its name.
        self._instead: dict[str, list[str]] = {}
        self.census: Census | None = session.resume.census
        self._trouble = Trouble(
            "checkpoint-failed",
            "checkpoint could not be written",
            "checkpoints could not be written",
            "they can be again",
        )
        self._kept = Trouble(
            "checkpoint-kept",
            "old checkpoint could not be deleted",
            "times old checkpoints could not be deleted",
            "they can be",
        )

    def save(self, loop: Loop, frame: types.FrameType, entropy: tuple[int, int] | None) -> None:
        """Checkpoint the present state, at this position of the stream of entropy. It is written when `settle` has returned.

        A failure to write is said; the training goes on and tries again when next due.
        """
        session, began_s = self._session, time.monotonic()
        self.settle()
        around = roots.look_around(frame, loop, session.is_user_file, session.settings.script_name)
        session.frameworks.wait()
        with session.frameworks.unseen():
            walk = roots.capture(around, session.frameworks.generators(), self.census, session.loading)
        if self.census is None:
            # The first look at this run's objects; later captures tell by it which object went where.
            self.census = Census(walk)
        self._say_what_is_missing(roots.loud_leaves(walk.tree))
        try:
            meta = self._meta(loop, around, entropy)
        except OSError as error:
            self._say_failed(error)
            return
        path = session.directory.checkpoint_path(meta["epoch"], meta["batch"])
        if path.name in meta["chain"] or any(path.name in found.needs for found in self._checkpoints):
            return  # a loop outside has been checkpointed at this very place, and others build on it
        with collector_paused():
            copies = None if WAITS_FOR_DISK else self._staging.copy(walk.tree.arrays)
        self._sequence += 1
        if session.frameworks.printing is not None:
            session.frameworks.printing.note_checkpoint(self._sequence)
        self._instead[path.name] = loop.way_here()
        loop.mark(path.name)
        taken = _Taken(
            path, walk.tree if copies is None else replace(walk.tree, arrays=copies), meta,
            {*meta["chain"], path.name}, session.batches, session.policy.chosen_s, began_s, 0.0 if copies is None else time.monotonic(),
        )  # fmt: skip
        self._background.begin(lambda: self._write(taken))
        if copies is None:
            self.settle()
        session.recorder.look(walk, session.batches, loop)

    @property
    def last(self) -> Checkpoint | None:
        """The latest that is on the disk."""
        return self._last

    @property
    def is_writing(self) -> bool:
        """True while a checkpoint is being written beside the training."""
        return self._background.is_busy

    def settle(self) -> None:
        """Wait until the checkpoint that is being written is on the disk, or has failed."""
        if self._background.wait():
            self._session.files.retain([found.meta["files"] for found in self._checkpoints])

    def way_without_failed(self, names: Iterable[str]) -> list[str]:
        """Checkpoints to pass through, with what leads on instead of those that could not be written."""
        return list(
            dict.fromkeys(
                one
                for name in names
                for one in (self.way_without_failed(self._instead[name]) if name in self._instead else [name])
            )
        )

    def _write(self, taken: _Taken) -> bool:
        """Beside the training. False if that failed, which is said at once."""
        session = self._session
        try:
            saved = commit(taken.path, taken.tree, taken.meta, self._last)
        except (OSError, MemoryError) as error:
            self._say_failed(error)
            return False
        self._last = saved
        self._trouble.worked()
        del self._instead[saved.name]
        stall_s = (taken.went_on_s or time.monotonic()) - taken.began_s
        session.recorder.saved(saved.path, taken.batches, stall_s, taken.interval_s)
        self._checkpoints = [*(found for found in self._checkpoints if found.name != saved.name), saved]
        try:
            self._checkpoints = session.directory.retain(session.settings.keep, self._checkpoints, taken.needed)
            self._kept.worked()
        except OSError as error:
            self._kept.failed(error, f"an old checkpoint cannot be deleted: {error}. It takes room, and does no harm")
        return True

    def end(self) -> None:
        """The script has come to its end."""
        self.settle()
        self._trouble.end()
        self._kept.end()

    def _say_failed(self, error: Exception) -> None:
        self._trouble.failed(
            error,
            f"no checkpoint could be written to {self._session.directory.path}: {error}. Training goes on without; the last good "
            f"one is {self._last.name if self._last else 'none'}",
        )

    def _set_future_aside(self) -> list[Checkpoint]:
        """Checkpoints of a future that this attempt does not come from are not to be mistaken for its own."""
        directory = self._session.directory
        good, _ = directory.read_checkpoints()
        own = [found for found in good if found.sequence <= self._sequence]
        directory.set_aside(
            [path for path in directory.checkpoint_paths() if path not in [found.path for found in own]]
        )
        return own

    def _meta(self, loop: Loop, around: roots.Surroundings, entropy: tuple[int, int] | None) -> dict[str, Any]:
        session = self._session
        is_batch = loop.site.part == "batch"
        return {
            "sequence": self._sequence + 1,
            "position": [[one.site.filename, one.site.line, one.ordinal, one.iteration] for one in around.loops],
            "is_exhausted": loop.is_exhausted,
            "chain": self.way_without_failed(session.way_to(loop)),
            "call_path": around.call_path(),
            # Not the script itself, where `-m` has had it found under its own name: it is only `__main__`.
            "modules": sorted(name for name in user_code.user_modules - {"__main__"} if name in sys.modules),
            # Of the batch loop's header, the epoch that runs; of any other, the one that is about to begin.
            "epoch": max(session.epochs - is_batch, 0),
            "batch": session.batch_in_epoch if is_batch else 0,
            "epochs": session.epochs,
            "batches": session.batches,
            "batch_in_epoch": session.batch_in_epoch,
            "cost_s": session.policy.cost_s,
            "facts": session.frameworks.facts(),
            "flags": session.frameworks.flags(),
            "entropy": list(entropy or []),
            "entropy_of_threads": list(session.frameworks.entropy.entropy_of_threads()) if entropy is not None else [],
            "clocks": session.frameworks.clocks.tell() if session.frameworks.clocks is not None else [],
            "folder": os.getcwd(),
            "process": os.getpid(),
            "files": session.files.capture(),
            "arguments": session.settings.record.get("arguments", []),
            "seed": session.settings.record.get("seed", 0),
            "sources": dict(session.info.sources),
        }

    def _say_what_is_missing(self, leaves: list[str]) -> None:
        new = [leaf for leaf in leaves if leaf not in self._said]
        self._said.update(new)
        if len(new) > _MOST_WARNINGS:
            warn(
                "not-captured",
                f"{len(new) - _MOST_WARNINGS} more objects; `detrain inspect` of the checkpoint lists all",
            )
        for leaf in new[:_MOST_WARNINGS]:
            warn(
                "not-captured",
                f"{leaf}. If the loop changes it, a resume cannot be exact and will be refused, unless --trust-changes is "
                "given",
            )

"""Taking a checkpoint: capture the state around a header, write it, keep what is needed, say what is missing."""

from __future__ import annotations

import os
import time
import types
from typing import TYPE_CHECKING, Any

from detrain.session import gather
from detrain.session.loops import Loop
from detrain.session.messages import warn
from detrain.state import known_source
from detrain.state.walk import Census
from detrain.store import checkpoint as checkpoint_file
from detrain.store.checkpoint import Checkpoint

if TYPE_CHECKING:
    from detrain.session.session import Session


#: Objects that are named one by one at a checkpoint.
_MOST_WARNINGS = 10


class Saver:
    """Saves for one attempt."""

    def __init__(self, session: Session) -> None:
        import detrain.state.load_handlers  # noqa: F401 - registers the handlers

        self._session = session
        self._last: Checkpoint | None = session.resume.checkpoint
        self._sequence = self._last.sequence if self._last is not None else 0
        self._checkpoints = self._set_future_aside()
        self._said: set[str] = set()
        self.census: Census | None = session.resume.census

    def save(self, loop: Loop, frame: types.FrameType, entropy: tuple[int, int] | None) -> None:
        """Checkpoint the present state, at this position of the stream of entropy.

        A failure to write is said; the training goes on and tries again when next due.
        """
        session, began_s = self._session, time.monotonic()
        around = gather.look_around(frame, loop, session.is_user_file, session.settings.script_name)
        session.frameworks.wait()
        with session.frameworks.unseen():
            walk = gather.capture(around, session.frameworks.generators(), self.census, session.loading)
        if self.census is None:
            # The first look at this run's objects; later captures tell by it which object went where.
            self.census = Census(walk)
        self._say_what_is_missing(gather.loud_leaves(walk.tree))
        try:
            meta = self._meta(loop, around, entropy)
            path = session.directory.checkpoint_path(meta["epoch"], meta["batch"])
            if path.name in meta["chain"] or any(path.name in found.needs for found in self._checkpoints):
                return  # a loop outside has been checkpointed at this very place, and others build on it
            saved = checkpoint_file.save(path, walk.tree, meta, self._last)
        except OSError as error:
            warn(
                "checkpoint-failed",
                f"no checkpoint could be written to {session.directory.path}: {error}. Training goes on without; the last good "
                f"one is {self._last.name if self._last else 'none'}",
            )
            return
        self._sequence += 1
        loop.mark(saved.name)
        self._last = saved
        session.recorder.saved(saved.path, session.batches, loop, walk, time.monotonic() - began_s)
        self._checkpoints = [found for found in self._checkpoints if found.name != saved.name] + [saved]
        self._checkpoints = session.directory.retain(
            session.settings.keep, self._checkpoints, {*session.way_to(loop), saved.name}
        )
        session.files.retain([found.meta["files"] for found in self._checkpoints])

    def _set_future_aside(self) -> list[Checkpoint]:
        """Checkpoints of a future that this attempt does not come from are not to be mistaken for its own."""
        directory = self._session.directory
        good, _ = directory.read_checkpoints()
        own = [found for found in good if found.sequence <= self._sequence]
        directory.set_aside(
            [path for path in directory.checkpoint_paths() if path not in [found.path for found in own]]
        )
        return own

    def _meta(self, loop: Loop, around: gather.Surroundings, entropy: tuple[int, int] | None) -> dict[str, Any]:
        session = self._session
        is_batch = loop.site.part == "batch"
        return {
            "sequence": self._sequence + 1,
            "position": [[one.site.filename, one.site.line, one.ordinal, one.iteration] for one in around.loops],
            "is_exhausted": loop.is_exhausted,
            "chain": list(dict.fromkeys(session.way_to(loop))),
            "call_path": around.call_path(),
            "modules": sorted(known_source.user_modules - {"__main__"}),
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
            "files": session.files.capture(),
            "arguments": session.settings.record.get("arguments", []),
            "sources": session.info.sources,
        }

    def _say_what_is_missing(self, leaves: list[str]) -> None:
        new = [leaf for leaf in leaves if leaf not in self._said]
        self._said.update(new)
        if len(new) > _MOST_WARNINGS:
            warn(
                "not-captured",
                f"{len(new) - _MOST_WARNINGS} objects more than these; `detrain inspect` of the checkpoint lists all",
            )
        for leaf in new[:_MOST_WARNINGS]:
            warn(
                "not-captured",
                f"{leaf}. If the loop changes it, a resume cannot be exact, and will be refused unless --trust-changes says that it "
                "does not matter",
            )

"""Takes a checkpoint: captures and copies the state at a header, writes it in the background, deletes old ones, warns of what is missing.

The training waits while the state is looked at and copied. One checkpoint is written at a time: the next that is due waits for it, so
that which checkpoints there are, and what is in them, does not hang on how fast the disk was.
"""

from __future__ import annotations

import os
import sys
import time
import types
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
from detrain.adapters.protocol import MemoryBudget
from detrain.errors import OverBudget
from detrain.loops.running import Loop
from detrain.loops.stack import LoopStack
from detrain.messages import Trouble, say, warn
from detrain.session import roots
from detrain.session.background import Background
from detrain.session.context import Context
from detrain.session.recorder import Recorder
from detrain.state import user_code
from detrain.state.captured import Captured
from detrain.state.census import Census
from detrain.state.collector import collector_paused
from detrain.state.registry import handler_for
from detrain.state.retrace import Retracer
from detrain.state.tree import Tree
from detrain.store.checkpoint import Checkpoint, fingerprint
from detrain.store.commit import commit
from detrain.store.directory import PIPELINE_STEPS, write_atomically
from detrain.store.meta import LoopPosition, Meta
from detrain.store.staging import Staging

if TYPE_CHECKING:
    from detrain.pipeline.measured import WorkerSteps

#: Whether the training goes on only when a checkpoint is on the disk.
WAITS_FOR_DISK = os.environ.get("DETRAIN_WAIT_FOR_DISK", "0") == "1"
#: How long a checkpoint waits for work in the script's pools of threads.
LONGEST_WORK_S = 5.0
#: Objects that are named one by one at a checkpoint.
_MOST_WARNINGS = 10


@dataclass(frozen=True)
class _Taken:
    """A checkpoint that is to be written, or held in memory until one that needs it is."""

    path: Path
    tree: Tree
    meta: Meta
    #: Names of the files that must stay.
    needed: set[str]
    #: What leads to the header if this one cannot be written.
    instead: list[str]
    batches: int
    #: The interval that `auto` had chosen when it was due; 0 if the user counts.
    interval_s: float
    #: When the training stopped for it and went on; 0 if that is when it is written.
    began_s: float
    went_on_s: float
    #: What this rank of a pipeline did when, in the step before.
    steps: WorkerSteps | None = None


@dataclass(frozen=True)
class _Held:
    """The beginning of an iteration of a loop around the batch loop, in memory."""

    taken: _Taken
    loop: Loop
    #: The loop's mark before: the checkpoint's name, and the iteration that began there.
    before: tuple[str, int]
    #: None where it is on the disk already.
    staging: Staging | None


class Saver:
    """Saves for one attempt."""

    def __init__(
        self,
        context: Context,
        stack: LoopStack,
        recorder: Recorder,
        resumed: Checkpoint | None,
        census: Census | None,
        memory: MemoryBudget | None = None,
    ) -> None:
        """`resumed`: the checkpoint that the attempt has resumed from; `census`: of the objects as they were then.

        `memory`: what may have put a part of the state away.
        """
        self.memory = memory
        self._context, self._stack, self._recorder = context, stack, recorder
        #: With its table of arrays, which the next one refers to; of the others there is none in memory.
        self._last: Checkpoint | None = resumed
        self._sequence = self._last.sequence if self._last is not None else 0
        #: By name; replaced and never changed, since the training looks at it while another is being written.
        self._checkpoints = {found.name: found for found in self._set_future_aside()}
        self._said: set[str] = set()
        self._retracer = Retracer()
        self._is_first = resumed is None
        self._staging, self._background = Staging(), Background()
        #: In the order in which a resume passes through them.
        self._held: list[_Held] = []
        self._free: list[Staging] = []
        #: What leads to a loop's header instead of a checkpoint that has not been written, by its name.
        self._instead: dict[str, list[str]] = {}
        self.census = census
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
        """Checkpoint the present state, at this position of the stream of entropy. It is written when `finish_write` has returned.

        A failure to write is said; the training goes on and tries again when next due.
        """
        self.finish_write()
        self._drop_held(loop)
        with collector_paused():  # also while what was captured is let go of
            taken = self._take(loop, frame, entropy, None if WAITS_FOR_DISK else self._staging)
        held_in_memory = [(held.taken, held.staging) for held in self._held if held.staging is not None]
        pending = [*(one for one, _ in held_in_memory), *([] if taken is None else [taken])]
        self._held = []
        if not pending:
            return
        self._free += [staging for _, staging in held_in_memory]
        if self._context.member is not None:
            for one in pending:
                self._context.member.begins(one.path.name)
        self._instead.update({one.path.name: one.instead for one in pending})
        self._background.begin(lambda: self._write_all(pending))
        if taken is not None and not taken.went_on_s:
            self.finish_write()

    def hold(self, loop: Loop, frame: types.FrameType, entropy: tuple[int, int] | None) -> None:
        """Keep the present state in memory; it is written with the first checkpoint to which a resume comes through it.

        Nothing is kept if there is not the memory; by one rank of several it is written at once then, as the others may have the memory.
        """
        if self._drop_held(loop) and not self.is_writing:
            self._retain_files()
        if self.is_writing and (
            self._free or not self._instead.keys().isdisjoint(self._stack.checkpoints_before(loop))
        ):
            self.finish_write()  # it is written from what is to be copied to, or a resume comes here through it
        staging = self._free.pop() if self._free else Staging()
        before = loop.start_point, loop.start_iteration
        with collector_paused():
            taken = self._take(loop, frame, entropy, staging)
        if taken is None or not taken.went_on_s:
            self._free.append(staging)
            if taken is not None:
                self._instead[taken.path.name] = taken.instead
                if self._context.member is None:
                    self._forget(taken, loop, before)
                else:
                    self._background.begin(lambda: self._write_all([taken]))
                    self.finish_write()
                    self._held.append(_Held(taken, loop, before, None))
        else:
            self._held.append(_Held(taken, loop, before, staging))

    def _drop_held(self, loop: Loop) -> bool:
        """Of what is held, keep only that through which a resume comes to the header of `loop`; True if something was dropped."""
        names = self._stack.checkpoints_before(loop)
        dropped = [held for held in self._held if held.taken.path.name not in names]
        self._held = [held for held in self._held if held.taken.path.name in names]
        for held in dropped:
            if held.staging is not None:
                self._free.append(held.staging)
            self._instead[held.taken.path.name] = self.chain_without_failed(held.taken.instead)
            self._forget(held.taken, held.loop, held.before)
        return bool(dropped)

    def _forget(self, taken: _Taken, loop: Loop, before: tuple[str, int]) -> None:
        if loop.unmark(taken.path.name, before):
            del self._instead[taken.path.name]  # it led nowhere else

    def _take(
        self, loop: Loop, frame: types.FrameType, entropy: tuple[int, int] | None, staging: Staging | None
    ) -> _Taken | None:
        """Look at the present state and copy it to `staging`, if there is one with the memory for it; None if there is no checkpoint."""
        context, began_s = self._context, time.monotonic()
        if context.job is not None:
            context.frameworks.settle()
        around = roots.find_surroundings(frame, loop, context)
        try:
            if self.memory is not None:
                self.memory.bring_back()
        except OverBudget as error:
            self._say_failed(error)
            self._pass_over(f"it could not be taken: {error}")
            return None
        captured = self._capture_settled(around)
        if self.census is None:
            # The first capture of this attempt; by it later ones see which object has moved where.
            self.census = Census(captured)
        self._say_what_is_missing(roots.leaves_with_warnings(captured.tree))
        try:
            meta = self._meta(loop, around, entropy)
        except OSError as error:
            self._say_failed(error)
            self._pass_over(f"it could not be written: {error}")
            return None
        path = context.directory.checkpoint_path(meta.epoch, meta.batch)
        if path.name in meta.chain or self._is_built_on(path.name):
            # A loop outside has been checkpointed at this very place, and others build on it.
            self._pass_over(f"{path.name} is one that others build on", path.name, is_there=True)
            return None
        copies = None if staging is None else staging.copy(captured.tree.arrays)
        self._sequence += 1
        if context.frameworks.printing is not None:
            context.frameworks.printing.mark_checkpoint(self._sequence)
        instead = loop.checkpoints_here()
        loop.mark(path.name)
        taken = _Taken(
            path, captured.tree if copies is None else replace(captured.tree, arrays=copies), meta,
            {*meta.chain, path.name}, instead, context.position.batches, context.policy.chosen_s, began_s,
            0.0 if copies is None else time.monotonic(), context.frameworks.measured_steps(),
        )  # fmt: skip
        self._recorder.scan(captured, context.position.batches, loop)
        return taken

    def _is_built_on(self, name: str) -> bool:
        return any(found.is_built_on(name) for found in self._checkpoints.values())

    def _pass_over(self, why: str, name: str = "", *, is_there: bool = False) -> None:
        """Of several ranks this one takes no checkpoint here: the others count one, and learn that it will not be whole.

        `is_there`: because one of the same place is there already, which is no harm if it is so on all ranks.
        """
        if self._context.member is None:
            return
        from detrain.job.messages import Part

        self._sequence += 1
        if name:
            self._context.member.wrote(Part(name, self._sequence, trouble=why, is_there=is_there))

    def _capture_settled(self, around: roots.Surroundings) -> Captured:
        """The present state, once the work has ended that the script has given to threads and that ends by itself soon."""
        until_s = time.monotonic() + LONGEST_WORK_S
        while True:
            captured = roots.capture(around, self._context, self.census, self._retracer)
            frameworks = self._context.frameworks
            if self._context.libraries.look(frameworks.trained(), frameworks.generator_types(), captured):
                continue  # with what has been found
            if not captured.unfinished or time.monotonic() >= until_s:
                return captured
            for obj in captured.unfinished:
                handler_for(type(obj)).wait(obj, until_s)

    @property
    def last(self) -> Checkpoint | None:
        """The latest that is on the disk; of several ranks this one's part, of a cut that may not be whole yet."""
        return self._last

    @property
    def last_whole(self) -> Checkpoint | None:
        """The latest that a resume can go on from."""
        member = self._context.member
        if member is None or self._last is None:
            return self._last
        whole = [found for found in [*self._checkpoints.values(), self._last] if found.name in member.whole()]
        return max(whole, key=lambda found: found.sequence, default=None)

    @property
    def is_writing(self) -> bool:
        """True while a checkpoint is being written in the background."""
        return self._background.is_busy

    def finish_write(self) -> None:
        """Wait until the checkpoint that is being written is on the disk, or has failed."""
        if self._background.wait():
            self._retain_files()

    def _retain_files(self) -> None:
        held = [held.taken.meta.files for held in self._held]
        self._context.files.retain([*(found.meta.files for found in self._checkpoints.values()), *held])

    def chain_without_failed(self, names: Iterable[str]) -> list[str]:
        """Checkpoints to pass through, with what leads on instead of those that could not be written."""
        return list(
            dict.fromkeys(
                one
                for name in names
                for one in (self.chain_without_failed(self._instead[name]) if name in self._instead else [name])
            )
        )

    def _write_all(self, pending: list[_Taken]) -> bool:
        """Beside the training, in order. True if one is on the disk."""
        written = [self._write(taken) for taken in pending]
        return any(written)

    def _write(self, taken: _Taken) -> bool:
        """False if that failed, which is said at once."""
        chain = self.chain_without_failed(taken.meta.chain)  # one that was held may have failed meanwhile
        try:
            saved = commit(taken.path, taken.tree, replace(taken.meta, chain=chain), self._last)
        except (OSError, MemoryError) as error:
            self._say_failed(error)
            self._tell(taken, f"it could not be written: {error}")
            if self._context.member is not None:
                self._delete_what_is_not_needed(taken)  # parts of cuts that are not whole may be what fills the disk
            return False
        self._last = saved
        if self._is_first:
            self._is_first = False
            text = f"first checkpoint: {saved.name}; {self._what_a_resume_does(taken.tree)}"
            if self._context.member is None:
                say(text)
            else:
                self._context.member.when_whole(saved.name, lambda: say(text))
        self._tell(taken)
        self._trouble.worked()
        del self._instead[saved.name]
        stall_s = (taken.went_on_s or time.monotonic()) - taken.began_s
        use = self.memory.use() if self.memory is not None else None
        self._recorder.on_saved(saved.path, taken.batches, stall_s, taken.interval_s, use)
        if self._context.texts is not None:
            with suppress(OSError):  # for an attempt with other sources alone, which says what it misses
                self._context.texts.write()
        if taken.steps is not None:
            with suppress(OSError):  # for a picture in the report alone; the next cut writes it anew
                write_atomically(self._context.directory.path / PIPELINE_STEPS, taken.steps.encode())
        self._checkpoints = {**self._checkpoints, saved.name: saved.without_table()}
        self._delete_what_is_not_needed(taken)
        return True

    def _delete_what_is_not_needed(self, taken: _Taken) -> None:
        try:
            stay = self._retain(taken)
            if len(stay) < len(self._checkpoints):
                self._checkpoints = {found.name: found for found in stay}
            self._kept.worked()
        except OSError as error:
            self._kept.failed(error, f"an old checkpoint cannot be deleted: {error}. It takes room, and does no harm")

    def _tell(self, taken: _Taken, trouble: str = "") -> None:
        """Tell the job, if there is one, how this rank's part of the cut stands."""
        if self._context.member is None:
            return
        # Not loaded by a process that trains alone.
        from detrain.job.messages import Part
        from detrain.job.replicas import Replica, combined
        from detrain.session.replicas import replicas_of

        meta = taken.meta
        position = tuple(
            (os.path.basename(one.filename), one.line, one.ordinal, one.iteration) for one in meta.position
        )
        digest, replicas = "", list[Replica]()
        if not trouble:
            try:
                digest, replicas = fingerprint(taken.path), replicas_of(taken.tree)
            except OSError as error:
                trouble = f"it cannot be read again: {error}"
        self._context.member.wrote(
            Part(
                taken.path.name, meta.sequence, meta.epoch, meta.batch, meta.batches, tuple(meta.chain), position, digest, trouble,
                combined(replicas),
            ),
            replicas,
        )  # fmt: skip

    def _retain(self, taken: _Taken) -> list[Checkpoint]:
        """Delete what no resume needs any more. Of the latest cut that is not whole yet, nobody knows whether one will."""
        context, member, there = self._context, self._context.member, list(self._checkpoints.values())
        if member is None:
            return context.directory.retain(context.settings.keep, there, taken.needed)
        kept = member.kept()
        needed = {found.name for found in there if kept.needs(found.name, found.sequence)}
        return context.directory.retain(0, there, needed | taken.needed)

    def end(self) -> None:
        """The script has ended."""
        self.finish_write()
        self._trouble.end()
        self._kept.end()

    def _say_failed(self, error: Exception) -> None:
        self._trouble.failed(
            error,
            f"no checkpoint could be written to {self._context.directory.path}: {error}. Training goes on without; the last good "
            f"one is {self._last.name if self._last else 'none'}",
        )

    def _set_future_aside(self) -> list[Checkpoint]:
        """Checkpoints of a future that this attempt does not come from are not to be mistaken for its own."""
        directory = self._context.directory
        good, _ = directory.read_checkpoints()
        own = [found for found in good if found.sequence <= self._sequence]
        known = {found.path for found in own}
        future = [path for path in directory.checkpoint_paths() if path not in known]
        member = self._context.member
        if member is not None:
            member.begins_behind(self._sequence)
            for path in future:
                if path.name not in member.whole():
                    path.unlink()  # no cut has ever been whole with it
            future = [path for path in future if path.name in member.whole()]
        directory.set_aside(future)
        return own

    def _meta(self, loop: Loop, around: roots.Surroundings, entropy: tuple[int, int] | None) -> Meta:
        context, frameworks, position = self._context, self._context.frameworks, self._context.position
        is_batch, streams = loop.site.part == "batch", frameworks.entropy
        return Meta(
            sequence=self._sequence + 1,
            position=[
                LoopPosition(active.site.filename, active.site.line, active.ordinal, active.iteration)
                for active in around.loops
            ],
            is_exhausted=loop.is_exhausted,
            chain=self.chain_without_failed(self._stack.checkpoints_before(loop)),
            call_path=around.call_path(),
            # Not the script itself, where `-m` has had it found under its own name: it is only `__main__`.
            modules=sorted(name for name in user_code.user_modules - {"__main__"} if name in sys.modules),
            libraries=context.libraries.loaded(),
            # Of the batch loop's header, the epoch that runs; of any other, the one that is about to begin.
            epoch=max(position.epochs - is_batch, 0),
            batch=position.batch_in_epoch if is_batch else 0,
            epochs=position.epochs,
            batches=position.batches,
            batch_in_epoch=position.batch_in_epoch,
            cost_s=context.policy.cost_s,
            facts=frameworks.facts(),
            flags=frameworks.flags(),
            entropy=list(entropy or []),
            entropy_of_threads=list(streams.entropy_of_threads())
            if entropy is not None and streams is not None
            else [],
            clocks=frameworks.clocks.tell() if frameworks.clocks is not None else [],
            folder=os.getcwd(),
            process=os.getpid(),
            files=context.files.capture(),
            arguments=list(context.settings.invocation.arguments),
            seed=context.settings.invocation.seed,
            sources=dict(context.info.sources),
        )

    def _what_a_resume_does(self, tree: Tree) -> str:
        missing = len(roots.leaves_with_warnings(tree))
        if not missing:
            return "the same command, given again after a kill, goes on from the latest and ends with the same bits"
        objects = "an object is" if missing == 1 else f"{missing} objects are"
        then = {
            "refuse": "is refused if the loop changes what the set-up code has made of it (--on-inexact does otherwise)",
            "restart": "starts over if the loop changes what the set-up code has made of it",
            "trust": "goes on, and is not exact if the loop changes what the set-up code has made of it",
        }
        return f"{objects} not in it (see above), so that a resume {then[self._context.settings.on_inexact]}"

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
                f"{leaf}. If the loop changes it, a resume cannot be exact; --on-inexact says what to do then (refuse, restart, trust)",
            )

"""Takes a new process to the position of a checkpoint.

A checkpoint inside an epoch needs the one at the beginning of the epoch: the code before the batch loop runs again and must see the
state that it saw then. The same holds for every loop that ended before. So a resume passes through a *chain* of checkpoints: at each it
jumps to the position, restores, and lets the script continue. Where a checkpoint of the chain is missing, the batches run again, which
is exact as well.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
import time
import traceback
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from detrain.errors import CheckpointError, DetrainError, InexactResume, RestoreError, ResumeRefused
from detrain.eventlog import note
from detrain.loops.running import Loop
from detrain.loops.stack import is_at
from detrain.messages import say, warn
from detrain.session import libraries
from detrain.session.context import Context
from detrain.session.leaving import fail, kill_children, refuse
from detrain.session.rerun import Rerun
from detrain.session.trusting import Beside, Trusting, side_of
from detrain.state import patches
from detrain.state.patches import Patch
from detrain.store.directory import RunDirectory
from detrain.store.meta import Meta

if TYPE_CHECKING:  # they load numpy, which a script that trains has loaded by the time they are needed
    from detrain.state.census import Census
    from detrain.state.tree import Tree
    from detrain.store.checkpoint import Checkpoint

#: What can be done where a source has changed since a checkpoint.
OTHER_SOURCE = "Put it back as it was, start over with --fresh (the old run is kept), or resume from the checkpoint with --trust-changes"


class Resume:
    """The checkpoints still ahead, in order. Empty for a run that starts from its beginning."""

    def __init__(
        self,
        context: Context,
        chain: list[Checkpoint],
        *,
        is_trusting: bool = False,
        allows_pickle: bool = True,
        trusting: Trusting | None = None,
        rerun: Rerun | None = None,
        on_resumed: Callable[[], None] = lambda: None,
        revisions: Mapping[str, Mapping[str, Patch]] | None = None,
    ) -> None:
        """`trusting` merges the checkpoints that were made with other arguments; `rerun` gets the state that is found at each of them.

        `on_resumed` is called when the last has been restored. `revisions`: by the name of a checkpoint that was made with other sources,
        what is elsewhere in each of them, by its path.
        """
        self._context = context
        self._targets = list(chain)
        self._rerun = rerun if rerun is not None and rerun.reports_arrivals else None
        self.is_trusting = is_trusting
        self._allows_pickle = allows_pickle
        self._trusting = trusting
        self._on_resumed = on_resumed
        self._revisions = revisions or {}
        self._began_s = time.monotonic()
        self._origins: Any = None
        #: On the way, where no checkpoint leads past them.
        self.num_batches_again = 0
        #: The checkpoint that the attempt resumed from, once it has.
        self.checkpoint: Checkpoint | None = None
        self.census: Census | None = None

    @property
    def is_pending(self) -> bool:
        """True until the last checkpoint of the chain has been restored."""
        return bool(self._targets)

    @property
    def takes_over(self) -> bool | None:
        """True if the attempt resumes, or has resumed, from a checkpoint that was made with other arguments; None if from none."""
        checkpoint = self.checkpoint or self.target
        if checkpoint is None:
            return None
        return self._trusting is not None and self._trusting.is_other(checkpoint)

    @property
    def target(self) -> Checkpoint | None:
        """The checkpoint that is resumed from, while it is still ahead."""
        return self._targets[-1] if self._targets else None

    def at_header(self, loop: Loop, frame: types.FrameType) -> bool:
        """An iteration is about to begin while the run fast-forwards; the next checkpoint may be in its loop.

        Returns True if a checkpoint's state has been restored here, and the position is its.
        """
        if self._origins is None and loop.iteration == 0:
            with self._context.frameworks.hidden_from_script():
                self._take_census(loop, frame)
        self.num_batches_again += loop.site.part == "batch"
        target = self._targets[0]
        if loop.iteration != 0 or not is_at(loop, target.meta.position):
            return False
        try:
            self._arrive(loop, frame, target)
        except (RestoreError, CheckpointError) as error:
            self._give_up(target, error)
        except InexactResume as error:
            refuse(self._context, error)
        except DetrainError as error:
            fail(self._context.files, error)
        except Exception as error:  # noqa: BLE001 - a script that catches everything would go on with half a state
            traceback.print_exc()
            wrapped = RestoreError(f"{type(error).__name__}: {error}")
            wrapped.__cause__ = error
            self._give_up(target, wrapped)
        return True

    def _give_up(self, target: Checkpoint, error: DetrainError) -> NoReturn:
        if self._context.frameworks.is_shortage(error):
            # Of the machine, not of the checkpoint: another attempt may have what this one lacks.
            text = f"{target.name} cannot be restored now: {error}. It stays; give the same command again"
            fail(self._context.files, RestoreError(text))
        self._pass_over(target, error)

    def _pass_over(self, target: Checkpoint, error: DetrainError) -> NoReturn:
        """A checkpoint cannot be restored, and never will be: go on with the one before it, or from the beginning.

        The live objects are half restored by now, so the script starts again in this very process.
        """
        context = self._context
        if context.start_again is None:
            # With --trust-changes the user learns what does not fit, rather than losing one checkpoint after the other.
            fail(context.files, error)
        context.files.give_up()
        warn("checkpoint-set-aside", f"{target.name} cannot be restored: {error}. {self._set_chain_aside()}")
        kill_children()
        sys.stdout.flush()
        context.start_again()

    def _set_chain_aside(self) -> str:
        """Let later attempts pass over the target, and what of the chain to it is still ahead; returns the sentence that says so."""
        directory = self._context.directory
        there, _ = directory.read_checkpoints()
        lost = {checkpoint.name for checkpoint in self._targets}
        for checkpoint in sorted(there, key=lambda known: known.sequence):
            if not lost.isdisjoint([*checkpoint.needs, *checkpoint.meta.chain]):
                lost.add(checkpoint.name)  # it cannot be reached, or read, without those
        directory.set_aside([checkpoint.path for checkpoint in there if checkpoint.name in lost])
        start = "an earlier checkpoint" if directory.checkpoint_paths() else "its beginning: there is none before"
        return f"{' and '.join(sorted(lost))} went to the folder aside/; the run goes on from {start}"

    def _take_census(self, loop: Loop, frame: types.FrameType) -> None:
        import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
        from detrain.session import roots
        from detrain.state.census import Census
        from detrain.state.restore import Origins

        around = roots.find_surroundings(frame, loop, self._context)
        captured = roots.capture(around, self._context, None)
        self._origins, self.census = Origins(captured), Census(captured)

    def _arrive(self, loop: Loop, frame: types.FrameType, target: Checkpoint) -> None:
        from detrain.session import roots
        from detrain.store import checkpoint as checkpoint_file

        # By `plan` or `chain_to`. A restore copies each array once, and checks what it has copied; who merges trees looks into the file.
        is_checked = self._trusting is None and self._rerun is None
        checkpoint, tree = checkpoint_file.load(target.path, is_checked=is_checked)
        if self._revisions:
            patches.use(self._revisions.get(target.name, {}))
        context, meta = self._context, checkpoint.meta
        frameworks = context.frameworks
        self._check_environment(meta)
        self._check_sources(target)
        self._check_leaves(roots.leaves_with_warnings(tree, only_beside=True))
        for name in meta.modules:
            if name not in sys.modules:
                importlib.import_module(name)  # the loop had imported it, and used what it holds
        libraries.load(meta.libraries)
        around = roots.find_surroundings(frame, loop, context)
        if around.call_path() != meta.call_path:
            raise RestoreError(
                f"{target.name} was taken in {meta.call_path}, but the loop is now reached through {around.call_path()}"
            )
        self._set_loop(loop, target)
        beside = Beside(meta, frameworks)
        merge = self._merging(target, beside)
        frameworks.set_flags(meta.flags)

        def put_back_files() -> None:
            try:
                context.files.put_back(
                    meta.files, is_trusting=self.is_trusting, offsets=self._offsets_of_others(target.name)
                )
                self._go_to(meta.folder)  # the loop may have made it
            except RestoreError as error:
                # Of the world, not of the checkpoint: who makes room, or puts a file back, can go on from it.
                raise ResumeRefused(str(error)) from error

        frameworks.wait()
        doubtful = roots.restore(
            tree, around, frameworks.generators(), self._origins, context.replay, put_back_files,
            lambda: self._set_aside(target), allows_pickle=self._allows_pickle, process=meta.process, merge=merge,
        )  # fmt: skip
        self._go_to(beside.folder)
        frameworks.warm_up()
        frameworks.wait()  # the script may go on with it on other streams
        self._check_leaves(doubtful)
        frameworks.set_flags(beside.flags)  # restoring has registered hooks, which are counted
        if meta.entropy and frameworks.entropy is not None:
            drawn, num_children = meta.entropy
            frameworks.entropy.set_entropy_state((drawn, num_children))
            first, second = meta.entropy_of_threads or (0, 0)
            frameworks.entropy.set_entropy_of_threads((first, second))
        loop.mark(target.name)
        context.position.move_to(meta.epochs, meta.batches, meta.batch_in_epoch)
        context.agreement.jump()
        context.policy.on_resumed(meta.epochs, meta.batches, context.agreement.now_s(meta.batches), meta.cost_s)
        if frameworks.clocks is not None:
            frameworks.clocks.seek(meta.clocks, is_last=len(self._targets) == 1)
        self.num_batches_again -= loop.site.part == "batch"
        self._targets.pop(0)
        if not self._targets:
            self._finish(checkpoint)

    def _offsets_of_others(self, name: str) -> dict[str, int]:
        """How long the journals of the other ranks' files were when they took their parts of a cut, where their directories can be seen."""
        from detrain.store import checkpoint as checkpoint_file

        found = {}
        for place in sorted(self._context.job.glob("rank_*")) if self._context.job is not None else ():
            if place.name != self._context.directory.path.name and (place / name).exists():
                with contextlib.suppress(CheckpointError):  # of another host's disk, say: that rank has judged it
                    found[place.name] = checkpoint_file.read_outline(place / name).meta.files
        return found

    def _merging(self, target: Checkpoint, beside: Beside) -> Callable[[Tree, Tree], Tree] | None:
        """What makes the tree that is restored of the checkpoint's and the live one; None where it is the checkpoint's."""
        trusting = self._trusting if self._trusting is not None and self._trusting.is_needed(target) else None
        rerun = self._rerun
        if trusting is None and rerun is None:
            return None

        def merge(saved: Tree, live: Tree) -> Tree:
            if rerun is not None:
                rerun.arrived(target.name, side_of(live, beside.here), is_last=len(self._targets) == 1)
            return saved if trusting is None else trusting.merge(target, saved, live, beside)

        return merge

    def _go_to(self, folder: str) -> None:
        if os.getcwd() == folder:
            return
        try:
            os.chdir(folder)
        except OSError as error:
            raise RestoreError(f"the working folder of the training cannot be made the current one: {error}") from None

    def _set_aside(self, target: Checkpoint) -> str:
        """Let later attempts pass over a checkpoint that held too little; says so."""
        if target.path.exists():  # this attempt may have gone so far that it has been deleted for newer ones
            self._context.directory.set_aside([target.path])
        return f"{target.name} has been set aside; the same command, given again, resumes from an earlier checkpoint"

    def _set_loop(self, loop: Loop, target: Checkpoint) -> None:
        meta = target.meta
        loop.iteration = meta.position[-1].iteration
        if meta.is_exhausted:
            is_open = self._trusting is not None and self._trusting.is_needed(target)
            loop.is_exhausted = not (is_open and self._goes_further(loop, target))
        elif loop.feed is not None and loop.iteration > 0:
            # To be taken to its place. Before the first iteration the `for` statement has not asked for one: it does, with everything
            # that the loader may then draw from as it was.
            loop.feed.replacement = iter(loop.feed.iterable)

    def _goes_further(self, loop: Loop, target: Checkpoint) -> bool:
        """True if the outermost loop was exhausted at the checkpoint and is longer now; its iterator is then moved to the position."""
        position = target.meta.position
        if len(position) > 1:
            return False
        if len(self._targets) > 1 and self._targets[1].meta.position[0][:3] != position[0][:3]:
            return False  # the run has gone on behind this loop
        if loop.feed is None:
            return True  # a `while`: its condition says so
        from detrain.state.handlers.iterators import took_steps

        iterator = iter(loop.feed.iterable)
        num_steps = took_steps(iterator, loop.iteration)
        if num_steps is None:
            raise ResumeRefused(
                f"{target.name} is from the end of the training and cannot be continued: the iterable of the loop at "
                f"{loop.site.filename}:{loop.site.line} is not a plain count. Begin at an earlier checkpoint with --from"
            )
        if num_steps == loop.iteration and loop.feed is not None:
            loop.feed.replacement = iterator
            return True
        return False

    def _check_environment(self, meta: Meta) -> None:
        if self.is_trusting:
            return
        facts = self._context.frameworks.facts()
        changed = [
            f"{name} is {facts.get(name)}, was {old}" for name, old in meta.facts.items() if facts.get(name, old) != old
        ]
        if changed:
            raise InexactResume(
                f"the environment differs from the checkpoint's: {'; '.join(changed)}",
                "Results may differ; go back to the old environment, start over with --fresh, or resume with --trust-changes",
            )

    def _check_sources(self, target: Checkpoint) -> None:
        """Of modules that the set-up code has written itself, what they are is known only now that they are loaded."""
        from detrain.state.user_code import user_code

        now = self._context.info.sources
        changed = [
            name
            for name, digest in target.meta.sources.items()
            if name in user_code and now.get(name, digest) != digest and not patches.is_patched(name)
        ]
        if changed and not self.is_trusting:
            raise InexactResume(
                f"the source has changed since {target.name}: {', '.join(sorted(changed))}",
                OTHER_SOURCE,
            )

    def _check_leaves(self, doubtful: list[str]) -> None:
        if not doubtful:
            return
        what = f"this resume may not be exact, because these are not in the checkpoint: {'; '.join(doubtful)}"
        if not self.is_trusting:
            raise InexactResume(
                what,
                "Resume with --trust-changes if the loop does not change them, or start over with --fresh (--on-inexact does either by "
                "itself)",
            )
        warn("inexact", f"{what}; continuing anyway")

    def _finish(self, checkpoint: Checkpoint) -> None:
        context = self._context
        self.checkpoint = checkpoint
        self._origins = None
        if self._revisions:
            patches.use({})  # what is saved from here on has the lines of now
        context.files.end_rewind()
        context.frameworks.hold_loading(False)
        if context.frameworks.printing is not None:
            context.frameworks.printing.mark_resumed(checkpoint.sequence)
        seconds = time.monotonic() - self._began_s
        note(
            "resumed", checkpoint=checkpoint.name, epoch=checkpoint.meta.epoch, batch=checkpoint.meta.batch,
            batches=checkpoint.meta.batches, seconds=round(seconds, 3),
        )  # fmt: skip
        again = f", having run {self.num_batches_again} batches again" if self.num_batches_again else ""
        say(
            f"resumed at epoch {checkpoint.meta.epoch}, batch {checkpoint.meta.batch} from {checkpoint.name}, "
            f"{seconds:.1f} s after the start{again}"
        )
        if self._trusting is not None:
            self._trusting.report(checkpoint)
        self._on_resumed()


def chain_to(directory: RunDirectory, name: str) -> list[Checkpoint]:
    """The chain to the checkpoint of this name, read whole. Raises `CheckpointError`."""
    from detrain.store import checkpoint as checkpoint_file

    target = checkpoint_file.load(directory.path / name)[0]
    return [*(checkpoint_file.load(directory.path / one)[0] for one in target.meta.chain), target]


def plan(directory: RunDirectory, start: str | None) -> tuple[list[Checkpoint], list[str]]:
    """The chain to the latest usable checkpoint (or to the one named `start`), and what had to be passed over, as messages.

    Every file of the chain is read whole here, so that a damaged one is found before the script begins. Raises `InexactResume`
    if there are checkpoints and none can be used.
    """
    good, bad = directory.read_checkpoints()
    messages = [str(error) for error in bad]
    if start is not None:
        good = [found for found in good if found.name == Path(start).name]
        if not good:
            raise ResumeRefused(
                f"--from {start}: {messages[0] if messages else 'no such checkpoint in ' + str(directory.path)}"
            )
    for candidate in good:
        from detrain.store import checkpoint as checkpoint_file

        try:
            names = [*candidate.meta.chain, candidate.name]
            return [checkpoint_file.load(directory.path / name)[0] for name in names], messages
        except CheckpointError as error:
            messages.append(str(error))
    if messages:
        raise InexactResume(
            f"no checkpoint in {directory.path} can be used: {'; '.join(messages)}",
            "Nothing was changed; start over with --fresh, which keeps them",
        )
    return [], messages

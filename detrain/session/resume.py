"""The way from a fresh process to a checkpoint's position.

A checkpoint inside an epoch needs the one at the epoch's beginning: the code before the batch loop is run again and must see the
state that it saw then. Likewise for every loop that ended before. So a resume passes through a *chain* of checkpoints; at each
it jumps to the position, restores, and lets the script run on. Where a link of the chain is missing, the script simply runs, which
is exact too.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from detrain.errors import CheckpointError, DetrainError, RestoreError, ResumeRefused
from detrain.loops.running import Loop
from detrain.messages import say, warn
from detrain.session.trusting import Beside, side_of

if TYPE_CHECKING:
    from detrain.session.session import Session
    from detrain.session.trusting import Trusting
    from detrain.state.tree import Tree
    from detrain.state.walk import Census
    from detrain.store.checkpoint import Checkpoint


class Resume:
    """The checkpoints still ahead, in order. Empty for a run that starts from its beginning."""

    def __init__(
        self,
        targets: list[Checkpoint],
        *,
        is_trusting: bool = False,
        allows_pickle: bool = True,
        trusting: Trusting | None = None,
    ) -> None:
        """`trusting` merges the checkpoints that were made with other arguments."""
        self._targets = list(targets)
        self.is_trusting = is_trusting
        self._allows_pickle = allows_pickle
        self._trusting = trusting
        self.on_resumed: Callable[[], None] = lambda: None
        self._began_s = time.monotonic()
        self._origins: Any = None
        self._batches_run = 0  # on the way, where no checkpoint leads past them
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
        found = self.checkpoint or self.goal
        if found is None:
            return None
        return self._trusting is not None and self._trusting.is_other(found)

    @property
    def goal(self) -> Checkpoint | None:
        """The checkpoint that is resumed from, while it is still ahead."""
        return self._targets[-1] if self._targets else None

    def at_header(self, session: Session, loop: Loop, frame: types.FrameType) -> None:
        """An iteration is about to begin while the run fast-forwards; the next checkpoint may be in its loop."""
        if self._origins is None and loop.iteration == 0:
            with session.frameworks.aside():
                self._take_census(session, loop, frame)
        self._batches_run += loop.site.part == "batch"
        target = self._targets[0]
        if loop.iteration != 0 or not leads_to(loop, target.meta["position"]):
            return
        try:
            self._arrive(session, loop, frame, target)
        except (RestoreError, CheckpointError) as error:
            self._give_up(session, target, error)
        except DetrainError as error:
            fail(session, error)
        except Exception as error:  # noqa: BLE001 - a script that catches everything would go on with half a state
            traceback.print_exc()
            wrapped = RestoreError(f"{type(error).__name__}: {error}")
            wrapped.__cause__ = error
            self._give_up(session, target, wrapped)

    def _give_up(self, session: Session, target: Checkpoint, error: DetrainError) -> NoReturn:
        if session.frameworks.is_shortage(error):
            # Of the machine, not of the checkpoint: another attempt may have what this one lacks.
            text = f"{target.name} cannot be restored now: {error}. It stays; give the same command again"
            fail(session, RestoreError(text))
        self._pass_over(session, target, error)

    def _pass_over(self, session: Session, target: Checkpoint, error: DetrainError) -> NoReturn:
        """A checkpoint cannot be restored, and never will be: go on with the one before it, or from the beginning.

        The live objects are half restored by now, so the script starts again in this very process.
        """
        if session.start_again is None or self.is_trusting:
            # Who has changed the script, and trusts that, is told what does not fit rather than losing each checkpoint in turn.
            fail(session, error)
        session.files.give_up()
        warn("checkpoint-set-aside", f"{target.name} cannot be restored: {error}. {self._set_way_aside(session)}")
        kill_children()
        sys.stdout.flush()
        session.start_again()

    def _set_way_aside(self, session: Session) -> str:
        """Let later attempts pass over the goal, and what of the way to it is still ahead; says so."""
        there, _ = session.directory.read_checkpoints()
        lost = {one.name for one in self._targets}
        for one in sorted(there, key=lambda found: found.sequence):  # what cannot be reached, or read, without those
            if not lost.isdisjoint([*one.needs, *one.meta["chain"]]):
                lost.add(one.name)
        session.directory.set_aside([one.path for one in there if one.name in lost])
        start = (
            "an earlier checkpoint" if session.directory.checkpoint_paths() else "its beginning: there is none before"
        )
        return f"{' and '.join(sorted(lost))} went to the folder aside/; the run goes on from {start}"

    def _take_census(self, session: Session, loop: Loop, frame: types.FrameType) -> None:
        import detrain.state.handlers.standard  # noqa: F401 - registers the handlers
        from detrain.session import roots
        from detrain.state.restore import Origins
        from detrain.state.walk import Census

        around = roots.look_around(frame, loop, session.is_user_file, session.settings.script_name)
        session.frameworks.wait()
        with session.frameworks.unseen():
            walk = roots.capture(around, session.frameworks.generators(), None, session.loading)
        self._origins, self.census = Origins(walk), Census(walk)

    def _arrive(self, session: Session, loop: Loop, frame: types.FrameType, target: Checkpoint) -> None:
        from detrain.session import roots
        from detrain.store import checkpoint as checkpoint_file

        checkpoint, tree = checkpoint_file.load(target.path)
        meta = checkpoint.meta
        self._check_environment(session, meta)
        self._check_leaves(roots.loud_leaves(tree, only_beside=True))
        for name in meta.get("modules", ()):
            if name not in sys.modules:
                importlib.import_module(name)  # the loop had imported it, and used what it holds
        around = roots.look_around(frame, loop, session.is_user_file, session.settings.script_name)
        if around.call_path() != meta["call_path"]:
            raise RestoreError(
                f"{target.name} was taken in {meta['call_path']}, but the loop is now reached through {around.call_path()}"
            )
        self._set_loop(loop, target)
        beside = Beside(meta, session.frameworks)
        merge = self._merging(session, target, beside)
        session.frameworks.set_flags(meta["flags"])

        def put_back_files() -> None:
            try:
                session.files.put_back(meta["files"], is_trusting=self.is_trusting)
                self._go_to(meta["folder"])  # the loop may have made it
            except RestoreError as error:
                # Of the world, not of the checkpoint: who makes room, or puts a file back, can go on from it.
                raise ResumeRefused(str(error)) from error

        session.frameworks.wait()
        doubtful = roots.restore(
            tree, around, session.frameworks.generators(), self._origins, session.loading, put_back_files,
            lambda: self._set_aside(session, target), allows_pickle=self._allows_pickle,
            process=meta.get("process"), merge=merge,
        )  # fmt: skip
        self._go_to(beside.folder)
        session.frameworks.warm_up()
        session.frameworks.wait()  # the script may go on with it on other streams
        self._check_leaves(doubtful)
        session.frameworks.set_flags(beside.flags)  # restoring has registered hooks, which are counted
        if meta["entropy"] and session.frameworks.entropy is not None:
            session.frameworks.entropy.set_entropy_state(tuple(meta["entropy"]))
            session.frameworks.entropy.set_entropy_of_threads(tuple(meta["entropy_of_threads"]))
        loop.mark(target.name)
        session.restart_at(meta)
        if session.frameworks.clocks is not None:
            session.frameworks.clocks.seek(meta.get("clocks", []), is_last=len(self._targets) == 1)
        self._batches_run -= loop.site.part == "batch"
        self._targets.pop(0)
        if not self._targets:
            self._finish(session, checkpoint)

    def _merging(self, session: Session, target: Checkpoint, beside: Beside) -> Callable[[Tree, Tree], Tree] | None:
        """What makes the tree that is restored of the checkpoint's and the live one; None where it is the checkpoint's."""
        trusting = self._trusting if self._trusting is not None and self._trusting.is_needed(target) else None
        rerun = session.rerun if session.rerun is not None and session.rerun.tells_arrivals else None
        if trusting is None and rerun is None:
            return None

        def merge(saved: Tree, live: Tree) -> Tree:
            if rerun is not None:
                rerun.arrived(session, target.name, side_of(live, beside.here), is_last=len(self._targets) == 1)
            return saved if trusting is None else trusting.merge(target, saved, live, beside)

        return merge

    def _go_to(self, folder: str) -> None:
        if os.getcwd() == folder:
            return
        try:
            os.chdir(folder)
        except OSError as error:
            raise RestoreError(f"the working folder of the training cannot be entered: {error}") from None

    def _set_aside(self, session: Session, target: Checkpoint) -> str:
        """Let later attempts pass over a checkpoint that held too little; says so."""
        if target.path.exists():  # this attempt may have gone so far that it has been deleted for newer ones
            session.directory.set_aside([target.path])
        return f"{target.name} has been set aside; the same command, given again, resumes from an earlier checkpoint"

    def _set_loop(self, loop: Loop, target: Checkpoint) -> None:
        meta = target.meta
        loop.iteration = meta["position"][-1][3]
        if meta["is_exhausted"]:
            is_open = self._trusting is not None and self._trusting.is_needed(target)
            loop.is_exhausted = not (is_open and self._goes_further(loop, target))
        elif loop.feed is not None and loop.iteration > 0:
            # To be taken to its place. Before the first iteration the `for` statement has not asked for one: it does, with everything
            # that the loader may then draw from as it was.
            loop.feed.replacement = iter(loop.feed.iterable)

    def _goes_further(self, loop: Loop, target: Checkpoint) -> bool:
        """True if the outermost loop had come to its end at the checkpoint and has another end now; its iterator is taken to its place."""
        position = target.meta["position"]
        if len(position) > 1 or loop.feed is None:
            return False
        if len(self._targets) > 1 and self._targets[1].meta["position"][0][:3] != position[0][:3]:
            return False  # the run has gone on behind this loop
        from detrain.state.handlers.iterators import took_steps

        iterator = iter(loop.feed.iterable)
        num_steps = took_steps(iterator, loop.iteration)
        if num_steps is None:
            raise ResumeRefused(
                f"{target.name} is of the training's end, and nobody knows how to go on from there: what the loop at "
                f"{loop.site.filename}:{loop.site.line} iterates over is no plain count. Begin at an earlier checkpoint with --from"
            )
        if num_steps == loop.iteration and loop.feed is not None:
            loop.feed.replacement = iterator
            return True
        return False

    def _check_environment(self, session: Session, meta: dict[str, Any]) -> None:
        if self.is_trusting:
            return
        facts = session.frameworks.facts()
        changed = [
            f"{name} is {facts.get(name)}, was {old}"
            for name, old in meta["facts"].items()
            if facts.get(name, old) != old
        ]
        if changed:
            raise ResumeRefused(
                f"the environment is not the checkpoint's: {'; '.join(changed)}. The bits may come out differently; go back to the old "
                "environment, start over with --fresh, or go on with --trust-changes"
            )

    def _check_leaves(self, doubtful: list[str]) -> None:
        if doubtful and not self.is_trusting:
            raise ResumeRefused(
                f"this resume may not be exact, because these are not in the checkpoint: {'; '.join(doubtful)}. Go on with "
                "--trust-changes if the "
                "loop does not change them, or start over with --fresh"
            )

    def _finish(self, session: Session, checkpoint: Checkpoint) -> None:
        self.checkpoint = checkpoint
        self._origins = None
        session.files.settle()
        session.frameworks.hold_loading(False)
        if session.frameworks.printing is not None:
            session.frameworks.printing.note_resumed(checkpoint.sequence)
        seconds = time.monotonic() - self._began_s
        again = f", having run {self._batches_run} batches again" if self._batches_run else ""
        say(
            f"resumed at epoch {checkpoint.meta['epoch']}, batch {checkpoint.meta['batch']} from {checkpoint.name}, "
            f"{seconds:.1f} s after the start{again}"
        )
        if self._trusting is not None:
            self._trusting.tell(checkpoint)
        self.on_resumed()


def leads_to(loop: Loop, position: list[list[Any]]) -> bool:
    """True if this is the loop of a checkpoint's position, in the iterations of the loops around it; its own is not looked at."""
    path = loop.nest
    if len(path) != len(position):
        return False
    for one, (filename, line, ordinal, iteration) in zip(path, position, strict=True):
        here = os.path.normpath(one.site.filename)
        if (here, one.site.line, one.ordinal) != (os.path.normpath(filename), line, ordinal):
            return False
        if one is not loop and one.iteration != iteration:
            return False
    return True


def plan(directory: Any, start: str | None) -> tuple[list[Checkpoint], list[str]]:
    """The chain to the latest usable checkpoint (or to the one named `start`), and what had to be passed over, as messages.

    Every file of the chain is read whole here, so that a damaged one is found before the script begins. Raises `ResumeRefused`
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
            names = [*candidate.meta["chain"], candidate.name]
            return [checkpoint_file.load(directory.path / name)[0] for name in names], messages
        except CheckpointError as error:
            messages.append(str(error))
    if messages:
        raise ResumeRefused(
            f"no checkpoint in {directory.path} can be used: {'; '.join(messages)}. Nothing was changed; start over "
            "with --fresh, which keeps them"
        )
    return [], messages


def fail(session: Session, error: DetrainError) -> NoReturn:
    """End the attempt where it stands, because going on would not be exact."""
    sys.stdout.flush()
    say(f"error: {error}")
    leave(session, error.exit_status)


def leave(session: Session, status: int) -> NoReturn:
    """End the process where it stands.

    Not by an exception: hooks are called from the middle of the script, and a script may catch everything.
    """
    session.files.give_up()
    kill_children()
    sys.stdout.flush()
    os._exit(status)


def kill_children() -> None:
    """What the set-up code has started would wait for ever for an attempt that does not go on."""
    import multiprocessing

    for child in multiprocessing.active_children():
        child.kill()

"""Finds the training loops of a first attempt from its weight updates, and writes them to inst.info."""

from __future__ import annotations

import types
from collections.abc import Sequence

from detrain.loops import instfile
from detrain.loops.nest import NestFinder
from detrain.loops.running import Loop
from detrain.loops.stack import LoopStack
from detrain.messages import say, warn
from detrain.session.context import Context
from detrain.session.unsaved import Unsaved
from detrain.world.signal_deferral import handlers_deferred


class NestSearch:
    """The search for the loops around weight updates. It goes on until the batch loop is settled, and again in loops of unknown part."""

    def __init__(self, context: Context, stack: LoopStack) -> None:
        self._context, self._stack = context, stack
        self._info, self._position, self._frameworks = context.info, context.position, context.frameworks
        self._finder = NestFinder(context.frameworks.has_optimizer)
        self._unsaved = Unsaved()
        self._began_at = 0  # batches before the nest that was found last
        self._epochs_before = self._batches_before = 0  # what was counted before its loops were
        self._has_known_loops = bool(context.info.parts())
        #: The nest may still turn out to be another.
        self.is_open = True
        self._is_in_loop = False  # gradients have been computed in a loop that could be the training's
        #: A training loop has been found in this attempt.
        self.has_found = False

    @property
    def has_nest(self) -> bool:
        """True if a training loop has been seen, in this attempt or an earlier one."""
        return bool(self._info.nests)

    def entered(self, loop: Loop) -> None:
        """A loop has been entered; one of unknown part may be around another nest."""
        self.is_open = self.is_open or not loop.site.part

    def at_batch(self, loop: Loop) -> None:
        """The batch loop `loop` is at its header; closes the search once that loop is settled."""
        self.is_open = self.is_open and not self._is_settled(loop)

    def is_final(self, loop: Loop) -> bool:
        """True if the part of `loop` will not turn out to be another, so that a checkpoint may be taken at its header."""
        if self._has_known_loops or loop.site.part == "outer":
            return True
        if loop.site.part == "epoch":
            return self._finder.is_epoch_settled(*reversed(loop.path))
        return self._is_settled(loop)

    def _is_settled(self, loop: Loop) -> bool:
        return self._finder.is_settled(*reversed(loop.path))

    def on_gradient(self, frame: types.FrameType) -> None:
        """Gradients were computed in a call from `frame`."""
        running = self._stack.running(frame)
        self._is_in_loop = self._is_in_loop or bool(running)
        if _is_within_training(running):
            return
        nest = self._finder.on_gradient(running)
        if nest is not None:
            self._take(nest)

    def on_update(self, frame: types.FrameType) -> None:
        """Weights were updated in a call from `frame`."""
        running = self._stack.running(frame)
        if _is_within_training(running):
            return
        nest = self._finder.on_update(running)
        if nest is not None:
            self._take(nest)
        elif not self._info.nests:
            self._unsaved.outside_loops()

    def on_update_in_child(self) -> None:
        """Weights were updated in a process that the script has forked, which detrain does not follow."""
        self._unsaved.in_child()

    def on_update_in_thread(self) -> None:
        """Weights were updated in a thread other than the script's first."""
        if not self._info.nests:
            self._unsaved.in_thread()

    def why_nothing(self) -> str:
        """Why no checkpoint was taken."""
        if not self._frameworks.can_train():
            return "the script loaded no framework that trains"
        if not self._finder.updates_seen and not self._finder.gradients_seen:
            return "no optimizer stepped and no gradient was computed"
        if self._is_in_loop:
            return (
                "gradients were computed in a loop, but it ended before it could be told for the training's: where no optimizer of the "
                "framework steps, that takes three iterations"
            )
        return (
            "weights were updated, but not inside a loop of the script's own files. If the loop is a library's, `detrain trace` finds it "
            "for the runs that follow"
        )

    def write_info(self) -> None:
        """Write inst.info. A directory that cannot be written is only warned of here: the first checkpoint fails in it."""
        try:
            instfile.write(self._context.directory.path / "inst.info", self._info, self._context.settings.script.parent)
        except OSError as error:
            warn("inst-info", f"inst.info cannot be written: {error}")

    def _take(self, loops: Sequence[Loop]) -> None:
        with handlers_deferred():
            self._take_undisturbed(loops)

    def _take_undisturbed(self, loops: Sequence[Loop]) -> None:
        """Count the iterations that these loops have begun already, and replace nests that they contradict."""
        self.has_found = True
        nest = [instfile.NestLoop(loop.site.filename, loop.site.line, loop.site.part) for loop in loops]
        demoted = self._stack.demoted()
        lines = {(found.file_name, found.line_no) for found in nest}
        kept = [
            old for old in self._info.nests
            if not any((o.file_name, o.line_no) in demoted for o in old) and {(o.file_name, o.line_no) for o in old} != lines
        ]  # fmt: skip
        is_other_nest = len(kept) < len(self._info.nests)
        counted = {(known.file_name, known.line_no, known.part) for old in kept for known in old}
        batches_before = self._position.batches
        if is_other_nest:
            # What the wrong loops have counted. Batches only go on: records and clocks have their numbers.
            self._position.epochs = self._epochs_before
            self._position.count("batch", self._batches_before - batches_before)
        self._epochs_before, self._batches_before = self._position.epochs, self._position.batches
        for loop, found in zip(loops, nest, strict=True):
            if (found.file_name, found.line_no, found.part) not in counted:
                begun = loop.iteration + 1
                earlier = max(self._finder.num_computed(loop.site) - begun, 0)  # entries of the loop that have ended
                self._position.count(loop.site.part, begun, earlier)
            loop.site.num_in_nest = sum(other.site is loop.site for other in loops)
            loop.follow_sibling()
        if self._position.batches < batches_before:
            self._position.move_to(self._position.epochs, batches_before, self._position.batch_in_epoch)
        self._recount(batches_before, is_other_nest=is_other_nest)
        self._info.nests = [*kept, nest]
        say(f"training loop found: {self._info.describe()}; checkpoints go to {self._context.named_directory}")
        self.write_info()

    def _recount(self, batches_before: int, *, is_other_nest: bool) -> None:
        """Tell the clocks that a later attempt, which knows this nest from its start, numbers batches differently."""
        if self._info.nests and self._frameworks.clocks is not None:
            since = self._began_at if is_other_nest else batches_before
            self._frameworks.clocks.recounted(since, is_other_nest=is_other_nest)
        if not is_other_nest:
            self._began_at = batches_before


def _is_within_training(running: Sequence[Loop]) -> bool:
    """True in a run of the training's loops in one of their own iterations: what is trained there says nothing of the nest."""
    return bool(running) and running[-1].site.is_within_itself

"""The session: the one mutable object of an attempt. Hooks report to it; it saves, fast-forwards and restores."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import types
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic  # the plain one, which is quicker than what takes its place for the script
from typing import TYPE_CHECKING, Any, NoReturn

from detrain.adapters.loaded import Frameworks
from detrain.adapters.protocol import Adapter
from detrain.errors import RestoreError
from detrain.loops import instfile
from detrain.loops.nest import NestFinder, is_settled
from detrain.loops.running import Loop, Site, address, innermost_active
from detrain.messages import say, warn
from detrain.outputs.following import OutputFiles
from detrain.session.goal import Rerun
from detrain.session.policy import Policy
from detrain.session.replay import Loading, digest_of
from detrain.session.resume import Resume, fail
from detrain.session.unsaved import Unsaved
from detrain.store.directory import RunDirectory
from detrain.world.signal_deferral import handlers_deferred

if TYPE_CHECKING:
    from detrain.store.checkpoint import Checkpoint
    from detrain.store.ledger import Batch


@dataclass
class Settings:
    """What an attempt is told by its command line."""

    script: Path
    script_name: str
    keep: int
    record: dict[str, Any] = field(default_factory=dict)
    is_other_way: bool = False  # the arguments are others than the last attempt's


class Session:
    """One attempt's position and plans."""

    def __init__(
        self,
        settings: Settings,
        directory: RunDirectory,
        policy: Policy,
        info: instfile.InstInfo,
        frameworks: Frameworks,
        resume: Resume,
    ) -> None:
        self.settings, self.directory, self.policy = settings, directory, policy
        self.info, self.frameworks, self.resume = info, frameworks, resume
        self.files = OutputFiles(directory.path)
        self.recorder: Any = None  # detrain.session.recorder.Recorder; loads numpy, so made when the training begins
        self.rerun: Rerun | None = None  # where only a part of a run is done again
        self.loading = Loading(info.extra, lambda: digest_of(frameworks.generators()))
        self.top: Loop | None = None
        self.is_off = False
        #: Epoch-loop iterations begun in this run, batches begun, batches begun in this epoch.
        self.epochs, self.batches, self.batch_in_epoch = 0, 0, 0
        self.counter = (
            ctypes.c_uint64()
        )  # `batches` where the preload reads it; read from here it would cost each batch more
        self.on_saved: Callable[[], None] = lambda: None
        self.on_training: Callable[[], None] = lambda: None  # the training loop has been found or reached
        #: Begins the attempt anew, in this very process; set by the launcher.
        self.start_again: Callable[[], NoReturn] | None = None
        #: The training loop has been found or reached, in this attempt.
        self.has_trained = False
        #: The training's loops have used up what they iterate over; nothing has broken them off.
        self.is_nest_exhausted = False
        self._unsaved = Unsaved()
        self._finder = NestFinder(frameworks.has_optimizer)
        self._sites: dict[tuple[str, int], Site] = {}
        self._parts = info.parts()
        self._loops_of: dict[str, dict[int, int]] = {}
        self._root_children: dict[Site, int] = {}
        self._root_finished: list[str] = []
        self._thread = threading.get_ident()
        self._epoch_began_s: float | None = None  # not before a header has been seen: set-up code is no epoch
        self._nest_began_at = 0  # batches before the nest that was found last
        self._is_training = False
        self._is_looking = True
        #: The batch loop at whose headers nothing falls due before so many batches have begun, or before this moment.
        self._lull: Loop | None = None
        self._lull_batches, self._lull_end_s = 0, 0.0
        self._saver: Any = None  # detrain.session.saving.Saver; loads h5py, so made when first needed

    # --- what the launcher tells -------------------------------------------------------------------------------------------

    def know_loops(self, filename: str, loops: dict[int, int]) -> None:
        """The loops of a file that has just been instrumented: header line to last line."""
        self._loops_of[filename] = loops

    def is_user_file(self, filename: str) -> bool:
        """True for the script and the user's modules."""
        return filename in self._loops_of

    def watch(self, adapter: Adapter) -> None:
        """A framework has been loaded: see its weight updates."""
        adapter.report_updates(self._on_update, lambda outputs: self._on_gradient(adapter, outputs))
        if self.resume.is_pending:
            self.frameworks.hold_loading(True)

    def stop(self) -> None:
        """Take part in nothing any more: in a forked child, or once the script has ended."""
        self.is_off = True
        self._lull = None
        self.files.stop()

    def ask(self) -> None:
        """A checkpoint is wanted at the next header; may be called by a signal's handler."""
        self.policy.is_asked = True
        self._lull = None

    # --- what hooks tell ---------------------------------------------------------------------------------------------------

    def enter_for(self, frame: types.FrameType, line: int, iterable: Any) -> Any:
        """A `for` loop's header has been evaluated; returns what to iterate over."""
        loop = self._enter(frame, line)
        return iterable if loop is None else loop.wrap(iterable)

    def enter_while(self, frame: types.FrameType, line: int) -> None:
        """A `while` loop is about to be entered."""
        self._enter(frame, line)

    def tick_while(self, frame: types.FrameType, line: int) -> bool:
        """A `while` loop's condition is about to be evaluated; always True."""
        loop = self.top
        if self.is_off or loop is None or threading.get_ident() != self._thread:
            return True
        here = address(frame)
        while loop is not None and not (loop.frame_address == here and loop.site.line == line):
            loop = loop.parent
        if loop is not None:
            loop.tick()
        return True

    def batch_loaded(self, frame: types.FrameType, line: int) -> None:
        """The batch loop at this line has loaded what it loads by itself."""
        if not self.is_off and threading.get_ident() == self._thread:
            self.loading.batch_loaded(f"{os.path.basename(frame.f_code.co_filename)}:{line}")

    def _enter(self, frame: types.FrameType, line: int) -> Loop | None:
        if self.is_off or threading.get_ident() != self._thread:
            return None
        site = self._site(frame.f_code.co_filename, line)
        parent = innermost_active(self._top_before(frame, line), frame)
        if not site.part and parent is not None and parent.site.part == "batch":
            return None  # inside a batch nothing is of interest any more
        self._finish_sibling(parent)
        around = [] if parent is None else [one.children for one in reversed(parent.path)]
        ordinals = []
        for children in (*around, self._root_children):
            ordinals.append(children.get(site, 0))
            children[site] = ordinals[-1] + 1
        self._lull = None
        self.top = Loop(self, site, parent, ordinals, address(frame))
        self._is_looking = self._is_looking or not site.part
        return self.top

    def _top_before(self, frame: types.FrameType, line: int) -> Loop | None:
        """The innermost loop so far, without an earlier entry of the loop that is entered: that one has ended."""
        loop = self.top
        here = address(frame)
        while loop is not None:
            if loop.frame_address == here and loop.site.line == line:
                return loop.parent
            loop = loop.parent
        return self.top

    def _finish_sibling(self, parent: Loop | None) -> None:
        """A loop beside an earlier one is entered: what led to the end of the earlier one is needed to get here again."""
        ended, before = None, self.top
        while before is not None and before is not parent:
            ended, before = (before if before.site.part else ended), before.parent
        if ended is not None and before is parent:
            outer = ended.nest_parent
            (self._root_finished if outer is None else outer.finished).extend(ended.way_here())

    def _site(self, filename: str, line: int) -> Site:
        site = self._sites.get((filename, line))
        if site is None:
            end_line = self._loops_of.get(filename, {}).get(line, line)
            part = self._parts.get(os.path.normpath(filename), {}).get(line, "")
            site = self._sites[filename, line] = Site(filename, line, end_line, part, is_fixed=bool(part))
        return site

    def at_header(self, loop: Loop) -> None:
        """An iteration of a loop in the nest is about to begin.

        Every batch pays for what stands first here; the others are those at which something may be due.
        """
        if loop is self._lull and self.batches < self._lull_batches and monotonic() < self._lull_end_s:
            self.recorder.end_batch(self.batches)
            self._begin_batch()
        elif not self.is_off:
            self._lull = None
            self._at_header(loop)

    def _at_header(self, loop: Loop) -> None:
        self.is_nest_exhausted = False
        if not self._is_training:
            self._is_training = self.has_trained = True
            self.policy.begin(monotonic())
            self.loading.begin()
            self.on_training()
        if self.resume.is_pending:
            with self.frameworks.clocks_aside():
                self.resume.at_header(self, loop, loop.find_frame())
        if self.recorder is None and not self.resume.is_pending:
            self._begin_recording(loop)
        now_s = monotonic()  # what a resume has taken is no time of the policy's nor of the ledger's
        if loop.site.part == "batch":
            self._at_batch(loop, now_s)
        else:
            self._at_epoch(loop, now_s)

    def _at_batch(self, loop: Loop, now_s: float) -> None:
        outer = loop.nest_parent
        if outer is None and self.policy.without_epochs():
            warn("every-epoch", "the training has no loop around its batch loop, so --every epoch is taken as auto")
        is_near = outer is None or outer.is_marked
        is_due = self.policy.is_due_at_batch(self.batches, now_s, is_near=is_near) and not self._is_put_off()
        must = (is_due or (self.rerun is not None and self.rerun.is_goal(loop))) and self._may_save(loop)
        if self.recorder is not None:
            self._record(loop, now_s, must=must)
        if must:
            self._save(loop)
        elif self.recorder is not None and self.recorder.looks:
            self._look_again(loop)
        self._is_looking = self._is_looking and not is_settled(loop, loop.parent)
        self._begin_batch()
        self._find_lull(loop, is_near=is_near)

    def _begin_batch(self) -> None:
        self.batches += 1
        self.counter.value = self.batches
        self.batch_in_epoch += 1

    def _find_lull(self, loop: Loop, *, is_near: bool) -> None:
        """How long nothing can be due in this loop, unless somebody asks or another loop is entered."""
        if self.is_off or self._is_looking or self.resume.is_pending or self.rerun is not None or self.recorder is None:
            return
        policy_batches, policy_s = self.policy.next_at_batch(is_near=is_near)
        recorder_batches, recorder_s = self.recorder.next_at_header(self.batches)
        self._lull_batches, self._lull_end_s = min(policy_batches, recorder_batches), min(policy_s, recorder_s)
        self._lull = loop
        if self.policy.is_asked:  # by a signal while this was computed
            self._lull = None

    def _at_epoch(self, loop: Loop, now_s: float) -> None:
        """Or at the header of a loop around epochs."""
        part = loop.site.part
        self.batch_in_epoch = 0
        is_due_at = self.policy.is_due_at_outer if part == "outer" else self.policy.is_due_at_epoch
        is_due = is_due_at(self.epochs, now_s) and not self._is_put_off()
        if loop.iteration > 0 and self._may_save(loop) and (is_due or self._is_goal(loop)):
            self._save(loop)
        else:
            self._look_again(loop)
        if part == "epoch":
            if loop.iteration > 0 and self._epoch_began_s is not None:
                self.policy.epoch_took(now_s - self._epoch_began_s)
            self._epoch_began_s = now_s
            self.epochs += 1

    def at_end(self, loop: Loop) -> None:
        """A loop in the nest has used up its iterable."""
        if self.is_off:
            return
        self._lull = None
        self.top = loop
        self.is_nest_exhausted = loop.nest_parent is None
        # The header that found nothing left was no beginning.
        self.epochs -= loop.site.part == "epoch"
        self.batches -= loop.site.part == "batch"
        self.counter.value = self.batches
        self.batch_in_epoch -= loop.site.part == "batch"
        if self.resume.is_pending or not self._may_save(loop):
            return
        now_s = monotonic()
        is_outermost = loop.nest_parent is None
        if is_outermost and self.recorder is not None:
            self._record(loop, now_s, must=True)
        is_due = self.policy.is_due_at_end(is_outermost, now_s) and (is_outermost or not self._is_put_off())
        if is_due or self._is_goal(loop):
            self._save(loop)
        else:
            self._look_again(loop)

    def _begin_recording(self, loop: Loop) -> None:
        """Open the ledger; after a resume, look at the state once more, to compare it with what a killed attempt has noted."""
        with self.frameworks.aside():
            from detrain.session.recorder import Recorder

            self.recorder = Recorder(self.directory.path / "ledger", self.frameworks.generators, self._differs)
            attempt = self.settings.record.get("attempts", 1)
            is_other, takes_over = self.settings.is_other_way, self.resume.takes_over
            self.recorder.begin(attempt, self.batches, is_other=is_other, takes_over=takes_over)
            if self.recorder.has_expectations:
                self._look(loop)

    def _look_again(self, loop: Loop) -> None:
        """Where a killed attempt has looked at its objects, under whose names then the ledger has digests of theirs."""
        if self.recorder is not None and self.recorder.is_to_look(self.batches, loop):
            with self.frameworks.aside():
                self._look(loop)

    def _look(self, loop: Loop) -> None:
        from detrain.session import roots

        around = roots.look_around(loop.find_frame(), loop, self.is_user_file, self.settings.script_name)
        self.frameworks.wait()
        with self.frameworks.unseen():
            walk = roots.capture(around, self.frameworks.generators(), None, self.loading)
        self.recorder.look(walk, self.batches, loop)

    def _record(self, loop: Loop, now_s: float, *, must: bool) -> None:
        with handlers_deferred():
            self.recorder.at_header(self.batches, self.epochs, self.batch_in_epoch, loop, now_s, must=must)
        if self.rerun is not None:
            self.rerun.at_header(self, loop)

    def _differs(self, record: Batch, leaf: str) -> None:
        if self.rerun is not None:
            self.rerun.differs(self, record, leaf)
            return
        what = (
            f"after batch {record.batches} of the run (epoch {max(record.epochs - 1, 0)}, batch {record.batch_in_epoch}), {leaf} differs "
            "from what the killed attempt had there, according to the ledger"
        )
        if self.resume.is_trusting:
            warn("ledger", f"{what}; going on all the same")
        else:
            fail(
                self,
                RestoreError(
                    f"{what}. This resume is not exact; report it, go on with --trust-changes, or start over with --fresh"
                ),
            )

    def _may_save(self, loop: Loop) -> bool:
        """False while fast-forwarding, and while the nest may still turn out to be another."""
        if self.is_off or self.resume.is_pending:
            return False
        return loop.site.part != "batch" or bool(self._parts) or is_settled(loop, loop.parent)

    def _is_put_off(self) -> bool:
        """By the clock, none is due while another is being written; by counting, the next waits for it."""
        is_writing = self._saver is not None and self._saver.is_writing
        return is_writing and self.policy.goes_by_clock and not self.policy.is_asked

    def _is_goal(self, loop: Loop) -> bool:
        return self.rerun is not None and self.rerun.is_goal(loop)

    def _save(self, loop: Loop) -> None:
        frame = loop.find_frame()
        if self.frameworks.printing is not None:
            self.frameworks.printing.flush()
        with self.frameworks.aside() as entropy:
            self._save_now(loop, frame, entropy)
        if self.rerun is not None:
            self.settle()
            self.rerun.saved(self)
        self.on_saved()

    def settle(self) -> None:
        """Wait until the checkpoint that is being written is on the disk."""
        if self._saver is not None and not self.is_off:
            with self.frameworks.aside():
                self._saver.settle()

    def end(self) -> None:
        """The script has ended: wait likewise, and say what has failed until now."""
        if self._saver is not None and not self.is_off:
            with self.frameworks.aside():
                self._saver.end()

    def _save_now(self, loop: Loop, frame: types.FrameType, entropy: tuple[int, int] | None) -> None:
        if self._saver is None:
            from detrain.session.saving import Saver

            self._saver = Saver(self)
        started_s = monotonic()
        self._saver.save(loop, frame, entropy)
        now_s = monotonic()
        is_outer = loop.site.part == "outer"
        self.policy.saved(self.epochs, self.batches, now_s, now_s - started_s, is_outer=is_outer)

    def way_to(self, loop: Loop) -> list[str]:
        """Checkpoints through which a resumed attempt comes to a loop's header, in order; not the one of the header itself."""
        names = list(self._root_finished)
        for outer in loop.path[:-1]:
            names += outer.way_here()
        return names

    def restart_at(self, meta: dict[str, Any]) -> None:
        """The run has been taken to a checkpoint's position."""
        self.epochs, self.batches, self.batch_in_epoch = meta["epochs"], meta["batches"], meta["batch_in_epoch"]
        self.counter.value = self.batches
        self._epoch_began_s = monotonic()
        self.policy.saved(self.epochs, self.batches, monotonic(), meta["cost_s"])

    # --- what frameworks tell ----------------------------------------------------------------------------------------------

    def _on_gradient(self, adapter: Adapter, outputs: Any) -> None:
        if self.recorder is not None and not self.is_off and threading.get_ident() == self._thread:
            self.recorder.add_losses(adapter.losses(outputs))
        if self._is_seeing() and (nest := self._finder.on_gradient(self._running(sys._getframe(1)))) is not None:
            with handlers_deferred():
                self._nest_found(nest)

    def _on_update(self) -> None:
        if not self._is_seeing():
            if self.is_off:
                self._unsaved.in_child()
            elif not self.info.nests and threading.get_ident() != self._thread:
                self._unsaved.in_thread()
        elif (nest := self._finder.on_update(self._running(sys._getframe(1)))) is not None:
            with handlers_deferred():
                self._nest_found(nest)
        elif not self.info.nests:
            self._unsaved.outside_loops()

    def _running(self, frame: types.FrameType) -> list[Loop]:
        """The loops that are running, seen from `frame`, outermost first."""
        loop = innermost_active(self.top, frame)
        return loop.path if loop is not None else []

    def _is_seeing(self) -> bool:
        """False once the nest is settled, until a loop of unknown part is entered outside the batch loop."""
        return self._is_looking and not self.is_off and threading.get_ident() == self._thread

    def _nest_found(self, loops: Sequence[Loop]) -> None:
        self.has_trained = True
        nest = [instfile.NestLoop(o.site.filename, o.site.line, o.site.part) for o in loops]
        counted = {(one.file_name, one.line_no, one.part) for known in self.info.nests for one in known}
        batches_before = self.batches
        # The iterations that run now began before anybody counted.
        for one, found in zip(loops, nest, strict=True):
            if (found.file_name, found.line_no, found.part) in counted:
                continue
            if one.site.part == "epoch":
                self.epochs += one.iteration + 1
            elif one.site.part == "batch":
                self.batches += one.iteration + 1
                self.counter.value = self.batches
                self.batch_in_epoch = one.iteration + 1
        demoted = {site.key for site in self._sites.values() if site.is_demoted}
        lines = {(one.file_name, one.line_no) for one in nest}
        kept = [
            old for old in self.info.nests
            if not any((o.file_name, o.line_no) in demoted for o in old) and {(o.file_name, o.line_no) for o in old} != lines
        ]  # fmt: skip
        self._recounted(batches_before, is_other_nest=len(kept) < len(self.info.nests))
        self.info.nests = [*kept, nest]
        say(f"training loop found: {self.info.describe()}; checkpoints go to {self.directory.path}")
        self.write_info()

    def _recounted(self, batches_before: int, *, is_other_nest: bool) -> None:
        """An attempt that knows this nest, or that it is another, counts its first batches when they begin."""
        if self.info.nests and self.frameworks.clocks is not None:
            since = self._nest_began_at if is_other_nest else batches_before
            self.frameworks.clocks.recounted(since, is_other_nest=is_other_nest)
        if not is_other_nest:
            self._nest_began_at = batches_before

    def write_info(self) -> None:
        """Write inst.info; a directory that cannot be written is said when a checkpoint is due."""
        try:
            instfile.write(self.directory.path / "inst.info", self.info, self.settings.script.parent)
        except OSError as error:
            warn("inst-info", f"inst.info cannot be written: {error}")

    @property
    def has_nest(self) -> bool:
        """True if a training loop has been seen, in this attempt or an earlier one."""
        return bool(self.info.nests)

    @property
    def last_checkpoint(self) -> Checkpoint | None:
        """The latest that is on the disk, of this run as it is now."""
        found: Checkpoint | None = self._saver.last if self._saver is not None else self.resume.checkpoint
        return found

    @property
    def has_active_batch_loop(self) -> bool:
        """True if a batch may be expected, so that a signal can wait for it."""
        loop = self.top
        return (
            not self.is_off
            and loop is not None
            and any(one.site.part for one in loop.path)
            and not loop.path[0].is_exhausted
        )

    def why_nothing(self) -> str:
        """Why no checkpoint was taken."""
        if not self.frameworks.can_train():
            return "the script loaded no framework that trains"
        if not self._finder.updates_seen and not self._finder.gradients_seen:
            return "no optimizer stepped and no gradient was computed"
        return (
            "weights were updated, but not inside a loop of the script's own files. If the loop is a library's, `detrain trace` finds it "
            "for the runs that follow"
        )

"""The session: the one mutable object of an attempt. Hooks report to it; it saves, fast-forwards and restores."""

from __future__ import annotations

import math
import os
import sys
import types
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from threading import get_ident
from typing import TYPE_CHECKING, Any

from detrain.adapters.protocol import Adapter, LossReader, MemoryBudget, PipelineOrder, ScriptPipeline
from detrain.errors import DetrainError, InexactResume, NotSupported
from detrain.loops.running import Loop, Quiet, address
from detrain.loops.stack import LoopStack
from detrain.messages import warn
from detrain.session.context import Context
from detrain.session.leaving import fail, refuse
from detrain.session.losses import Losses
from detrain.session.nests import NestSearch
from detrain.session.pace import Pace, Paces
from detrain.session.rerun import Rerun
from detrain.session.resume import Resume
from detrain.world.plain_clock import monotonic
from detrain.world.signal_deferral import handlers_deferred

if TYPE_CHECKING:  # they load numpy and h5py, which a script that trains has loaded by the time they are needed
    from detrain.session.recorder import Recorder
    from detrain.session.saving import Saver
    from detrain.store.checkpoint import Checkpoint
    from detrain.store.ledger import Batch


class Session:
    """One attempt: hears of loops and updates, and decides at each header whether to restore, to record and to save."""

    def __init__(self, context: Context, stack: LoopStack, resume: Resume, rerun: Rerun | None = None) -> None:
        """`stack` reports headers and ends of loops to this session. `rerun`: only a part of a run is repeated."""
        self.context, self.stack, self.resume, self.rerun = context, stack, resume, rerun
        self.losses = Losses()
        self.quiet = Quiet(context.position, self.losses)
        stack.listener = self
        #: Made when the training begins; a budget only where one is wanted.
        self.recorder: Recorder | None = None
        self.memory: MemoryBudget | None = None
        self.pipeline: ScriptPipeline | None = None
        self.is_off = False
        self.on_saved: Callable[[], None] = lambda: None
        #: Called where this rank can take part in no cut any more.
        self.on_out_of_step: Callable[[], None] = lambda: None
        self.on_training: Callable[[], None] = lambda: None  # the training loop has been found or reached
        #: The training's loops have used up what they iterate over; nothing has broken them off.
        self.is_nest_exhausted = False
        #: The training's loops have ended, one way or the other.
        self.is_behind = False
        #: Gives the name of a signal that has asked the script to end; "" if none has.
        self.end_asked_for: Callable[[], str] = str
        self.nests = NestSearch(context, stack)
        self._position, self._policy, self._agreement = context.position, context.policy, context.agreement
        #: Headers of loops around the batch loop, and ends of loops, since the attempt came to its place.
        self._num_other_headers = 0
        self._agreed_s = 0.0
        self._frameworks, self._replay = context.frameworks, context.replay
        self._thread = get_ident()
        #: Line, and address of the frame, of the `while` loop that was entered last, if it is of no interest.
        self._passed_over: tuple[int, int] | None = None
        self._paces = Paces()
        self._is_training = False
        #: As in `quiet`, until when nothing but a record of the ledger falls due.
        self._record_due_until_batch, self._record_due_until_s = 0.0, 0.0
        self._saver: Saver | None = None  # made when first needed

    # --- called by the launcher -------------------------------------------------------------------------------------------

    def watch(self, adapter: Adapter) -> None:
        """A framework has been loaded: see its weight updates."""
        adapter.report_updates(self._on_update, partial(self._on_gradient, adapter.losses), self.quiet)
        if self.resume.is_pending:
            self._frameworks.hold_loading(True)
        if self.context.settings.memory_limit is not None and adapter.can_train:
            adapter.on_first_forward(self._keep_within_memory)
        if self.context.settings.pipeline is not None and adapter.can_train:
            self._train_over(self.context.settings.pipeline, adapter)

    def stop(self) -> None:
        """Take part in nothing any more: in a forked child, or once the script has ended."""
        self.is_off = True
        self.quiet.loop = None
        self.context.files.stop()
        if self.recorder is not None:
            self.recorder.close()

    def request_checkpoint(self, *, is_last: bool = False) -> None:
        """A checkpoint is wanted at the next header; may be called by a signal's handler. `is_last`: the training ends behind it."""
        self._agreement.ask(is_last=is_last)
        self.quiet.loop = None

    # --- called by hooks ---------------------------------------------------------------------------------------------------

    def enter_for(self, frame: types.FrameType, line: int, iterable: Iterable[object]) -> Iterable[object]:
        """A `for` loop's header has been evaluated; returns what to iterate over."""
        loop = self._enter(frame, line)
        return iterable if loop is None else loop.wrap(iterable)

    def enter_while(self, frame: types.FrameType, line: int) -> None:
        """A `while` loop is about to be entered."""
        is_passed_over = self._enter(frame, line) is None
        if get_ident() == self._thread:
            self._passed_over = (line, address(frame)) if is_passed_over else None

    def tick_while(self, frame: types.FrameType, line: int) -> bool:
        """A `while` loop's condition is about to be evaluated; False if it is not to be, because a resume comes to the loop's end."""
        if self.is_off or get_ident() != self._thread:
            return True
        loop, here = self.stack.top, hash(frame)
        if loop is None or loop.site.line != line or loop.frame_address != here:
            if self._passed_over == (line, here):
                return True
            loop = self.stack.find(frame, line)
        elif loop is self.quiet.loop and self.quiet.counts(loop):
            loop.iteration += 1  # and it has no children: a loop that is entered ends the quiet
            return True
        return loop is None or loop.tick()

    def end_loop(self, frame: types.FrameType, line: int, *, is_left: bool) -> None:
        """A `while` loop's condition has been false; or the loop `is_left` by a `break` now."""
        if self.is_off or get_ident() != self._thread:
            return
        loop = self.stack.find(frame, line)
        if loop is None:
            return
        if not is_left:
            loop.exhaust()
        elif not loop.is_exhausted and loop.site.part and loop.nest_parent is None and not self.end_asked_for():
            loop.is_exhausted = True
            self._at_left(loop)

    def batch_loaded(self, frame: types.FrameType, line: int) -> None:
        """The batch loop at this line has loaded what it loads by itself."""
        if not self.is_off and get_ident() == self._thread:
            self._replay.batch_loaded(f"{os.path.basename(frame.f_code.co_filename)}:{line}")

    def _enter(self, frame: types.FrameType, line: int) -> Loop | None:
        if self.is_off or get_ident() != self._thread:
            return None
        loop = self.stack.enter(frame, line)
        if self.rerun is not None:
            self.rerun.entered(frame.f_code.co_filename, line)
        if loop is not None:
            self.quiet.loop = None
            self.nests.entered(loop)
        return loop

    def at_header(self, loop: Loop) -> None:
        """An iteration of a loop in the nest is about to begin. Most are only counted: something may be due at the others."""
        quiet = self.quiet
        if quiet.counts(loop):
            return
        if (
            quiet.loop is loop
            and self._position.batches < self._record_due_until_batch
            and (now_s := monotonic()) < self._record_due_until_s
        ):
            self._at_record(self.recorder, loop, now_s)  # type: ignore[arg-type]  # nothing is skipped without one
        elif not self.is_off:
            quiet.loop = None
            self._at_header(loop)

    def _at_record(self, recorder: Recorder, loop: Loop, now_s: float) -> None:
        """A batch is about to begin, and no more is due than a record, as at the header of every batch that is not short."""
        with handlers_deferred():
            recorder.at_header(self._position, loop, now_s)
        self._position.begin_batch()
        self._skip_until_record(recorder)

    def _skip_until_record(self, recorder: Recorder) -> None:
        batches, at_s = recorder.next_at_header(self._position.batches)
        self.quiet.until_batch = min(self._record_due_until_batch, batches)
        self.quiet.until_s = min(self._record_due_until_s, at_s)

    def _at_header(self, loop: Loop) -> None:
        self.is_nest_exhausted = self.is_behind = False
        if not self._is_training:
            self._is_training = True
            self._policy.begin(self._now_s())
            self.context.libraries.begin(loop.nest[0].num_modules)
            self._replay.begin()
            self.on_training()
        if self.resume.is_pending:
            with self._frameworks.clocks_hidden():
                self.resume.at_header(loop, loop.find_frame())
        if self.recorder is None and not self.resume.is_pending:
            self._begin_recording(loop)
        if self.rerun is not None:
            self.rerun.passes(loop)
        now_s = self._now_s()  # what a resume has taken is no time of the policy's nor of the ledger's
        if loop.site.part == "batch":
            self._at_batch(loop, now_s)
        else:
            self._at_epoch(loop, now_s)

    def _at_batch(self, loop: Loop, now_s: float) -> None:
        if self.memory is not None:
            self.memory.at_header(is_first=self._position.batches == 0)
        if loop.nest_parent is None and self._policy.use_auto_if_no_epochs():
            warn(
                "every-epoch",
                "the training has no loop around its batch loop, so `auto` is used instead of --every epoch",
            )
        is_near = loop.is_near
        is_due = self._policy.is_due_at_batch(self._position.batches, now_s, is_near=is_near) and not self._is_put_off()
        must = (is_due or self._is_goal(loop)) and self._may_save(loop)
        if self.recorder is not None:
            self._record(self.recorder, loop, now_s, must=must)
        if must:
            self._save(loop)
        elif self.recorder is not None and self.recorder.scan_headers:
            self._scan_again(loop)
        self.nests.at_batch(loop)
        self._position.begin_batch()
        self._find_what_is_due_next(loop, is_near=is_near)

    def _find_what_is_due_next(self, loop: Loop, *, is_near: bool) -> None:
        """Compute until when nothing can be due in this loop, unless a checkpoint is requested or another loop is entered."""
        if (
            self.is_off
            or self.nests.is_open
            or self.resume.is_pending
            or self.rerun is not None
            or self.memory is not None  # which hears of every header
            or self.recorder is None
        ):
            return
        policy_batches, policy_s = self._policy.next_at_batch(is_near=is_near)
        policy_s = min(policy_s, self._agreement.ends_s)
        if not self._agreement.is_alone:  # the policy's clock stands still until the others are heard again
            policy_batches = min(policy_batches, self._agreement.until - self._num_other_headers)
            policy_s = math.inf if self._agreed_s < policy_s else -math.inf
        if self.recorder.is_comparing:  # where a killed attempt has looked at its objects, they are looked at again
            policy_batches = 0
        self._record_due_until_batch, self._record_due_until_s = policy_batches, policy_s
        self._skip_until_record(self.recorder)
        self.quiet.loop = loop
        if self._policy.is_requested:  # by a signal while this was computed
            self.quiet.loop = None

    def _at_epoch(self, loop: Loop, now_s: float) -> None:
        """Or at the header of a loop around epochs."""
        self._num_other_headers += 1
        policy, position, is_outer = self._policy, self._position, loop.site.part == "outer"
        position.leave_epoch()
        pace = self._paces.at_header(loop, now_s, position.batches, is_whole=not self.resume.is_pending)
        is_due_at = policy.is_due_at_outer if is_outer else policy.is_due_at_epoch
        is_due = is_due_at(position.epochs, position.batches, now_s, pace, is_near=loop.is_near)
        if loop.iteration == 0 or not self._may_save(loop):
            self._scan_again(loop)
        else:
            self._save_or_hold(loop, pace, now_s, is_due=is_due and not self._is_put_off())
        if not is_outer:
            position.begin_epoch()

    def at_end(self, loop: Loop) -> None:
        """A loop in the nest has used up its iterable."""
        if self.is_off:
            return
        self.quiet.loop = None
        self.stack.top = loop
        self.is_nest_exhausted = self.is_behind = loop.nest_parent is None
        self._position.take_back(loop.site.part)
        self._num_other_headers += 1
        if self.rerun is not None:
            self.rerun.passes(loop)
        if self.resume.is_pending or not self._may_save(loop):
            return
        now_s = self._now_s()
        is_outermost = loop.nest_parent is None
        if is_outermost and self.recorder is not None:
            self._record(self.recorder, loop, now_s, must=True)
        is_due = self._policy.is_due_at_end(now_s, is_outermost=is_outermost, is_near=loop.is_near)
        is_due = is_due and (is_outermost or not self._is_put_off())
        outer = loop.nest_parent if loop.site.is_followed else None
        self._save_or_hold(loop, self._paces.of(outer) if outer is not None else None, now_s, is_due=is_due)

    def _at_left(self, loop: Loop) -> None:
        """The outermost loop of the nest was left by a `break`, and nobody has asked the script to end early."""
        self.quiet.loop = None
        self.stack.top = loop
        self.is_behind = True
        if loop.site.part != "batch":
            self._position.leave_epoch()
        self._num_other_headers += 1
        if self.rerun is not None:
            self.rerun.passes(loop)
        if self.resume.is_pending or not self._may_save(loop):
            return
        now_s = self._now_s()
        if self.recorder is not None:
            self._record(self.recorder, loop, now_s, must=True)
        if self._policy.is_due_at_end(now_s, is_outermost=True, is_near=loop.is_near) or self._is_goal(loop):
            self._save(loop)

    def _save_or_hold(self, loop: Loop, pace: Pace | None, now_s: float, *, is_due: bool) -> None:
        """At a header, or the end of a loop. `pace`: of what comes next; None if no checkpoint inside that would need one here."""
        if is_due or self._is_goal(loop):
            self._save(loop)
        elif (
            pace is not None
            and self.rerun is None
            and not self._is_put_off()
            and self._policy.holds_beginning(self._position.batches, now_s, pace, is_outer=loop.site.part == "outer")
        ):
            self._save(loop, is_held=True)
        else:
            self._scan_again(loop)

    def _begin_recording(self, loop: Loop) -> None:
        """Open the ledger; after a resume, scan the state once more, to compare it with what a killed attempt has recorded."""
        with self._frameworks.hidden_from_script():
            from detrain.session.recorder import Recorder

            path = self.context.directory.path / "ledger"
            recorder = Recorder(path, self._frameworks.generators, self._differs, self.losses)
            self.recorder = recorder
            if self.rerun is not None:
                self.rerun.begin(recorder)
            settings = self.context.settings
            recorder.begin(
                settings.attempt,
                self._position.batches,
                [(one.site.part, one.length) for one in loop.nest],
                is_other=settings.is_other_invocation,
                takes_over=self.resume.takes_over,
            )
            if recorder.has_expectations:
                self._scan(loop, recorder)
            self._keep_within_memory()

    def _keep_within_memory(self) -> None:
        """From the first forward pass on, which comes before it is known what the training loop is; where a run goes on, from there on."""
        limit = self.context.settings.memory_limit
        is_possible = not self.is_off and not self.resume.is_pending and get_ident() == self._thread
        if limit is None or self.memory is not None or not is_possible:
            return
        if limit.share and self.recorder is not None:  # the first iteration of another attempt may have another peak
            limit = replace(limit, num_bytes=self.recorder.budget_bytes_of(limit.share))
        try:
            self.memory = self._frameworks.keep_to(limit)
        except NotSupported as error:
            fail(self.context.files, error)

    def _train_over(self, order: PipelineOrder, adapter: Adapter) -> None:
        with suppress(NotSupported):  # a framework that a library has loaded beside the one that trains, it may be
            self.pipeline = adapter.pipeline(order, self._frameworks.hidden_from_script)

    def _scan_again(self, loop: Loop) -> None:
        """Where a killed attempt has scanned its objects, under whose names then the ledger has digests of theirs."""
        if self.recorder is not None and self.recorder.is_to_scan(self._position.batches, loop):
            with self._frameworks.hidden_from_script():
                self._scan(loop, self.recorder)

    def _scan(self, loop: Loop, recorder: Recorder) -> None:
        from detrain.session import roots

        around = roots.find_surroundings(loop.find_frame(), loop, self.context)
        recorder.scan(roots.capture(around, self.context, None), self._position.batches, loop)

    def _record(self, recorder: Recorder, loop: Loop, now_s: float, *, must: bool) -> None:
        # What a rerun records of the script's operators is without ours.
        unseen = self._frameworks.unseen() if self.rerun is not None else nullcontext()
        with handlers_deferred(), unseen:
            recorder.at_header(self._position, loop, now_s if self._agreement.is_alone else monotonic(), must=must)
        if self.pipeline is None and self.context.settings.pipeline is not None:
            fail(self.context.files, NotSupported("the script's framework", "train a model over a pipeline"))
        if self.pipeline is not None:
            try:
                self.pipeline.at_header(self._position.batches)
            except DetrainError as error:
                fail(self.context.files, error)
        if self.rerun is not None:
            self.rerun.at_header(loop, self.memory)

    def _differs(self, record: Batch, leaf: str) -> None:
        if self.rerun is not None:
            self.rerun.differs(record, leaf)
            return
        what = (
            f"after batch {record.batches} of the run (epoch {max(record.epochs - 1, 0)}, batch {record.batch_in_epoch}), {leaf} differs "
            "from what the killed attempt had there, according to the ledger"
        )
        if self.resume.is_trusting:
            warn("ledger", f"{what}; continuing anyway")
        else:
            refuse(
                self.context,
                InexactResume(
                    what,
                    "This resume is not exact; report it, go on with --trust-changes, or start over with --fresh",
                    is_found_late=True,
                ),
            )

    @property
    def _header(self) -> int:
        """How many headers the run has passed since this attempt came to its place; the same on all ranks."""
        return self._position.batches + self._num_other_headers

    def _now_s(self) -> float:
        """The time that the policy goes by."""
        self._agreed_s = self._agreement.now_s(self._header)
        if self._agreement.is_out:
            self.on_out_of_step()
        return self._agreed_s

    def _may_save(self, loop: Loop) -> bool:
        """False while fast-forwarding, and while the nest may still turn out to be another."""
        if self.is_off or self.resume.is_pending or self._agreement.is_out:
            return False
        return self.nests.is_final(loop)

    def _is_put_off(self) -> bool:
        """By the clock, none is due while another is being written; by counting, the next waits for it."""
        is_writing = self._agreement.is_writing(self._saver is not None and self._saver.is_writing)
        return is_writing and self._policy.goes_by_clock and not self._policy.is_requested

    def _is_goal(self, loop: Loop) -> bool:
        return self.rerun is not None and self.rerun.is_goal(loop)

    def _save(self, loop: Loop, *, is_held: bool = False) -> None:
        """Take a checkpoint; one that `is_held` is written with the first that needs it."""
        frame = loop.find_frame()
        if self._frameworks.printing is not None:
            self._frameworks.printing.flush()
        with self._frameworks.hidden_from_script() as entropy:
            self._save_now(loop, frame, entropy, is_held=is_held)
        if is_held:
            return
        if self.rerun is not None:
            self.finish_write()
            self.rerun.on_saved()
        self.on_saved()

    def finish_write(self) -> None:
        """Wait until the checkpoint that is being written is on the disk."""
        if self._saver is not None and not self.is_off:
            with self._frameworks.hidden_from_script():
                self._saver.finish_write()

    def end(self) -> None:
        """The script has ended: wait likewise, and say what has failed until now."""
        if self._saver is not None and not self.is_off:
            with self._frameworks.hidden_from_script():
                self._saver.end()

    def _save_now(self, loop: Loop, frame: types.FrameType, entropy: tuple[int, int] | None, *, is_held: bool) -> None:
        if self._saver is None:
            from detrain.session.saving import Saver

            assert self.recorder is not None, "nothing is saved before the ledger is open"
            self._saver = Saver(
                self.context, self.stack, self.recorder, self.resume.checkpoint, self.resume.census, self.memory
            )
        # What libraries keep is looked for once: that says nothing of what a checkpoint costs.
        started_s = monotonic() - self.context.libraries.looked_s
        if is_held:
            self._saver.hold(loop, frame, entropy)
            own_s = monotonic() - self.context.libraries.looked_s - started_s
            self._policy.on_held(self._agreement.saved(str(self._header), own_s)[1])
            return
        self._saver.save(loop, frame, entropy)
        own_s = monotonic() - self.context.libraries.looked_s - started_s
        now_s, cost_s = self._agreement.saved(str(self._header), own_s)
        is_outer = loop.site.part == "outer"
        self._policy.on_saved(self._position.epochs, self._position.batches, now_s, cost_s, is_outer=is_outer)

    # --- called by adapters ----------------------------------------------------------------------------------------------

    # Every batch pays for what stands first in these two, unless the adapter heeds `quiet`.

    def _on_gradient(self, losses_of: Callable[[Any], list[LossReader]], outputs: object) -> None:
        recorder = self.recorder
        if recorder is not None and not recorder.is_off and not self.is_off and get_ident() == self._thread:
            self.losses.running += losses_of(outputs)
        if self.nests.is_open and self._is_searching():
            self.nests.on_gradient(sys._getframe(1))

    def _on_update(self) -> None:
        if not self.nests.is_open and not self.is_off and get_ident() == self._thread:
            return
        if self._is_searching():
            self.nests.on_update(sys._getframe(1))
        elif self.is_off:
            self.nests.on_update_in_child()
        elif get_ident() != self._thread:
            self.nests.on_update_in_thread()

    def _is_searching(self) -> bool:
        """False once the nest is settled, until a loop of unknown part is entered outside the batch loop."""
        return self.nests.is_open and not self.is_off and get_ident() == self._thread

    @property
    def has_trained(self) -> bool:
        """True if the training loop has been found or reached, in this attempt."""
        return self._is_training or self.nests.has_found

    @property
    def last_checkpoint(self) -> Checkpoint | None:
        """The latest that a resume can go on from, of this run as it is now."""
        return self._saver.last_whole if self._saver is not None else self.resume.checkpoint

    @property
    def last_part(self) -> Checkpoint | None:
        """The latest that is on this process's disk; of several ranks the others' parts may not be."""
        return self._saver.last if self._saver is not None else self.resume.checkpoint

    @property
    def has_active_batch_loop(self) -> bool:
        """True if a batch may be expected, so that a signal can wait for it."""
        loop = self.stack.top
        return (
            not self.is_off
            and loop is not None
            and any(one.site.part for one in loop.path)
            and not loop.path[0].is_exhausted
        )

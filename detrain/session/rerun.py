"""What an attempt does that only does a part of a run again: it stops at a header, and leaves a report of what it saw on the way."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from itertools import pairwise
from typing import TYPE_CHECKING, NoReturn

from detrain.adapters.loaded import OperatorLog
from detrain.adapters.protocol import MemoryBudget, ModelLog, StepLog
from detrain.errors import GraphError, NotSupported
from detrain.loops.running import Loop
from detrain.loops.stack import is_at
from detrain.session import showing
from detrain.session.context import Context
from detrain.session.goal import Goal, Key, Window
from detrain.session.leaving import fail, leave
from detrain.session.showing import Showing
from detrain.store.directory import write_atomically
from detrain.world.plain_clock import monotonic

if TYPE_CHECKING:  # they load numpy, which a script that trains has loaded by the time they are needed
    from detrain.session.recorder import Recorder
    from detrain.store.ledger import Batch

#: In the run directory: what the attempt has found.
REPORT = "rerun.json"


class Rerun:
    """An attempt on its way to a goal."""

    def __init__(self, context: Context, goal: Goal, *, is_rank: bool = False) -> None:
        """`is_rank`: others train with this process, and may need it until they have come as far."""
        self._context, self._goal, self._is_rank = context, goal, is_rank
        self._has_stopped = False
        self._recorder: Recorder | None = None
        self._arrivals: dict[str, object] = {}
        self._log: OperatorLog | None = None
        self._steps: StepLog | None = None
        self._models: ModelLog | None = None
        self._first_batch = 0
        self._began_s = 0.0
        self._headers_s: list[float] = []
        self._difference: dict[str, object] | None = None
        self._end_batches = -1
        window = goal.window
        self._showing = Showing(context.directory.path, window) if window is not None else None

    @property
    def reports_arrivals(self) -> bool:
        """True if `arrived` is to be called with the state that set-up code has created."""
        return self._goal.reports_arrivals

    def begin(self, recorder: Recorder) -> None:
        """The attempt compares with the ledger from here on."""
        self._recorder = recorder

    def entered(self, filename: str, line: int) -> None:
        """A loop is entered; the first of the training's, it may be, before anybody knows that it is."""
        if self._showing is not None:
            self._showing.entered(filename, line)

    def passes(self, loop: Loop) -> None:
        """At a header of the training's loops, before it counts; or at the end of one of them."""
        if self._showing is not None:
            self._showing.at_header(loop, self._context.position)

    def is_goal(self, loop: Loop) -> bool:
        """True at the header where the part ends: a checkpoint is to be taken, the last thing that the attempt does."""
        position = self._goal.position
        if position is None or loop.is_exhausted != self._goal.is_exhausted:
            return False
        return loop.iteration == position[-1].iteration and is_at(loop, position)

    def at_header(self, loop: Loop, memory: MemoryBudget | None = None) -> None:
        """The ledger has been compared here: record operators, or stop, if this is where to. `memory`: what the script is kept to."""
        goal = self._goal
        if goal.operators is not None:
            self._record_operators(loop, *goal.operators)
        elif goal.num_steps:
            self._record_steps(goal.num_steps)
        elif goal.num_timed:
            self._time_batch(goal, memory)
        elif goal.num_rounds:
            self._profile_model(goal)
        elif goal.window is not None:
            self._look_behind(loop, goal.window)
        elif goal.position is None and not goal.is_whole and not (self._recorder and self._recorder.has_expectations):
            if not self._is_rank:
                self._stop()
            self.write(is_stopped=True)  # another rank's ledger may go further

    def _look_behind(self, loop: Loop, window: Window) -> None:
        """Stop at the first record behind the window: only that proves its last batches. Or where the ledger has no more."""
        recorder, batches = self._recorder, self._context.position.batches
        assert recorder is not None, "this is called with the ledger open"
        if self._end_batches < 0 and showing.is_behind(window, loop, self._context.position):
            self._end_batches = window.last if window.unit == "batches" else batches
        is_proved = self._end_batches <= recorder.compared_until
        if self._end_batches >= 0 and not self.is_goal(loop) and (is_proved or not recorder.has_expectations):
            self._stop(reached=batches, end=self._end_batches, compared_until=recorder.compared_until)

    def arrived(self, name: str, side: dict[str, object], *, is_last: bool) -> None:
        """The position of the checkpoint `name` is reached, nothing is restored yet; `side`: the state that set-up code has created."""
        self._arrivals[name] = side
        if is_last:
            self._stop(arrivals=self._arrivals)

    def _record_operators(self, loop: Loop, first: Key | None, end: Key) -> None:
        from detrain.session.recorder import position_of

        batches = self._context.position.batches
        here = (batches, position_of(loop))
        if self._log is not None and (here == end or batches > end[0]):
            self._stop(operators=self._log.stop())
        if self._log is None and here == (first or here):
            try:
                self._log = self._context.frameworks.log_operators(self._context.is_user_file)
            except NotSupported as error:
                fail(self._context.files, error)

    def _record_steps(self, num_steps: int) -> None:
        batches = self._context.position.batches
        if self._steps is None:
            self._first_batch = batches
            try:
                self._steps = self._context.frameworks.record_steps()
            except NotSupported as error:
                fail(self._context.files, error)
        elif batches >= self._first_batch + num_steps:
            self._stop(**self._recorded())
        self._steps.begin_step()

    def _profile_model(self, goal: Goal) -> None:
        batches = self._context.position.batches
        if self._models is None:
            self._first_batch = batches
            try:
                self._models = self._context.frameworks.model_log()
            except NotSupported as error:
                fail(self._context.files, error)
        elif batches > self._first_batch:
            from detrain.pipeline import graphtext

            try:
                profiled = self._models.profile(goal.num_rounds, goal.model)
            except GraphError as error:
                fail(self._context.files, error)
            self._stop(
                profile=graphtext.render(profiled.profile),
                num_samples=profiled.num_samples,
                is_splittable=profiled.is_splittable,
            )

    def _time_batch(self, goal: Goal, memory: MemoryBudget | None) -> None:
        now_s, batches = monotonic(), self._context.position.batches
        if not self._headers_s:
            if not self._began_s:
                self._began_s, self._first_batch = now_s, batches
            use = memory.use() if memory is not None else None
            # Where nothing is evicted, nothing is planned.
            is_planning = use is not None and use.num_evictions and not use.num_planned and not use.why
            is_early = is_planning and now_s < self._began_s + goal.most_planning_s
            if is_early or batches < self._first_batch + goal.num_before:
                return
        self._headers_s.append(now_s)
        if len(self._headers_s) > goal.num_timed:
            use = memory.use() if memory is not None else None
            batches_s = [end_s - begin_s for begin_s, end_s in pairwise(self._headers_s)]
            self._stop(batches_s=batches_s, memory=None if use is None else asdict(use))

    def _recorded(self) -> dict[str, object]:
        """What has been recorded of steps: the graph, or why there is none."""
        from detrain.remat import graphfile

        if self._steps is None:
            return {}
        steps, self._steps = self._steps, None
        try:
            return {"graph": graphfile.encode(steps.end())}
        except GraphError as error:
            return {"no_graph": str(error)}

    def at_end(self) -> None:
        """The script has ended before its goal was reached."""
        self.write(is_stopped=False, **self._recorded())

    def differs(self, record: Batch, leaf: str) -> None:
        """The state is not what the ledger says."""
        difference = {
            "batches": record.batches,
            "epoch": max(record.epochs - 1, 0),
            "batch": record.batch_in_epoch,
            "leaf": leaf,
        }
        self._difference = self._difference or difference
        if self._goal.operators is None:
            self._stop()

    def on_saved(self) -> NoReturn:
        """The checkpoint has been taken again."""
        self._stop()

    def write(self, **more: object) -> None:
        """Leave the report, once."""
        if self._has_stopped:
            return
        self._has_stopped = bool(more.get("is_stopped"))
        num_compared = self._recorder.num_compared if self._recorder is not None else 0
        report = {"num_compared": num_compared, "difference": self._difference, **more}
        write_atomically(self._context.directory.path / REPORT, json.dumps(report))

    def _stop(self, **more: object) -> NoReturn:
        self.write(is_stopped=True, **more)
        while self._is_rank:  # whoever has started the ranks ends them all
            time.sleep(60)
        leave(self._context.files, 0)

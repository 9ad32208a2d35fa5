"""Learns the steps that a program takes, has plans made of them, and follows those.

The first steps are taken as they come, and recorded. Where one has been seen twice it is given to a planner, in a process of its own,
while the training goes on. From the beginning of a later step on that plan is followed: at each operator, what the plan evicts there is
evicted, and what it makes again there is made again. Where the program does something else than the plan knows, another plan that has come
so far goes on, or none, for the rest of that step. All of it is advice: what an operator reads is made in any case, and the budget is kept
in any case.
"""

from __future__ import annotations

import itertools
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch

from detrain.adapters.torch.remat.cells import Cell, view_of
from detrain.adapters.torch.remat.operators import has_storage, tensors_in
from detrain.adapters.torch.remat.planning import PlanSource
from detrain.adapters.torch.remat.plans import Act, Memory, StepPlan, plan_of
from detrain.adapters.torch.remat.runtime import Runtime
from detrain.adapters.torch.remat.tracing import Result, Trace, call_traced, graph_of
from detrain.errors import GraphError, OverBudget
from detrain.remat.graph import Graph

#: Times that a step is to have been seen before it is planned.
_NUM_SEEN = 2
#: Plans that are kept; steps that are recorded without one of them coming a second time.
_MOST_PLANS, _MOST_RECORDED = 8, 64
#: Behind as many that have followed a plan, one step in so many is recorded while a path without one is awaited; a prime, so that it
#: meets in the end what comes once an epoch.
_ONE_IN = 7
#: Operators of a step that is planned.
_MOST_OPERATORS = 20_000
#: Of the budget: what a step hands out to others and is planned for all the same.
_MOST_HANDED_OUT = 0.01
#: Stretches of a step whose memory is told.
_NUM_STRETCHES = 100

#: Begins to plan a step within so many bytes.
Plan = Callable[[Graph, int], PlanSource]
#: A step's operators, each as it is told from others.
_Path = tuple[object, ...]


class PlanFollower:
    """See the module."""

    def __init__(self, runtime: Runtime, plan: Plan) -> None:
        """`plan` is given each step that is to be planned."""
        self._runtime, self._begin_plan = runtime, plan
        #: Steps that a plan was followed in from the first to the last operator; and that one was left in.
        self.num_followed = self.num_left = 0
        #: Why a plan was left last, or why there is none.
        self.why = ""
        #: Of the last step that was recorded or followed a plan, from its first operator to its last: bytes in use behind each.
        self.usage: list[int] = []
        self._plans: list[StepPlan] = []
        self._planning: tuple[PlanSource, _Path, Graph] | None = None
        self._num_seen: Counter[_Path] = Counter()
        self._hopeless: set[_Path] = set()
        self._num_recorded = 0
        # Of the present step.
        self._plan: StepPlan | None = None
        #: Its first operator has not come; it has, and the last has not.
        self._is_waiting = self._has_begun = False
        self._is_left = False
        self._path: list[object] = []
        self._made: list[tuple[weakref.ref[Cell], ...]] = []
        self._held: dict[Memory, Any] = {}
        self._trace: Trace | None = None
        self._usage: list[int] = []
        self._num_evictions = self._handed_out_bytes = 0

    @property
    def curve_bytes(self) -> tuple[int, ...]:
        """The most of `usage` in each of so many stretches of the step."""
        usage = self.usage  # another list may take its place meanwhile: a checkpoint's thread asks
        num = min(_NUM_STRETCHES, len(usage))
        places = [number * len(usage) // num for number in range(num + 1)] if num else []
        return tuple(max(usage[begin:end]) for begin, end in itertools.pairwise(places))

    @property
    def plan(self) -> StepPlan | None:
        """The one that was made or followed last; None without one."""
        plans = self._plans
        return plans[0] if plans else None

    # --- called by the runtime --------------------------------------------------------------------------------------------------

    def before(self) -> None:
        """See `Follower`."""
        if self._plan is None:
            return
        try:
            for act in self._plan.acts[len(self._path)]:
                self._do(act)
        except OverBudget:
            self._leave("there was no room for what it makes again")

    def after(
        self, func: Any, token: object, tensors: list[torch.Tensor], cells: list[Cell], result: Any, fresh: Sequence[Cell],
        changed: Sequence[Cell], took_ns: int,
    ) -> None:  # fmt: skip
        """See `Follower`."""
        if not self._has_begun:
            if not self._is_waiting or not self._begins_with(cells):
                return
            self._begin(fresh)
        place = len(self._path)
        if self._plan is not None and token is not self._plan.path[place]:
            self._change_plan(func, token)
        if self._plan is not None:
            for number, cell in enumerate(fresh):
                memory = Memory(place, number)
                if memory in self._plan.held:
                    self._held[memory] = cell.storage
        self._path.append(token)
        self._usage.append(self._runtime.space.used_bytes)
        if self._trace is not None and place < _MOST_OPERATORS:
            self._note(self._trace, func, tensors, cells, result, fresh, changed, took_ns)
        if self._plan is not None:
            self._made.append(tuple(map(weakref.ref, fresh)))
            if len(self._path) == len(self._plan.path):
                self._finish(self._plan)

    def gone(self, cell: Cell) -> None:
        """See `Follower`."""
        if self._trace is not None:
            self._trace.events.append(cell.serial)

    def handed_out(self, cell: Cell) -> None:
        """See `Follower`."""
        self._handed_out_bytes += cell.nbytes

    def let_go(self) -> bool:
        """See `Follower`."""
        has_held = bool(self._held)
        if has_held:
            self._leave("there was no room for what it keeps")
        return has_held

    # --- at a step's border -----------------------------------------------------------------------------------------------------

    def at_header(self, *, has_budget: bool) -> None:
        """A step begins. `has_budget`: how much memory there is, is known."""
        self._end_step()
        self._take_over()
        self._is_waiting, self._has_begun, self._is_left = has_budget, False, False
        self._path, self._made, self._usage, self._plan, self._trace = [], [], [], None, None

    def _begins_with(self, cells: Sequence[Cell]) -> bool:
        """What comes before the first operator that reads a parameter loads the batch, and may do something else each time."""
        return not self._runtime.has_parameters or any(cell.is_parameter for cell in cells)

    def _begin(self, fresh: Sequence[Cell]) -> None:
        self._is_waiting, self._has_begun = False, True
        self._plan = self._plans[0] if self._plans else None
        self._num_evictions, self._handed_out_bytes = self._runtime.space.num_evictions, 0
        if self._wants_trace():
            there = {cell.serial: cell.nbytes for cell in self._runtime.cells() if cell.is_there}
            for cell in fresh:
                there.pop(cell.serial, None)
            self._trace = Trace(there)

    def _finish(self, plan: StepPlan) -> None:
        """All of a plan has been followed. What the step does behind it (it may print, or evaluate) is taken as it comes."""
        self._held.clear()
        path = tuple(self._path)
        longer = (one for one in self._plans if len(one.path) > len(path) and one.path[: len(path)] == path)
        self._plan = next(longer, None)
        if self._plan is None:
            self.num_followed += 1
            self.usage = self._usage
            self._plans = [plan, *(one for one in self._plans if one is not plan)]
            self._has_begun, self._trace = False, None

    def end(self) -> None:
        """Nothing comes any more."""
        self._is_waiting, self._has_begun, self._plan, self._trace = False, False, None, None
        self._held.clear()
        if self._planning is not None:
            self._planning[0].end()
            self._planning = None

    def _end_step(self) -> None:
        if not self._has_begun:
            return
        self._held.clear()
        if self._plan is not None:
            self._leave("the step has ended before")
        if len(self._path) > _MOST_OPERATORS:
            return
        path = tuple(self._path)
        if len(self._num_seen) > _MOST_RECORDED:
            self._num_seen.clear()
        self._num_seen[path] += 1
        if self._trace is None:
            return
        self._num_recorded += 1
        self.usage = self._usage
        is_needed = self._runtime.space.num_evictions > self._num_evictions
        if self._handed_out_bytes > _MOST_HANDED_OUT * self._runtime.space.budget_bytes:
            self._hopeless.add(path)
            self.why = "the step hands memory out (numpy), which stays then, and no planner knows of that"
        if is_needed and self._num_seen[path] >= _NUM_SEEN and path not in self._hopeless:
            self._ask(self._trace, path)

    def _wants_trace(self) -> bool:
        if self._planning is not None or len(self._plans) >= _MOST_PLANS or self._num_recorded >= _MOST_RECORDED:
            return False
        if not self._runtime.space.num_evictions:  # all has room
            return False
        if not self._plans:
            return True
        # A step that has a plan is recorded in vain, which nobody knows before its end; where others are rare, few of them are.
        is_awaited = any(
            count >= _NUM_SEEN - 1 and path not in self._hopeless for path, count in self._num_seen.items()
        )
        return is_awaited and (self.num_followed < _MOST_RECORDED or self.num_followed % _ONE_IN == 0)

    def _ask(self, trace: Trace, path: _Path) -> None:
        """Have a plan made of a step."""
        trace.held = {cell.serial for cell in self._runtime.cells()}
        graph = graph_of([trace])
        try:
            self._planning = self._begin_plan(graph, self._runtime.space.budget_bytes), path, graph
        except OSError as error:  # no process, or no memory for its files
            self._hopeless.add(path)
            self.why = f"no planner could be started: {error}"

    def _take_over(self) -> None:
        """What the planner has come to, if it has."""
        if self._planning is None:
            return
        planning, path, graph = self._planning
        answer = planning.answer()
        if answer is None:
            return
        self._planning = None
        del self._num_seen[path]
        try:
            if isinstance(answer, str):
                raise GraphError(answer)
            made = plan_of(path, graph, answer.schedule, answer.peak_bytes, answer.overhead)
            self._plans = [made, *self._plans]
        except GraphError as error:
            self._hopeless.add(path)
            self.why = str(error)
        else:
            self._num_recorded = 0

    # --- within a step ----------------------------------------------------------------------------------------------------------

    def _do(self, act: Act) -> None:
        if act.evicted is None:
            for ref in self._made[act.operator]:
                cell = ref()
                if cell is not None:
                    self._runtime.bring(cell)
            return
        if act.is_last:
            self._held.pop(act.evicted, None)
        made = self._made[act.evicted.operator]
        cell = made[act.evicted.place]() if act.evicted.place < len(made) else None
        if cell is not None:
            self._runtime.put_away(cell)

    def _change_plan(self, func: Any, token: object) -> None:
        """The present plan does not know this operator here: another that has come so far, or none."""
        if not self._path and all(plan.path[0] is not token for plan in self._plans):
            self._plan = None  # a step of another kind, as one that evaluates
            return
        come = (*self._path, token)
        for plan in self._plans:
            if plan.path[: len(come)] == come:
                self._plan = plan
                return
        self._leave(f"operator {len(self._path):,} of the step is {func}, which the plan does not have there")

    def _leave(self, why: str) -> None:
        self._plan = None
        self._held.clear()
        self.num_left += not self._is_left
        self._is_left, self.why = True, why

    def _note(
        self, trace: Trace, func: Any, tensors: list[torch.Tensor], cells: list[Cell], result: Any, fresh: Sequence[Cell],
        changed: Sequence[Cell], took_ns: int,
    ) -> None:  # fmt: skip
        results = [] if result is None else list(tensors_in(result))
        if not all(map(has_storage, (*tensors, *results))):
            self._trace = None  # there is no operator graph of such a step
            return
        new = {cell.serial: cell.nbytes for cell in fresh}
        read = []
        for tensor, cell in zip(tensors, cells, strict=True):
            trace.read(cell.serial, cell.nbytes)
            read.append((cell.serial, view_of(tensor)))
        made = []
        for tensor in results:
            of_result = self._runtime.cell_of(tensor)
            if of_result is not None:
                serial = of_result.serial
                made.append(Result(serial, view_of(tensor), new.get(serial, 0), serial in new))
        trace.call(call_traced(func, read, made, [cell.serial for cell in changed], took_ns))

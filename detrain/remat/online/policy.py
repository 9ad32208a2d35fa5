"""A policy, `HEURISTIC:DEALLOCATION`, over a graph: the published simulator's results, and what was done as a schedule."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from detrain.errors import GraphError
from detrain.remat.graph import Graph, Kind
from detrain.remat.online import banish, runtime
from detrain.remat.online.scores import (
    HEURISTICS,
    LOCAL,
    NEIGHBOURHOOD,
    ONE,
    RANDOM,
    RECENCY,
    Heuristic,
    begin_choosing,
)
from detrain.remat.online.state import (
    AGAIN,
    BOTTLENECK,
    CLOCK,
    EVICTIONS,
    FINE,
    FULL,
    LOOKS,
    MODEL,
    NUM_AGAIN,
    OUT_OF_MEMORY,
    PEAK,
    TRACED,
    Ints,
    State,
    shape_of,
    state_of,
)  # fmt: skip
from detrain.remat.schedule import Schedule, from_trace

DEALLOCATIONS = ("ignore", "eager", "banish")
#: A run that takes longer than this times the step without a budget is given up.
THRASH_LIMIT = 2.0
_UNBOUNDED = 1 << 62
#: Of the costs above the line, those that the banishing runtime knows.
_WITH_BANISHING = (NEIGHBOURHOOD, LOCAL, ONE, RECENCY, RANDOM)


@dataclass(frozen=True)
class Policy:
    """What goes first, and what becomes of what the program has given back.

    ignore: the program gives nothing back. eager: it is evicted at once, and made again if it is needed to make
    something else. banish: it is gone for good as soon as nothing evicted depends on it.
    """

    heuristic: str
    deallocation: str

    def __str__(self) -> str:
        return f"{self.heuristic}:{self.deallocation}"


@dataclass(frozen=True)
class Result:
    """How a run has ended: `ok`, `oom` or `thrash`, and what it took by the runtime's own account, whose clock begins at 1."""

    status: str
    clock: int
    overhead: float
    peak_bytes: int
    model_ns: int
    again_ns: int
    bottleneck_bytes: int
    output_bytes: int  # of what the program still refers to at the end
    num_again: int
    num_evictions: int
    num_looks: int
    #: Number of the command at which it ended.
    command: int
    schedule: Schedule


def parse(text: str) -> Policy:
    """`dtr:eager` and the like; `eager` may be left out. Raises `GraphError`."""
    heuristic, _, deallocation = text.partition(":")
    policy = Policy(heuristic, deallocation or "eager")
    if policy.heuristic not in HEURISTICS:
        raise GraphError(f"there is no heuristic {heuristic}: it is one of {', '.join(HEURISTICS)}")
    if policy.deallocation not in DEALLOCATIONS:
        raise GraphError(f"there is no deallocation {deallocation}: it is one of {', '.join(DEALLOCATIONS)}")
    if policy.deallocation == "banish" and HEURISTICS[heuristic].cost not in _WITH_BANISHING:
        raise GraphError(
            f"{text}: banished tensors are in no neighbourhood that {heuristic} could keep; take dtr, dtr-local, lru, size or random"
        )
    return policy


class Runner:
    """Runs policies over one graph."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self._shape = shape_of(graph)
        outputs = {graph.tensors[output].base for output in graph.outputs}
        self._output_bytes = sum(graph.tensors[base].size_bytes for base in outputs)
        self._commands: dict[bool, tuple[Ints, ...]] = {
            is_whole: _commands(graph, is_whole=is_whole) for is_whole in (True, False)
        }
        self.baseline = self.run(Policy("dtr-local", "banish"), _UNBOUNDED, limit=float("inf"))

    def run(
        self, policy: Policy, budget_bytes: int, *, limit: float = THRASH_LIMIT, is_compat: bool = True, has_schedule: bool = False,
        has_outputs: bool = True,
    ) -> Result:  # fmt: skip
        """One run. `limit` is that of all time over the time without a budget.

        `is_compat`: as the published simulator does it. Else what waits for its inputs gives them up when nothing else can be evicted.
        `has_outputs`: at the end what the program still refers to is made again and stays; else it is only counted (`output_bytes`).
        """
        heuristic = HEURISTICS[policy.heuristic]
        num_nodes, num_steps = len(self._shape.root) * 64, 1 << 16 if has_schedule else 0
        longest = int(min(max(self.graph.cost_ns, 1) * (limit - 1), _UNBOUNDED))
        while True:
            begin_choosing()
            has_regions = heuristic.has_regions and policy.deallocation != "banish"
            state = state_of(
                self._shape,
                has_regions=has_regions,
                num_nodes=num_nodes if heuristic.has_classes else 0,
                trace=num_steps,
            )
            commands = self._commands[policy.deallocation != "ignore"]
            if not has_outputs:
                commands = tuple(part[: len(part) - len(self.graph.outputs)] for part in commands)
            status, command = self._start(policy, heuristic, state, commands, budget_bytes, longest, is_compat)
            if status == FULL:
                num_nodes *= 4
            elif has_schedule and state.counters[TRACED] > num_steps:
                num_steps = int(state.counters[TRACED])
            else:
                return self._result(policy, state, status, command, budget_bytes)

    def _start(
        self, policy: Policy, heuristic: Heuristic, state: State, commands: tuple[Ints, ...], budget_bytes: int, longest: int,
        is_compat: bool,
    ) -> tuple[int, int]:  # fmt: skip
        kinds, targets = commands
        if policy.deallocation == "banish":
            links = banish.links_of(self._shape)
            return banish.run(self._shape, state, links, heuristic, kinds, targets, budget_bytes, longest)
        return runtime.run(self._shape, state, heuristic, kinds, targets, True, is_compat, budget_bytes, longest)

    def _result(self, policy: Policy, state: State, status: int, command: int, budget_bytes: int) -> Result:
        count = [int(counter) for counter in state.counters]
        traced = min(count[TRACED], state.trace.shape[1])
        return Result(
            status={FINE: "ok", OUT_OF_MEMORY: "oom"}.get(status, "thrash"), clock=count[CLOCK],
            overhead=count[CLOCK] / max(self.graph.cost_ns, 1), peak_bytes=count[PEAK], model_ns=count[MODEL], again_ns=count[AGAIN],
            bottleneck_bytes=count[BOTTLENECK], output_bytes=self._output_bytes,
            num_again=count[NUM_AGAIN], num_evictions=count[EVICTIONS], num_looks=count[LOOKS],
            command=command,
            schedule=from_trace(state.trace[0, :traced], state.trace[1, :traced], str(policy), budget_bytes),
        )  # fmt: skip


def _commands(graph: Graph, *, is_whole: bool) -> tuple[Ints, Ints]:
    """Kinds and targets; outputs are pinned at the end. Not `is_whole`: the program gives nothing back."""
    commands = np.array(list(_pairs(graph)), np.int64).reshape(-1, 2)
    if not is_whole:
        commands = commands[commands[:, 0] != Kind.RELEASE]
    return np.ascontiguousarray(commands[:, 0]), np.ascontiguousarray(commands[:, 1])


def _pairs(graph: Graph) -> Iterator[tuple[int, int]]:
    for command in graph.program:
        yield int(command.kind), command.target
    for output in graph.outputs:
        yield int(Kind.PIN), output

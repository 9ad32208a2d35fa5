"""What a simulation has found, for people and for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from detrain.remat.graph import Graph
from detrain.remat.online.policy import THRASH_LIMIT, Policy, Result, Runner
from detrain.remat.schedule import Action
from detrain.remat.simulator import Outcome, budget_of, floor_bytes
from detrain.remat.simulator import simulate as judge

#: Where the published simulator gives up at twice the time, because what comes behind is of no use, we go on for longer.
_LIMIT = 10.0


@dataclass(frozen=True)
class Simulation:
    """A policy's run, and what the simulator says to what it has done."""

    graph: Graph
    policy: Policy
    budget_bytes: int
    result: Result
    outcome: Outcome


def simulate(graph: Graph, budget: str, policy: Policy, *, is_compat: bool) -> Simulation:
    """Run a policy. `is_compat`: with the published limit and order; else as well as it can be done."""
    runner = Runner(graph)
    budget_bytes = budget_of(graph, budget)
    result = runner.run(
        policy, budget_bytes, is_compat=is_compat, limit=THRASH_LIMIT if is_compat else _LIMIT, has_schedule=True
    )
    outcome = judge(graph, result.schedule, budget_bytes)
    return Simulation(graph, policy, budget_bytes, result, outcome)


def document(found: Simulation) -> dict[str, Any]:
    """As JSON says it; times in ns, the clock as the published simulator counts it, from 1 on."""
    return {
        "status": found.result.status, "overhead": found.result.overhead, "clock": found.result.clock,
        "baseline_clock": found.graph.cost_ns, "peak_bytes": found.result.peak_bytes, "budget_bytes": found.budget_bytes,
        "floor_bytes": floor_bytes(found.graph), "num_rematerialized": found.result.num_again,
    }  # fmt: skip


def text(found: Simulation) -> str:
    """A few lines."""
    result, names = found.result, {"ok": "fits", "oom": "runs out of memory", "thrash": "thrashes"}
    lines = [
        f"{found.policy} {names[result.status]} within {found.budget_bytes:,} bytes (the floor is {floor_bytes(found.graph):,})"
    ]
    if result.status != "ok":
        lines.append(f"at command {result.command:,} of {len(found.graph.program) + len(found.graph.outputs):,}")
    lines.append(
        f"overhead {result.overhead:.4f}: {result.num_again:,} operators done again, {result.again_ns:,} ns; "
        f"{result.num_evictions:,} evictions; peak {result.peak_bytes:,} bytes"
    )
    return "\n".join(lines)


def trace_lines(found: Simulation) -> str:
    """What was done: `compute OPERATOR` and `free TENSOR`, a line each."""
    graph = found.graph
    return "".join(
        f"compute {step.target} {graph.operators[step.target].name}\n" if step.action == Action.COMPUTE
        else f"free {step.target} {graph.tensors[step.target].name}\n"
        for step in found.result.schedule.steps
    )  # fmt: skip

"""Results of simulations and plans, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass

from detrain.remat.graph import Graph
from detrain.remat.online.policy import THRASH_LIMIT, Policy, Result, Runner
from detrain.remat.planfile import Planned
from detrain.remat.planners.plan import Plan
from detrain.remat.schedule import Action
from detrain.remat.simulator import Outcome, budget_of, floor_bytes, peak_bytes
from detrain.remat.simulator import simulate as judge
from detrain.remat.sweep import Row

#: Where the published simulator gives up at twice the time, because what comes behind is of no use, we go on for longer.
_LIMIT = 10.0


@dataclass(frozen=True)
class Simulation:
    """The run of a policy, and how the simulator judges the schedule that it has produced."""

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


def document(simulation: Simulation) -> dict[str, object]:
    """As JSON says it; times in ns, the clock as the published simulator counts it, from 1 on."""
    return {
        "status": simulation.result.status, "overhead": simulation.result.overhead, "clock": simulation.result.clock,
        "baseline_clock": simulation.graph.cost_ns, "peak_bytes": simulation.result.peak_bytes, "budget_bytes": simulation.budget_bytes,
        "floor_bytes": floor_bytes(simulation.graph), "num_rematerialized": simulation.result.num_again,
    }  # fmt: skip


def text(simulation: Simulation) -> str:
    """A simulation as a few lines of text."""
    result, names = simulation.result, {"ok": "fits", "oom": "runs out of memory", "thrash": "thrashes"}
    lines = [
        f"{simulation.policy} {names[result.status]} within {simulation.budget_bytes:,} bytes "
        f"(the floor is {floor_bytes(simulation.graph):,})"
    ]
    if result.status != "ok":
        lines.append(
            f"at command {result.command:,} of {len(simulation.graph.program) + len(simulation.graph.outputs):,}"
        )
    lines.append(
        f"overhead {result.overhead:.4f}: {result.num_again:,} operators done again, {result.again_ns:,} ns; "
        f"{result.num_evictions:,} evictions; peak {result.peak_bytes:,} bytes"
    )
    return "\n".join(lines)


def trace_lines(simulation: Simulation) -> str:
    """What was done: `compute OPERATOR` and `free TENSOR`, a line each."""
    graph = simulation.graph
    return "".join(
        f"compute {step.target} {graph.operators[step.target].name}\n" if step.action == Action.COMPUTE
        else f"free {step.target} {graph.tensors[step.target].name}\n"
        for step in simulation.result.schedule.steps
    )  # fmt: skip


def plan_text(graph: Graph, plan: Plan) -> str:
    """A plan as a line of text."""
    known = ""
    if plan.is_optimal:
        known = ", which is optimal"
    elif plan.bound_ns is not None:
        known = f" (none is below {plan.bound_ns / max(graph.cost_ns, 1):.4f})"
    return f"{_outcome_text(plan.schedule.planner, plan.outcome)}{known}; planned in {plan.seconds:.2f} s"


def graph_text(graph: Graph) -> str:
    """A graph as a line of text."""
    num_constants = sum(operator.is_constant for operator in graph.operators)
    num_backward = sum(operator.is_backward for operator in graph.operators)
    return (
        f"{graph.name}: {len(graph.operators) - num_constants:,} operators, {num_backward:,} of them backward, on {num_constants:,} "
        f"constants; {graph.cost_ns:,} ns; everything kept takes {peak_bytes(graph):,} bytes, and below {floor_bytes(graph):,} nothing runs"
    )


def planned_text(planned: Planned) -> tuple[str, bool]:
    """The same of a file, judged again, and whether it can be done."""
    outcome = judge(planned.graph, planned.schedule, planned.schedule.budget_bytes)
    if outcome.failure:
        return f"the plan cannot be executed: step {outcome.failed_at}: {outcome.failure}", False
    lines = [_outcome_text(planned.schedule.planner, outcome)]
    often = sorted(
        range(len(outcome.counts)),
        key=lambda number: -(outcome.counts[number] - 1) * planned.graph.operators[number].cost_ns,
    )
    lines += [
        f"  {planned.graph.operators[number].name} (operator {number}): {outcome.counts[number]} times, "
        f"{planned.graph.operators[number].cost_ns:,} ns each"
        for number in often[:_MOST_OPERATORS] if outcome.counts[number] > 1
    ]  # fmt: skip
    return "\n".join(lines), True


#: Of those that take most time again, so many are named.
_MOST_OPERATORS = 10


def row_text(graph: Graph, row: Row) -> str:
    """A line of a sweep."""
    what = f"{row.planner:12} {row.budget_bytes:>16,} bytes  "
    if row.overhead is None:
        return f"{what}none: {row.why}"
    return f"{what}{row.overhead:.4f}{' optimal' if row.is_optimal else ''}  {row.num_rematerialized:,} of {len(graph.operators):,} again"


def _outcome_text(planner: str, outcome: Outcome) -> str:
    return f"{planner}: overhead {outcome.overhead:.4f}, {outcome.num_again:,} operators done again, peak {outcome.peak_bytes:,} bytes"

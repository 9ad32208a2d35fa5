"""A plan as a picture: memory over time, and which operators are done again."""

from __future__ import annotations

from pathlib import Path

from detrain.errors import GraphError
from detrain.remat.planfile import Planned
from detrain.remat.schedule import Action
from detrain.remat.simulator import simulate

_COLORS = {"forward": "#2563eb", "backward": "#059669", "again": "#d97706"}


def draw(path: Path, planned: Planned) -> None:
    """Memory in use over the clock, as SVG. Raises `GraphError` if the schedule cannot be done, or `OSError`."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    graph, schedule = planned.graph, planned.schedule
    outcome = simulate(graph, schedule, schedule.budget_bytes)
    if outcome.failure:
        raise GraphError(f"the plan cannot be executed: step {outcome.failed_at}: {outcome.failure}")
    times, usage, spans = [0.0], [0.0], []
    clock_ns, done = 0, set()
    for step, used_bytes in zip(schedule.steps, outcome.usage_bytes, strict=True):
        if step.action == Action.COMPUTE:
            operator = graph.operators[step.target]
            kind = "again" if step.target in done else "backward" if operator.is_backward else "forward"
            spans.append((clock_ns / 1e6, operator.cost_ns / 1e6, kind))
            done.add(step.target)
            clock_ns += operator.cost_ns
        times.append(clock_ns / 1e6)
        usage.append(used_bytes / 1e6)
    figure = Figure(figsize=(9, 4.2), layout="constrained")
    axes, strip = figure.subplots(2, 1, sharex=True, height_ratios=[12, 1])
    axes.fill_between(times, usage, step="post", alpha=0.25, color="#2563eb", linewidth=0)
    axes.step(times, usage, where="post", linewidth=0.8, color="#2563eb")
    if schedule.budget_bytes is not None:
        axes.axhline(schedule.budget_bytes / 1e6, color="#dc2626", linewidth=0.8)
    axes.set(
        ylabel="MB behind each step",
        ylim=(0, None),
        title=f"{graph.name}: {schedule.planner}, {outcome.overhead:.4f} times the time",
    )
    for kind, color in _COLORS.items():
        strip.broken_barh(
            [(begin, length) for begin, length, of_kind in spans if of_kind == kind], (0, 1), color=color, linewidth=0
        )
    strip.set(yticks=[], xlabel="ms", xlim=(0, max(clock_ns / 1e6, 1e-6)))
    axes.legend(handles=[Patch(color=color, label=kind) for kind, color in _COLORS.items()], fontsize=8)
    figure.savefig(path, format="svg", metadata={"Date": None})

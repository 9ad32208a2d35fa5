"""The section of a pipeline: what its ranks did in a step, as they measured it, above what the simulator makes of the same times."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from detrain.errors import GraphError, MissingExtra
from detrain.report import markup
from detrain.report.history import History
from detrain.store.directory import PIPELINE_STEPS


def section(history: History) -> Iterable[str]:
    """Nothing for a job whose ranks are no pipeline's."""
    paths = [path for one in history.ranks.values() if (path := one.path / PIPELINE_STEPS).exists()]
    if not paths:
        return
    from detrain.report import figures

    yield "<h2>Pipeline</h2>"
    try:
        from detrain.pipeline import measured, measured_timeline

        steps = [measured.read(path) for path in paths]
        found, simulated = measured_timeline.together(steps), measured_timeline.simulated(steps)
    except (OSError, GraphError, MissingExtra) as error:
        yield f"<p>No timeline: {escape(str(error))}.</p>"
        return
    schedule = found.schedule
    every = "a mini-batch every" if schedule.is_asynchronous else "a step of"
    plan = "-".join(str(len(own)) for own in steps[0].workers)
    yield (
        f"<p>{schedule.name} over stages of {plan} ranks, behind step {steps[0].step}: {every} "
        f"{found.step_s * 1e3:.2f} ms, {found.bubble_share:.0%} of it idle. The simulator makes {simulated.step_s * 1e3:.2f} ms and "
        f"{simulated.bubble_share:.0%} of the stages' measured times, over links that take no time.</p>"
    )
    yield markup.figure(figures.timelines(found, simulated), "Measured, and simulated")

"""Seconds that the planners take over the published profiles, beside the published planners' seconds."""

from __future__ import annotations

import time
from collections.abc import Callable

from measure import Bench, Report, main, spread
from pipeline_profiles import WORKLOADS, profile, topologies, workload

from detrain.pipeline.planners import dapple, pipedream, registry
from detrain.plans.errors import NoPlanError

#: Seconds of PipeDream's optimizer (Python): profile, machines. gnmt-16 is what its repository calls gnmt_large.
PIPEDREAM_S = {("pipedream/densenet121", 4): 0.9, ("dapple/gnmt-16-pbs-64", 16): 31.0}
#: Seconds of DAPPLE's planner (Rust, one thread).
DAPPLE_S = {
    "dapple/bert-24-pbs-6": 0.6, "dapple/bert-48-pbs-2": 1.9, "dapple/xlnet-24-pbs-1": 0.4, "dapple/vgg-19-pbs-32": 0.4,
    "dapple/amoeba-18-pbs-8": 0.4, "dapple/amoeba-6-pbs-8-complicated": 1.1, "dapple/vgg16": 0.9, "pipedream/resnet50": 21.0,
}  # fmt: skip


def _seconds(plan: Callable[[], object], times: int) -> tuple[list[float], str]:
    """Of each run, after one that compiles; and why there is no plan."""
    why = ""
    found = []
    for number in range(times + 1):
        began_s = time.perf_counter()
        try:
            plan()
        except NoPlanError as error:
            why = str(error).partition(":")[0]
        if number or times == 1:
            found.append(time.perf_counter() - began_s)
        if times == 1:
            break
    return found, why


def measure_pipedream(_: Bench, report: Report, is_quick: bool) -> None:
    """Compat, one level of machines, activations sent as they are."""
    rows = []
    for name in WORKLOADS:
        model = profile(name)
        for machines in (4, 16):
            options = pipedream.Options((machines,), (1.25e9,), compression_ratio=1.0, is_compat=True)
            seconds, _why = _seconds(lambda: pipedream.plan(model, options), 2 if is_quick else 5)  # noqa: B023 - called at once
            published_s = PIPEDREAM_S.get((name, machines))
            times = "" if published_s is None else f"{published_s / sorted(seconds)[len(seconds) // 2]:.1f}"
            rows.append(
                [name, str(machines), spread(seconds, 3), "" if published_s is None else str(published_s), times]
            )
    report.say("## PipeDream's planner, `compat`")
    report.table(["profile", "machines", "seconds", "published", "times faster"], rows)


def measure_dapple(_: Bench, report: Report, is_quick: bool) -> None:
    """Compat, on both topologies; the slower one counts."""
    rows = []
    for name in WORKLOADS:
        model, why, slowest = profile(name), "", [0.0]
        for topology in topologies().values():
            seconds, no_plan = _seconds(
                lambda: dapple.plan(model, topology, workload(name), is_compat=True),  # noqa: B023 - called at once
                2 if is_quick else 5,
            )
            slowest, why = max(slowest, seconds, key=lambda one: sorted(one)[len(one) // 2]), why or no_plan
        published_s = DAPPLE_S.get(name)
        times = "" if published_s is None else f"{published_s / sorted(slowest)[len(slowest) // 2]:.1f}"
        rows.append([name, spread(slowest, 3), "" if published_s is None else str(published_s), times, why])
    report.say("## DAPPLE's planner, `compat`")
    report.table(["profile", "seconds", "published", "times faster", "no answer"], rows)


def measure_own(_: Bench, report: Report, is_quick: bool) -> None:
    """Our own, with the others' plans taking part, for 1F1B."""
    rows = []
    for name in WORKLOADS:
        model, cells = profile(name), [name]
        for topology in topologies().values():
            request = registry.Request(model, topology, workload(name))
            seconds, _why = _seconds(lambda: registry.plan("detrain", request), 1 if is_quick else 3)  # noqa: B023 - called at once
            cells.append(spread(seconds, 1))
        rows.append(cells)
    report.say("## Our planner")
    report.table(["profile", "seconds on 2x8", "on 16x1"], rows)
    report.say(
        "All after compilation, which numba keeps on the disk, reading the profile not counted. Published: seconds of the published "
        "planners on another machine; empty where none were published. `tests/pipeline/test_pipedream.py` and `test_dapple.py` compare "
        "what they answer. DAPPLE's published planner gives no answer where it asks for more stages than there are states, and "
        "none in any time for Inception's 221,564 states; PipeDream's has Inception's branches merged first, as published."
    )


if __name__ == "__main__":
    main(
        "The planners of pipelines", __doc__ or "",
        {"pipedream": measure_pipedream, "dapple": measure_dapple, "detrain": measure_own},
    )  # fmt: skip

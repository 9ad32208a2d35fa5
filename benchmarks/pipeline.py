"""Plans of every planner over the published profiles, judged by the one simulator, memory included."""

from __future__ import annotations

from functools import cache

from measure import Bench, Report, main
from pipeline_profiles import WORKLOADS, profile, topologies, workload

from detrain.errors import GraphError
from detrain.pipeline.compression import states_of
from detrain.pipeline.judge import PIPEDREAM, SYNCHRONOUS, Judge, Judgement, data_parallel, judge
from detrain.pipeline.layers import Profile
from detrain.pipeline.plan import Plan
from detrain.pipeline.planners import detrain, pipedream, registry
from detrain.pipeline.schedules import Schedule

_OTHERS = (("pipedream", True), ("pipedream", False), ("dapple", True), ("dapple", False))
#: Speed-ups are equal that differ by less.
_MARGIN = 1e-9


def _measure(report: Report, kind: Schedule, is_quick: bool) -> None:
    behind, alone_behind, count = [], [], 0
    for topology_name, topology in topologies().items():
        rows = []
        for name in list(WORKLOADS)[:: 4 if is_quick else 1]:
            request = registry.Request(profile(name), topology, workload(name), schedule=kind)
            others = [_of_plan(request, _plan_of_others(name, topology_name, *other)) for other in _OTHERS]
            # What it is worth without the others is told once.
            alone = _of_plan(request, _alone(request)) if kind == SYNCHRONOUS else None
            plan = registry.plan("detrain", request)
            ours = _of_plan(request, plan)
            assert ours is not None
            best = max((one.speedup for one in others if one is not None and one.fits), default=0.0)
            count += 1
            if ours.speedup < best * (1 - _MARGIN):
                behind.append(f"{name} on {topology_name}")
            if kind == SYNCHRONOUS and (alone is None or alone.speedup < best * (1 - _MARGIN)):
                alone_behind.append(f"{name} on {topology_name}")
            apart = [_cell(alone)] if kind == SYNCHRONOUS else []
            rows.append(
                [
                    name,
                    f"{_data_parallel(request):.3f}",
                    *map(_cell, others),
                    *apart,
                    f"**{_cell(ours)}**",
                    _words(plan),
                ]
            )
        report.say(f"## {kind.name} on {topology_name}")
        report.table(
            [
                "profile", "data parallel", "pipedream compat", "pipedream", "dapple compat", "dapple",
                *(["detrain alone"] if kind == SYNCHRONOUS else []), "detrain", "its plan",
            ],
            rows,
        )  # fmt: skip
    report.say(
        f"{kind.name}: of {count} cells, detrain is behind a plan of the others that fits in {len(behind)}"
        f"{': ' + ', '.join(behind) if behind else ''}."
    )
    if kind == SYNCHRONOUS:
        report.say(
            f"Alone, without the others' plans to begin with, it is behind in {len(alone_behind)}"
            f"{': ' + ', '.join(alone_behind) if alone_behind else ''}."
        )


def _alone(request: registry.Request) -> Plan | None:
    assert request.workload is not None
    question = detrain.Question(request.profile, request.topology, request.workload, request.schedule)
    try:
        return detrain.plan(question)
    except GraphError:
        return None


@cache
def _plan_of_others(name: str, topology_name: str, planner: str, is_compat: bool) -> Plan | None:
    """The same for every schedule: none of them asks."""
    request = registry.Request(profile(name), topologies()[topology_name], workload(name), is_compat=is_compat)
    try:
        return registry.plan(planner, request)
    except GraphError:
        return None


def _of_plan(request: registry.Request, plan: Plan | None) -> Judgement | None:
    assert request.workload is not None
    if plan is None:
        return None
    try:
        # Ours may have taken smaller micro-batches.
        workload = plan.workload or request.workload
        return judge(plan, request.profile.to_plan(), request.topology, workload, request.schedule)
    except GraphError:
        return None


def _data_parallel(request: registry.Request) -> float:
    assert request.workload is not None
    planned = request.profile.to_plan()
    judging = Judge(planned, request.topology, request.workload, request.schedule)
    against = data_parallel(judging)
    return against.speedup if against else 0.0


def _cell(judged: Judgement | None) -> str:
    if judged is None:
        return "none"
    return f"{judged.speedup:.3f}" + ("" if judged.fits else " over")


def _words(plan: Plan) -> str:
    """Replicas of the stages, R where one recomputes, and the copies."""
    stages = "-".join(f"{stage.replicas}{'R' if stage.recompute else ''}" for stage in plan.stages)
    return f"{'' if len(plan.stages) > 1 else 'one stage, '}{stages} x{plan.replication}"


def measure_synchronous(_: Bench, report: Report, is_quick: bool) -> None:
    """1F1B with a flush, as DAPPLE runs it."""
    report.say(
        "Speed-ups over one device, as the simulator judges them. `over`: some device has not the memory (16 GB, Adam's state); such "
        "plans do not count. Data parallelism is shown whether it fits or not; a way of it that fits goes before one that does not. Plans "
        "are the stages' replicas, with R where a stage recomputes, and the copies of the pipeline. Links are those of DAPPLE's planner."
    )
    _measure(report, SYNCHRONOUS, is_quick)


def measure_asynchronous(_: Bench, report: Report, is_quick: bool) -> None:
    """1F1B without one, as PipeDream runs it: with stashed weights, an update each mini-batch."""
    _measure(report, PIPEDREAM, is_quick)


def measure_compression(_: Bench, report: Report, is_quick: bool) -> None:
    """What fewer states cost where all can be had: PipeDream's bottleneck, mended."""
    rows = []
    for name in ("pipedream/resnet18", "pipedream/squeezenet1_0", "pipedream/resnet50", "pipedream/gnmt"):
        planned = profile(name).to_plan()
        whole = states_of(planned, limit=10_000)
        for limit in (1_000, 60, 1) if not is_quick else (1,):
            few = states_of(planned, limit=limit)
            found = [_bottleneck_s(planned, states_limit) for states_limit in (10_000, limit)]
            rows.append(
                [name, str(len(whole.members)), str(limit), str(len(few.members)), f"{found[1] / found[0] - 1:.2%}"]
            )
    report.say("## What compression costs")
    report.table(["profile", "states", "asked for", "left", "slowest stage slower by"], rows)
    report.say(
        "16 machines at 1.25 GB/s, as in PipeDream's planner with its mends. Some are left however few are asked for."
    )


def _bottleneck_s(planned: Profile, limit: int) -> float:
    options = pipedream.Options((16,), (1.25e9,), compression_ratio=1.0)
    return pipedream.least_bottleneck_s(states_of(planned, limit), options)


if __name__ == "__main__":
    main(
        "Plans of pipelines, judged by the simulator", __doc__ or "",
        {"1f1b": measure_synchronous, "1f1b-async": measure_asynchronous, "compression": measure_compression},
    )  # fmt: skip

"""The simulator's figures of a plan, which are shown beside its planner's closed form, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, replace

from detrain.errors import GraphError
from detrain.pipeline import simulator
from detrain.pipeline.judge import PIPEDREAM, SYNCHRONOUS, Judge, data_parallel, judge, prepared
from detrain.pipeline.plan import Plan, Workload
from detrain.pipeline.planfile import Planned
from detrain.pipeline.pricing import Arrangement, Pricing
from detrain.pipeline.schedules import Schedule

#: Inputs of a simulated run of inference; between the first and the last of them lies the mean time between two.
_NUM_INPUTS = 64


@dataclass(frozen=True)
class Verdict:
    """One plan under one schedule, and data parallelism beside it. Figures are None where there are none, and `why` says it."""

    schedule: str
    workload: Workload | None = None
    num_micro_batches: int | None = None
    step_s: float | None = None
    samples_per_s: float | None = None
    #: Over the quickest device alone.
    speedup: float | None = None
    #: Of one stage on all devices, under the same schedule and micro-batches; whether it fits or not.
    data_parallel_speedup: float | None = None
    does_data_parallelism_fit: bool | None = None
    #: The largest share of a device's memory that is used.
    memory_share: float | None = None
    why: str = ""


@dataclass(frozen=True)
class InferenceVerdict:
    """A plan for inference: seconds from an input to its output, alone in the pipeline, and between two outputs of a full one."""

    latency_s: float
    between_outputs_s: float


def schedule_for(plan: Plan, wanted: Schedule) -> Schedule:
    """The schedule that the closed form of a plan's planner is about.

    PipeDream's own asynchronous one for its planner, synchronous 1F1B for DAPPLE's; ours plans for `wanted`.
    """
    return {"pipedream": PIPEDREAM, "dapple": SYNCHRONOUS}.get(plan.planner, wanted)


def verdict(planned: Planned, kind: Schedule) -> Verdict:
    """What the simulator says of a plan, for the plan's own workload or, without one, four mini-batches of the profile a stage.

    A plan that cannot be simulated has a verdict, too.
    """
    try:
        ready, workload = prepared(planned, kind)
        profile = ready.profile.to_plan()
        judged = judge(ready.plan, profile, ready.topology, workload, kind)
    except GraphError as error:
        return Verdict(kind.name, why=str(error))
    against = data_parallel(Judge(profile, ready.topology, workload, kind))
    return Verdict(
        kind.name, workload, judged.timeline.schedule.num_micro_batches, judged.timeline.step_s, judged.samples_per_s, judged.speedup,
        against.speedup if against else None, against.fits if against else None, judged.memory_share,
    )  # fmt: skip


def document(verdict: Verdict) -> dict[str, object]:
    """As JSON; times in seconds."""
    workload = verdict.workload
    return {
        "schedule": verdict.schedule, "micro_batches": verdict.num_micro_batches, "batch": workload and workload.batch,
        "micro_batch": workload and workload.micro_batch, "step_s": verdict.step_s, "samples_per_s": verdict.samples_per_s,
        "speedup": verdict.speedup, "data_parallel_speedup": verdict.data_parallel_speedup,
        "data_parallel_fits": verdict.does_data_parallelism_fit, "memory_share": verdict.memory_share, "why": verdict.why,
    }  # fmt: skip


def text(verdict: Verdict) -> str:
    """As a line of text."""
    if verdict.speedup is None or verdict.memory_share is None:
        return f"simulated ({verdict.schedule}): not possible: {verdict.why}"
    line = (
        f"simulated ({verdict.schedule}): {verdict.step_s:.6g} s a step, speed-up {verdict.speedup:.4f} over one device"
    )
    if verdict.data_parallel_speedup:
        line += (
            f", {verdict.speedup / verdict.data_parallel_speedup:.4f} over data parallelism ({verdict.data_parallel_speedup:.4f}"
            f"{'' if verdict.does_data_parallelism_fit else ', which takes too much memory'})"
        )
    return (
        line + f"; memory {verdict.memory_share:.0%}{' of what there is: too much' if verdict.memory_share > 1 else ''}"
    )


def inference_verdict(planned: Planned) -> InferenceVerdict:
    """Simulates a plan of `pipedream-inference`: forward passes and transfers, with the profile's mini-batch as an input.

    Raises `GraphError` for a plan that cannot be simulated.
    """
    pricing = Pricing(planned.profile, planned.topology, Workload(1, 1, 1))
    arranged = pricing.arrangement(planned.plan)
    # One input is on one replica of each stage; a full stage takes a new one `replicas` times as often.
    alone = replace(arranged, devices=tuple(devices[:1] for devices in arranged.devices))
    latency_s = _run_s(pricing, alone, [1] * len(arranged.devices), 1)
    replicas = [len(devices) for devices in arranged.devices]
    full_s = [_run_s(pricing, alone, replicas, count) for count in (1, _NUM_INPUTS)]
    return InferenceVerdict(latency_s, (full_s[1] - full_s[0]) / (_NUM_INPUTS - 1))


def _run_s(pricing: Pricing, alone: Arrangement, replicas: list[int], num_inputs: int) -> float:
    """Until the last of so many inputs is through; a stage and its link take a part of their time for each of their replicas."""
    loads = [
        simulator.StageLoad(load.forward_s / count, 0.0, send_s=load.send_s / count)
        for load, count in zip(pricing.loads(alone), replicas, strict=True)
    ]
    schedule = Schedule("gpipe", num_inputs)
    return simulator.step_s(simulator.structure_of(schedule, loads), simulator.table(schedule, loads))

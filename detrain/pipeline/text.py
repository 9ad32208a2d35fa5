"""Plans and simulations, as text and as JSON."""

from __future__ import annotations

from detrain.pipeline.judge import Judgement
from detrain.pipeline.plan import Plan, Workload
from detrain.pipeline.planfile import Planned


def plan_text(planned: Planned) -> str:
    """A plan as text: its stages in a table and the planner's closed form, if it has one; ours reckons by the simulator."""
    plan = planned.plan
    layers = {layer.name: layer for layer in planned.profile.layers}
    lines = [_headline(plan, planned.topology.num_devices)]
    lines.append(f"{'stage':>5} {'states':>13} {'layers':>7} {'compute':>11} {'parameters':>12}  devices")
    for number, stage in enumerate(plan.stages):
        inside = [layers[name] for name in stage.layers]
        compute_ms = sum(layer.forward_ms + layer.backward_ms for layer in inside)
        parameter_bytes = sum(layer.parameter_bytes for layer in inside)
        lines.append(
            f"{number:>5} {f'{stage.start}-{stage.end}':>13} {len(inside):>7} {compute_ms:>8.3f} ms {parameter_bytes / 1e6:>9.3f} MB  "
            f"{ranges(stage.devices)}{f' ({stage.replicas} in each copy)' if plan.replication > 1 else ''}{_again(stage.recompute)}"
        )
    if plan.planner != "detrain":
        lines.append(_closed_form(plan))
    if plan.note:
        lines.append(f"note: {plan.note}")
    return "\n".join(lines)


def _headline(plan: Plan, num_devices: int) -> str:
    used = len({device for stage in plan.stages for device in stage.devices})
    unused = f"; {num_devices - used} of {num_devices} devices not used" if used < num_devices else ""
    copies = f", {plan.replication} copies" if plan.replication > 1 else ""
    stages, devices = _counted(len(plan.stages), "stage"), _counted(used, "device")
    return f"{plan.planner}: {stages}{copies} on {devices}{unused}; planned in {plan.seconds:.2f} s"


def _counted(count: int, what: str) -> str:
    plural = "es" if what.endswith("ch") else "s"
    return f"{count} {what}{'' if count == 1 else plural}"


def _closed_form(plan: Plan) -> str:
    against = plan.speedup / plan.data_parallel_speedup if plan.data_parallel_speedup else 0.0
    return (
        f"closed form of {plan.planner}: the slowest stage takes {plan.bottleneck_s:.6g} s; speed-up {plan.speedup:.4f} over one device, "
        f"{against:.4f} over data parallelism ({plan.data_parallel_speedup:.4f})"
    )


def _again(recompute: str) -> str:
    return f", recomputes {recompute}" if recompute else ""


def ranges(numbers: tuple[int, ...]) -> str:
    """3, 4, 5, 9 are 3-5,9."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{begin}" if begin == end else f"{begin}-{end}" for begin, end in runs)


def simulation_document(judged: Judgement, planned: Planned, workload: Workload) -> dict[str, object]:
    """A simulation as a JSON document; times in seconds, memory in bytes."""
    timeline = judged.timeline
    stages = [
        {
            "busy_s": timeline.busy_s[number], "in_flight": timeline.in_flight[number], "weight_versions": timeline.versions[number],
            "peak_bytes": timeline.peak_bytes[number], "memory_bytes": _memory_bytes(planned, number), "recompute": stage.recompute,
        }
        for number, stage in enumerate(planned.plan.stages)
    ]  # fmt: skip
    return {
        "schedule": timeline.schedule.name, "micro_batches": timeline.schedule.num_micro_batches, "chunks": timeline.schedule.chunks,
        "batch": workload.batch, "micro_batch": workload.micro_batch, "step_s": timeline.step_s, "bubble_share": timeline.bubble_share,
        "samples_per_s": judged.samples_per_s, "speedup": judged.speedup, "all_reduce_exposed_s": timeline.all_reduce_exposed_s,
        "all_reduce_overlap": timeline.all_reduce_overlap, "over_memory": list(timeline.over_memory), "stages": stages,
    }  # fmt: skip


def simulation_text(judged: Judgement, planned: Planned) -> str:
    """A simulation as text: the step, and its stages in a table."""
    timeline = judged.timeline
    what = "mini-batch" if timeline.schedule.is_asynchronous else "step"
    micro_batches = _counted(timeline.schedule.num_micro_batches, "micro-batch")
    lines = [
        f"{timeline.schedule.name}: {timeline.step_s:.6g} s a {what} of {micro_batches}, "
        f"{judged.samples_per_s:,.1f} samples/s, speed-up {judged.speedup:.4f}; bubble {timeline.bubble_share:.1%}, "
        f"all-reduces hidden {timeline.all_reduce_overlap:.1%}"
    ]
    lines.append(f"{'stage':>5} {'busy':>12} {'in flight':>10} {'versions':>9} {'memory':>22}")
    for number in range(len(planned.plan.stages)):
        used = f"{timeline.peak_bytes[number] / 2**30:.2f} of {_memory_bytes(planned, number) / 2**30:.2f} GiB"
        lines.append(
            f"{number:>5} {timeline.busy_s[number]:>10.6g} s {timeline.in_flight[number]:>10} {timeline.versions[number]:>9} {used:>22}"
            + ("  too much" if number in timeline.over_memory else "")
        )
    return "\n".join(lines)


def _memory_bytes(planned: Planned, stage: int) -> float:
    return min(planned.topology.devices[device].memory_bytes for device in planned.plan.stages[stage].devices)

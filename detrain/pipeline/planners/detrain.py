"""Our own planner: stages by dynamic programming for each way of laying out copies, then made better by the simulator.

The dynamic programming (`partition`) knows nothing of how communication and the ends of a pipeline overlap; the simulator
does. So the best few splits of each layout are judged by it and changed step by step as long as that helps: cuts move,
devices go to a neighbour, stages are joined or divided, recompute more or less. Plans of other planners take part
from where they stand. Nothing is left to chance: the
same question has the same answer, unless the time is up before.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from detrain.errors import GraphError
from detrain.pipeline.compression import states_of
from detrain.pipeline.judge import SYNCHRONOUS, Judge, Score
from detrain.pipeline.plan import NoPlanError, Plan, Stage, Workload
from detrain.pipeline.planners import partition
from detrain.pipeline.planners.layouts import Layout, blocks, layouts
from detrain.pipeline.planners.refine import Draft, refine
from detrain.pipeline.pricing import Arrangement
from detrain.pipeline.profile import Profile
from detrain.pipeline.schedules import Schedule
from detrain.pipeline.states import States, of_members
from detrain.pipeline.topology import Topology

#: Places to cut that the dynamic programming looks at; the rest is for the steps behind it.
_MOST_STATES = 96
#: Splits of a layout that the simulator judges.
_NUM_JUDGED = 200
#: Of what a stage takes beyond its weights, budgets that its recomputation is planned within.
_SHARES = (0.8, 0.6, 0.4, 0.2)
#: Drafts in all that are made better, and of those with the same layout and number of stages.
_NUM_REFINED, _NUM_ALIKE = 60, 10


@dataclass(frozen=True)
class Question:
    """What is to be planned."""

    profile: Profile
    topology: Topology
    workload: Workload
    schedule: Schedule = SYNCHRONOUS
    #: Sizes that micro-batches may have; the workload's alone, if there are none.
    micro_batches: tuple[int, ...] = ()
    is_recomputing: bool = True
    #: Plans of others, which take part.
    rivals: tuple[Plan, ...] = ()
    time_limit_s: float = 25.0


def plan(question: Question) -> Plan:
    """Raises `NoPlanError` naming the layer that no device can hold, or what else stands in the way."""
    began_s = time.perf_counter()
    planned = question.profile.to_plan()
    _check_layers(planned, question)
    states = states_of(planned)
    coarse = _coarse(states)
    best: list[tuple[Score, int, Draft, Judge]] = []
    for micro_batch in question.micro_batches or (question.workload.micro_batch,):
        workload = replace(question.workload, micro_batch=micro_batch)
        judge = Judge(planned, question.topology, workload, question.schedule)
        drafts = [*_drafts(judge, coarse, question), *_of_rivals(judge, question.rivals)]
        found = sorted(_judged(judge, drafts), key=lambda pair: pair[0])
        best += [(score, len(best) + place, draft, judge) for place, (score, draft) in enumerate(_unlike(found))]
        if best and time.perf_counter() - began_s > question.time_limit_s:
            break
    if not best:
        raise NoPlanError(f"no split of {planned.name} over {question.topology.num_devices} devices can be simulated")
    refined = []
    for _, place, draft, judge in sorted(best, key=lambda one: one[:2])[:_NUM_REFINED]:
        left_s = question.time_limit_s - (time.perf_counter() - began_s)
        refined.append((*refine(judge, states, draft, left_s, is_recomputing=question.is_recomputing), place, judge))
    score, draft, _, judge = min(refined, key=lambda one: (one[0], one[2]))
    until_s = began_s + question.time_limit_s
    score, draft = _recomputing_less(judge, score, draft, until_s) if question.is_recomputing else (score, draft)
    if score.missing_share > 0:
        raise NoPlanError(_too_little(judge, draft))
    return _plan_of(judge, states, draft, score, time.perf_counter() - began_s)


def _check_layers(profile: Profile, question: Question) -> None:
    """A layer that no device can hold is named before anything is planned."""
    most = max(device.memory_bytes for device in question.topology.devices)
    for layer in profile.layers:
        needed = layer.parameter_bytes * question.workload.state_factor
        if needed > most:
            raise NoPlanError(
                f"layer {layer.name} ({layer.description}) takes {needed:,.0f} bytes with gradients and optimizer state, "
                f"and the largest device has {most:,.0f}"
            )


def _too_little(judge: Judge, draft: Draft) -> str:
    timeline = judge.timeline(draft.arranged)
    stage = timeline.over_memory[0]
    devices = draft.arranged.devices[stage]
    return (
        f"no plan found keeps to the memory; the nearest needs {timeline.peak_bytes[stage]:,.0f} bytes on device {devices[0]}, "
        f"which has {judge.pricing.memory_bytes(devices):,.0f}; a smaller micro-batch takes less"
    )


def _coarse(states: States) -> States:
    """Of each stretch of equal time the state that least crosses."""
    if len(states.members) <= _MOST_STATES:
        return states
    share = states.compute_s / (states.compute_s[-1] or 1.0)
    stretch = np.minimum((share * _MOST_STATES).astype(int), _MOST_STATES - 1)
    chosen: dict[int, int] = {}
    for number in np.lexsort((np.arange(len(share)), states.output_bytes)):
        chosen.setdefault(int(stretch[number]), int(number))
    return of_members(states.profile, (states.members[number] for number in chosen.values()))


def _drafts(judge: Judge, states: States, question: Question) -> Iterator[Draft]:
    """The best splits of each layout, as the dynamic programming reckons."""
    for layout in layouts(question.topology.num_devices):
        if layout.replication > judge.workload.batch:
            continue
        asked = partition.problem(
            judge.pricing, states, blocks(judge.pricing, layout), is_recomputing=question.is_recomputing
        )
        found = partition.splits(asked, *partition.few_limits(asked))
        if not found:
            # Nothing fits where it may be cut here. What comes nearest may fit when its cuts move, or else says what is missing.
            roomy = replace(asked.blocks, memory_bytes=np.full_like(asked.blocks.memory_bytes, np.inf))
            unlimited = partition.splits(replace(asked, blocks=roomy), *partition.few_limits(asked))
            found = [
                replace(split, is_recomputed=(question.is_recomputing,) * len(split.states)) for split in unlimited
            ]
        for split in found[:_NUM_JUDGED]:
            yield _draft(states, asked.blocks.ends, layout, split)


def _draft(states: States, ends: Sequence[int], layout: Layout, split: partition.Split) -> Draft:
    spans = [(ends[begin], ends[end]) for begin, end in zip(split.begins, split.ends, strict=True)]
    arranged = Arrangement(
        tuple(states.members[one] for one in split.states), tuple(layout.devices(*span) for span in spans), layout.replication,
        tuple("all" if one else "" for one in split.is_recomputed),
    )  # fmt: skip
    return Draft(arranged, layout)


def _of_rivals(judge: Judge, rivals: Iterable[Plan]) -> Iterator[Draft]:
    for rival in rivals:
        arranged = judge.pricing.arrangement(rival)
        # A zero-work stage, as the published planners make them, has no layers of its own.
        kept = [one for one, done in enumerate(arranged.done) if done != (arranged.done[one - 1] if one else 0)]
        yield Draft(
            replace(
                arranged, done=tuple(arranged.done[one] for one in kept),
                devices=tuple(arranged.devices[one] for one in kept), recompute=tuple(arranged.recompute[one] for one in kept),
            ), None,
        )  # fmt: skip


def _judged(judge: Judge, drafts: Iterable[Draft]) -> Iterator[tuple[Score, Draft]]:
    for draft in drafts:
        try:
            yield judge.score(draft.arranged), draft
        except GraphError:
            # Not enough samples for so many copies, or a schedule that these stages cannot have.
            continue


def _unlike(found: Iterable[tuple[Score, Draft]]) -> Iterator[tuple[Score, Draft]]:
    """The best few of each layout and number of stages: steps do not lead from one to another easily."""
    seen: Counter[tuple[Layout | None, int]] = Counter()
    for score, draft in found:
        key = draft.layout, len(draft.arranged.done)
        seen[key] += 1
        if seen[key] <= _NUM_ALIKE or draft.layout is None:
            yield score, draft


def _recomputing_less(judge: Judge, score: Score, draft: Draft, until_s: float) -> tuple[Score, Draft]:
    """Where a stage recomputes all, what `detrain.remat` finds within less memory than keeping all takes, if that is quicker."""
    for stage, how in enumerate(draft.arranged.recompute):
        for share in _SHARES if how == "all" else ():
            if time.perf_counter() > until_s:
                return score, draft
            recompute = (*draft.arranged.recompute[:stage], f"dtr@{share}", *draft.arranged.recompute[stage + 1 :])
            changed = replace(draft.arranged, recompute=recompute)
            try:
                found = judge.score(changed)
            except GraphError:
                continue  # no schedule within so little
            if found < score:
                score, draft = found, replace(draft, arranged=changed)
    return score, draft


def _plan_of(judge: Judge, states: States, draft: Draft, score: Score, seconds: float) -> Plan:
    arranged = draft.arranged
    stages, before = [], 0
    number_of = {bits: number for number, bits in enumerate(states.members)}
    start = 0
    for number, done in enumerate(arranged.done):
        end = number_of.get(done, start) + 1
        stages.append(
            Stage(
                start, end, states.names(done & ~before), len(arranged.devices[number]) // arranged.replication,
                arranged.devices[number], arranged.recompute[number],
            )
        )  # fmt: skip
        before, start = done, end
    loads = judge.pricing.loads(arranged)
    slowest_s = max(load.forward_s + load.backward_s for load in loads)
    return Plan(
        "detrain", tuple(stages), arranged.replication, slowest_s, judge.alone_s / score.sample_s if score.sample_s else 1.0,
        data_parallel_speedup(judge), seconds, judge.workload,
    )  # fmt: skip


def data_parallel_speedup(judge: Judge) -> float:
    """Of one stage on all devices, judged by the same simulator; whether it fits or not."""
    pricing = judge.pricing
    devices = tuple(range(pricing.topology.num_devices))
    everything = (1 << len(pricing.profile.layers)) - 1
    scores: list[float] = []
    for replication in (len(devices), 1):
        try:
            scores.append(judge.score(Arrangement((everything,), (devices,), replication, ("",))).sample_s)
        except GraphError:
            continue
    least_s = min(scores, default=0.0)
    return judge.alone_s / least_s if least_s else 0.0

"""Our own planner: stages by dynamic programming for each layout of the copies, then improved by local search with the simulator.

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
from detrain.pipeline.judge import SYNCHRONOUS, Judge, Score, data_parallel
from detrain.pipeline.layers import Profile
from detrain.pipeline.plan import Plan, Stage, Workload
from detrain.pipeline.planners import partition
from detrain.pipeline.planners.layouts import Layout, blocks, layouts
from detrain.pipeline.planners.refine import Draft, refine
from detrain.pipeline.pricing import Arrangement
from detrain.pipeline.schedules import Schedule
from detrain.pipeline.states import States, of_members
from detrain.pipeline.topology import Topology
from detrain.plans.errors import NoPlanError

#: Places to cut that the dynamic programming looks at; the rest is for the steps behind it.
_MOST_STATES = 96
#: Splits of a layout that the simulator judges.
_NUM_JUDGED = 200
#: Shares of the time: for splits by dynamic programming; for steps, of what is left behind them. The rest is for recomputing less
#: than all, and for what does not fit.
_SPLITTING, _REFINING = 0.5, 0.6
#: Splits of a layout that do not fit, and drafts in all that are made to fit by recomputing a little.
_NUM_OVER = 8
#: Layers of a stage whose recomputation is planned; for each share that takes some 10 ms a layer, and more for more.
_MOST_RECOMPUTED = 450
#: Of what a stage takes beyond its weights, budgets that its recomputation is planned within.
_SHARES = (0.8, 0.6, 0.4, 0.2)
#: Drafts in all that are made better, and of those with the same layout and number of stages.
_NUM_REFINED, _NUM_ALIKE = 60, 10


@dataclass(frozen=True)
class Question:
    """The input of the planner."""

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


class _TooLittleMemoryError(NoPlanError):
    """No draft keeps to the memory; the message says what the nearest one takes."""


def plan(question: Question) -> Plan:
    """The best plan within `question.time_limit_s`.

    If no plan with the micro-batches that are asked for keeps to the memory, smaller ones are tried, each half of the one before,
    and the first that fits is taken: times in proportion to samples flatter micro-batches, the smaller the more. `Plan.note` says
    so. Not for PipeDream's asynchronous schedule, where a micro-batch is what the weights are updated after. Raises `NoPlanError`
    naming the layer that no device can hold, or another reason.
    """
    began_s = time.perf_counter()
    planned = question.profile.to_plan()
    check_layers(planned, question.topology, question.workload.state_factor)
    states = states_of(planned)
    until_s = began_s + question.time_limit_s
    asked = question.micro_batches or (question.workload.micro_batch,)
    smaller = () if question.schedule.name == "1f1b-async" else _halves(min(asked))
    last = (*asked, *smaller)[-1]
    first: _TooLittleMemoryError | None = None
    for sizes in (asked, *((size,) for size in smaller)):
        try:
            score, draft, judge = _search(question, states, sizes, until_s, is_last=sizes[-1] == last)
        except _TooLittleMemoryError as error:
            first, nearest = first or error, error
            continue
        found = _plan_of(judge, states, draft, score, time.perf_counter() - began_s)
        return replace(found, note=_note(asked, first, sizes[0])) if first is not None else found
    if not smaller:
        raise NoPlanError(f"no plan found keeps to the memory; {nearest}; a smaller micro-batch takes less")
    tried = f"{', '.join(map(str, (*asked, *smaller)))} samples"
    raise NoPlanError(f"no plan found keeps to the memory, with micro-batches of {tried}; {nearest}")


def _halves(size: int) -> tuple[int, ...]:
    """Half of it, and half of that, down to 1."""
    return () if size < 2 else (size // 2, *_halves(size // 2))


def _note(asked: Sequence[int], error: _TooLittleMemoryError, taken: int) -> str:
    return (
        f"micro-batches of {taken} samples were taken, because no plan with {', '.join(map(str, asked))} fits: {error}; of "
        f"{min(asked)} halved again and again, {taken} is the largest that fits"
    )


def _search(
    question: Question, states: States, sizes: Sequence[int], until_s: float, *, is_last: bool
) -> tuple[Score, Draft, Judge]:
    """The best draft with micro-batches of one of these sizes. Raises `_TooLittleMemoryError` if none fits, or `NoPlanError`.

    If nothing fits yet after the dynamic programming, and these sizes are not the last, half of the time is kept for others.
    """
    began_s = time.perf_counter()
    coarse = _coarse(states)
    judged: list[tuple[Score, Draft, Judge]] = []
    for number, micro_batch in enumerate(sizes, start=1):
        workload = replace(question.workload, micro_batch=micro_batch)
        judge = Judge(states.profile, question.topology, workload, question.schedule)
        splitting_s = began_s + _SPLITTING * (until_s - began_s) * number / len(sizes)
        drafts = [*_drafts(judge, coarse, question, splitting_s), *_of_rivals(judge, question)]
        judged += [(score, draft, judge) for score, draft in _judged(judge, drafts)]
        if judged and time.perf_counter() > until_s:
            break
    if not judged:
        raise NoPlanError(
            f"no split of {states.profile.name} over {question.topology.num_devices} devices can be simulated{_why(judge, drafts)}"
        )
    if not is_last and all(score.missing_share > 0 for score, _, _ in judged):
        until_s -= max(until_s - time.perf_counter(), 0.0) / 2
    score, draft, judge = _better(states, judged, until_s, is_recomputing=question.is_recomputing)
    if score.missing_share > 0:
        raise _TooLittleMemoryError(_too_little(judge, draft))
    return score, draft, judge


def _better(
    states: States, drafts: list[tuple[Score, Draft, Judge]], until_s: float, *, is_recomputing: bool
) -> tuple[Score, Draft, Judge]:
    """The best draft after local search from the most promising ones; of equal ones the first."""
    drafts.sort(key=lambda draft: draft[0])
    refined = []
    began_s = time.perf_counter()
    refined_s = began_s + _REFINING * (until_s - began_s)
    for _, draft, judge in list(_unlike(drafts))[:_NUM_REFINED]:
        better = refine(judge, states, draft, refined_s - time.perf_counter(), is_recomputing=is_recomputing)
        refined.append((*better, judge))
    best = min(refined, key=lambda draft: draft[0])
    if not is_recomputing:
        return best
    best = (*_recomputing_less(best[2], best[0], best[1], until_s), best[2])
    over = sorted((draft for draft in drafts if draft[0].missing_share > 0), key=lambda draft: draft[0].sample_s)
    for score, draft, judge in over[:_NUM_OVER]:
        if (
            score.sample_s < best[0].sample_s
            and (fitting := _recomputing_more(judge, best[0], draft, until_s)) is not None
        ):
            best = (*fitting, judge)
    return best


def check_layers(profile: Profile, topology: Topology, state_factor: float) -> None:
    """Raises `NoPlanError` naming a layer whose parameters, with gradients and optimizer state, no device can hold."""
    most = max(device.memory_bytes for device in topology.devices)
    what = "with gradients and optimizer state" if state_factor > 1 else "of parameters"
    for layer in profile.layers:
        needed = layer.parameter_bytes * state_factor
        if needed > most:
            raise NoPlanError(
                f"layer {layer.name} ({layer.description}) takes {needed:,.0f} bytes {what}, "
                f"and the largest device has {most:,.0f}"
            )


def _why(judge: Judge, drafts: Sequence[Draft]) -> str:
    """What is said of the first one."""
    for draft in drafts[:1]:
        try:
            judge.score(draft.arranged)
        except GraphError as error:
            return f": {error}"
    return ""


def _too_little(judge: Judge, draft: Draft) -> str:
    timeline = judge.timeline(draft.arranged)
    stage = timeline.over_memory[0]
    devices = draft.arranged.devices[stage]
    return (
        f"the nearest needs {timeline.peak_bytes[stage]:,.0f} bytes on device {devices[0]}, "
        f"which has {judge.pricing.memory_bytes(devices):,.0f}"
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


def _drafts(judge: Judge, states: States, question: Question, until_s: float) -> Iterator[Draft]:
    """The best splits of each layout, as the dynamic programming reckons.

    When the time is up only one copy, and as many as there are devices, are still looked at.
    """
    for layout in layouts(question.topology):
        if layout.replication > judge.workload.batch:
            continue
        is_needed = not layout.order and layout.replication in (1, question.topology.num_devices)
        if not is_needed and time.perf_counter() > until_s:
            continue
        asked = partition.problem(
            judge.pricing, states, blocks(judge.pricing, layout), is_recomputing=question.is_recomputing
        )
        if layout.replication == 1:
            yield from _divided(states, layout)
        limits = partition.few_limits(asked)
        for split in partition.splits(asked, *limits)[:_NUM_JUDGED]:
            yield _draft(states, asked.blocks.ends, layout, split)
        # What does not fit yet may when its cuts move, or when a little is recomputed; or else it says what is missing.
        roomy = replace(asked.blocks, memory_bytes=np.full_like(asked.blocks.memory_bytes, np.inf))
        for split in partition.splits(replace(asked, blocks=roomy), *limits)[:_NUM_OVER]:
            yield _draft(states, asked.blocks.ends, layout, split)
            if question.is_recomputing:
                yield _draft(
                    states, asked.blocks.ends, layout, replace(split, is_recomputed=(True,) * len(split.states))
                )


def _divided(states: States, layout: Layout) -> Iterator[Draft]:
    """All divisions in two: the sum that `partition` makes least is of a synchronous step, and may pass over the best."""
    whole = states.members[-1]
    for done in states.members[:-1]:
        for end in layout.ends()[1:-1]:
            devices = layout.devices(0, end), layout.devices(end, layout.num_positions)
            yield Draft(Arrangement((done, whole), devices, layout.replication, ("", "")), layout)


def _draft(states: States, ends: Sequence[int], layout: Layout, split: partition.Split) -> Draft:
    spans = [(ends[begin], ends[end]) for begin, end in zip(split.begins, split.ends, strict=True)]
    arranged = Arrangement(
        tuple(states.members[state] for state in split.states), tuple(layout.devices(*span) for span in spans), layout.replication,
        tuple("all" if is_all else "" for is_all in split.is_recomputed),
    )  # fmt: skip
    return Draft(arranged, layout)


def _of_rivals(judge: Judge, question: Question) -> Iterator[Draft]:
    for rival in question.rivals:
        arranged = judge.pricing.arrangement(rival)
        # A zero-work stage, as the published planners make them, has no layers of its own.
        kept = [stage for stage, done in enumerate(arranged.done) if done != (arranged.done[stage - 1] if stage else 0)]
        yield Draft(
            replace(
                arranged, done=tuple(arranged.done[stage] for stage in kept),
                devices=tuple(arranged.devices[stage] for stage in kept),
                recompute=tuple(arranged.recompute[stage] if question.is_recomputing else "" for stage in kept),
            ), None,
        )  # fmt: skip


def _judged(judge: Judge, drafts: Iterable[Draft]) -> list[tuple[Score, Draft]]:
    """The best first."""
    scores = {draft: _score(judge, draft) for draft in dict.fromkeys(drafts)}
    return sorted(((score, draft) for draft, score in scores.items() if score is not None), key=lambda pair: pair[0])


def _unlike(drafts: Iterable[tuple[Score, Draft, Judge]]) -> Iterator[tuple[Score, Draft, Judge]]:
    """The best few of each micro-batch, layout and number of stages: local search rarely leads from one of these to another."""
    seen: Counter[tuple[int, Layout | None, int]] = Counter()
    for score, draft, judge in drafts:
        key = judge.workload.micro_batch, draft.layout, len(draft.arranged.done)
        seen[key] += 1
        if seen[key] <= _NUM_ALIKE or draft.layout is None:
            yield score, draft, judge


def _recomputing_less(judge: Judge, score: Score, draft: Draft, until_s: float) -> tuple[Score, Draft]:
    """Replaces full recomputation of a stage by a schedule of `detrain.remat` within a share of its memory, where that is quicker."""
    for stage, how in enumerate(draft.arranged.recompute):
        for share in _SHARES if how == "all" else ():
            if time.perf_counter() > until_s:
                return score, draft
            changed = _recomputing(draft, {stage}, share)
            changed_score = _score(judge, changed)
            if changed_score is not None and changed_score < score:
                score, draft = changed_score, changed
    return score, draft


def _recomputing_more(judge: Judge, best: Score, draft: Draft, until_s: float) -> tuple[Score, Draft] | None:
    """`draft`, which is quicker than the best but does not fit, with as little recomputed as makes it fit; None if that is no quicker."""
    over = set(judge.timeline(draft.arranged).over_memory)
    for share in _SHARES:
        if time.perf_counter() > until_s:
            return None
        changed = _recomputing(draft, over, share)
        changed_score = _score(judge, changed)
        if changed_score is None or changed_score.sample_s >= best.sample_s:
            return None
        if changed_score.missing_share == 0:
            return changed_score, changed
    return None


def _recomputing(draft: Draft, stages: set[int], share: float) -> Draft:
    recompute = (f"dtr@{share}" if stage in stages else how for stage, how in enumerate(draft.arranged.recompute))
    return replace(draft, arranged=replace(draft.arranged, recompute=tuple(recompute)))


def _score(judge: Judge, draft: Draft) -> Score | None:
    """None for what cannot be simulated: too few samples, a schedule that lacks such stages, no recomputation within so little.

    Or not in time: the recomputation of very many layers.
    """
    before = 0
    for done, how in zip(draft.arranged.done, draft.arranged.recompute, strict=True):
        if "@" in how and (done & ~before).bit_count() > _MOST_RECOMPUTED:
            return None
        before = done
    try:
        return judge.score(draft.arranged)
    except GraphError:
        return None


def _plan_of(judge: Judge, states: States, draft: Draft, score: Score, seconds: float) -> Plan:
    arranged = draft.arranged
    if not set(arranged.done) <= set(states.members):
        # A rival has cut elsewhere.
        states = of_members(states.profile, {*states.members, *arranged.done})
    stages, before = [], 0
    number_of = {bits: number for number, bits in enumerate(states.members)}
    start = 0
    for number, done in enumerate(arranged.done):
        end = number_of[done] + 1
        stages.append(
            Stage(
                start, end, states.names(done & ~before), len(arranged.devices[number]) // arranged.replication,
                arranged.devices[number], arranged.recompute[number],
            )
        )  # fmt: skip
        before, start = done, end
    loads = judge.pricing.loads(arranged, judge.schedule(arranged).name)
    slowest_s = max(load.forward_s + load.backward_s for load in loads)
    against = data_parallel(judge)
    return Plan(
        "detrain", tuple(stages), arranged.replication, slowest_s, judge.alone_s / score.sample_s if score.sample_s else 1.0,
        against.speedup if against else 0.0, seconds, judge.workload,
    )  # fmt: skip

"""The tasks of a step and their dependencies, without times: built once, evaluated often.

A task waits for what it works on and for the task before it at the same resource. Resources are the workers; the links, one
for each boundary between stages and direction; and the all-reduces, one for each worker, or stage of an asynchronous schedule.
A link sends first what was made first. Where stages have replicas, a boundary has as many links each way as the side with fewer
of them, and each sends in the order of the mini-batches. The chunks of a device share its links to the next device.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from detrain.errors import GraphError
from detrain.pipeline.paths import Ints, fill_times, sort_tasks
from detrain.pipeline.schedules import (
    Kind,
    Schedule,
    Work,
    drain,
    num_mini_batches,
    orders,
    round_size,
    version_use,
    window,
)

#: Numbers of tasks, stages, micro-batches while the structure is built; `Ints` are what is kept of them.
Longs = NDArray[np.int64]
#: By stage the numbers of the uplinks that its all-reduce goes over.
Fabrics = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False, slots=True)
class Structure:
    """Tasks in an order in which each comes after those that it waits for."""

    schedule: Schedule
    replicas: tuple[int, ...]
    #: By worker the stages that it runs: one, or those of its chunks.
    worker_stages: tuple[tuple[int, ...], ...]
    #: By task. An all-reduce has the number of its round in the place of a micro-batch, and the first of the stage's workers.
    kinds: Ints
    stages: Ints
    micro_batches: Ints
    workers: Ints
    resources: Ints
    #: By task, where its time stands in a table: kind x number of stages + stage.
    slots: Ints
    #: A task waits for `deps[dep_first[task]:dep_first[task + 1]]`.
    dep_first: Ints
    deps: Ints
    #: The tasks of the workers, worker after worker, each in the order in which it does them.
    sequence: Ints
    #: Beside `sequence`: the versions of the weights that the worker has then.
    versions: Ints
    #: Of an asynchronous schedule: two backwards at the first stage, and the steps between them. There no backlog hides the pace.
    first_mark: int
    last_mark: int
    num_steps: int


@lru_cache(maxsize=128)  # the largest take some MB each
def structure(schedule: Schedule, replicas: tuple[int, ...], fabrics: Fabrics = ()) -> Structure:
    """The tasks of a schedule over stages of so many replicas. Raises `GraphError` if it cannot be, or would wait for itself.

    Replicas count in asynchronous schedules only: ones for the others let the same structure serve all.
    """
    if fabrics and len(fabrics) != len(replicas):
        raise GraphError(f"there are fabrics of {len(fabrics)} stages, and {len(replicas)} stages")
    build = _Build(schedule, replicas)
    build.add_work()
    build.add_all_reduces()
    if any(fabrics):
        build.share(fabrics)
    return build.finish()


class _Versions(NamedTuple):
    """By micro-batch, at one stage."""

    #: The version that it uses: how many updates that has had.
    used: Longs
    #: Updates that its forward waits for.
    awaited: Longs
    #: Micro-batches from one update to the next.
    size: int


class _Build:
    """Tasks are numbered kind by kind, stage by stage, micro-batch by micro-batch; then come the all-reduces."""

    def __init__(self, schedule: Schedule, replicas: tuple[int, ...]) -> None:
        self.schedule, self.replicas, self.num_stages = schedule, replicas, len(replicas)
        self.orders = orders(schedule, replicas)
        self.total = num_mini_batches(schedule, replicas) * schedule.num_micro_batches
        self.num_plain = int(Kind.ALL_REDUCE) * self.num_stages * self.total
        self.all_reduces: list[tuple[int, int]] = []  # stage, round
        self.edges: list[tuple[Longs, Longs]] = []  # tasks, and what they wait for
        self.versions = _versions(schedule, replicas, self.total) if schedule.is_asynchronous else []
        self.first_worker = np.concatenate([[0], np.cumsum(replicas)[:-1]])
        work = np.array([task for order in self.orders for task in order], np.int64)
        self.kinds: Longs
        self.micro_batches: Longs
        self.stages: Longs
        self.kinds, self.micro_batches, self.stages = work.T
        self.workers = np.repeat(np.arange(len(self.orders)), [len(order) for order in self.orders])
        self.sequence = self.numbers(self.kinds, self.stages, self.micro_batches)

    def numbers(self, kinds: Longs | int, stages: Longs | int, micro_batches: Longs) -> Longs:
        """Of tasks that are no all-reduces."""
        return np.asarray((kinds * self.num_stages + stages) * self.total + micro_batches, np.int64)

    def grid(self, kind: Kind, begin: int, end: int) -> Longs:
        """All micro-batches of these stages."""
        return self.numbers(int(kind), np.arange(begin, end)[:, None], np.arange(self.total)).ravel()

    def add_work(self) -> None:
        """Activations come from before, gradients from behind; each worker, and each link, does one thing after the other."""
        end, last = self.num_stages, self.num_stages - 1
        self.edges += [
            (self.grid(Kind.SEND, 0, last), self.grid(Kind.FORWARD, 0, last)),
            (self.grid(Kind.FORWARD, 1, end), self.grid(Kind.SEND, 0, last)),
            (self.grid(Kind.BACKWARD, last, end), self.grid(Kind.FORWARD, last, end)),
            (self.grid(Kind.SEND_BACK, 1, end), self.grid(Kind.BACKWARD, 1, end)),
            (self.grid(Kind.BACKWARD, 0, last), self.grid(Kind.SEND_BACK, 1, end)),
        ]
        self.chain(self.sequence, self.workers)
        sent, lanes = self.link(Kind.FORWARD, Kind.SEND)
        sent_back, lanes_back = self.link(Kind.BACKWARD, Kind.SEND_BACK)
        self.sent = np.concatenate([sent, sent_back])
        self.lanes = np.concatenate([lanes, lanes_back + len(self.orders)])
        order = np.argsort(self.lanes, kind="stable")
        self.chain(self.sent[order], self.lanes[order])

    def chain(self, tasks: Longs, resources: Longs) -> None:
        """One after the other at each resource."""
        is_next = resources[1:] == resources[:-1]
        self.edges.append((tasks[1:][is_next], tasks[:-1][is_next]))

    def link(self, kind: Kind, sending: Kind) -> tuple[Longs, Longs]:
        """What is sent of what workers make, what is sent first first, and the number of its link: no more than there are workers."""
        edge, step = (self.num_stages - 1, 1) if sending == Kind.SEND else (0, -1)
        chosen = np.flatnonzero((self.kinds == kind) & (self.stages != edge))
        lanes = self.workers[chosen]
        if self.schedule.is_asynchronous:
            chosen = chosen[np.argsort(self.micro_batches[chosen], kind="stable")]
            replicas, stages = np.array(self.replicas), self.stages[chosen]
            fewer = np.minimum(replicas[stages], replicas[stages + step])
            lanes = self.first_worker[stages] + self.micro_batches[chosen] % fewer
        return self.numbers(int(sending), self.stages[chosen], self.micro_batches[chosen]), lanes

    def add_all_reduces(self) -> None:
        """At the end of a synchronous step, after each round of an asynchronous stage of several replicas."""
        if self.schedule.is_asynchronous:
            for stage, count in enumerate(self.replicas):
                if count > 1:
                    self.add_rounds(stage, count)
            return
        done = Kind.WEIGHT if self.schedule.splits_backward else Kind.BACKWARD
        for stage in reversed(range(self.num_stages)):
            number = self.num_plain + len(self.all_reduces)
            last = np.flatnonzero((self.kinds == done) & (self.stages == stage))[-1]
            self.edges.append((np.array([number]), self.sequence[last : last + 1]))
            if stage + len(self.orders) < self.num_stages:  # the device has reduced its next chunk before
                self.edges.append((np.array([number]), np.array([number - len(self.orders)])))
            self.all_reduces.append((stage, 0))

    def add_rounds(self, stage: int, count: int) -> None:
        """All-reduces of a stage: each waits for the last backward of each worker in its round, forwards wait for them."""
        awaited, size = self.versions[stage].awaited, self.versions[stage].size
        base, num_rounds = self.num_plain + len(self.all_reduces), -(-self.total // size)
        batches = np.arange(self.total)
        last = batches[(batches + count >= self.total) | ((batches + count) // size > batches // size)]
        waits = awaited > 0
        self.edges += [
            (base + last // size, self.numbers(int(Kind.BACKWARD), stage, last)),
            (base + np.arange(1, num_rounds), base + np.arange(num_rounds - 1)),
            (self.numbers(int(Kind.FORWARD), stage, batches[waits]), base + awaited[waits] - 1),
        ]
        self.all_reduces += [(stage, number) for number in range(num_rounds)]

    def share(self, fabrics: Fabrics) -> None:
        """All-reduces over one uplink follow each other, from the last stage to the first.

        In an asynchronous schedule: in the order in which they could begin if all stages kept pace and nothing had to be sent.
        """
        chosen = list(range(len(self.all_reduces)))
        if self.schedule.is_asynchronous:
            ready = self.paced()
            chosen.sort(key=lambda number: (ready[self.all_reduces[number]], -self.all_reduces[number][0]))
        latest: dict[int, int] = {}
        for number in chosen:
            for fabric in set(fabrics[self.all_reduces[number][0]]):
                if fabric in latest:
                    self.edges.append(
                        (np.array([self.num_plain + number]), np.array([self.num_plain + latest[fabric]]))
                    )
                latest[fabric] = number

    def paced(self) -> dict[tuple[int, int], float]:
        """By stage and round, when its all-reduce could begin if a backward took as long as two forwards and all stages kept pace."""
        whole = self.finish()
        table = np.zeros((len(Kind) + 1, self.num_stages))
        table[Kind.FORWARD], table[Kind.BACKWARD] = self.replicas, 2 * np.array(self.replicas)
        starts, ends = np.empty(len(whole.slots)), np.empty(len(whole.slots))
        fill_times(whole.dep_first, whole.deps, whole.slots, table, starts, ends)
        return {
            (int(whole.stages[task]), int(whole.micro_batches[task])): float(starts[task])
            for task in np.flatnonzero(whole.kinds == Kind.ALL_REDUCE)
        }

    def finish(self) -> Structure:
        """The tasks that there are, in an order in which they can be done."""
        num_tasks = self.num_plain + len(self.all_reduces)
        tasks, deps = (np.concatenate([edge[side] for edge in self.edges]) for side in (0, 1))
        users, user_first = _grouped(deps, tasks, num_tasks)
        dep_tasks, dep_first = _grouped(tasks, deps, num_tasks)
        there = np.concatenate([self.sequence, self.sent, np.arange(self.num_plain, num_tasks)])
        order, waiting = np.empty(len(there), np.int32), np.diff(dep_first)
        if sort_tasks(waiting, user_first, users, np.sort(there), order) < len(there):
            kind, stage = divmod(int(np.flatnonzero(waiting)[0]) // self.total, self.num_stages)
            raise GraphError(
                f"{self.schedule.name} would wait for itself (deadlock): the {Kind(kind).name.lower()} of micro-batch "
                f"{np.flatnonzero(waiting)[0] % self.total} at stage {stage} never begins"
            )
        place = np.empty(num_tasks, np.int64)
        place[order] = np.arange(len(order))
        lengths = np.diff(dep_first)[order]
        first = np.concatenate([[0], np.cumsum(lengths)])
        within = np.arange(first[-1]) + np.repeat(dep_first[order] - first[:-1], lengths)
        return self.structure(order.astype(np.int64), place, first, place[dep_tasks[within]])

    def structure(self, order: Longs, place: Longs, dep_first: Longs, deps: Longs) -> Structure:
        """All of it, by the places of the tasks in the order."""
        reduced = np.flatnonzero(order >= self.num_plain)
        kinds, stages = np.divmod(order // self.total, self.num_stages)
        micro_batches = order % self.total
        kinds[reduced] = Kind.ALL_REDUCE
        if len(reduced):
            stages[reduced], micro_batches[reduced] = np.array(self.all_reduces)[order[reduced] - self.num_plain].T
        workers = stages % len(self.orders)
        if self.schedule.is_asynchronous:
            turns = np.where(kinds == Kind.ALL_REDUCE, 0, micro_batches) % np.array(self.replicas)[stages]
            workers = self.first_worker[stages] + turns
        resources = workers.copy()  # then links, then all-reduces
        resources[place[self.sent]] = len(self.orders) + self.lanes
        resources[reduced] += 3 * len(self.orders)
        num_steps, after = 0, 0
        if self.schedule.is_asynchronous:
            num_steps, after = window(self.schedule, self.replicas), drain(self.schedule, self.replicas)
        ends = self.total - 1 - np.array([after + num_steps, after]) * self.schedule.num_micro_batches
        marks = place[self.numbers(int(Kind.BACKWARD), 0, ends)]
        return Structure(
            self.schedule, self.replicas, self.worker_stages(), kinds=_short(kinds), stages=_short(stages),
            micro_batches=_short(micro_batches), workers=_short(workers), resources=_short(resources),
            slots=_short(kinds * self.num_stages + stages), dep_first=_short(dep_first), deps=_short(deps),
            sequence=_short(place[self.sequence]), versions=_short(self.versions_held()),
            first_mark=int(marks[0]), last_mark=int(marks[1]), num_steps=num_steps,
        )  # fmt: skip

    def worker_stages(self) -> tuple[tuple[int, ...], ...]:
        """By worker."""
        if self.schedule.is_asynchronous:
            return tuple((stage,) for stage, count in enumerate(self.replicas) for _ in range(count))
        return tuple(tuple(range(worker, self.num_stages, len(self.orders))) for worker in range(len(self.orders)))

    def versions_held(self) -> Longs:
        """Beside `sequence`."""
        if not self.schedule.is_asynchronous:
            return np.ones(len(self.sequence), np.int64)
        return np.array(
            [held for order in self.orders if order for held in _held(order, self.versions[order[0][2]])], np.int64
        )


def _short(numbers: Longs) -> Ints:
    return np.asarray(numbers, np.int32)


def _grouped(keys: Longs, values: Longs, num_keys: int) -> tuple[Ints, Ints]:
    """Values by their keys, and where those of each key begin."""
    order = np.argsort(keys, kind="stable")
    first = np.searchsorted(keys[order], np.arange(num_keys + 1))
    return _short(values[order]), _short(first)


def _versions(schedule: Schedule, replicas: Sequence[int], total: int) -> list[_Versions]:
    """By stage."""
    batches = np.arange(total)
    return [
        _Versions(*version_use(schedule, replicas, stage, batches), round_size(schedule, replicas, stage))
        for stage in range(len(replicas))
    ]


def _held(order: Sequence[Work], versions: _Versions) -> Iterable[int]:
    """By task of a worker: from the version of the oldest micro-batch that is not done to the newest, which may be in the making."""
    own = [micro_batch for kind, micro_batch, _ in order if kind == Kind.FORWARD]
    done = newest = 0
    for kind, micro_batch, _ in order:
        yield newest - int(versions.used[own[done]]) + 1
        if kind == Kind.BACKWARD:
            done += 1
            if done == len(own) or own[done] // versions.size > micro_batch // versions.size:
                newest = micro_batch // versions.size + 1

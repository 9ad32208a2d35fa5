"""The static order of the work of each worker, by schedule, without times.

- `gpipe` (Huang et al. 2019): all micro-batches forward, then all back, the last first; then the update.
- `1f1b` (DAPPLE: Fan et al. 2021): a stage goes back as soon as it can, and has few micro-batches in flight.
- `interleaved` (Narayanan et al. 2021): the same over several chunks of layers on each device.
- `zb-h1` (Qi et al. 2024): the backward pass makes the gradients of the inputs first, those of the weights where there is room.
- `1f1b-async` (PipeDream: Narayanan et al. 2019): no flush; an update follows each mini-batch, and versions of the weights are stashed.
- `2bw` (PipeDream-2BW: Narayanan et al. 2021): no flush; an update follows M micro-batches, and two versions are enough.

A worker is what does one thing at a time: a stage, or a device that has several; in an asynchronous schedule one replica.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

from detrain.errors import GraphError

NAMES = ("gpipe", "1f1b", "1f1b-async", "2bw", "interleaved", "zb-h1")
WARMUPS = ("pa", "pb")
#: An asynchronous run has no fewer micro-batches and mini-batches; periods up to this long fit into its second half.
_SHORTEST, _FEWEST, _LONGEST_PERIOD = 64, 16, 1024


class Kind(IntEnum):
    """What a task is."""

    FORWARD = 0
    #: In zb-h1 without the gradients of the weights.
    BACKWARD = 1
    #: Of zb-h1: the gradients of the weights.
    WEIGHT = 2
    #: Activations to the next stage.
    SEND = 3
    #: Gradients to the stage before.
    SEND_BACK = 4
    ALL_REDUCE = 5


#: A task of a worker: kind, micro-batch, stage.
Work = tuple[Kind, int, int]


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule and its options. Raises `GraphError` for what cannot be."""

    name: str
    #: M, of one step. 1f1b-async has no micro-batches: 1.
    num_micro_batches: int = 1
    #: Of layers on each device; interleaved alone has more than one.
    chunks: int = 1
    #: In flight at stage i of S in 1f1b: `pa` is min(S - i, M), `pb` is min(2 (S - i) - 1, M), which hides more of what is sent.
    warmup: str = "pa"
    #: Of 1f1b-async: a mini-batch uses at every stage the version that the first stage had when it began.
    vertical_sync: bool = False
    #: That an asynchronous schedule is simulated for; 0 are enough for a steady state.
    num_mini_batches: int = 0
    #: Of 1f1b-async, by stage: forwards of a worker before its first backward, in the place of PipeDream's rule.
    depths: tuple[int, ...] = ()
    #: Of 1f1b-async, for stages of several replicas: rounds that an update may come late. 0: the next forward waits for the
    #: all-reduce, as in PipeDream's runtime. 1: the all-reduce goes on beside a round of compute, for one more version.
    update_delay: int = 1

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise GraphError(f"there is no schedule {self.name}: it is one of {', '.join(NAMES)}")
        if self.num_micro_batches < 1:
            raise GraphError(f"{self.name} has at least one micro-batch, not {self.num_micro_batches}")
        if self.name == "1f1b-async" and self.num_micro_batches != 1:
            raise GraphError(
                f"1f1b-async updates after each mini-batch: it has 1 micro-batch, not {self.num_micro_batches}"
            )
        if (self.chunks < 2) if self.name == "interleaved" else (self.chunks != 1):
            count = "two chunks or more" if self.name == "interleaved" else "one chunk"
            raise GraphError(f"{self.name} has {count} a device, not {self.chunks}")
        if self.warmup not in WARMUPS:
            raise GraphError(f"there is no warm-up {self.warmup}: it is one of {', '.join(WARMUPS)}")
        if self.warmup != "pa" and self.name != "1f1b":
            raise GraphError(f"the warm-up {self.warmup} is an option of 1f1b, not of {self.name}")
        self._check_asynchronous()

    def _check_asynchronous(self) -> None:
        for option, is_set in (("vertical_sync", self.vertical_sync), ("depths", bool(self.depths))):
            if is_set and self.name != "1f1b-async":
                raise GraphError(f"{option} is an option of 1f1b-async, not of {self.name}")
        if self.num_mini_batches < 0:
            raise GraphError(
                f"{self.num_mini_batches} mini-batches cannot be simulated; 0 are enough for a steady state"
            )
        if self.depths and min(self.depths) < 0:
            raise GraphError(
                f"stage {self.depths.index(min(self.depths))} has a depth of {min(self.depths)}, below zero"
            )
        if self.update_delay not in (0, 1):
            raise GraphError(f"an update comes 0 or 1 rounds late, not {self.update_delay}")

    @property
    def is_asynchronous(self) -> bool:
        """True if steps follow each other without a flush."""
        return self.name in ("1f1b-async", "2bw")

    @property
    def splits_backward(self) -> bool:
        """True if the gradients of the weights are tasks of their own."""
        return self.name == "zb-h1"

    def check(self, replicas: Sequence[int]) -> None:
        """Raises `GraphError` if stages with these numbers of replicas cannot be run under this schedule."""
        if not replicas:
            raise GraphError("a pipeline has at least one stage")
        for stage, count in enumerate(replicas):
            if count < 1:
                raise GraphError(f"stage {stage} has {count} replicas")
        if self.name == "interleaved":
            if len(replicas) % self.chunks:
                raise GraphError(
                    f"interleaved: {len(replicas)} stages are not divisible by {self.chunks} chunks a device"
                )
            devices = len(replicas) // self.chunks
            if self.num_micro_batches % devices:
                raise GraphError(
                    f"interleaved: {self.num_micro_batches} micro-batches are not divisible by {devices} devices"
                )
        if self.depths and len(self.depths) != len(replicas):
            raise GraphError(f"there are depths of {len(self.depths)} stages, and {len(replicas)} stages")
        if self.num_mini_batches and self.num_mini_batches < drain(self, replicas) + 2:
            raise GraphError(
                f"{self.name}: a steady state of this pipeline shows after {drain(self, replicas) + 2} mini-batches or more, "
                f"not {self.num_mini_batches}; 0 are enough"
            )
        if self.name == "2bw":
            # A forward that needs an update would stand before a backward that the update waits for.
            least = max((held - 1) * count for held, count in zip(in_flight(self, replicas), replicas, strict=True))
            if self.num_micro_batches < least:
                raise GraphError(
                    f"2bw: two versions are not enough for updates after {self.num_micro_batches} micro-batches; "
                    f"this pipeline needs {least} or more"
                )


def in_flight(schedule: Schedule, replicas: Sequence[int]) -> tuple[int, ...]:
    """By stage, the most micro-batches of which a worker has begun the forward and not ended the backward pass.

    Interleaved: by device, over all its chunks. For zb-h1 this does not count those that only their W is left of: with them
    there are up to min(S, M) at each stage, which is what 1f1b has at the first.
    """
    micro_batches, count = schedule.num_micro_batches, len(replicas)
    if schedule.name == "gpipe":
        return (micro_batches,) * count
    if schedule.name == "interleaved":
        devices = count // schedule.chunks
        total = micro_batches * schedule.chunks
        return tuple(
            min(2 * (devices - device - 1) + (schedule.chunks - 1) * devices + 1, total) for device in range(devices)
        )
    if schedule.is_asynchronous:
        return tuple(
            1 + (schedule.depths[stage] if schedule.depths else (sum(replicas[stage:]) - 1) // replicas[stage])
            for stage in range(count)
        )
    if schedule.warmup == "pb":
        return tuple(min(2 * (count - stage) - 1, micro_batches) for stage in range(count))
    return tuple(min(count - stage, micro_batches) for stage in range(count))


def period(schedule: Schedule, replicas: Sequence[int]) -> int:
    """Mini-batches after which each replica's turn comes again at the same place of a mini-batch."""
    turns = math.lcm(*replicas)
    return turns // math.gcd(turns, schedule.num_micro_batches)


def drain(schedule: Schedule, replicas: Sequence[int]) -> int:
    """Mini-batches at the end of an asynchronous run that those behind them would hold up, if there were any."""
    ahead = max((held - 1) * count for held, count in zip(in_flight(schedule, replicas), replicas, strict=True))
    return math.ceil(ahead / schedule.num_micro_batches)


def num_mini_batches(schedule: Schedule, replicas: Sequence[int]) -> int:
    """The mini-batches to simulate; 1 for a synchronous schedule."""
    if not schedule.is_asynchronous:
        return 1
    if schedule.num_mini_batches:
        return schedule.num_mini_batches
    half = min(period(schedule, replicas), _LONGEST_PERIOD)
    wanted = max(_SHORTEST, 8 * sum(replicas)) / schedule.num_micro_batches
    return 2 * half * math.ceil(max(wanted, _FEWEST) / (2 * half)) + drain(schedule, replicas)


def window(schedule: Schedule, replicas: Sequence[int]) -> int:
    """Mini-batches whose mean is the steady state: the second half of those before the drain, in whole periods if there is one."""
    half = (num_mini_batches(schedule, replicas) - drain(schedule, replicas)) // 2
    turn = period(schedule, replicas)
    return half // turn * turn or half


class VersionUse(NamedTuple):
    """By micro-batch, at one stage of an asynchronous schedule; numbers, or arrays of them."""

    #: The version of the weights that it uses: how many updates that has had.
    used: Any
    #: Updates that its forward waits for.
    awaited: Any


def round_size(schedule: Schedule, replicas: Sequence[int], stage: int) -> int:
    """Micro-batches from one update of a stage to the next, under an asynchronous schedule."""
    return schedule.num_micro_batches if schedule.name == "2bw" else replicas[stage]


class Done(NamedTuple):
    """How many micro-batches a worker of an asynchronous schedule has had."""

    forwards: int
    backwards: int


def num_done(schedule: Schedule, replicas: Sequence[int], stage: int, turn: int, num_mini_batches: int) -> Done:
    """What the worker with this turn among the replicas of a stage has done when so many mini-batches have come, and no more can."""
    forwards = len(range(turn, num_mini_batches * schedule.num_micro_batches, replicas[stage]))
    return Done(forwards, max(forwards - in_flight(schedule, replicas)[stage] + 1, 0))


def version_use(schedule: Schedule, replicas: Sequence[int], stage: int, micro_batches: Any) -> VersionUse:
    """The weights that forward and backward pass of micro-batches use at a stage. `micro_batches`: one, or an array.

    PipeDream: a worker's forward comes after as many updates as rounds have gone back through before it. 2BW: micro-batches of step
    t use the version before the last. Vertical sync: the newest that has no gradients which the first stage did not yet have.
    """
    if schedule.name == "2bw":
        used = np.maximum(micro_batches // schedule.num_micro_batches - 1, 0)
        return VersionUse(used, used)

    def stashed(at: int) -> Any:
        late = in_flight(schedule, replicas)[at] - 1 + (schedule.update_delay if replicas[at] > 1 else 0)
        return np.maximum(micro_batches // replicas[at] - late, 0)

    own = stashed(stage)
    used = stashed(0) * replicas[0] // replicas[stage] if schedule.vertical_sync and stage else own
    return VersionUse(used, np.maximum(used, own))


def orders(schedule: Schedule, replicas: Sequence[int]) -> list[list[Work]]:
    """What each worker does, in this order. Asynchronous workers: the replicas of the first stage, those of the second, and so on."""
    schedule.check(replicas)
    held, count, micro_batches = in_flight(schedule, replicas), len(replicas), schedule.num_micro_batches
    if schedule.name == "interleaved":
        devices = count // schedule.chunks
        return [_interleaved(schedule, device, devices, held[device]) for device in range(devices)]
    if schedule.is_asynchronous:
        total = num_mini_batches(schedule, replicas) * micro_batches
        return [
            _one_by_one(dealt, dealt, held[stage])
            for stage, dealt_to in enumerate(replicas)
            for dealt in (
                [(micro_batch, stage) for micro_batch in range(first, total, dealt_to)] for first in range(dealt_to)
            )
        ]
    by_worker = []
    for stage in range(count):
        forwards = [(micro_batch, stage) for micro_batch in range(micro_batches)]
        backwards = forwards[::-1] if schedule.name == "gpipe" else forwards
        done = _one_by_one(forwards, backwards, held[stage])
        by_worker.append(list(_with_weights(done, stage)) if schedule.splits_backward else done)
    return by_worker


def check_goes_on(schedule: Schedule, replicas: Sequence[int]) -> None:
    """Raises `GraphError` where the orders of an asynchronous schedule (its `depths`) have every worker wait for another."""
    waiting = [deque(order) for order in orders(schedule, replicas)]
    done: set[Work] = set()

    def can_be_done(work: Work) -> bool:
        kind, micro_batch, stage = work
        if kind == Kind.BACKWARD:
            return stage == len(replicas) - 1 or (kind, micro_batch, stage + 1) in done
        behind = version_use(schedule, replicas, stage, micro_batch).awaited * round_size(schedule, replicas, stage)
        has_weights = all((Kind.BACKWARD, earlier, stage) in done for earlier in range(behind))
        return has_weights and (not stage or (kind, micro_batch, stage - 1) in done)

    while any(waiting):
        before = len(done)
        for order in waiting:
            while order and can_be_done(order[0]):
                done.add(order.popleft())
        if len(done) == before:
            raise GraphError(f"{schedule.name}: with depths of {list(schedule.depths)} every worker waits for another")


def _one_by_one(forwards: Sequence[tuple[int, int]], backwards: Sequence[tuple[int, int]], held: int) -> list[Work]:
    """So many forwards, then backwards and forwards in turn as long as there are any."""
    done = [(Kind.FORWARD, *work) for work in forwards[:held]]
    for number, work in enumerate(backwards):
        done.append((Kind.BACKWARD, *work))
        done += [(Kind.FORWARD, *following) for following in forwards[number + held : number + held + 1]]
    return done


def _interleaved(schedule: Schedule, device: int, devices: int, held: int) -> list[Work]:
    """Groups of as many micro-batches as there are devices go through all chunks, group after group."""

    def through(chunks: Iterable[int]) -> list[tuple[int, int]]:
        chunks = list(chunks)
        return [
            (first + offset, chunk * devices + device)
            for first in range(0, schedule.num_micro_batches, devices)
            for chunk in chunks
            for offset in range(devices)
        ]

    return _one_by_one(through(range(schedule.chunks)), through(reversed(range(schedule.chunks))), held)


def _with_weights(done: Iterable[Work], stage: int) -> Iterable[Work]:
    """Stage i puts off the W of i micro-batches: those before it get their gradients the sooner."""
    owed: list[Work] = []
    for kind, micro_batch, _ in done:
        yield kind, micro_batch, stage
        if kind == Kind.BACKWARD:
            owed.append((Kind.WEIGHT, micro_batch, stage))
            if len(owed) > stage:
                yield owed.pop(0)
    yield from owed

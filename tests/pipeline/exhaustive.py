"""Costs as the formulas have them, and the least of all splits of a small profile, by trying every one.

States are sets of layers as bits. Nothing of the package's own states, tables or prices is used, only `Profile` and `Topology`.
"""

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import product


def everything(profile):
    return (1 << len(profile.layers)) - 1


def members(bits):
    return [number for number in range(bits.bit_length()) if bits >> number & 1]


def ideals(profile):
    """All sets that have, with each layer, those before it; the smaller first, without the empty one."""
    before = [
        sum(1 << begin for begin in {begin for begin, at in profile.edges if at == end})
        for end in range(len(profile.layers))
    ]
    found = [
        bits for bits in range(1, 1 << len(profile.layers)) if all(before[one] & ~bits == 0 for one in members(bits))
    ]
    return sorted(found, key=lambda bits: (bits.bit_count(), bits))


def crossing_bytes(profile, bits):
    """Outputs of layers of the set that one outside takes."""
    crossing = {begin for begin, end in profile.edges if bits >> begin & 1 and not bits >> end & 1}
    return sum(sum(profile.layers[one].output_bytes) for one in crossing)


def augmented_bytes(profile, bits):
    """The same as PipeDream counts it: of the last layers, and of those before one of them that also lead past that one."""
    before = all_before(profile.edges, len(profile.layers))
    last = [one for one in members(bits) if not any(before[other] >> one & 1 for other in members(bits))]
    extra = {
        begin for one in last for begin, end in profile.edges if before[one] >> begin & 1 and not before[one] >> end & 1 and end != one
    }  # fmt: skip
    return sum(sum(profile.layers[one].output_bytes) for one in {*last, *extra})


@cache
def all_before(edges, num_layers):
    """By layer the set of those before it."""
    before = [0] * num_layers
    for _ in before:
        for begin, end in edges:
            before[end] |= before[begin] | 1 << begin
    return tuple(before)


@dataclass(frozen=True)
class Level:
    """Machines of a PipeDream level and what lies between them, in `Options`' words."""

    machines: int
    bandwidth: float
    compression_ratio: float | None = None
    memory_bytes: float = math.inf
    is_straight: bool = False
    uses_fewer_machines: bool = False
    is_compat: bool = False


class PipeDream:
    """The published cost. `below` are the levels inside, the innermost first; where there are none, machines are devices."""

    def __init__(self, profile, states, level, below=()):
        self.profile, self.states, self.level = profile, states, level
        self.within = below[-1].machines if below else 1
        self.inner = PipeDream(profile, states, below[-1], below[:-1]) if below else None
        self.output_bytes = {
            state: (augmented_bytes if level.is_compat else crossing_bytes)(profile, state) for state in states
        }
        self.least_s = lru_cache(maxsize=None)(self.least_of_all_s)
        self.sums = lru_cache(maxsize=None)(self.sums_of)
        self.beyond = {
            done: [state for state in states if state != done and done & ~state == 0] for done in (0, *states)
        }

    def sums_of(self, layers):
        """Seconds, bytes of parameters, bytes of outputs."""
        found = [self.profile.layers[one] for one in members(layers)]
        return (
            sum(one.forward_ms + one.backward_ms for one in found) / 1000, sum(one.parameter_bytes for one in found),
            sum(sum(one.output_bytes) for one in found),
        )  # fmt: skip

    def stage_s(self, start, end, machines, behind, is_first):
        """One stage, with what it takes in and gives out; infinite if it does not fit, with so many machines behind it."""
        level = self.level
        alone_s, parameter_bytes, output_bytes = self.sums(end & ~start)
        # Those under way here and not yet through; as published, the one that is worked on does not count.
        stashed = math.ceil(behind / machines) + (0 if level.is_compat else 1)
        if stashed * (parameter_bytes + output_bytes) > level.memory_bytes:
            return math.inf
        if self.inner:  # a machine is a group, at its best
            alone_s = self.inner.least_s(start, end)
        reduced_s = 4 * (machines - 1) * parameter_bytes / (level.bandwidth * machines)
        if is_first:
            return (alone_s + reduced_s / self.within) / machines
        sent = [state for state in (start, end) if level.compression_ratio is not None and state != self.states[-1]]
        sent_bytes = max((2 * self.output_bytes[state] / (level.compression_ratio or 1) for state in sent), default=0)
        return max((alone_s + reduced_s) / machines, sent_bytes / (level.bandwidth * machines))

    def least_of_all_s(self, start=0, end=None):
        """Of all splits of these layers on all machines of the level."""
        end, best_s = self.states[-1] if end is None else end, math.inf
        open_splits = [(start, self.level.machines, 0.0)]  # what is done, machines that are left, the slowest so far
        while open_splits:
            done, left, slowest_s = open_splits.pop()
            if done == end and left == 0:
                best_s = min(best_s, slowest_s)
            # As published, the first state alone has no machines without work.
            is_idling = self.level.uses_fewer_machines and not (self.level.is_compat and done == self.states[0])
            if is_idling and left and done != start:
                open_splits.append((done, left - 1, slowest_s))
            for state in self.beyond[done]:
                if state & ~end:
                    continue
                for machines in range(1, 1 + min(left, 1 if self.level.is_straight else left)):
                    taken_s = max(slowest_s, self.stage_s(done, state, machines, left - machines, done == start))
                    if taken_s < best_s:
                        open_splits.append((state, left - machines, taken_s))
        return best_s


def shares(topology, devices, micro_batch):
    """Whole samples so that the last device ends first: its samples over its speed, and the most on one."""
    return min(
        (max(count / topology.devices[one].speed for count, one in zip(counts, devices, strict=True)), max(counts))
        for counts in product(range(micro_batch + 1), repeat=len(devices))
        if sum(counts) == micro_batch
    )


class Partition:
    """The least of `partition`'s sum for one layout, from the topology itself, and from how samples are dealt to devices."""

    def __init__(self, profile, topology, workload, layout, states, samples, *, is_recomputing=True):
        self.profile, self.topology, self.workload, self.layout = profile, topology, workload, layout
        self.states, self.samples, self.is_recomputing = states, samples, is_recomputing
        share = math.ceil(workload.batch / layout.replication)
        self.count = math.ceil(share / workload.micro_batch)
        self.size = math.ceil(share / self.count)
        self.stage = lru_cache(maxsize=None)(self.stage_of)
        self.sent_s = lru_cache(maxsize=None)(self.sent_of)

    def devices(self, begin, end):
        places = [
            [
                position * self.layout.replication + copy if self.layout.has_stages_together
                else copy * self.layout.num_positions + position
                for position in range(begin, end)
            ]
            for copy in range(self.layout.replication)
        ]  # fmt: skip
        order = self.layout.order or range(len(self.topology.devices))
        return [[order[place] for place in copy] for copy in places]

    def stage_of(self, start, end, block, held):
        """Seconds of one micro-batch and of the all-reduce; None if it does not fit, with so many micro-batches under way."""
        layers = [self.profile.layers[one] for one in members(end & ~start)]
        batch, copies = self.workload.profile_batch, self.devices(*block)
        dealt = [self.samples(tuple(copy), self.size) for copy in copies]
        longest, most = max(one[0] for one in dealt), max(one[1] for one in dealt)
        forward_s, backward_s = (
            sum(getattr(one, which) for one in layers) / 1000 / batch * longest
            for which in ("forward_ms", "backward_ms")
        )
        size, kept = (
            sum(one.parameter_bytes for one in layers),
            sum(sum(one.output_bytes) for one in layers) / batch * most,
        )
        taken_in = crossing_bytes(self.profile, start) / batch * most
        room = min(self.topology.devices[one].memory_bytes for copy in copies for one in copy)
        reduced_s = self.topology.all_reduce_s([one for copy in copies for one in copy], size) if size else 0.0
        state = size * self.workload.state_factor
        found = [(forward_s + backward_s, reduced_s, False)] if state + held * (taken_in + kept) <= room else []
        if self.is_recomputing and state + held * taken_in + kept <= room:
            found.append((2 * forward_s + backward_s, reduced_s, True))
        return min(found, default=None)

    def sent_of(self, done, senders, receivers):
        size = crossing_bytes(self.profile, done) / self.workload.profile_batch * self.size
        pairs = list(zip(self.devices(*senders), self.devices(*receivers), strict=True))
        return self.topology.transfer_s(pairs, size) if size else 0.0

    def plans(self, done=0, begin=0):
        """All rows of stages behind these layers on positions from `begin` on: (state, block) each."""
        for state in self.states:
            if state != done and done & ~state == 0:
                for end in range(begin + 1, self.layout.num_positions + 1):
                    if state == self.states[-1]:
                        yield [(state, (begin, end))]
                    elif end < self.layout.num_positions:
                        for rest in self.plans(state, end):
                            yield [(state, (begin, end)), *rest]

    def step_s(self, plan):
        """The sum, its slowest part and its longest all-reduce; None if it does not fit."""
        slowest_s = sum_s = longest_s = 0.0
        before = 0
        for place, (state, block) in enumerate(plan):
            found = self.stage(before, state, block, min(len(plan) - place, self.count))
            if found is None:
                return None
            taken_s, reduced_s, _ = found
            sent_s = self.sent_s(state, block, plan[place + 1][1]) if place + 1 < len(plan) else 0.0
            slowest_s, sum_s, longest_s = (
                max(slowest_s, taken_s, sent_s),
                sum_s + taken_s + 2 * sent_s,
                max(longest_s, reduced_s),
            )
            before = state
        return (self.count - 1) * slowest_s + sum_s + longest_s, slowest_s, longest_s

    def least(self):
        """Of all plans that fit; None if none does."""
        return min((found for found in map(self.step_s, self.plans()) if found is not None), default=None)

"""Improves a schedule within its budget: what is computed again is kept instead, where there is memory for it in between."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from detrain.remat.graph import Graph
from detrain.remat.schedule import Action, Schedule, freeing_early
from detrain.remat.simulator import Outcome, simulate


def polish(graph: Graph, schedule: Schedule, budget_bytes: int) -> tuple[Schedule, Outcome]:
    """A schedule of the same order with fewer operators done again, and its outcome; never a slower one.

    A policy that goes from one moment to the next throws away what it will soon need, while memory lies idle later. Seen
    from the end, of every time that an operator is done again it can be asked: would there have been room for what it
    makes since that was used last? Those that save most time for the memory that they take are asked first.
    """
    best, outcome = schedule, simulate(graph, schedule, budget_bytes)
    order = [step.target for step in schedule.steps if step.action == Action.COMPUTE]
    while not outcome.failure:
        order = without_useless(graph, order)
        changed = freeing_early(graph, order, schedule.planner, schedule.budget_bytes)
        new = simulate(graph, changed, budget_bytes)
        if new.failure or (new.clock_ns >= outcome.clock_ns and best is not schedule):
            break
        if new.clock_ns <= outcome.clock_ns:
            best, outcome = changed, new
        order = _Timeline(graph, changed).without_what_has_room(budget_bytes)
    return best, outcome


def without_useless(graph: Graph, order: Sequence[int]) -> list[int]:
    """The order without repetitions whose outputs are not read before they are computed once more."""
    asked, left = set(graph.outputs), []
    first = {number: place for place, number in reversed(list(enumerate(order)))}
    for place in reversed(range(len(order))):
        number = order[place]
        operator = graph.operators[number]
        if place != first[number] and asked.isdisjoint(operator.outputs):
            continue
        left.append(number)
        asked.difference_update(operator.outputs)
        asked.update(operator.inputs)
    return left[::-1]


class _Timeline:
    """When storages are in memory, by the places of the operators that are done."""

    def __init__(self, graph: Graph, schedule: Schedule) -> None:
        self._graph = graph
        self._order = [step.target for step in schedule.steps if step.action == Action.COMPUTE]
        self._peaks = np.zeros(len(self._order), np.int64)
        #: By place and base: the place behind which the storage went before it was made again there.
        self._gone_since: dict[tuple[int, int], int] = {}
        self._follow(schedule)
        self._asked = self._asked_for()

    def without_what_has_room(self, budget_bytes: int) -> list[int]:
        """The order without what can be kept, as far as there is room."""
        room = budget_bytes - self._peaks
        gone: set[int] = set()
        for place, since in sorted(self._again(), key=self._rank):
            size_bytes = self._size_bytes(place)
            if room[since : place + 1].min(initial=size_bytes) >= size_bytes:
                room[since : place + 1] -= size_bytes
                gone.add(place)
        return [number for place, number in enumerate(self._order) if place not in gone]

    def _follow(self, schedule: Schedule) -> None:
        tensors, place, used_bytes = self._graph.tensors, -1, 0
        freed: dict[int, int] = {}
        there: set[int] = set()
        for step in schedule.steps:
            if step.action == Action.FREE:
                used_bytes -= tensors[step.target].size_bytes
                there.discard(step.target)
                freed[step.target] = place
                continue
            place += 1
            outputs = self._graph.operators[step.target].outputs
            self._peaks[place] = used_bytes + sum(tensors[output].size_bytes for output in outputs)
            for output in outputs:
                if tensors[output].base == output and output not in there:
                    there.add(output)
                    used_bytes += tensors[output].size_bytes
                    if output in freed:
                        self._gone_since[place, output] = freed[output]

    def _asked_for(self) -> list[tuple[int, ...]]:
        """By place: the outputs that something asks for before they are made again."""
        asked, by_place = set(self._graph.outputs), []
        for number in reversed(self._order):
            operator = self._graph.operators[number]
            by_place.append(tuple(output for output in operator.outputs if output in asked))
            asked.difference_update(operator.outputs)
            asked.update(operator.inputs)
        return by_place[::-1]

    def _again(self) -> list[tuple[int, int]]:
        """Places where storages are made again, and since when these would have to be kept. Views come and go with what they look into."""
        repeats, done = [], set()
        for place, number in enumerate(self._order):
            if number in done:
                since = [self._gone_since.get((place, base)) for base in self._asked[place]]
                known = [gone_at for gone_at in since if gone_at is not None]
                if known and len(known) == len(since):
                    repeats.append((place, min(known) + 1))
            done.add(number)
        return repeats

    def _size_bytes(self, place: int) -> int:
        return sum(self._graph.tensors[tensor].size_bytes for tensor in self._asked[place])

    def _rank(self, again: tuple[int, int]) -> tuple[float, int]:
        place, since = again
        cost_ns = self._graph.operators[self._order[place]].cost_ns
        return -cost_ns / (max(self._size_bytes(place), 1) * (place - since + 1)), place

"""What one training step has done, in order, and the operator graph of it (`detrain.remat.graph`).

A piece of memory is known by its storage, which has a number, and ends when that does, whoever held it: a variable of the script, or
autograd. What looks into a storage of an input is an alias of it; what is changed in place is a new version of the tensor in the same
memory.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from detrain.errors import GraphError
from detrain.remat.graph import Graph, GraphBuilder

#: Where a tensor lies in its storage: offset, sizes, strides, dtype, and what else tells it from another there.
View = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Result:
    """A tensor that a call returns."""

    storage: int
    view: View
    #: Of the storage, where the call has made that; else 0.
    size_bytes: int
    is_fresh: bool


@dataclass(slots=True)
class TracedCall:
    """One operator that ran."""

    name: str
    #: Storages that it was given, by number, and where in them.
    inputs: list[tuple[int, View]]
    results: list[Result]
    #: Storages of inputs that it has changed.
    changed: list[int]
    is_backward: bool
    is_random: bool
    took_ns: int

    def is_like(self, other: TracedCall) -> bool:
        """True if another step has made the same call at this place, with whatever storages."""
        return (
            self.name == other.name
            and [view for _, view in self.inputs] == [view for _, view in other.inputs]
            and [(one.view, one.size_bytes, one.is_fresh) for one in self.results]
            == [(one.view, one.size_bytes, one.is_fresh) for one in other.results]
        )


@dataclass(slots=True)
class Trace:
    """One step."""

    #: Sizes of the storages that are there when it begins, as far as that is known, in bytes.
    there: dict[int, int] = field(default_factory=dict)
    #: Calls, and numbers of storages that have ended.
    events: list[TracedCall | int] = field(default_factory=list)
    #: Sizes of those that its calls are given, and were there before it, in bytes.
    constants: dict[int, int] = field(default_factory=dict)
    calls: list[TracedCall] = field(default_factory=list)
    #: Storages that its calls have made.
    made: set[int] = field(default_factory=set)
    #: Storages that are there when it ends.
    held: set[int] = field(default_factory=set)

    def read(self, storage: int, size_bytes: int) -> None:
        """A call is given a storage."""
        if storage not in self.made and storage not in self.constants:
            self.constants[storage] = size_bytes

    def call(self, call: TracedCall) -> None:
        """A call has ended. What it was given may have ended in it (`set_`), which then comes behind it."""
        given = {storage for storage, _ in call.inputs}
        ended: list[int] = []
        while self.events and isinstance(last := self.events[-1], int):
            ended.append(last)
            self.events.pop()
        self.events += [one for one in reversed(ended) if one not in given]
        self.events.append(call)
        self.events += [one for one in reversed(ended) if one in given]
        self.calls.append(call)
        self.made.update(one.storage for one in call.results if one.is_fresh)

    def is_like(self, other: Trace) -> bool:
        """True if both do the same."""
        return len(self.calls) == len(other.calls) and all(map(TracedCall.is_like, self.calls, other.calls))


def call_traced(
    func: Any, inputs: list[tuple[int, View]], results: list[Result], changed: Iterable[int], took_ns: int
) -> TracedCall:
    """A call of an operator that has just ended."""
    return TracedCall(
        f"{func.namespace}::{func.overloadpacket.__name__}", inputs, results, list(changed),
        torch._C._current_autograd_node() is not None, torch.Tag.nondeterministic_seeded in func.tags, took_ns,
    )  # fmt: skip


def graph_of(traces: Sequence[Trace], names: Mapping[int, str] | None = None) -> Graph:
    """The graph of the last of these steps, which do the same, with the median times of their operators.

    `names`: of storages that were there before the step. Raises `GraphError` where nothing ran.
    """
    if not traces or not traces[-1].calls:
        raise GraphError("no operator of PyTorch's ran in the step")
    times_ns = [
        round(statistics.median(call.took_ns for call in calls))
        for calls in zip(*(one.calls for one in traces), strict=True)
    ]
    return _Building(traces[-1], names or {}).graph(times_ns)


class _Building:
    """Makes the graph of a step."""

    def __init__(self, trace: Trace, names: Mapping[int, str]) -> None:
        self._trace = trace
        self._builder = GraphBuilder()
        #: By storage: its present tensors, by where they lie; the first is what has the memory.
        self._there: dict[int, dict[View | None, int]] = {}
        self._taken: set[str] = set()
        self._num_tensors = self._gone_before_bytes = 0
        for number, size_bytes in sorted({**trace.constants, **self._let_go()}.items()):
            name = _free(names.get(number, f"constant{number}"), self._taken)
            self._there[number] = {None: self._builder.constant(name, size_bytes)}

        rest_bytes = sum(size for number, size in trace.there.items() if number not in self._there)
        if rest_bytes > self._gone_before_bytes:
            self._builder.constant(_free("unread", self._taken), rest_bytes - self._gone_before_bytes)

    def _let_go(self) -> dict[int, int]:
        """What no call is given and the program lets go of in the step: gradients of the step before, say."""
        events, there = self._trace.events, self._trace.there
        first = next((place for place, event in enumerate(events) if not isinstance(event, int)), len(events))
        unread = [event for event in events if isinstance(event, int) and event not in self._trace.constants]
        num_before = sum(event not in self._trace.constants for event in events[:first])
        self._gone_before_bytes = sum(there.get(number, 0) for number in unread[:num_before])
        return {number: there[number] for number in unread[num_before:] if number in there}

    def graph(self, times_ns: Iterable[int]) -> Graph:
        """`times_ns`: of each call."""
        times = iter(times_ns)
        for event in self._trace.events:
            if isinstance(event, int):
                for tensor in reversed(list(dict.fromkeys(self._there.pop(event, {}).values()))):
                    self._builder.release(tensor)
            else:
                self._add(event, next(times))
        held = [tensors[None] for number, tensors in self._there.items() if number in self._trace.held]
        return self._builder.build([tensor for tensor in held if not self._builder.is_constant(tensor)])

    def _add(self, call: TracedCall, cost_ns: int) -> None:
        storages = [storage for storage, _ in call.inputs]
        outputs: list[tuple[str, int, int]] = []
        places: list[tuple[int, View | None]] = []
        fresh: set[int] = set()
        for one in call.results:
            if one.storage in call.changed:
                continue  # what an operator in place returns is its argument
            if one.storage in fresh:
                continue  # a second tensor in memory that this operator has made
            if one.is_fresh:
                fresh.add(one.storage)
            elif one.storage not in storages:
                continue  # of an earlier one, which it was not given: kept by the operator itself
            outputs.append((self._named(), one.size_bytes, -1 if one.is_fresh else storages.index(one.storage)))
            places.append((one.storage, one.view))
        mutates = []
        for storage in dict.fromkeys(call.changed):
            position = storages.index(storage)
            mutates.append(position)
            outputs.append((self._named(), 0, position))
            places.append((storage, None))
        if not outputs:  # a number that is read (`item`), a collective
            outputs.append((self._named(), 0, -1))
        inputs = [self._tensor_of(storage, view) for storage, view in call.inputs]
        made = self._builder.compute(
            call.name, cost_ns, inputs, outputs,
            is_backward=call.is_backward, is_random=call.is_random, mutates=tuple(mutates),
        )  # fmt: skip
        if not places:
            self._builder.release(made[0])
        for (storage, view), tensor in zip(places, made, strict=False):
            self._put(storage, view, tensor)

    def _put(self, storage: int, view: View | None, tensor: int) -> None:
        """A tensor is there from now on; `view` is None for what all of its storage has become."""
        if view is None:  # what stood there before is of the past
            for old in dict.fromkeys(self._there[storage].values()):
                self._builder.release(old)
            self._there[storage] = {None: tensor}
            return
        tensors = self._there.setdefault(storage, {})
        old_view = tensors.pop(view, None)
        if old_view is not None and old_view not in tensors.values():
            self._builder.release(old_view)
        tensors.setdefault(None, tensor)
        tensors[view] = tensor

    def _tensor_of(self, storage: int, view: View) -> int:
        tensors = self._there[storage]
        return tensors.get(view, tensors[None])

    def _named(self) -> str:
        self._num_tensors += 1
        return _free(f"t{self._num_tensors}", self._taken)


def _free(name: str, taken: set[str]) -> str:
    """The name, or with a number if it is taken."""
    chosen, number = name, 1
    while chosen in taken:
        number += 1
        chosen = f"{name}.{number}"
    taken.add(chosen)
    return chosen

"""Simpler graphs of the same step: without views, with one output for each operator, without constants, as a log can say it.

The first three are those that the simulator of DTR makes before it hands a step to Checkmate (Kirisame et al., 2021). Time and the peak of
keeping all stay as they are, but for two things: a view of a constant takes no time any more, for a constant takes none; and
`without_constants` takes what they need from the peak.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from detrain.remat.graph import Graph, GraphBuilder, Kind, Operator


def without_views(graph: Graph) -> Graph:
    """Reading a view becomes reading its base.

    An operator that makes views only is part of the maker of that, with its time.
    """
    base = [tensor.base for tensor in graph.tensors]
    gone = {
        number
        for number, operator in enumerate(graph.operators)
        if not operator.is_constant and all(base[output] != output for output in operator.outputs)
    }
    cost = [operator.cost_ns for operator in graph.operators]
    for number in gone:
        cost[graph.tensors[base[graph.operators[number].outputs[0]]].operator] += cost[number]
    made = _Copy(graph)
    for command in graph.program:
        operator = graph.operators[command.target] if command.kind == Kind.COMPUTE else None
        if operator is None:
            made.refer(command.kind, base[command.target])
            continue
        views = [output for output in operator.outputs if base[output] != output]
        if command.target not in gone:
            own = [output for output in operator.outputs if base[output] == output]
            made.compute(operator, [base[tensor] for tensor in operator.inputs], own, cost[command.target])
        for output in views:
            made.refer(Kind.GET, base[output])
    return made.build(dict.fromkeys(base[output] for output in graph.outputs))


def with_one_output_each(graph: Graph) -> Graph:
    """All that an operator makes is one tensor, of their size in all. For a graph without views: raises `ValueError` for one with them."""
    if any(tensor.base != number for number, tensor in enumerate(graph.tensors)):
        raise ValueError("the graph has views: without_views comes first")
    first = [graph.operators[tensor.operator].outputs[0] for tensor in graph.tensors]
    made = _Copy(graph)
    for command in graph.program:
        if command.kind != Kind.COMPUTE:
            made.refer(command.kind, first[command.target])
            continue
        operator = graph.operators[command.target]
        total = sum(graph.tensors[output].size_bytes for output in operator.outputs)
        inputs = dict.fromkeys(first[tensor] for tensor in operator.inputs)
        made.compute(operator, inputs, operator.outputs[:1], operator.cost_ns, total)
        for _ in operator.outputs[1:]:
            made.refer(Kind.GET, operator.outputs[0])
    return made.build(dict.fromkeys(first[output] for output in graph.outputs))


def without_constants(graph: Graph) -> Graph:
    """Without what is there in any case. A budget for it is one for the graph less `graph.constant_bytes`."""
    constant = {output for operator in graph.operators if operator.is_constant for output in operator.outputs}
    kept = [tensor.base not in constant for tensor in graph.tensors]
    made = _Copy(graph)
    for command in graph.program:
        if command.kind != Kind.COMPUTE:
            if kept[command.target]:
                made.refer(command.kind, command.target)
            continue
        operator = graph.operators[command.target]
        outputs = [output for output in operator.outputs if kept[output]]
        if outputs:
            made.compute(operator, [tensor for tensor in operator.inputs if kept[tensor]], outputs, operator.cost_ns)
    return made.build(output for output in graph.outputs if kept[output])


def as_log_says(graph: Graph) -> Graph:
    """The step as far as a log of the DTR prototype can express it.

    What is changed in place is a view of what it was, no operator draws random numbers, and all that comes after the first operator of
    the backward pass belongs to it. Memory and time stay as they are.
    """
    operators, is_backward = [], False
    for operator in graph.operators:
        is_backward |= operator.is_backward
        operators.append(replace(operator, is_backward=is_backward, is_random=False, mutates=()))
    references = dict.fromkeys(range(len(graph.tensors)), 1)
    for command in graph.program:
        if command.kind in (Kind.GET, Kind.RELEASE):
            references[command.target] += 1 if command.kind == Kind.GET else -1
    live = [
        number
        for number, count in references.items()
        if count and not graph.operators[graph.tensors[number].operator].is_constant
    ]
    return replace(graph, operators=tuple(operators), outputs=tuple(live))


class _Copy:
    """A graph that is made of another's operators."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._built = GraphBuilder(graph.name)
        self._new: dict[int, int] = {}

    def refer(self, kind: Kind, tensor: int) -> None:
        """Adds a command that takes, releases or pins a tensor of the other graph."""
        action = {Kind.GET: self._built.get, Kind.RELEASE: self._built.release, Kind.PIN: self._pin}[kind]
        action(self._new[tensor])

    def _pin(self, tensor: int) -> None:
        if not self._built.is_constant(tensor):  # which is pinned as it is made
            self._built.pin(tensor)

    def compute(
        self, operator: Operator, inputs: Iterable[int], outputs: Iterable[int], cost_ns: int, size_bytes: int | None = None
    ) -> None:  # fmt: skip
        """An operator with these of the other graph's tensors; `size_bytes` for the first output if not its own."""
        tensors = self._graph.tensors
        inputs, outputs = list(inputs), list(outputs)
        if operator.is_constant:
            self._new[outputs[0]] = self._built.constant(tensors[outputs[0]].name, tensors[outputs[0]].size_bytes)
            return
        named = []
        for place, output in enumerate(outputs):
            alias = -1
            if tensors[output].base != output:
                alias = next(at for at, input_ in enumerate(inputs) if tensors[input_].base == tensors[output].base)
            own = size_bytes if size_bytes is not None and place == 0 else tensors[output].size_bytes
            named.append((tensors[output].name, 0 if alias >= 0 else own, alias))
        new = self._built.compute(
            operator.name, cost_ns, [self._new[tensor] for tensor in inputs], named, is_backward=operator.is_backward,
            is_random=operator.is_random,
        )  # fmt: skip
        self._new.update(zip(outputs, new, strict=True))

    def build(self, outputs: Iterable[int]) -> Graph:
        """The graph."""
        return self._built.build(self._new[output] for output in outputs)

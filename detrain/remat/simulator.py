"""Executes a schedule step by step: its time and memory, and whether it is valid. All planners and policies are judged by this alone."""

from __future__ import annotations

from dataclasses import dataclass, field

from detrain.errors import GraphError
from detrain.plans.units import parse_bytes
from detrain.remat.graph import Graph, Kind
from detrain.remat.schedule import Action, Schedule, keep_all


@dataclass(frozen=True)
class Outcome:
    """Time and memory of a schedule. `failure` says why it cannot be done, or is empty."""

    clock_ns: int
    #: `clock_ns` over the time of all operators, each done once.
    overhead: float
    peak_bytes: int
    num_again: int
    failure: str = ""
    #: Number of the step that failed.
    failed_at: int | None = None
    #: By number: how often each operator was done.
    counts: tuple[int, ...] = ()
    #: By number of its base: bytes x ns that each storage was held.
    held_byte_ns: dict[int, int] = field(default_factory=dict)
    #: Memory in use behind each step.
    usage_bytes: tuple[int, ...] = ()


def simulate(graph: Graph, schedule: Schedule, budget_bytes: int | None = None) -> Outcome:
    """The outcome of a schedule under a budget; the clock begins at 0."""
    run = _Run(graph, budget_bytes)
    for place, step in enumerate(schedule.steps):
        failure = run.compute(step.target) if step.action == Action.COMPUTE else run.free(step.target)
        run.usage.append(run.used_bytes)
        if failure:
            return run.outcome(failure, place)
    return run.outcome(run.missing(), None)


def floor_bytes(graph: Graph) -> int:
    """No schedule that follows the program needs less: some operator's inputs and outputs, beside the constants that are there then.

    Constants among the inputs are counted once. What the program has given back of constants is not there any more.
    """
    references = [0] * len(graph.tensors)
    kept = {graph.tensors[output].base for output in graph.outputs}
    constant_bytes = floor = 0
    for command in graph.program:
        if command.kind == Kind.PIN:
            continue
        if command.kind == Kind.COMPUTE:
            operator = graph.operators[command.target]
            for output in operator.outputs:
                references[graph.tensors[output].base] += 1
                constant_bytes += graph.tensors[output].size_bytes if operator.is_constant else 0
            floor = max(floor, constant_bytes + _own_bytes(graph, command.target))
            continue
        base = graph.tensors[command.target].base
        references[base] += 1 if command.kind == Kind.GET else -1
        if not references[base] and base not in kept and graph.operators[graph.tensors[base].operator].is_constant:
            constant_bytes -= graph.tensors[base].size_bytes
    return floor


def peak_bytes(graph: Graph) -> int:
    """Peak memory of the step when everything is kept and each operator is done once, in bytes."""
    return simulate(graph, keep_all(graph)).peak_bytes


def _own_bytes(graph: Graph, number: int) -> int:
    operator = graph.operators[number]
    if operator.is_constant:
        return 0
    bases = {graph.tensors[tensor].base for tensor in (*operator.inputs, *operator.outputs)}
    constant = {base for base in bases if graph.operators[graph.tensors[base].operator].is_constant}
    return sum(graph.tensors[base].size_bytes for base in bases - constant)


class _Run:
    """The state of a step that is being done."""

    def __init__(self, graph: Graph, budget_bytes: int | None) -> None:
        self._graph = graph
        self._budget_bytes = budget_bytes
        self._defined: set[int] = set()
        self._since: dict[int, int] = {}  # material storages, by their bases: the clock when they were made
        self._views: dict[int, list[int]] = {}
        for number, tensor in enumerate(graph.tensors):
            self._views.setdefault(tensor.base, []).append(number)
        self._counts = [0] * len(graph.operators)
        self._held: dict[int, int] = {}
        self._clock_ns = self._peak_bytes = self.used_bytes = 0
        self.usage: list[int] = []

    def compute(self, number: int) -> str:
        """Does an operator; returns the reason if it cannot be done, else ""."""
        if not 0 <= number < len(self._counts):
            return f"there is no operator {number}"
        operator, tensors = self._graph.operators[number], self._graph.tensors
        missing = next((tensor for tensor in operator.inputs if tensor not in self._defined), None)
        if missing is not None:
            return f"{operator.name} needs {tensors[missing].name}, which is not in memory"
        if operator.is_constant and self._counts[number]:
            return f"{operator.name} cannot be made again"
        there = [output for output in operator.outputs if output in self._defined]
        if len(there) == len(operator.outputs):
            return f"{operator.name} is done although all that it makes is in memory"
        self.used_bytes += sum(tensors[output].size_bytes for output in operator.outputs)
        self._peak_bytes = max(self._peak_bytes, self.used_bytes)
        if self._budget_bytes is not None and self.used_bytes > self._budget_bytes:
            return f"{operator.name} needs {self.used_bytes} bytes in all, and the budget is {self._budget_bytes}"
        self._clock_ns += operator.cost_ns
        self._counts[number] += 1
        self.used_bytes -= sum(tensors[tensor].size_bytes for tensor in there)  # made a second time, for nothing
        for output in operator.outputs:
            self._defined.add(output)
            self._since.setdefault(tensors[output].base, self._clock_ns)
        return ""

    def free(self, base: int) -> str:
        """Frees a storage, which is given by its base; returns the reason if it cannot be freed, else ""."""
        if base not in self._since:
            return f"storage {base} is to be freed, and is not in memory"
        tensor = self._graph.tensors[base]
        self._held[base] = self._held.get(base, 0) + tensor.size_bytes * (self._clock_ns - self._since.pop(base))
        self._defined.difference_update(self._views[base])
        self.used_bytes -= tensor.size_bytes
        return ""

    def missing(self) -> str:
        """The first operator that was never done, or output that is not in memory at the end; "" if there is none."""
        undone = next((number for number, count in enumerate(self._counts) if not count), None)
        if undone is not None:
            return f"{self._graph.operators[undone].name} is never done"
        gone = next((output for output in self._graph.outputs if output not in self._defined), None)
        return "" if gone is None else f"{self._graph.tensors[gone].name} should be in memory at the end"

    def outcome(self, failure: str, place: int | None) -> Outcome:
        """As it stands."""
        for base, since_ns in self._since.items():
            size_bytes = self._graph.tensors[base].size_bytes
            self._held[base] = self._held.get(base, 0) + size_bytes * (self._clock_ns - since_ns)
        return Outcome(
            clock_ns=self._clock_ns, overhead=self._clock_ns / max(self._graph.cost_ns, 1), peak_bytes=self._peak_bytes,
            num_again=sum(max(count - 1, 0) for count in self._counts), failure=failure, failed_at=place,
            counts=tuple(self._counts), held_byte_ns=self._held, usage_bytes=tuple(self.usage),
        )  # fmt: skip


def budget_of(graph: Graph, text: str) -> int:
    """A budget in bytes: a share of the peak of keeping all (`0.4`), or bytes (`4GiB`, `500MB`, `1000000`). Raises `GraphError`."""
    amount, is_share = parse_budget(text)
    return int(peak_bytes(graph) * amount) if is_share else int(amount)


def parse_budget(text: str) -> tuple[float, bool]:
    """A budget as it is written, and whether it is a share of the peak rather than bytes. Raises `GraphError`."""
    try:
        amount, unit = parse_bytes(text)
    except ValueError:
        amount, unit = 0.0, ""
    if not amount > 0 or (not unit and amount > 1 and amount != int(amount)):
        raise GraphError(f"a budget is a share of the peak (0.4) or bytes (4GiB) above zero, not {text}")
    return amount, not unit and amount <= 1

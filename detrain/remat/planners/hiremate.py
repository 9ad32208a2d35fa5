"""For steps that are no chains: stretches of the program stand for single operators in a mixed-integer program.

Gusak, Zhao, Le Hellard, Li, Eyraud-Dubois, Beaumont, "HiRemate: Hierarchical Approach for Efficient Re-materialization
of Neural Networks" (ICML 2025), cut to two levels. A stretch that is done again is thinned to what is asked for, and
the schedule is polished; so that the program's coarse view costs little.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Sequence

from detrain.plans.errors import NoPlanError
from detrain.remat.graph import Graph, GraphBuilder, Kind
from detrain.remat.planners.forward_end import first_backward_index
from detrain.remat.planners.ilp import solve
from detrain.remat.planners.plan import Plan, best_of
from detrain.remat.planners.polish import polish, without_useless
from detrain.remat.planners.stages import operators_of, program_of
from detrain.remat.schedule import Schedule, freeing_early
from detrain.remat.simulator import simulate

#: Stretches in the program, the fewest first: it grows with their square.
_STRETCHES = (12, 20, 28)
#: Budgets for the coarse view, which overstates what a stretch needs: shares of the real one.
_SHARES = (1.0, 1.25, 0.85, 1.6)


def plan(graph: Graph, budget_bytes: int, time_limit_s: float = 60.0) -> Plan:
    """Raises `NoPlanError` if none of the coarse solutions keeps to the budget."""
    began_s = time.monotonic()
    until_s = began_s + time_limit_s
    return best_of(graph, _schedules(graph, budget_bytes, until_s), budget_bytes, until_s=until_s, began_s=began_s)


def _schedules(graph: Graph, budget_bytes: int, until_s: float) -> Iterator[Schedule]:
    num_left = len(_STRETCHES) * len(_SHARES)
    for most in _STRETCHES:
        coarse = _Coarse(graph, most)
        for share in _SHARES:
            try:
                order = coarse.order(int(budget_bytes * share), (until_s - time.monotonic()) / num_left)
            except NoPlanError:
                order = []
            num_left -= 1
            schedule = freeing_early(graph, without_useless(graph, order), "hiremate", budget_bytes)
            if order and not simulate(graph, schedule, budget_bytes).failure:
                yield polish(graph, schedule, budget_bytes)[0]


class _Coarse:
    """The step as a smaller graph, in which each operator is a stretch of the program."""

    def __init__(self, graph: Graph, most: int) -> None:
        self._graph = graph
        order = [command.target for command in graph.program if command.kind == Kind.COMPUTE]
        self._constants = [operator for operator in order if graph.operators[operator].is_constant]
        self._stretches = _cut(
            graph, [operator for operator in order if not graph.operators[operator].is_constant], most
        )
        self._coarse = self._build()

    def order(self, budget_bytes: int, time_limit_s: float) -> list[int]:
        """Operators of the step as the program's solution has them. Raises `NoPlanError`."""
        if budget_bytes <= 0 or time_limit_s <= 0:
            raise NoPlanError("there is no time, or no memory")
        program = program_of(self._coarse, budget_bytes)
        x, _ = solve(program, time_limit_s)
        numbers = [number - 1 for number in operators_of(program, x) if number > 0]  # the first are the constants
        return [*self._constants, *(operator for number in numbers for operator in self._stretches[number])]

    def _build(self) -> Graph:
        """Stretches as operators; what only one of them needs is an output that nobody asks for."""
        tensors, operators = self._graph.tensors, self._graph.operators
        made_in = {
            tensors[output].base: number
            for number, stretch in reversed(list(enumerate(self._stretches)))
            for operator in stretch for output in operators[operator].outputs if tensors[output].base == output
        }  # fmt: skip
        asked = [
            dict.fromkeys(tensors[tensor].base for operator in stretch for tensor in operators[operator].inputs)
            for stretch in self._stretches
        ]
        outputs = {tensors[output].base for output in self._graph.outputs}
        built = GraphBuilder(self._graph.name)
        names = {-1: built.constant("constants", self._graph.constant_bytes)}
        for number, stretch in enumerate(self._stretches):
            made = [base for base, place in made_in.items() if place == number]
            handed_on = [
                base for base in made if base in outputs or any(base in later for later in asked[number + 1 :])
            ]
            inputs = [names[base] for base in asked[number] if base in names]
            inner = max(
                self._peak_bytes(stretch, set(made), set(handed_on))
                - sum(tensors[tensor].size_bytes for tensor in handed_on),
                0,
            )
            new = built.compute(
                f"stretch {number}", sum(operators[operator].cost_ns for operator in stretch), inputs or [names[-1]],
                [*((f"t{base}", tensors[base].size_bytes, -1) for base in handed_on), (f"inner {number}", inner, -1)],
            )  # fmt: skip
            names.update(zip(handed_on, new, strict=False))
        return built.build(sorted(names[base] for base in outputs if base in names))

    def _peak_bytes(self, stretch: Sequence[int], made: set[int], handed_on: set[int]) -> int:
        """Peak memory of what a stretch makes, in bytes."""
        tensors, operators = self._graph.tensors, self._graph.operators
        last = {
            tensors[tensor].base: place for place, number in enumerate(stretch) for tensor in operators[number].inputs
        }
        used = peak = 0
        for place, number in enumerate(stretch):
            new = [output for output in operators[number].outputs if output in made]
            used += sum(tensors[tensor].size_bytes for tensor in new)
            peak = max(peak, used)
            touched = {tensors[tensor].base for tensor in (*operators[number].inputs, *new)}
            used -= sum(
                tensors[tensor].size_bytes for tensor in touched & made - handed_on if last.get(tensor, -1) <= place
            )
        return peak


def _cut(graph: Graph, order: Sequence[int], most: int) -> list[list[int]]:
    """Stretches of about the same time, cut where little is handed on; the turn from forward to back is a cut."""
    middle = first_backward_index(graph, order)
    sizes = _handed_on_bytes(graph, order)
    total_ns = sum(graph.operators[operator].cost_ns for operator in order)
    cuts: list[int] = []
    best: int | None = None
    spent_ns = 0
    for place, operator in enumerate(order[:-1]):
        spent_ns += graph.operators[operator].cost_ns
        best = place if best is None or sizes[place] <= sizes[best] else best
        is_turn = place == middle - 1
        if is_turn or spent_ns * most >= total_ns * (len(cuts) + 1):
            cuts.append((place if is_turn else best) + 1)
            best = None
    places = [0, *sorted(set(cuts)), len(order)]
    return [list(order[begin:end]) for begin, end in itertools.pairwise(places) if begin < end]


def _handed_on_bytes(graph: Graph, order: Sequence[int]) -> list[int]:
    """By place: bytes of what has been made up to there and is asked for behind."""
    last: dict[int, int] = dict.fromkeys((graph.tensors[output].base for output in graph.outputs), len(order))
    for place, number in enumerate(order):
        for tensor in graph.operators[number].inputs:
            base = graph.tensors[tensor].base
            last[base] = max(last.get(base, -1), place)
    changes = [0] * (len(order) + 1)
    for place, number in enumerate(order):
        for output in graph.operators[number].outputs:
            if graph.tensors[output].base == output and last.get(output, -1) > place:
                changes[place] += graph.tensors[output].size_bytes
                changes[last[output]] -= graph.tensors[output].size_bytes
    sizes, used = [], 0
    for change in changes[:-1]:
        used += change
        sizes.append(used)
    return sizes

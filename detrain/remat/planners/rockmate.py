"""Rotor over blocks that each have several options, which the mixed-integer program finds.

Zhao, Le Hellard, Eyraud-Dubois, Gusak, Beaumont, "Rockmate: an efficient, fast, automatic and generic tool for
re-materialization in PyTorch" (ICML 2023). Blocks that are equal but for their names are solved once. A block that is too
large for the program has options that keep less and less.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from detrain.plans.errors import NoPlanError
from detrain.remat.graph import Graph, GraphBuilder
from detrain.remat.planners import rotor
from detrain.remat.planners.blocks import Chain
from detrain.remat.planners.ilp import solve
from detrain.remat.planners.options import Measured, Meter, Option
from detrain.remat.planners.plan import Plan, best_of
from detrain.remat.planners.stages import Turn, operators_of, program_of
from detrain.remat.schedule import Schedule

#: Operators of a block, forward and back, up to which the program is solved; amounts that may wait, between all and what is handed on.
_MOST_OPERATORS, _AMOUNTS = 24, 5
_MOST_OPTIONS = 10
#: Chains that are tried: of so many blocks at most.
_MOST_BLOCKS = (32, 12, 64)
#: What one program may take, and all of them, in shares of the time limit.
_SHARE_OF_ONE, _SHARE_OF_ALL = 0.05, 0.5


def plan(graph: Graph, budget_bytes: int, time_limit_s: float = 60.0) -> Plan:
    """Raises `NoPlanError` if no schedule of a chain keeps to the budget."""
    began_s = time.monotonic()

    def through_chains() -> Iterator[Schedule]:
        for most_blocks in _MOST_BLOCKS:
            meter = Meter(Chain(graph, most_blocks))
            solver = _Solver(meter, time_limit_s * _SHARE_OF_ONE, began_s + time_limit_s * _SHARE_OF_ALL)
            blocks = [solver.measured(number) for number in range(len(meter.chain.blocks))]
            yield from rotor.schedules(meter, blocks, "rockmate", budget_bytes)

    return best_of(graph, through_chains(), budget_bytes, until_s=began_s + time_limit_s, began_s=began_s)


class _Solver:
    """Finds the options of blocks, once for equal blocks."""

    def __init__(self, meter: Meter, limit_s: float, until_s: float) -> None:
        self._meter, self._limit_s, self._until_s = meter, limit_s, until_s
        #: By what a block looks like: what its backward passes make again, as places among its operators.
        self._known: dict[Graph, list[tuple[int, ...]]] = {}

    def measured(self, number: int) -> Measured:
        """A block with its options, each once."""
        options = [*self._meter.dropping(number, _MOST_OPTIONS - _AMOUNTS), *self._solved(number)]
        return self._meter.measured(number, list(dict.fromkeys(options)))

    def _solved(self, number: int) -> Iterator[Option]:
        block = self._meter.chain.blocks[number]
        operators = (*block.forward, *block.backward)
        if len(operators) > _MOST_OPERATORS or not block.backward:
            return
        step = _Alone(self._meter, number)
        if step.graph not in self._known:
            self._known[step.graph] = list(self._solve(step))
        for places in self._known[step.graph]:
            backward = [operators[place] for place in places]
            made = {output for operator in block.forward for output in self._meter.graph.operators[operator].outputs}
            yield self._meter.option(number, _asked_before_made(self._meter.graph, backward) & made, backward)

    def _solve(self, step: _Alone) -> Iterator[tuple[int, ...]]:
        """Backward passes of a block for several amounts of memory that may be kept for them."""
        most = sum(tensor.size_bytes for tensor in step.graph.tensors)
        for amount in range(_AMOUNTS):
            if time.monotonic() > self._until_s:
                return
            waiting = step.least_bytes + (step.most_bytes - step.least_bytes) * amount // _AMOUNTS
            program = program_of(step.graph, most, turn=Turn(step.turn, step.handed_on, waiting))
            try:
                x, _ = solve(program, self._limit_s)
            except NoPlanError:
                continue
            operators = operators_of(program, x, begin=step.turn + 1)
            yield tuple(number - step.num_constants for number in operators)


def _asked_before_made(graph: Graph, operators: list[int]) -> set[int]:
    """Tensors that operators read without having made them."""
    asked: set[int] = set()
    for number in reversed(operators):
        asked.difference_update(graph.operators[number].outputs)
        asked.update(graph.operators[number].inputs)
    return asked


class _Alone:
    """A block as a step of its own: what comes from outside is constant. Equal blocks have equal graphs."""

    def __init__(self, meter: Meter, number: int) -> None:
        block, whole = meter.chain.blocks[number], meter.graph
        operators = (*block.forward, *block.backward)
        made_inside = {output for operator in operators for output in whole.operators[operator].outputs}
        outside = dict.fromkeys(
            tensor for operator in operators for tensor in whole.operators[operator].inputs if tensor not in made_inside
        )
        made = GraphBuilder()
        names = {
            tensor: made.constant(f"outside{place}", whole.tensors[tensor].size_bytes) for place, tensor in enumerate(outside)
        }
        for place, member in enumerate(operators):
            operator = whole.operators[member]
            outputs = []
            for count, output in enumerate(operator.outputs):
                base = whole.tensors[output].base
                alias = next(
                    (
                        at
                        for at, input_ in enumerate(operator.inputs)
                        if base != output and whole.tensors[input_].base == base
                    ),
                    -1,
                )
                outputs.append((f"t{place}.{count}", 0 if alias >= 0 else whole.tensors[output].size_bytes, alias))
            inputs = [names[input_] for input_ in operator.inputs]
            for output, new in zip(operator.outputs, made.compute("f", operator.cost_ns, inputs, outputs), strict=True):
                names[output] = new
        later = meter.asked_by_others(number) & made_inside
        self.graph = made.build(sorted(names[tensor] for tensor in later if whole.tensors[tensor].operator in block.backward))
        self.num_constants = len(outside)
        #: The stage of the last operator going forward.
        self.turn = self.num_constants + len(block.forward) - 1
        self.handed_on = frozenset(names[tensor] for tensor in later if whole.tensors[tensor].operator in block.forward)
        constants = sum(self.graph.tensors[tensor].size_bytes for tensor in range(self.num_constants))
        kept = {*self.handed_on, *(names[tensor] for tensor in meter.asked_by_backward(number))}
        self.least_bytes = constants + sum(
            {self.graph.tensors[tensor].base: self.graph.size_bytes(tensor) for tensor in self.handed_on}.values()
        )
        self.most_bytes = constants + sum(
            {self.graph.tensors[tensor].base: self.graph.size_bytes(tensor) for tensor in kept}.values()
        )

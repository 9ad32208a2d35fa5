"""One training step as operators on tensors, and the order in which a program asks for them.

An *operator* makes tensors of tensors, in a time. A *tensor* is what an operator makes; an *alias* has no memory of
its own and looks into that of a *base*. The *storage* is that memory: of a base, and of all that look into it. It is
what can be evicted. The *program* is the step as the model's code does it: compute an operator, take or give back a
reference to a tensor, pin one. What has been given back by all may be thrown away.

The words follow Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property

from detrain.errors import GraphError


class Kind(IntEnum):
    """What a command of a program asks for; its target is an operator for COMPUTE, else a tensor."""

    COMPUTE = 0
    #: One more reference. The operator that makes a tensor gives the first.
    GET = 1
    #: Have it in memory, made again if need be, and never evict it.
    PIN = 2
    RELEASE = 3


@dataclass(frozen=True, slots=True)
class Command:
    """One step of a program."""

    kind: Kind
    target: int


@dataclass(frozen=True, slots=True)
class Operator:
    """Tensors are named by their numbers in the graph."""

    name: str
    cost_ns: int
    #: One tensor may stand here more than once.
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    #: Parameters and data: there from the beginning, cannot be made again.
    is_constant: bool = False
    is_backward: bool = False
    #: Draws random numbers: to do it again it needs the generator's state of the first time.
    is_random: bool = False
    #: Positions among the inputs of what the operator changes in place; the outputs are what they have become.
    mutates: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Tensor:
    """What an operator makes."""

    name: str
    operator: int
    #: Memory of its own; 0 for an alias.
    size_bytes: int
    #: Number of the tensor whose memory it looks into: its own if it is no alias.
    base: int


@dataclass(frozen=True)
class Graph:
    """A step. Operators stand in the order in which the program computes them, tensors in the order in which they are made."""

    operators: tuple[Operator, ...]
    tensors: tuple[Tensor, ...]
    program: tuple[Command, ...]
    #: Tensors that must be in memory at the end, in the order in which they are asked for.
    outputs: tuple[int, ...] = ()
    name: str = field(default="", compare=False)

    @cached_property
    def cost_ns(self) -> int:
        """Time of all operators, each done once."""
        return sum(operator.cost_ns for operator in self.operators)

    @cached_property
    def constant_bytes(self) -> int:
        """Memory of what cannot be made again."""
        return sum(
            self.tensors[output].size_bytes for operator in self.operators if operator.is_constant for output in operator.outputs
        )

    def size_bytes(self, tensor: int) -> int:
        """Memory of the storage that a tensor looks into."""
        return self.tensors[self.tensors[tensor].base].size_bytes


class GraphBuilder:
    """Makes a graph, call by call. Raises `GraphError` for what cannot be."""

    def __init__(self, name: str = "") -> None:
        self._name = name
        self._operators: list[Operator] = []
        self._tensors: list[Tensor] = []
        self._program: list[Command] = []
        self._names: set[str] = set()
        self._references: list[int] = []

    def constant(self, name: str, size_bytes: int) -> int:
        """Something that is there from the beginning, pinned; returns its number."""
        (tensor,) = self._compute("constant", 0, (), [(name, size_bytes, -1)], is_constant=True)
        self.pin(tensor)
        return tensor

    def compute(
        self, name: str, cost_ns: int, inputs: Iterable[int], outputs: Iterable[tuple[str, int, int]], *,
        is_backward: bool = False, is_random: bool = False, mutates: tuple[int, ...] = (),
    ) -> tuple[int, ...]:  # fmt: skip
        """Do an operator; `outputs` are name, size, and the position of the input of which it is an alias, or -1."""
        return self._compute(
            name, cost_ns, tuple(inputs), list(outputs), is_backward=is_backward, is_random=is_random, mutates=mutates
        )

    def get(self, tensor: int) -> None:
        """One more reference."""
        self._refer(tensor, 1)
        self._program.append(Command(Kind.GET, tensor))

    def pin(self, tensor: int) -> None:
        """Have it in memory from here on."""
        self._refer(tensor, 0)
        self._program.append(Command(Kind.PIN, tensor))

    def is_constant(self, tensor: int) -> bool:
        """True if it is there from the beginning."""
        return self._operators[self._tensors[tensor].operator].is_constant

    def has(self, tensor: int) -> bool:
        """True if there is a tensor of this number."""
        return 0 <= tensor < len(self._tensors)

    def release(self, tensor: int) -> None:
        """One reference less."""
        self._refer(tensor, -1)
        self._program.append(Command(Kind.RELEASE, tensor))

    def num_references(self, tensor: int) -> int:
        """How many there are at this place of the program."""
        return self._references[tensor]

    def storage_bytes(self, tensor: int) -> int:
        """Memory of the storage that a tensor looks into."""
        return self._tensors[self._tensors[tensor].base].size_bytes

    def build(self, outputs: Iterable[int] = ()) -> Graph:
        """The graph."""
        return Graph(tuple(self._operators), tuple(self._tensors), tuple(self._program), tuple(outputs), self._name)

    def _refer(self, tensor: int, change: int) -> None:
        if not 0 <= tensor < len(self._tensors):
            raise GraphError(f"there is no tensor {tensor} before command {len(self._program)}")
        if self._references[tensor] <= 0:
            raise GraphError(
                f"command {len(self._program)} asks for {self._tensors[tensor].name}, which the program has released permanently"
            )
        self._references[tensor] += change

    def _compute(
        self, name: str, cost_ns: int, inputs: tuple[int, ...], outputs: list[tuple[str, int, int]], *,
        is_constant: bool = False, is_backward: bool = False, is_random: bool = False, mutates: tuple[int, ...] = (),
    ) -> tuple[int, ...]:  # fmt: skip
        number, first = len(self._operators), len(self._tensors)
        if cost_ns < 0 or not outputs:
            raise GraphError(f"operator {name} takes {cost_ns} ns and makes {len(outputs)} tensors")
        unknown = [tensor for tensor in inputs if not 0 <= tensor < first]
        if unknown:
            raise GraphError(f"operator {name} takes tensor {unknown[0]}, which is not made before it")
        for position, (output, size_bytes, alias) in enumerate(outputs):
            if output in self._names:
                raise GraphError(f"operator {name} makes {output}, and so has one before it")
            if size_bytes < 0 or (alias >= 0 and size_bytes) or not -1 <= alias < len(inputs):
                raise GraphError(
                    f"operator {name} makes {output} of {size_bytes} bytes as an alias of its input {alias}"
                )
            base = self._tensors[inputs[alias]].base if alias >= 0 else first + position
            self._names.add(output)
            self._tensors.append(Tensor(output, number, size_bytes, base))
            self._references.append(1)
        made = tuple(range(first, len(self._tensors)))
        self._operators.append(Operator(name, cost_ns, inputs, made, is_constant, is_backward, is_random, mutates))
        self._program.append(Command(Kind.COMPUTE, number))
        return made

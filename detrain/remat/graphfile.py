"""Operator graphs as JSON: one document, versioned; `docs/remat.md` has the format on a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from detrain.errors import GraphError
from detrain.plans.documents import DocumentKind, parsed
from detrain.remat.graph import Graph, GraphBuilder, Operator

DOCUMENT = DocumentKind("detrain operator graph", 1, "an operator graph")
_FLAGS = ("is_constant", "is_backward", "is_random")


def read(path: Path) -> Graph:
    """A graph. Raises `GraphError` naming the place, or `OSError`."""
    return decode(parsed(path, "JSON", json.loads), name=path.stem)


def write(path: Path, graph: Graph) -> None:
    """The same graph is always the same bytes. Raises `OSError`."""
    DOCUMENT.write(path, encode(graph))


def encode(graph: Graph) -> dict[str, object]:
    """The document, as `decode` reads it."""
    return {
        **DOCUMENT.header(),
        "operators": [_encode_operator(graph, operator) for operator in graph.operators],
        "program": [[command.kind.name.lower(), command.target] for command in graph.program],
        "outputs": list(graph.outputs),
    }


def _encode_operator(graph: Graph, operator: Operator) -> dict[str, object]:
    outputs: list[list[object]] = []
    for output in operator.outputs:
        tensor = graph.tensors[output]
        if tensor.base == output:
            outputs.append([tensor.name, tensor.size_bytes])
        else:
            bases = [graph.tensors[number].base for number in operator.inputs]
            outputs.append([tensor.name, {"alias": bases.index(tensor.base)}])
    return {
        "name": operator.name, "cost_ns": operator.cost_ns, "inputs": list(operator.inputs), "outputs": outputs,
        **{flag: True for flag in _FLAGS if getattr(operator, flag)},
        **({"mutates": list(operator.mutates)} if operator.mutates else {}),
    }  # fmt: skip


def decode(document: object, *, name: str = "") -> Graph:
    """The graph of a document, which gets this name. Raises `GraphError`."""
    return _Decoder(DOCUMENT.check(document, name or "it"), name).decode()


class _Decoder:
    """Builds the graph by doing its program again, which checks it."""

    def __init__(self, document: dict[str, object], name: str) -> None:
        self._document = document
        self._builder = GraphBuilder(name)
        self._num_computed = 0
        self._constants: set[int] = set()
        self._handlers: dict[str, Callable[[int], None]] = {
            "compute": self._compute, "get": self._builder.get, "release": self._builder.release, "pin": self._pin,
        }  # fmt: skip

    def decode(self) -> Graph:
        """The graph."""
        for place, command in enumerate(self._list("program")):
            kind, target = self._command(place, command)
            try:
                self._handlers[kind](target)
            except GraphError as error:
                raise GraphError(f"program[{place}]: {error}") from None
        if self._num_computed != len(self._list("operators")):
            raise GraphError(f"operators[{self._num_computed}] is never computed by the program")
        return self._builder.build([self._tensor(place, output) for place, output in enumerate(self._list("outputs"))])

    def _list(self, name: str) -> list[object]:
        values = self._document.get(name)
        if type(values) is not list:
            raise GraphError(f"{name} is missing, or no list")
        return values

    def _command(self, place: int, command: object) -> tuple[str, int]:
        if type(command) is list and len(command) == 2:
            kind, target = command
            if type(kind) is str and kind in self._handlers and type(target) is int:
                return kind, target
        raise GraphError(f"program[{place}] is {json.dumps(command)[:80]}, no command and its target")

    def _tensor(self, place: int, output: object) -> int:
        if type(output) is int and self._builder.has(output):
            return output
        raise GraphError(f"outputs[{place}] is {json.dumps(output)[:80]}, no tensor")

    def _pin(self, tensor: int) -> None:
        # A constant is pinned as soon as it is there.
        if tensor in self._constants:
            self._constants.discard(tensor)
        else:
            self._builder.pin(tensor)

    def _compute(self, number: int) -> None:
        operators = self._list("operators")
        if number != self._num_computed or number >= len(operators):
            raise GraphError(f"operators are computed in their order, and {self._num_computed} is next, not {number}")
        self._num_computed += 1
        fields, where = operators[number], f"operators[{number}]"
        name = fields.get("name") if type(fields) is dict else None
        if type(fields) is not dict or type(name) is not str:
            raise GraphError(f"{where} has no name")
        cost_ns, inputs, outputs = fields.get("cost_ns"), _ints(fields.get("inputs")), fields.get("outputs")
        if type(cost_ns) is not int or inputs is None or type(outputs) is not list:
            raise GraphError(f"{where} ({name}): cost_ns, inputs or outputs is missing, or not what it should be")
        if fields.get("is_constant"):
            self._constant(where, inputs, [_decode_output(where, output) for output in outputs])
            return
        mutates = _ints(fields.get("mutates", []))
        if mutates is None or any(not 0 <= place < len(inputs) for place in mutates):
            shown = json.dumps(fields.get("mutates"))[:80]
            raise GraphError(f"{where} ({name}): mutates is {shown}, no positions of inputs")
        self._builder.compute(
            name, cost_ns, inputs, [_decode_output(where, output) for output in outputs],
            is_backward=bool(fields.get("is_backward")), is_random=bool(fields.get("is_random")), mutates=tuple(mutates),
        )  # fmt: skip

    def _constant(self, where: str, inputs: list[int], outputs: list[tuple[str, int, int]]) -> None:
        if len(outputs) != 1 or outputs[0][2] >= 0 or inputs:
            raise GraphError(f"{where}: a constant is one tensor, made of nothing")
        name, size_bytes, _ = outputs[0]
        self._constants.add(self._builder.constant(name, size_bytes))


def _decode_output(where: str, output: object) -> tuple[str, int, int]:
    """Name, bytes, and the position of the input of which it is an alias, or -1."""
    if type(output) is list and len(output) == 2 and type(output[0]) is str:
        name, size_bytes = output
        if type(size_bytes) is int:
            return name, size_bytes, -1
        alias = size_bytes.get("alias") if type(size_bytes) is dict else None
        if type(alias) is int and alias >= 0:
            return name, 0, alias
    raise GraphError(
        f"{where}: output {json.dumps(output)[:80]} is neither [name, bytes] nor [name, {{'alias': input}}]"
    )


def _ints(values: object) -> list[int] | None:
    """The list, if it is one of whole numbers."""
    if type(values) is not list or not all(type(value) is int for value in values):
        return None
    return values

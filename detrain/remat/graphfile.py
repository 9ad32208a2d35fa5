"""Operator graphs as JSON: one document, versioned; `docs/remat.md` has the format on a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from detrain.errors import GraphError
from detrain.remat.graph import Graph, GraphBuilder

FORMAT = 1
KIND = "detrain operator graph"
_FLAGS = ("is_constant", "is_backward", "is_random")


def read(path: Path) -> Graph:
    """A graph. Raises `GraphError` naming the place, or `OSError`."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise GraphError(f"{path} is not JSON: {error}") from None
    return decode(document, name=path.stem)


def write(path: Path, graph: Graph) -> None:
    """The same graph is always the same bytes."""
    path.write_text(json.dumps(encode(graph), indent=None, separators=(",", ":")) + "\n", encoding="utf-8")


def encode(graph: Graph) -> dict[str, Any]:
    """The document."""
    return {
        "kind": KIND,
        "format": FORMAT,
        "operators": [_operator(graph, number) for number in range(len(graph.operators))],
        "program": [[command.kind.name.lower(), command.target] for command in graph.program],
        "outputs": list(graph.outputs),
    }


def _operator(graph: Graph, number: int) -> dict[str, Any]:
    one = graph.operators[number]
    found: dict[str, Any] = {"name": one.name, "cost_ns": one.cost_ns, "inputs": list(one.inputs), "outputs": []}
    for output in one.outputs:
        tensor = graph.tensors[output]
        if tensor.base == output:
            found["outputs"].append([tensor.name, tensor.size_bytes])
        else:
            alias = next(place for place, input_ in enumerate(one.inputs) if graph.tensors[input_].base == tensor.base)
            found["outputs"].append([tensor.name, {"alias": alias}])
    found |= {flag: True for flag in _FLAGS if getattr(one, flag)}
    return found | ({"mutates": list(one.mutates)} if one.mutates else {})


def decode(document: Any, *, name: str = "") -> Graph:
    """The graph of a document. Raises `GraphError`."""
    if type(document) is not dict or document.get("kind") != KIND:
        raise GraphError(f"{name or 'it'} is not an operator graph: its kind must be {KIND!r}")
    if document.get("format") != FORMAT:
        raise GraphError(f"{name or 'it'} has format {document.get('format')!r}; this detrain reads format {FORMAT}")
    return _Decoder(document, name).decode()


class _Decoder:
    """Does the program again, which checks it."""

    def __init__(self, document: dict[str, Any], name: str) -> None:
        self._document = document
        self._builder = GraphBuilder(name)
        self._num_computed = 0
        self._constants: set[int] = set()
        self._on: dict[str, Callable[[int], None]] = {
            "compute": self._compute, "get": self._builder.get, "release": self._builder.release, "pin": self._pin,
        }  # fmt: skip

    def decode(self) -> Graph:
        """The graph."""
        for place, command in enumerate(self._list("program")):
            if (
                type(command) is not list
                or len(command) != 2
                or type(command[0]) is not str
                or command[0] not in self._on
                or type(command[1]) is not int
            ):
                raise GraphError(f"program[{place}] is {json.dumps(command)[:80]}, no command and its target")
            try:
                self._on[command[0]](command[1])
            except GraphError as error:
                raise GraphError(f"program[{place}]: {error}") from None
        if self._num_computed != len(self._list("operators")):
            raise GraphError(f"operators[{self._num_computed}] is never computed by the program")
        outputs = self._list("outputs")
        for place, one in enumerate(outputs):
            if type(one) is not int or not self._builder.has(one):
                raise GraphError(f"outputs[{place}] is {json.dumps(one)[:80]}, no tensor")
        return self._builder.build(outputs)

    def _list(self, name: str) -> list[Any]:
        found = self._document.get(name)
        if type(found) is not list:
            raise GraphError(f"{name} is missing, or no list")
        return found

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
        one, where = operators[number], f"operators[{number}]"
        if type(one) is not dict or type(one.get("name")) is not str:
            raise GraphError(f"{where} has no name")
        cost_ns, inputs, outputs = one.get("cost_ns"), one.get("inputs"), one.get("outputs")
        if type(cost_ns) is not int or type(inputs) is not list or not _are_ints(inputs) or type(outputs) is not list:
            raise GraphError(
                f"{where} ({one['name']}): cost_ns, inputs or outputs is missing, or not what it should be"
            )
        if one.get("is_constant"):
            found = [self._output(where, output) for output in outputs]
            if len(found) != 1 or found[0][2] >= 0 or inputs:
                raise GraphError(f"{where}: a constant is one tensor, made of nothing")
            self._constants.add(self._builder.constant(found[0][0], found[0][1]))
            return
        mutates = one.get("mutates", [])
        if not _are_ints(mutates) or any(not 0 <= place < len(inputs) for place in mutates):
            raise GraphError(f"{where} ({one['name']}): mutates is {json.dumps(mutates)[:80]}, no positions of inputs")
        self._builder.compute(
            one["name"], cost_ns, inputs, [self._output(where, output) for output in outputs],
            is_backward=bool(one.get("is_backward")), is_random=bool(one.get("is_random")), mutates=tuple(mutates),
        )  # fmt: skip

    def _output(self, where: str, output: Any) -> tuple[str, int, int]:
        if type(output) is list and len(output) == 2 and type(output[0]) is str:
            if type(output[1]) is int:
                return output[0], output[1], -1
            if type(output[1]) is dict and type(output[1].get("alias")) is int and output[1]["alias"] >= 0:
                return output[0], 0, output[1]["alias"]
        raise GraphError(
            f"{where}: output {json.dumps(output)[:80]} is neither [name, bytes] nor [name, {{'alias': input}}]"
        )


def _are_ints(values: Iterable[Any] | None) -> bool:
    return type(values) is list and all(type(one) is int for one in values)

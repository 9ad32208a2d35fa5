"""The log of the DTR prototype and its simulator: one JSON object a line, numbers as decimal strings (bytes, nanoseconds).

Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021); published with the prototype in 2020.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from detrain.errors import GraphError
from detrain.remat.graph import Command, Graph, GraphBuilder, Kind, Operator

#: One line of a log: the names and values of its JSON object.
Instruction = dict[str, object]
_Value = TypeVar("_Value")


def read(path: Path, *, is_whole: bool = False) -> Graph:
    """A log as a graph. Raises `GraphError` naming line and instruction, or `OSError`.

    A log with a START annotation counts from its last one, unless `is_whole`.
    """
    with open(path, encoding="utf-8") as file:
        return parse(file, name=path.stem, is_whole=is_whole)


def parse(lines: Iterable[str], *, name: str = "", is_whole: bool = False) -> Graph:
    """The same of lines; the graph gets this name."""
    numbered = [(number, _decode(number, line)) for number, line in enumerate(lines, 1) if line.strip()]
    begin = 0
    if not is_whole:
        starts = [place for place, (_, line) in enumerate(numbered) if line.get("ANNOTATION") == "START"]
        begin = starts[-1] + 1 if starts else 0
    return _Reader(name, numbered[begin:]).read()


def _decode(number: int, line: str) -> Instruction:
    try:
        instruction = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"line {number} is not JSON: {error}") from None
    if type(instruction) is not dict or type(instruction.get("INSTRUCTION")) is not str:
        raise GraphError(f"line {number} is not an instruction: {line.strip()[:80]}")
    return instruction


class _Reader:
    """Follows a log: which name stands for which tensor."""

    def __init__(self, name: str, lines: list[tuple[int, Instruction]]) -> None:
        self._builder = GraphBuilder(name)
        self._lines: Iterator[tuple[int, Instruction]] = iter(lines)
        self._number = 0
        self._line: Instruction = {}
        #: Name to tensor, in the order in which the names first stand in the log; none is ever removed.
        self._bound: dict[str, int] = {}
        self._text: dict[int, str] = {}
        self._is_backward = False
        #: A log without a BACKWARD annotation: its backward pass begins at the first operator with "backward" in its name.
        self._goes_by_names = not any(line.get("ANNOTATION") == "BACKWARD" for _, line in lines)
        self._handlers: dict[str, Callable[[], None]] = {
            "ANNOTATE": self._annotate, "CONSTANT": self._constant, "CALL": self._call, "MUTATE": self._mutate, "COPY": self._copy,
            "COPY_FROM": self._copy_from, "RELEASE": self._release,
        }  # fmt: skip

    def read(self) -> Graph:
        """To the end."""
        while self._next():
            handler = self._handlers.get(self._field("INSTRUCTION", str))
            if handler is None:
                raise self._error("this instruction is unknown here")
            try:
                handler()
            except GraphError as error:
                raise error if str(error).startswith("line ") else self._error(str(error)) from None
        live = [tensor for tensor in self._bound.values() if self._builder.num_references(tensor) > 0]
        return self._builder.build(dict.fromkeys(live))

    def _next(self) -> bool:
        line = next(self._lines, None)
        if line is None:
            return False
        self._number, self._line = line
        return True

    def _error(self, what: str) -> GraphError:
        return GraphError(f"line {self._number}, {self._line.get('INSTRUCTION')}: {what}")

    # --- fields ----------------------------------------------------------------------------------------------------------------

    def _field(self, name: str, kind: type[_Value]) -> _Value:
        value = self._line.get(name)
        if not isinstance(value, kind) or type(value) is not kind:
            raise self._error(f"{name} is {'missing' if value is None else f'{value!r}, not {kind.__name__}'}")
        return value

    def _whole(self, name: str, least: int = 0) -> int:
        text = self._field(name, str)
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise self._error(f"{name} is {text!r}, not a whole number from {least} on")
        return value

    def _names(self, key: str) -> list[str]:
        """A list of names. What is no string among them is no name that a log can have bound."""
        names: list[object] = self._field(key, list)
        return [name if isinstance(name, str) else repr(name) for name in names]

    def _tensor(self, name: str) -> int:
        if name not in self._bound:
            raise self._error(f"{name!r} has not been defined before")
        return self._bound[name]

    def _arguments(self) -> list[int]:
        return [self._tensor(name) for name in self._names("ARGS")]

    def _follows(self, instruction: str, name: str) -> None:
        """Goes to the next line, which has to be this instruction about what the one before it makes."""
        before = self._line["INSTRUCTION"]
        if not self._next():
            raise GraphError(f"line {self._number}, {before}: the log ends before {instruction} of {name}")
        if self._line["INSTRUCTION"] != instruction or self._line.get("NAME") != name:
            raise self._error(f"{instruction} of {name} was due")

    def _bind(self, name: str, tensor: int, text: str) -> None:
        self._bound[name] = tensor
        self._text[tensor] = text

    def _refuse_known(self, name: str) -> None:
        if name in self._bound:
            raise self._error(f"{name} is there already")

    # --- instructions ----------------------------------------------------------------------------------------------------------

    def _annotate(self) -> None:
        if self._field("ANNOTATION", str) == "BACKWARD":
            self._is_backward = True

    def _constant(self) -> None:
        name = self._field("NAME", str)
        self._refuse_known(name)
        self._follows("MEMORY", name)
        self._bind(name, self._builder.constant(name, self._whole("MEMORY")), name)

    def _call(self) -> None:
        name, results, inputs, cost_ns = (
            self._field("NAME", str),
            self._names("RESULT"),
            self._arguments(),
            self._whole("TIME"),
        )
        self._is_backward |= self._goes_by_names and "backward" in name
        outputs = []
        for result in results:
            self._refuse_known(result)
            self._follows("MEMORY", result)
            size_bytes = self._whole("MEMORY")
            self._follows("ALIAS", result)
            alias = self._whole("ALIAS", least=-1)
            outputs.append((result, 0 if alias >= 0 else size_bytes, alias))
        made = self._builder.compute(name, cost_ns, inputs, outputs, is_backward=self._is_backward)
        for result, tensor in zip(results, made, strict=True):
            self._bind(result, tensor, result)

    def _mutate(self) -> None:
        name, names, inputs = self._field("NAME", str), self._names("ARGS"), self._arguments()
        cost_ns, positions = self._whole("TIME"), self._positions(len(inputs))
        self._is_backward |= self._goes_by_names and "backward" in name
        changed = [inputs[position] for position in positions]
        outputs = [(f"{self._text[tensor]}$", self._builder.storage_bytes(tensor), -1) for tensor in changed]
        made = self._builder.compute(
            name, cost_ns, inputs, outputs, is_backward=self._is_backward, mutates=tuple(positions)
        )
        for position, tensor, (text, _, _) in zip(positions, made, outputs, strict=True):
            old = self._tensor(names[position])
            self._bind(names[position], tensor, text)
            self._builder.release(old)

    def _positions(self, num_inputs: int) -> list[int]:
        """Of the arguments that a MUTATE changes in place."""
        values: list[object] = self._field("MUTATE", list)
        positions = [value for value in values if type(value) is int and 0 <= value < num_inputs]
        if len(positions) < len(values):
            raise self._error(f"MUTATE is {values}, and there are {num_inputs} arguments")
        return positions

    def _copy(self) -> None:
        target, source = self._field("DST", str), self._tensor(self._field("SRC", str))
        self._refuse_known(target)
        self._bound[target] = source
        self._builder.get(source)

    def _copy_from(self) -> None:
        target, source = self._field("DST", str), self._tensor(self._field("SRC", str))
        old = self._tensor(target)
        self._bound[target] = source
        self._builder.release(old)
        self._builder.get(source)

    def _release(self) -> None:
        name = self._field("NAME", str)
        if name in self._bound:  # the prototype releases what was made before its START, too
            self._builder.release(self._bound[name])


# --- writing -------------------------------------------------------------------------------------------------------------------


def write(path: Path, graph: Graph) -> None:
    """A graph as a log. Raises `GraphError` for what a log cannot say, or `OSError`."""
    lines = list(lines_of(graph))
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def lines_of(graph: Graph) -> Iterator[str]:
    """The same as lines. What is read of them again is this graph, but that all constants that are not given back are outputs."""
    for fields in _Writer(graph).instructions():
        yield json.dumps(fields, sort_keys=True, separators=(",", ":"))


_BACKWARD: Instruction = {"INSTRUCTION": "ANNOTATE", "ANNOTATION": "BACKWARD"}


class _Writer:
    """Follows a program: which names stand for a tensor."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        #: Name to tensor, in the order in which the reader meets the names.
        self._bound: dict[str, int] = {}
        #: By tensor: the names that hold a reference, the latest last.
        self._names: dict[int, list[str]] = {}
        self._early = _early_outputs(graph)
        self._is_backward = False

    def instructions(self) -> Iterator[Instruction]:
        """All lines."""
        program, place = self._graph.program, 0
        while place < len(program):
            command = program[place]
            done = [command]
            if command.kind == Kind.COMPUTE:
                operator = self._graph.operators[command.target]
                done += self._done_with(operator)
                yield from self._compute(operator)
            elif command.kind == Kind.RELEASE:
                given_back = command.target
                taken = program[place + 1] if place + 1 < len(program) else None
                if taken is not None and taken.kind == Kind.GET and taken.target in self._early:
                    done.append(taken)
                    yield self._copy_from(given_back, taken.target)
                else:
                    yield {"INSTRUCTION": "RELEASE", "NAME": self._names[given_back].pop()}
            elif command.kind == Kind.GET:
                yield self._copy(command.target)
            else:
                raise GraphError(f"a log cannot express that {self._text(command.target)} is pinned: it is no constant")
            if program[place : place + len(done)] != tuple(done):
                raise GraphError(
                    f"a log cannot express what follows {operator.name} in the program, at command {place + 1}"
                )
            place += len(done)
        if not self._is_backward and any("backward" in operator.name for operator in self._graph.operators):
            yield _BACKWARD  # or the reader would go by names
        self._check_outputs()

    def _text(self, tensor: int) -> str:
        return self._graph.tensors[tensor].name

    def _done_with(self, operator: Operator) -> list[Command]:
        """What the reader does with it: a constant is pinned, what is changed in place is given back as it was."""
        if operator.is_constant:
            return [Command(Kind.PIN, operator.outputs[0])]
        return [Command(Kind.RELEASE, operator.inputs[position]) for position in operator.mutates]

    def _compute(self, operator: Operator) -> Iterator[Instruction]:
        if operator.is_random:
            raise GraphError(f"a log cannot express that {operator.name} draws random numbers")
        if operator.is_constant:
            yield from self._constant(operator)
            return
        if operator.is_backward and not self._is_backward:
            yield _BACKWARD
        self._is_backward |= operator.is_backward
        if self._is_backward != operator.is_backward:
            raise GraphError(f"a log cannot express that {operator.name} belongs to the forward pass")
        if operator.mutates:
            yield self._mutate(operator)
        else:
            yield from self._call(operator)

    def _constant(self, operator: Operator) -> Iterator[Instruction]:
        if len(operator.outputs) != 1 or operator.cost_ns or operator.inputs:
            raise GraphError(
                f"a log cannot express that the constant {operator.name} is one of several, takes time, or is made of something"
            )
        name = self._bind(operator.outputs[0])
        yield {"INSTRUCTION": "CONSTANT", "NAME": name}
        yield {
            "INSTRUCTION": "MEMORY",
            "NAME": name,
            "MEMORY": str(self._graph.tensors[operator.outputs[0]].size_bytes),
        }

    def _call(self, operator: Operator) -> Iterator[Instruction]:
        results = [self._bind(output) for output in operator.outputs]
        yield {
            "INSTRUCTION": "CALL", "NAME": operator.name, "ARGS": self._arguments(operator), "RESULT": results,
            "TIME": str(operator.cost_ns),
        }  # fmt: skip
        for name, number in zip(results, operator.outputs, strict=True):
            tensor = self._graph.tensors[number]
            bases = [self._graph.tensors[input_].base for input_ in operator.inputs]
            alias = bases.index(tensor.base) if tensor.base != number else -1
            yield {"INSTRUCTION": "MEMORY", "NAME": name, "MEMORY": str(self._graph.size_bytes(number))}
            yield {"INSTRUCTION": "ALIAS", "NAME": name, "ALIAS": str(alias)}

    def _mutate(self, operator: Operator) -> Instruction:
        arguments = self._arguments(operator)
        for position, made in zip(operator.mutates, operator.outputs, strict=True):
            old = operator.inputs[position]
            if self._text(made) != f"{self._text(old)}$" or self._graph.tensors[
                made
            ].size_bytes != self._graph.size_bytes(old):
                raise GraphError(
                    f"a log cannot express that {operator.name} makes {self._text(made)} of {self._text(old)}, which it changes"
                )
            name = arguments[position]
            self._names[old].remove(name)
            self._bound[name] = made
            self._names[made] = [name]
        return {
            "INSTRUCTION": "MUTATE", "NAME": operator.name, "ARGS": arguments, "MUTATE": list(operator.mutates),
            "TIME": str(operator.cost_ns),
        }  # fmt: skip

    def _arguments(self, operator: Operator) -> list[str]:
        return [self._name(tensor) for tensor in operator.inputs]

    def _name(self, tensor: int) -> str:
        names = self._names.get(tensor)
        if not names:
            raise GraphError(
                f"a log cannot express that {self._text(tensor)} is used after the program has released it"
            )
        return names[-1]

    def _bind(self, tensor: int) -> str:
        name = self._text(tensor)
        if name in self._bound:
            raise GraphError(f"a log cannot have {name} for another tensor's name")
        self._bound[name] = tensor
        self._names[tensor] = [name]
        return name

    def _copy(self, source: int) -> Instruction:
        name, known = f"{self._text(source)}+", self._name(source)
        while name in self._bound:
            name += "+"
        self._bound[name] = source
        self._names[source].append(name)
        return {"INSTRUCTION": "COPY", "DST": name, "SRC": known}

    def _copy_from(self, given_back: int, taken: int) -> Instruction:
        source, name = self._name(taken), self._names[given_back].pop()
        self._bound[name] = taken
        self._names[taken].append(name)
        return {"INSTRUCTION": "COPY_FROM", "DST": name, "SRC": source}

    def _check_outputs(self) -> None:
        """A log's outputs are what is referred to at its end; constants, which are there in any case, count among them."""
        live = dict.fromkeys(tensor for tensor in self._bound.values() if self._names[tensor])
        said, meant = (
            [
                tensor
                for tensor in outputs
                if not self._graph.operators[self._graph.tensors[tensor].operator].is_constant
            ]
            for outputs in (live, self._graph.outputs)
        )
        if said != meant:
            raise GraphError(
                "a log's outputs are what is referred to at its end, in the order of the names; this graph has others, or another order"
            )


def _early_outputs(graph: Graph) -> set[int]:
    """Outputs that stand before what was named before them: they have taken over an older name, by COPY_FROM."""
    origin = list(range(len(graph.tensors)))
    for operator in graph.operators:
        for position, made in zip(operator.mutates, operator.outputs, strict=False):
            origin[made] = origin[operator.inputs[position]]
    early, least = set(), len(graph.tensors)
    for output in reversed(graph.outputs):
        if origin[output] > least:
            early.add(output)
        least = min(least, origin[output])
    return early

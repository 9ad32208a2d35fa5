"""The log of the DTR prototype and its simulator: one JSON object a line, numbers as decimal strings (bytes, nanoseconds).

Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021); published with the prototype in 2020.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from detrain.errors import GraphError
from detrain.remat.graph import Graph, GraphBuilder


def read(path: Path, *, is_whole: bool = False) -> Graph:
    """A log as a graph. Raises `GraphError` naming line and instruction, or `OSError`.

    A log with a START annotation counts from its last one, unless `is_whole`.
    """
    with open(path, encoding="utf-8") as file:
        return parse(file, name=path.stem, is_whole=is_whole)


def parse(lines: Iterable[str], *, name: str = "", is_whole: bool = False) -> Graph:
    """The same of lines."""
    numbered = [(number, _decode(number, line)) for number, line in enumerate(lines, 1) if line.strip()]
    begin = 0
    if not is_whole:
        starts = [place for place, (_, one) in enumerate(numbered) if one.get("ANNOTATION") == "START"]
        begin = starts[-1] + 1 if starts else 0
    return _Reader(name, numbered[begin:]).read()


def _decode(number: int, line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise GraphError(f"line {number} is no JSON: {error}") from None
    if type(found) is not dict or type(found.get("INSTRUCTION")) is not str:
        raise GraphError(f"line {number} is no instruction: {line.strip()[:80]}")
    return found


class _Reader:
    """Follows a log: which name stands for which tensor."""

    def __init__(self, name: str, lines: list[tuple[int, dict[str, Any]]]) -> None:
        self._builder = GraphBuilder(name)
        self._lines: Iterator[tuple[int, dict[str, Any]]] = iter(lines)
        self._number = 0
        self._line: dict[str, Any] = {}
        #: In the order in which names were first heard; none ever goes.
        self._bound: dict[str, int] = {}
        self._text: dict[int, str] = {}
        self._is_backward = False
        self._on: dict[str, Callable[[], None]] = {
            "ANNOTATE": self._annotate, "CONSTANT": self._constant, "CALL": self._call, "MUTATE": self._mutate, "COPY": self._copy,
            "COPY_FROM": self._copy_from, "RELEASE": self._release,
        }  # fmt: skip

    def read(self) -> Graph:
        """To the end."""
        while self._next():
            action = self._on.get(self._line["INSTRUCTION"])
            if action is None:
                raise self._error("this instruction is unknown here")
            try:
                action()
            except GraphError as error:
                raise error if str(error).startswith("line ") else self._error(str(error)) from None
        live = [tensor for tensor in self._bound.values() if self._builder.num_references(tensor) > 0]
        return self._builder.build(dict.fromkeys(live))

    def _next(self) -> bool:
        found = next(self._lines, None)
        if found is None:
            return False
        self._number, self._line = found
        return True

    def _error(self, what: str) -> GraphError:
        return GraphError(f"line {self._number}, {self._line.get('INSTRUCTION')}: {what}")

    # --- fields ----------------------------------------------------------------------------------------------------------------

    def _field(self, name: str, kind: type) -> Any:
        value = self._line.get(name)
        if type(value) is not kind:
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

    def _tensor(self, name: Any) -> int:
        if name not in self._bound:
            raise self._error(f"{name!r} has not been heard of before")
        return self._bound[name]

    def _arguments(self) -> list[int]:
        return [self._tensor(name) for name in self._field("ARGS", list)]

    def _follows(self, instruction: str, name: str) -> None:
        """The next line tells more of what an instruction makes."""
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
            self._field("RESULT", list),
            self._arguments(),
            self._whole("TIME"),
        )
        self._is_backward |= "backward" in name
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
        name, inputs, positions = self._field("NAME", str), self._arguments(), self._field("MUTATE", list)
        names, cost_ns = self._line["ARGS"], self._whole("TIME")
        self._is_backward |= "backward" in name
        if any(type(one) is not int or not 0 <= one < len(inputs) for one in positions):
            raise self._error(f"MUTATE is {positions}, and there are {len(inputs)} arguments")
        outputs = [(f"{self._text[inputs[one]]}$", self._builder.storage_bytes(inputs[one]), -1) for one in positions]
        made = self._builder.compute(
            name, cost_ns, inputs, outputs, is_backward=self._is_backward, mutates=tuple(positions)
        )
        for position, tensor, (text, _, _) in zip(positions, made, outputs, strict=True):
            old = self._tensor(names[position])
            self._bind(names[position], tensor, text)
            self._builder.release(old)

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

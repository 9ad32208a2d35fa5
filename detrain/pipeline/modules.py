"""Which layers of a profile are in which module of a generated model: of PipeDream's `stageK.py`, or of the first layer of each.

A conf says which module is in which stage. Which layers a module has, neither it nor a plain profile says.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from detrain.errors import GraphError
from detrain.pipeline.layers import Profile

#: What PipeDream's code generator writes for layers that are no modules: `a + b`, `a.size(0)`, `torch.cat([a, b], 1)`, `a[0]`.
_METHODS = {"size": "Size", "view": "View", "cat": "Concat", "add": "Add"}
_SELECTION = "__getitem__"


@dataclass(frozen=True)
class _Statement:
    """`out3 = self.layer3(out2)` as: the variable, the kind and numbers of the layer, and the variables that it takes."""

    name: str
    kind: str
    #: None: they are not compared, as for modules that consist of others.
    numbers: tuple[str, ...] | None
    takes: tuple[str, ...]


def of_code(folder: Path, num_modules: int, profile: Profile) -> dict[str, int]:
    """The module of each layer that is planned, by the code of `stage0.py` to `stageN.py` in `folder`.

    The calls of each file's `forward` are found again among the layers by their kinds, numbers and what they take. Layers that the code
    does not call, such as selections within a `return`, are where what they take is made. Raises `GraphError` naming the file and the
    call for which the profile has no layer, or `OSError`.
    """
    rest = profile.to_plan()
    module_of: dict[int, int] = {}
    for module in range(num_modules):
        path = folder / f"stage{module}.py"
        made: dict[str, int] = {}
        for statement in _statements(path):
            found = _layer_of(statement, rest, module_of, made)
            if found is not None:
                module_of[found], made[statement.name] = module, found
            elif statement.kind != _SELECTION:
                said = f"{statement.kind}({', '.join(statement.numbers or ())})"
                raise GraphError(
                    f"{path}: {statement.name} is {said}, and no layer of {profile.name} that is left fits"
                )
            elif statement.takes[:1] and statement.takes[0] in made:
                made[statement.name] = made[statement.takes[0]]
        if not made:
            raise GraphError(
                f"{path} calls no layer of {profile.name} that is planned, and there is no stage without layers"
            )
    _check_all_found(rest, module_of, folder)
    for layer in rest.order:
        before = [module_of[number] for number in rest.predecessors[layer]]
        module_of.setdefault(layer, max(before, default=0))
    return {rest.layers[layer].name: module for layer, module in module_of.items()}


def of_first_layers(names: Sequence[str], profile: Profile) -> dict[str, int]:
    """The module of each layer that is planned: the first begins with the first layer named, and so on, in the order of the profile.

    Raises `GraphError` for a name that is no layer's, or out of order.
    """
    rest = profile.to_plan()
    place = {rest.layers[number].name: position for position, number in enumerate(rest.order)}
    for name in names:
        if name not in place:
            raise GraphError(f"a module begins with {name}, and {profile.name} has no such layer to plan")
    starts = [place[name] for name in names]
    if starts[0] != 0:
        raise GraphError(
            f"the first module begins with {names[0]}, and {rest.layers[rest.order[0]].name} comes before it"
        )
    for before, behind in pairwise(names):
        if place[behind] <= place[before]:
            raise GraphError(f"a module begins with {behind}, which does not come behind {before}")
    return {name: sum(start <= position for start in starts) - 1 for name, position in place.items()}


def _check_all_found(rest: Profile, module_of: dict[int, int], folder: Path) -> None:
    for number, layer in enumerate(rest.layers):
        if number not in module_of and not _may_be_missing(rest, number):
            raise GraphError(f"the stages in {folder} do not call layer {layer.name} ({layer.description})")


def _may_be_missing(rest: Profile, number: int) -> bool:
    """A selection, or a source that is no module, such as a hidden state that begins as None."""
    layer = rest.layers[number]
    return layer.description.startswith(_SELECTION) or (not rest.predecessors[number] and "(" not in layer.description)


def _layer_of(statement: _Statement, rest: Profile, module_of: dict[int, int], made: dict[str, int]) -> int | None:
    """The first layer in order that is not taken yet, is of this kind, takes what the statement takes, and has all that it needs."""
    for number in rest.order:
        kind, numbers = _signature(rest.layers[number].description)
        if number in module_of or kind != statement.kind:
            continue
        if None not in (numbers, statement.numbers) and numbers != statement.numbers:
            continue
        before = set(rest.predecessors[number])
        if any(layer not in module_of and not _may_be_missing(rest, layer) for layer in before):
            continue
        within = {inner for layer in before if _may_be_missing(rest, layer) for inner in rest.predecessors[layer]}
        if all(made[name] in before | within for name in statement.takes if name in made):
            return number
    return None


def _signature(description: str) -> tuple[str, tuple[str, ...] | None]:
    """Kind and numbers of `Conv2d(3, 64, kernel_size=(3, 3))`; of a module that consists of others, the kind alone."""
    kind, _, inside = description.partition("(")
    if "):" in inside or kind in _METHODS.values():
        return kind.strip(), None
    return kind.strip(), tuple(re.findall(r"\d[\d.]*(?:e-?\d+)?", inside))


def _statements(path: Path) -> Iterator[_Statement]:
    """Of `forward`, with what `__init__` calls the layers. Raises `GraphError` for what is no generated stage, or `OSError`."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, ValueError) as error:
        raise GraphError(f"{path} is not Python: {error}") from None
    methods = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    if "__init__" not in methods or "forward" not in methods:
        raise GraphError(f"{path} is no generated stage: it has no __init__ or no forward")
    layers: dict[str, tuple[str, tuple[str, ...] | None]] = {}
    for target, value in _assignments(methods["__init__"]):
        if isinstance(target, ast.Attribute) and isinstance(value, ast.Call):
            path_of_kind, _, arguments = ast.unparse(value).partition("(")
            kind, numbers = _signature(f"{path_of_kind.rpartition('.')[2]}({arguments}")
            # A call of a module of the user's own has other arguments than its description.
            layers[target.attr] = kind, numbers if ".nn." in path_of_kind else None
    for target, value in _assignments(methods["forward"]):
        if not isinstance(target, ast.Name):
            continue
        takes = tuple(node.id for node in ast.walk(value) if isinstance(node, ast.Name))
        if isinstance(value, ast.Call) and isinstance(value.func, ast.Attribute):
            if value.func.attr in layers:
                yield _Statement(target.id, *layers[value.func.attr], takes)
            elif value.func.attr in _METHODS:
                yield _Statement(target.id, _METHODS[value.func.attr], None, takes)
        elif isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            yield _Statement(target.id, "Add", None, takes)
        elif isinstance(value, ast.Subscript) and isinstance(value.slice, ast.Constant):
            yield _Statement(target.id, _SELECTION, (str(value.slice.value),), takes)


def _assignments(function: ast.FunctionDef) -> Iterator[tuple[ast.expr, ast.expr]]:
    """With `a += b` as `a = a + b`."""
    for node in function.body:
        if isinstance(node, ast.Assign):
            yield node.targets[0], node.value
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            yield node.target, ast.BinOp(ast.Name(node.target.id), node.op, node.value)

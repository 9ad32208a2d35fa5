"""An operator graph as a picture in layers, as SVG, up to thousands of operators.

The forward pass runs from left to right in the lower half, an operator one layer behind the last that it reads; the backward pass and the
update come back in the upper half in the same way, on as many layers. What is wider than a page goes on in the strip below. Pointing at an
operator tells what it is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from detrain.remat.graph import Graph
from detrain.remat.planfile import Planned
from detrain.remat.simulator import simulate

#: Layers of a strip; and the distances of layers, of operators in one, and of strips.
_PER_STRIP, _ACROSS, _DOWN, _BETWEEN = 80, 18, 14, 40
#: Operators of a layer that stand above each other; more stand beside them.
_PER_COLUMN, _ASIDE = 24, 5
_MARGIN, _HEADING = 24, 64
_COLORS = {"forward": "#2563eb", "backward": "#059669", "again": "#d97706"}
_MEANINGS = {"forward": "forward", "backward": "backward and update", "again": "runs more than once"}
#: In these the names of operators stand beside them: more do not find room.
_MOST_NAMED = 40


@dataclass(frozen=True)
class Place:
    """Where an operator stands: its layer, the half, and its place in the half's part of the layer, from the middle on."""

    layer: int
    is_above: bool
    row: int


def places(graph: Graph) -> list[Place]:
    """One for each operator; constants, which are not drawn, take none away."""
    makers = [
        sorted(
            {
                maker
                for tensor in operator.inputs
                if not graph.operators[maker := graph.tensors[tensor].operator].is_constant
            }
        )
        for operator in graph.operators
    ]
    last = max((number for number, operator in enumerate(graph.operators) if operator.is_backward), default=len(makers))
    is_above: list[bool] = []
    for number, own in enumerate(makers):  # the update reads gradients, or comes behind them
        is_above.append(graph.operators[number].is_backward or number > last or any(is_above[one] for one in own))
    depths = _depths(makers, is_above, last)
    last_below = max((depth for depth, above in zip(depths, is_above, strict=True) if not above), default=0)
    last_above = max((depth for depth, above in zip(depths, is_above, strict=True) if above), default=0) or 1
    rows: Counter[tuple[int, bool]] = Counter()
    found = []
    for operator, depth, above in zip(graph.operators, depths, is_above, strict=True):
        layer = round((1 - depth / last_above) * last_below) if above else depth
        found.append(Place(layer, above, rows[layer, above]))
        rows[layer, above] += not operator.is_constant
    return found


def _depths(makers: list[list[int]], is_above: list[bool], last: int) -> list[int]:
    """One more than that of the deepest maker in the same half; where there is none, one less than that of the first reader.

    Behind `last`, of the backward pass, all are as deep as that at least.
    """
    depths: list[int] = []
    deepest = 0
    for number, own in enumerate(makers):
        depths.append(max((depths[one] + 1 for one in own if is_above[one] == is_above[number]), default=deepest))
        if number == last:
            deepest = max(depth for depth, above in zip(depths, is_above, strict=False) if above)
    first: dict[int, int] = {}
    for number in reversed(range(len(makers))):
        own = [one for one in makers[number] if is_above[one] == is_above[number]]
        if not own and number in first:
            depths[number] = max(first[number] - 1, 0)
        for one in own:
            first[one] = min(depths[number], first.get(one, depths[number]))
    return depths


def write(path: Path, planned: Planned) -> None:
    """Draw a graph; operators that the schedule runs again have a colour of their own. Raises `OSError`."""
    path.write_text("\n".join(_lines(planned)) + "\n", encoding="utf-8")


def _lines(planned: Planned) -> Iterator[str]:
    graph, found = planned.graph, places(planned.graph)
    counts = simulate(graph, planned.schedule, planned.schedule.budget_bytes).counts
    points, height = _points(found)
    width = 2 * _MARGIN + _ACROSS * min(_PER_STRIP, max((place.layer for place in found), default=0) + 1)
    width = max(width, 760)
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        'font-family="sans-serif" font-size="11">'
    )
    yield f'<rect width="{width}" height="{height}" fill="white"/>'
    yield from _legend(graph)
    yield '<g stroke="#9ca3af" stroke-width="0.6" stroke-opacity="0.5" fill="none">'
    for number, operator in enumerate(graph.operators):
        for maker in sorted({graph.tensors[tensor].operator for tensor in operator.inputs}):
            if not graph.operators[maker].is_constant and _strip(found[maker]) == _strip(found[number]):
                (left, top), (right, bottom) = points[maker], points[number]
                yield f'<path d="M{left} {top}L{right} {bottom}"/>'
    yield "</g>"
    largest = max((tensor.size_bytes for tensor in graph.tensors), default=0) or 1
    for number, (left, top) in enumerate(points):
        if graph.operators[number].is_constant:
            continue
        yield _dot(graph, number, counts[number], left, top, largest, is_above=found[number].is_above)
    if len(graph.operators) <= _MOST_NAMED:
        for operator, (left, top) in zip(graph.operators, points, strict=True):
            if not operator.is_constant:
                yield f'<text x="{left + 6}" y="{top - 5}" font-size="6">{escape(operator.name)}</text>'
    yield "</svg>"


def _strip(place: Place) -> int:
    return place.layer // _PER_STRIP


def _points(found: list[Place]) -> tuple[list[tuple[int, int]], int]:
    """In the picture; and its height."""
    num_strips = max((_strip(place) for place in found), default=0) + 1
    above, below = [0] * num_strips, [0] * num_strips
    for place in found:
        half = above if place.is_above else below
        half[_strip(place)] = max(half[_strip(place)], min(place.row, _PER_COLUMN - 1) + 1)
    middles, top = [], _HEADING
    for over, under in zip(above, below, strict=True):
        middles.append(top + over * _DOWN)
        top += (over + under) * _DOWN + _BETWEEN
    return [
        (
            _MARGIN + place.layer % _PER_STRIP * _ACROSS + place.row // _PER_COLUMN * _ASIDE,
            middles[_strip(place)] + (place.row % _PER_COLUMN + 1) * (-_DOWN if place.is_above else _DOWN),
        )
        for place in found
    ], top + _MARGIN


def _legend(graph: Graph) -> Iterator[str]:
    num_constants = sum(operator.is_constant for operator in graph.operators)
    num_drawn = len(graph.operators) - num_constants
    said = f"{graph.name or 'step'}: {num_drawn:,} operators; {num_constants:,} constants are not drawn"
    yield f'<text x="{_MARGIN}" y="22" font-size="13">{escape(said)}</text>'
    left = _MARGIN
    for kind, meaning in _MEANINGS.items():
        yield f'<circle cx="{left + 5}" cy="40" r="5" fill="{_COLORS[kind]}"/><text x="{left + 14}" y="44">{meaning}</text>'
        left += 24 + 7 * len(meaning)
    yield f'<circle cx="{left + 5}" cy="40" r="4" fill="white" stroke="#7c3aed" stroke-width="2"/>'
    yield f'<text x="{left + 14}" y="44">draws random numbers; the area is the memory of the results</text>'


def _dot(graph: Graph, number: int, count: int, left: int, top: int, largest: int, *, is_above: bool) -> str:
    operator = graph.operators[number]
    size_bytes = sum(graph.tensors[tensor].size_bytes for tensor in operator.outputs)
    kind = "again" if count > 1 else "backward" if is_above else "forward"
    radius = 1.5 + 5 * min(size_bytes / largest, 1.0) ** 0.5
    ring = ' stroke="#7c3aed" stroke-width="1.5"' if operator.is_random else ""
    often = f", {count} times" if count > 1 else ""
    said = escape(f"{number}: {operator.name}, {size_bytes:,} bytes, {operator.cost_ns:,} ns{often}")
    return (
        f'<circle cx="{left}" cy="{top}" r="{radius:.1f}" fill="{_COLORS[kind]}"{ring}><title>{said}</title></circle>'
    )

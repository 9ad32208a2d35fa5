"""Where a walk went: all that the next walk needs to see whether the state has the same shape again, and none of the script's objects.

A route knows the graph of a walk by its *edges*: which node handed which value to the walk, in which order. Nodes of one type that are
equally far from the roots form a *group*, whose objects are looked at together, by calls that run in C (`Handler.glance`); every other
node is captured again each time. Of the script's objects a route holds only atoms: a weight, a loss or a batch that the script drops is
gone as without detrain.
"""

from __future__ import annotations

import collections
import itertools
import operator
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from detrain.state import registry
from detrain.state.attributes import slot_descriptors
from detrain.state.census import Census
from detrain.state.handler import Glance, Handler
from detrain.state.tree import Look, Node, Ref, is_node
from detrain.state.walk import Walk

#: A node whose atoms are longer texts is captured again: a route is small beside the state.
_LONGEST_ATOM = 1 << 16
#: Groups of fewer nodes, which hand on fewer values, are not worth a look of their own.
_FEWEST, _FEWEST_PARTS = 3, 32
#: Of objects that hand nothing on.
NOTHING = Glance([], [], [])


class Edge(NamedTuple):
    """A node that another refers to."""

    segment: str
    number: int
    #: By it the walk has met the node for the first time.
    is_first: bool


@dataclass(frozen=True)
class Parts:
    """The values that the nodes of a group hand to the walk, one behind the other, as they were."""

    facts: list[list[Any]]
    counts: list[int]
    #: Where the atoms stand, and they themselves.
    atoms_at: list[int]
    atoms: list[Any]
    #: Where objects stand, their types, and their nodes; those that are met here for the first time come first.
    objects_at: list[int]
    types: list[type]
    numbers: list[int]
    num_first: int


@dataclass(frozen=True)
class Group:
    """Nodes that are looked at together."""

    handler: Handler
    cls: type
    numbers: list[int]
    #: What the handler hands on, and what stands in the attributes.
    parts: Parts
    attributes: Parts | None
    #: Whether the class is captured with each object.
    has_class: bool
    #: Of arrays that are places in live memory: number, path, label and look of each.
    arrays: list[int]
    paths: list[str]
    labels: list[str]
    looks: list[Look]


@dataclass
class Round:
    """Nodes that are equally far from the roots."""

    groups: list[Group] = field(default_factory=list)
    #: Those that are captured again each time.
    single: list[int] = field(default_factory=list)


@dataclass
class Route:
    """Where a walk went before it came to what is dead, and to what is done at its end."""

    census: Census | None
    roots: dict[str, Ref]
    nodes: list[Node]
    paths: list[str]
    types: list[type]
    #: Position in the order in which nodes were captured.
    turns: list[int]
    #: What was handed to the walk, in order: the segment, and the number of the node or -1; where that of each node begins and ends;
    #: and where each node was met first.
    segments: list[str]
    handed: list[int]
    begins: list[int]
    ends: list[int]
    first: list[int]
    num_arrays: int
    has_large_numbers: bool
    rounds: list[Round]
    #: What the census says of each node's object.
    origins: list[int | None]
    references: dict[int, weakref.ref[Any]]
    #: Nodes that stand for a tuple.
    tuples: list[int]
    #: Kinds, and what `of_kinds` has found for them.
    _of_kinds: tuple[frozenset[str], list[int]] = frozenset(), []

    def of_kinds(self, kinds: frozenset[str]) -> list[int]:
        """Numbers of the nodes of these kinds, which are the same each time."""
        if self._of_kinds[0] != kinds:
            self._of_kinds = kinds, [number for number, node in enumerate(self.nodes) if node["k"] in kinds]
        return self._of_kinds[1]

    def edges(self, number: int) -> list[Edge]:
        """What a node refers to, in the order in which it says so."""
        begin = self.begins[number]
        return [
            Edge(self.segments[place], other, self.first[other] == place)
            for place, other in enumerate(self.handed[begin : self.ends[number]], begin) if other >= 0
        ]  # fmt: skip


class Survey(Walk):
    """A walk that notes where it goes."""

    def __init__(self, census: Census | None = None) -> None:
        super().__init__(census)
        #: What was handed to `ref`, in order: the value, the segment, and the number of its node or -1.
        self._handed: list[Any] = []
        self._segments: list[str] = []
        self._numbers: list[int] = []
        #: By turn: the node, and where in the above the capture began, came to the attributes, and ended.
        self._visited: list[int] = []
        self._began: list[int] = []
        self._came: list[int] = []
        self._ended: list[int] = []
        self._is_noting = True
        #: None if the walk cannot be described so.
        self.route: Route | None = None

    def ref(self, obj: Any, parent: int | None, segment: str) -> Ref:
        found = super().ref(obj, parent, segment)
        if self._is_noting:
            self._handed.append(obj)
            self._segments.append(segment)
            self._numbers.append(found[1] if is_node(found) else -1)
        return found

    def children(self, objs: Iterable[Any]) -> list[Ref]:
        values = list(objs)
        count = len(self._handed)
        found = super().children(values)
        if self._is_noting and len(self._handed) == count:  # plain ones
            self._handed += values
            self._segments += [""] * len(values)
            self._numbers += [-1] * len(values)
        return found

    def _capture(self, number: int) -> None:
        if not self._is_noting:
            return super()._capture(number)
        begin = len(self._handed)
        self._visited.append(number)
        self._began.append(begin)
        self._came.append(-1)
        super()._capture(number)
        end = len(self._handed)
        self._ended.append(end)
        if self._came[-1] < 0:
            self._came[-1] = end
        return None

    def _capture_attributes(self, obj: Any, node: Node, cls: type) -> None:
        if self._is_noting:
            self._came[-1] = len(self._handed)
        super()._capture_attributes(obj, node, cls)

    def _capture_alive(self) -> None:
        super()._capture_alive()
        self._is_noting = False
        if len(self._visited) == len(self.tree.nodes):  # else something beside the roots was met
            self.route = self._describe()
        self._handed = []

    # --- the description -----------------------------------------------------------------------------------------------------

    def _describe(self) -> Route:
        count = len(self.tree.nodes)
        self.tree.common = list(self.tree.nodes)
        turns = [0] * count
        for turn, number in enumerate(self._visited):
            turns[number] = turn
        self._begins, self._middles, self._ends = (
            list(map(column.__getitem__, turns)) for column in (self._began, self._came, self._ended)
        )
        self._first = _first_places(self._numbers, count)
        origins = origins_of(self._census, self.objects)
        references = {} if self._census is None else self._census.references_at(origins)
        return Route(
            self._census, dict(self.tree.roots), self.tree.common, list(self.paths), list(map(type, self.objects)), turns,
            self._segments, self._numbers, self._begins, self._ends, self._first,
            len(self.tree.arrays), self.has_large_numbers, self._rounds(), origins, references,
            [number for number, obj in enumerate(self.objects) if type(obj) is tuple],
        )  # fmt: skip

    def _rounds(self) -> list[Round]:
        found: list[Round] = []
        handed, first = self._numbers, self._first
        numbers = sorted({ref[1] for ref in self.tree.roots.values() if is_node(ref)})
        while numbers:
            found.append(self._round(numbers))
            spans = ((self._begins[number], self._ends[number]) for number in numbers)
            numbers = [
                other for begin, end in spans for place, other in enumerate(handed[begin:end], begin)
                if other >= 0 and first[other] == place
            ]  # fmt: skip
        return found

    def _round(self, numbers: list[int]) -> Round:
        made, alike = Round(), collections.defaultdict[type, list[int]](list)
        for number in numbers:
            alike[type(self.objects[number])].append(number)
        for cls, those in alike.items():
            group = self._group(cls, those)
            if group is not None:
                made.groups.append(group)
                grouped = set(group.numbers)
                those = [number for number in those if number not in grouped]
            made.single += those
        made.single.sort()
        return made

    def _group(self, cls: type, numbers: list[int]) -> Group | None:
        """Those of these nodes of which a glance shows all that the walk was handed."""
        handler, nodes = registry.handler_for(cls), self.tree.nodes
        numbers = [number for number in numbers if nodes[number].keys().isdisjoint(("kept", "dict_of", "slots"))]
        has_class = self._made.get(cls, False)
        for _ in range(2):  # the second time without those that have shown something else
            if len(numbers) < _FEWEST and sum(self._ends[one] - self._begins[one] for one in numbers) < _FEWEST_PARTS:
                return None
            objs = [self.objects[number] for number in numbers]
            own = glance(handler, objs, cls)
            attributes = glance_at_attributes(objs, cls, has_class) if handler.has_attributes else NOTHING
            if own is None or attributes is None:
                return None
            good = [
                is_same and is_same_below and self._is_short(number)
                for number, is_same, is_same_below in zip(
                    numbers, self._are_same(own, numbers, self._begins, self._middles),
                    self._are_same(attributes, numbers, self._middles, self._ends), strict=True,
                )
            ]  # fmt: skip
            if all(good):
                parts = self._parts(own, numbers, self._begins, self._middles)
                below = self._parts(attributes, numbers, self._middles, self._ends) if handler.has_attributes else None
                return Group(handler, cls, numbers, parts, below, has_class, *self._arrays(numbers))
            numbers = list(itertools.compress(numbers, good))
        return None

    def _are_same(self, look: Glance, numbers: list[int], begins: list[int], ends: list[int]) -> list[bool]:
        """By node: whether a glance shows what was handed on between these places."""
        spans = [(begins[number], ends[number]) for number in numbers]
        if look is NOTHING:
            return [begin == end for begin, end in spans]
        handed = itertools.chain.from_iterable(self._handed[begin:end] for begin, end in spans)
        if look.counts == [end - begin for begin, end in spans] and all(map(operator.is_, look.parts, handed)):
            return [True] * len(numbers)
        found, start = [], 0
        for count, (begin, end) in zip(look.counts, spans, strict=True):
            parts = look.parts[start : start + count]
            start += count
            found.append(count == end - begin and all(map(operator.is_, parts, self._handed[begin:end])))
        return found

    def _is_short(self, number: int) -> bool:
        """True if a route may hold the atoms, and the array is one that lies in live memory."""
        at = self.tree.nodes[number].get("array")
        if at is not None and self.tree.arrays[at].place is None:
            return False
        handed = self._handed[self._begins[number] : self._ends[number]]
        return all(len(value) <= _LONGEST_ATOM for value in handed if type(value) in (str, bytes))

    def _parts(self, look: Glance, numbers: list[int], begins: list[int], ends: list[int]) -> Parts:
        places = [place for number in numbers for place in range(begins[number], ends[number])]
        others = [self._numbers[place] for place in places]
        is_first = [other >= 0 and self._first[other] == place for place, other in zip(places, others, strict=True)]
        atoms_at = [at for at, other in enumerate(others) if other < 0]
        objects_at = [at for at, one in enumerate(is_first) if one]
        num_first = len(objects_at)
        objects_at += [at for at, other in enumerate(others) if other >= 0 and not is_first[at]]
        return Parts(
            look.facts, look.counts, atoms_at, [self._handed[places[at]] for at in atoms_at], objects_at,
            [type(self._handed[places[at]]) for at in objects_at], [others[at] for at in objects_at], num_first,
        )  # fmt: skip

    def _arrays(self, numbers: list[int]) -> tuple[list[int], list[str], list[str], list[Look]]:
        """Either all nodes of a group have one, or none."""
        at = [self.tree.nodes[number]["array"] for number in numbers if "array" in self.tree.nodes[number]]
        arrays = [self.tree.arrays[one] for one in at]
        return (
            at, [array.path for array in arrays], [array.label for array in arrays], [array.look for array in arrays],
        )  # fmt: skip


def _first_places(numbers: list[int], count: int) -> list[int]:
    """By node, where its number stands first."""
    found = [-1] * count
    for place in range(len(numbers) - 1, -1, -1):
        if numbers[place] >= 0:
            found[numbers[place]] = place
    return found


def glance(handler: Handler, objs: Sequence[Any], cls: type) -> Glance | None:
    """`Handler.glance`; None also where it fails."""
    try:
        return handler.glance(objs, cls)
    except Exception:  # noqa: BLE001 - each object is captured by itself then, and the one that cannot be looked at is named
        return None


def glance_at_attributes(objs: Sequence[Any], cls: type, has_class: bool) -> Glance | None:
    """What `Walk` hands on of the attributes of objects of one type; None if it has to look at each."""
    if slot_descriptors(cls):
        return None
    if not cls.__dictoffset__ and not has_class:
        return Glance([], [0] * len(objs), [])
    dicts = instance_dicts(objs, cls)
    if dicts is None:
        return None
    if not has_class:
        return Glance(
            [list(map(tuple, dicts))],
            list(map(len, dicts)),
            list(itertools.chain.from_iterable(map(dict.values, dicts))),
        )
    parts = itertools.chain.from_iterable((*own.values(), cls) for own in dicts)
    return Glance([list(map(tuple, dicts))], [len(own) + 1 for own in dicts], list(parts))


def instance_dicts(objs: Sequence[Any], cls: type) -> list[dict[str, Any]] | None:
    """The `__dict__` of each, which is empty where the type has none; None if one of them is something else."""
    if not cls.__dictoffset__:
        return [{}] * len(objs)
    found = list(map(object.__getattribute__, objs, itertools.repeat("__dict__")))
    return found if all(map(operator.is_, map(type, found), itertools.repeat(dict))) else None


def origins_of(census: Census | None, objs: Sequence[Any]) -> list[int | None]:
    """What the census knows under the address of each object."""
    return [] if census is None else census.numbers_at(map(id, objs))

"""The next walk, along the route of the one before.

Most of a state has the same shape at every checkpoint: the same modules, the same optimizer state, other numbers in the tensors. A walk
that looks at 30,000 objects one after the other takes 260 ms; one that sees that they are as before takes a quarter of that. What it yields
is what the walk from anew would have yielded, node by node: if the shape is another one, it *strays*, and the state is walked anew.

The proof that nothing is missed: a walk numbers objects in the order in which it meets them, and that order follows from the graph of
who hands what to the walk. So it is enough to see that each node of the route still hands on the same edges, in the same order, with the
same segments, to objects of the same types, and that the objects are as many different ones as the nodes. Nodes that cannot be looked at
in a group, and nodes in which an atom has changed, are captured again, and only their edges are compared.
"""

from __future__ import annotations

import itertools
import operator
from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from detrain.state import registry
from detrain.state.census import Census
from detrain.state.handler import MISSING, Glance, MemoryRanges
from detrain.state.route import (
    NOTHING,
    Edge,
    Group,
    Parts,
    Route,
    Survey,
    glance,
    glance_at_attributes,
    instance_dicts,
)
from detrain.state.tree import ATOMS, Array, Node, Place, Ref, encode_value, is_node, is_value
from detrain.state.walk import LOWEST_ADDRESS, Walk, columns_of

#: Headers of so many loops have a route.
_MOST_ROUTES = 3


class Strayed(BaseException):
    """The state has another shape than the route. No `Exception`: the walk notes those as what a handler could not look at."""


def _stray(*_: object) -> NoReturn:
    raise Strayed


class Retrace(Walk):
    """A walk along a route. Raises `Strayed` in `run` if the state has another shape."""

    def __init__(self, route: Route) -> None:
        super().__init__(route.census)
        self._route = route
        self.tree.nodes, self.tree.common = list(route.nodes), route.nodes
        self.paths = list(route.paths)
        self.objects = [MISSING] * len(route.nodes)
        self._arrays: list[Array | None] = [None] * route.num_arrays
        self.has_large_numbers = route.has_large_numbers
        self._names: list[str] = []
        #: The edges of the node that is captured again, and how many have been seen; None where the walk goes on behind the route.
        self._expected: Sequence[Edge] | None = ()
        self._num_seen = 0
        self._again: set[int] = set()
        #: Objects that must be those of nodes that may not have been reached yet, and these.
        self._others: list[Any] = []
        self._others_numbers: list[int] = []
        #: Memory that is not copied yet, by group: the nodes, their objects, and where that is.
        self._memories: list[tuple[Group, Sequence[Any], MemoryRanges]] = []

    def root(self, name: str, obj: Any) -> None:
        self._names.append(name)
        ref = self._route.roots.get(name, MISSING)
        if is_node(ref):
            node = self._route.nodes[ref[1]]
            self._meet(obj, ref[1], is_first=node["p"] is None and node["s"] == name)
            self.tree.roots[name] = ref
        elif ref is MISSING or not is_value(obj):
            _stray()
        else:
            self.tree.roots[name] = self._encoded(obj)

    def _encoded(self, obj: Any) -> Ref:
        if type(obj) is int and obj >= LOWEST_ADDRESS:
            self.has_large_numbers = True
        return encode_value(obj)

    def ref(self, obj: Any, parent: int | None, segment: str) -> Ref:
        if self._expected is None:
            return super().ref(obj, parent, segment)
        if type(obj) in ATOMS or (type(obj) is tuple and is_value(obj)):
            return self._encoded(obj)
        if self._num_seen == len(self._expected):
            _stray()
        edge = self._expected[self._num_seen]
        self._num_seen += 1
        if edge.segment != segment:
            _stray()
        self._meet(obj, edge.number, edge.is_first)
        return ["@", edge.number]

    def _meet(self, obj: Any, number: int, is_first: bool) -> None:
        if type(obj) is not self._route.types[number]:
            _stray()
        if is_first:
            self.objects[number] = obj
        else:
            self._others.append(obj)
            self._others_numbers.append(number)

    def array(self, node: Node, data: np.ndarray[Any, Any] | Place, label: str = "", *, is_copy: bool = False) -> None:
        if self._expected is None:
            return super().array(node, data, label, is_copy=is_copy)
        at = self._route.nodes[self._current].get("array")
        if at is None:
            _stray()
        if type(data) is Place:
            self.places[self._current] = data
        node["array"] = at
        self._arrays[at] = Array(self.path, data, label, is_copy=is_copy)
        return None

    def warn_of_hidden_state(self, name: str, type_name: str, why: str) -> None:
        if self._expected is not None:
            _stray()
        super().warn_of_hidden_state(name, type_name, why)

    # --- along the route -----------------------------------------------------------------------------------------------------

    def _capture_alive(self) -> None:
        route = self._route
        if self._names != list(route.roots):
            _stray()
        for one in route.rounds:
            for group in one.groups:
                self._look_at(group)
            for number in one.single:
                self._capture_again(number)
        self._finish()

    def _finish(self) -> None:
        """See that the objects are as many as the nodes, and go on as a walk does that has captured all that is alive."""
        if not all(map(operator.is_, self._others, map(self.objects.__getitem__, self._others_numbers))):
            _stray()
        self.numbers = dict(zip(map(id, self.objects), range(len(self.objects)), strict=True))
        arrays = [array for array in self._arrays if array is not None]
        if len(self.numbers) != len(self.objects) or len(arrays) != len(self._arrays):
            _stray()
        if any(is_value(self.objects[number]) for number in self._route.tuples):
            _stray()
        self.tree.arrays = arrays
        turns = self._route.turns
        self._at_end = deque(sorted(self._at_end, key=lambda one: turns[one[0]]))
        self._dead = deque(sorted(self._dead, key=lambda one: turns[one.parent or 0]))
        self._mark_origins()
        self._expected = None

    def _look_at(self, group: Group) -> None:
        objs = [self.objects[number] for number in group.numbers]
        look = glance(group.handler, objs, group.cls)
        own = glance_at_attributes(objs, group.cls, group.has_class) if group.attributes is not None else NOTHING
        if look is None or own is None:
            for number in group.numbers:
                self._capture_again(number)
            return
        changed = _changed(look, group.parts)
        if group.attributes is not None:
            changed |= _changed(own, group.attributes)
        numbers = set[int]()
        if group.handler.looks_above and self._again:
            nodes = self._route.nodes
            changed.update(at for at, number in enumerate(group.numbers) if nodes[number]["p"] in self._again)
        if changed:
            numbers = {group.numbers[at] for at in changed}
            for number in sorted(numbers):
                self._capture_again(number)
        self._go_on(look, group.parts, changed)
        if group.attributes is not None:
            self._go_on(own, group.attributes, changed)
            self._note_dicts(objs, group, changed)
        if group.arrays:
            memories = look.memories or group.handler.memory_ranges(objs)
            self._add_places(group, objs, memories, numbers)

    def _go_on(self, look: Glance, parts: Parts, changed: set[int]) -> None:
        """Meet the objects that unchanged nodes refer to."""
        if not parts.objects_at:
            return
        if changed:
            self._go_on_with_some(look, parts, changed)
            return
        met = _picked(look.parts, parts.objects_at)
        if not all(map(operator.is_, map(type, met), parts.types)):
            _stray()
        for number, obj in zip(parts.numbers[: parts.num_first], met, strict=False):
            self.objects[number] = obj
        if parts.num_first < len(met):
            self._others += met[parts.num_first :]
            self._others_numbers += parts.numbers[parts.num_first :]

    def _go_on_with_some(self, look: Glance, parts: Parts, changed: set[int]) -> None:
        before = list(itertools.accumulate(parts.counts, initial=0))
        now = list(itertools.accumulate(look.counts, initial=0))
        owners = np.searchsorted(before, parts.objects_at, side="right") - 1
        for place, (at, owner, cls, number) in enumerate(
            zip(parts.objects_at, owners.tolist(), parts.types, parts.numbers, strict=True)
        ):
            if owner in changed:
                continue
            obj = look.parts[at - before[owner] + now[owner]]
            if type(obj) is not cls:
                _stray()
            if place < parts.num_first:
                self.objects[number] = obj
            else:
                self._others.append(obj)
                self._others_numbers.append(number)

    def _note_dicts(self, objs: Sequence[Any], group: Group, changed: set[int]) -> None:
        """Instances' dicts that are somebody's own as well are found by the walk's last step."""
        for at, own in enumerate(instance_dicts(objs, group.cls) or ()):
            if own and at not in changed:
                number = group.numbers[at]
                if self._attributes.setdefault(id(own), (own, number))[1] != number:
                    _stray()

    def _add_places(self, group: Group, objs: Sequence[Any], memories: MemoryRanges, again: set[int]) -> None:
        if -1 in memories.addresses:
            _stray()
        columns = zip(objs, memories.addresses, memories.sizes, group.looks, memories.ranks, strict=True)
        places = list(map(tuple.__new__, itertools.repeat(Place), columns))  # `Place(…)` of each, by C alone
        made = map(Array, group.paths, places, group.labels)
        if again:
            for number, place, at, array in zip(group.numbers, places, group.arrays, made, strict=True):
                if number not in again:
                    self._arrays[at], self.places[number] = array, place
            return
        deque(map(self._arrays.__setitem__, group.arrays, made), maxlen=0)
        self.places.update(zip(group.numbers, places, strict=True))
        self._memories.append((group, objs, memories))

    def _drop_moved(self) -> None:
        if not self._are_still():
            self._memories.clear()  # each is looked at alone
            super()._drop_moved()

    def _are_still(self) -> bool:
        return all(
            group.handler.are_still(objs, memories) for group, objs, memories in self._memories
        ) and registry.are_still(self._single_places().values())

    def _single_places(self) -> dict[int, Place]:
        """Those of nodes that have been looked at alone."""
        inside = set[int]().union(*(group.numbers for group, _, _ in self._memories))
        return {number: place for number, place in self.places.items() if number not in inside}

    def places_by_column(self) -> tuple[list[int], MemoryRanges]:
        numbers, memories = columns_of(self._single_places())
        for group, _, more in self._memories:
            numbers += group.numbers
            for column, others in zip(memories, more, strict=True):
                column += others
        return numbers, memories

    def of_kinds(self, kinds: frozenset[str]) -> list[int]:
        nodes, again = self.tree.nodes, self._again
        known = [number for number in self._route.of_kinds(kinds) if number not in again]
        behind = range(len(self._route.nodes), len(nodes))
        return known + [number for number in itertools.chain(again, behind) if nodes[number]["k"] in kinds]

    def _capture_again(self, number: int) -> None:
        pristine = self._route.nodes[number]
        if self.objects[number] is MISSING:
            _stray()
        self._again.add(number)
        self.tree.nodes[number] = {"k": "", "t": "", "p": pristine["p"], "s": pristine["s"]}
        self._expected, self._num_seen = self._route.edges(number), 0
        self._capture(number)
        if self._num_seen != len(self._expected) or ("array" in pristine) != ("array" in self.tree.nodes[number]):
            _stray()

    def _mark_origins(self) -> None:
        """Nodes whose objects have moved, or have come anew, say so."""
        census, route = self._census, self._route
        if census is None:
            return
        now, moved, references = census.numbers_at(self.numbers), set[int](), route.references
        if now != route.origins:
            moved = {number for number, (one, other) in enumerate(zip(now, route.origins, strict=True)) if one != other}
            references = census.references_at(now)
        known = map(operator.call, references.values())
        if not all(map(operator.is_, known, map(self.objects.__getitem__, references))):
            moved.update(number for number, reference in references.items() if reference() is not self.objects[number])
        for number in moved - self._again:
            before = self.tree.nodes[number]
            # With its fields in the order in which a walk from anew writes them.
            node = self.tree.nodes[number] = {name: before[name] for name in ("k", "t", "p", "s")}
            census.mark(self.objects[number], node, self.paths[number].removeprefix("."))
            node.update((name, value) for name, value in before.items() if name != "from")


def _picked(values: Sequence[Any], places: list[int]) -> list[Any]:
    return [values[place] for place in places]


def _changed(look: Glance, parts: Parts) -> set[int]:
    """Positions in the group of the nodes that hand on other atoms, or as many parts as before no more, or look otherwise."""
    if look.facts == parts.facts and look.counts == parts.counts:
        atoms = _picked(look.parts, parts.atoms_at)
        if all(map(operator.is_, atoms, parts.atoms)):
            return set()
        before = list(itertools.accumulate(parts.counts, initial=0))
        differing = [at for at, one, other in zip(parts.atoms_at, atoms, parts.atoms, strict=True) if one is not other]
        return set((np.searchsorted(before, differing, side="right") - 1).tolist())
    if len(look.facts) != len(parts.facts):
        return set(range(len(parts.counts)))
    found = {at for at, (one, other) in enumerate(zip(look.counts, parts.counts, strict=True)) if one != other}
    for column, known in zip(look.facts, parts.facts, strict=True):
        found.update(at for at, (one, other) in enumerate(zip(column, known, strict=True)) if one != other)
    before = list(itertools.accumulate(parts.counts, initial=0))
    now = list(itertools.accumulate(look.counts, initial=0))
    owners = (np.searchsorted(before, parts.atoms_at, side="right") - 1).tolist()
    for at, owner, atom in zip(parts.atoms_at, owners, parts.atoms, strict=True):
        if owner not in found and look.parts[at - before[owner] + now[owner]] is not atom:
            found.add(owner)
    return found


class _Known:
    """What is known of the walks from roots of the same names."""

    route: Route | None = None
    #: Nodes of the walk before, where that was none along a route; a shape that changes each time is not worth a survey.
    num_nodes = -1
    has_strayed = False


class Retracer:
    """Makes one walk after the other of a program, each along the route of one before if that leads through."""

    def __init__(self) -> None:
        #: By the names of the roots that are alive: others at the header of another loop.
        self._known: dict[tuple[str, ...], _Known] = {}

    def walk(
        self, roots: Mapping[str, Any], dead: Mapping[str, Any] = MappingProxyType({}), census: Census | None = None,
        leave: Mapping[int, str] = MappingProxyType({}),
    ) -> Walk:  # fmt: skip
        """A walk that has been run; see `Walk` for what it is given."""
        if census is None or leave:
            return _run(Walk(census, leave), roots, dead)
        known = self._of(tuple(roots))
        if known.route is not None and known.route.census is census:
            try:
                return _run(Retrace(known.route), roots, dead)
            except Strayed:
                known.route, known.has_strayed = None, True
        walk = _run(Walk(census) if known.has_strayed else Survey(census), roots, dead)
        if isinstance(walk, Survey):
            known.route = walk.route
        known.has_strayed = known.has_strayed and len(walk.tree.nodes) != known.num_nodes
        known.num_nodes = len(walk.tree.nodes)
        return walk

    def _of(self, names: tuple[str, ...]) -> _Known:
        """What is known of these; of the names that were met last if there are too many."""
        known = self._known.pop(names, None) or _Known()
        while len(self._known) >= _MOST_ROUTES:
            del self._known[next(iter(self._known))]
        self._known[names] = known
        return known


def _run(walk: Walk, roots: Mapping[str, Any], dead: Mapping[str, Any]) -> Walk:
    for name, value in roots.items():
        walk.root(name, value)
    walk.run(dead)
    return walk

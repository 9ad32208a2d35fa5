"""A three-way merge of state trees, for a run that goes on with other arguments than it was begun with.

At one header there are three trees: *old*, what set-up code made of the old arguments; *saved*, the checkpoint; and *new*, what it has
made of the new arguments now. What the loop has not changed (saved is old) takes the new value; what the arguments do not change (new
is old) keeps the saved one; what both have changed, and not alike, is a *conflict*.

The trees are walked together from their roots. Nodes of one kind at one place are *partners*, and are merged field by field. Where an
object is another one, or of another kind, or there is none, the places are compared as wholes once all partners are known. What is
taken from the new tree is grafted into the saved one: its nodes tell of live objects, so that restoring leaves those as they are.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from detrain.state.fields import Holds, holds
from detrain.state.tree import Array, Node, Ref, Tree, is_node, iterator_kinds, join_path, key_segment
from detrain.store import leaves
from detrain.store.grafts import Grafts, Made
from detrain.store.sides import MISSING, Content, Side, code_of, comparable, same, shorten

#: What detrain notes for itself, or that other fields tell; and what says which of its kind a node is.
_ASIDE = frozenset({"k", "t", "p", "s", "from", "as", "graph", "array", "told", "loud", "kept"})
_IDENTITY = ("k", "t", "name", "codec")
#: The end of an `islice` among its parts.
_STOP, _ISLICE = 2, "itertools:islice"
#: How fields hold refs that are merged one by one.
_SEVERAL = (Holds.NAMED, Holds.ITEMS, Holds.LIST)
_SETS = frozenset({"set", "frozenset", "weak container"})
_OWN_PATH = frozenset({"v", "args", "storage", "dict", "to", "value", "of"})


@dataclass(frozen=True)
class Followed:
    """A leaf that takes the value that the new arguments make."""

    path: str
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.path} {self.old} -> {self.new}" if self.old != self.new else f"{self.path} (other contents)"


@dataclass(frozen=True)
class Conflict:
    """A leaf that the loop has changed, and that the new arguments would make otherwise."""

    path: str
    old: str
    saved: str
    new: str
    #: True if the saved value does not fit what the new arguments make: of another shape, type or length.
    is_structural: bool

    def __str__(self) -> str:
        if self.old == self.saved == self.new:
            return f"{self.path} ({self.old}): the loop has changed it, and the new arguments make other numbers"
        if self.old == self.saved:
            return f"{self.path}: the loop stands at {self.saved} there, and the new arguments make {self.new}"
        return f"{self.path}: the old arguments made {self.old}, the loop has changed it to {self.saved}, the new ones make {self.new}"


@dataclass
class Merged:
    """What came out: the saved tree with what follows the arguments in it, and what was decided."""

    tree: Tree
    followed: list[Followed] = field(default_factory=list)
    conflicts: list[Conflict] = field(default_factory=list)


def merge(old: Side, saved: Tree, new: Tree) -> Merged:
    """Merge; `saved` is used up. Where there are conflicts the result holds the saved values."""
    return _Merge(old, saved, new).run()


_Put = Callable[[Ref], None]


class _Place(NamedTuple):
    """Somewhere in the three trees; `put` replaces what the saved tree has there, in the node `owner` (-1: a root)."""

    old: Ref
    saved: Ref
    new: Ref
    path: str
    put: _Put
    owner: int
    is_position: bool = False  # of an iterator that has begun: the loop's, whatever it is


class _Merge:
    def __init__(self, old: Side, saved: Tree, new: Tree) -> None:
        self._tree, self._new_tree = saved, new
        self._old, self._saved, self._new = old, Side.of(saved), Side.of(new)
        self._partners: dict[int, tuple[int, int]] = {}  # saved number to old and new number
        self._of_old: dict[int, int] = {}
        self._of_new: dict[int, int] = {}
        self._queue: deque[tuple[int, str]] = deque()
        self._keyed: list[tuple[int, str]] = []
        self._later: list[Callable[[], None]] = []
        self._grafts: list[tuple[_Put, Ref]] = []
        self._views: dict[int, list[tuple[int, str]]] = {}  # by saved storage: the tensor, what was decided
        self._grafter = Grafts(new, saved, self._of_new)
        self._begun = _begun(saved)
        self._touched: set[int] = set()  # saved nodes in which something follows the arguments
        self._merged = Merged(saved)

    def run(self) -> Merged:
        old, saved, new = ([*side.roots.items()] for side in (self._old, self._saved, self._new))
        merged_roots = self._by_name(old, saved, new, "", "roots", -1)
        while self._queue or self._keyed:
            while self._queue:
                self._node(*self._queue.popleft())
            keyed, self._keyed = self._keyed, []
            for number, path in keyed:
                self._by_object(number, path)
        for storage, views in self._views.items():
            self._storage(storage, views)
        for action in self._later:
            action()
        self._check_loops()
        for put, ref in self._grafts:
            put(self._grafter.graft(ref))
        self._tree.roots.clear()
        self._tree.roots.update((name, ref) for name, ref in merged_roots if ref is not MISSING)
        for node in self._tree.nodes:
            _drop_missing(node)
        return self._merged

    # --- places -----------------------------------------------------------------------------------------------------------------

    def _place(self, place: _Place) -> None:
        """What stands somewhere: partners are merged, values compared now, and the rest when all partners are known."""
        refs = place.old, place.saved, place.new
        nodes = [ref is not MISSING and is_node(ref) for ref in refs]
        if not any(nodes):
            self._decide(place, same(place.saved, place.old), same(place.new, place.old), same(place.saved, place.new))
        elif not (all(nodes) and self._pair(refs[0][1], refs[1][1], refs[2][1], place.path)):
            self._later.append(lambda: self._whole(place))

    def _pair(self, old: int, saved: int, new: int, path: str) -> bool:
        """Let three nodes be partners. False if they are not of one kind, or the saved one has others."""
        if saved in self._partners:
            return self._partners[saved] == (old, new)
        node = self._saved.nodes[saved]
        for other in (self._old.nodes[old], self._new.nodes[new]):
            if any(node.get(name) != other.get(name) for name in _IDENTITY) or code_of(node) != code_of(other):
                return False
        self._partners[saved] = old, new
        self._of_old.setdefault(old, saved)
        self._of_new.setdefault(new, saved)
        self._queue.append((saved, path))
        return True

    def _whole(self, place: _Place) -> None:
        old, saved, new = (self._old, place.old), (self._saved, place.saved), (self._new, place.new)
        self._decide(place, self._equal(saved, old), self._equal(new, old), self._equal(saved, new), is_structural=True)

    def _decide(
        self, place: _Place, is_unchanged: bool, is_same: bool, is_alike: bool, *, is_structural: bool = False
    ) -> None:
        """`is_unchanged`: by the loop; `is_same`: with the new arguments as with the old; `is_alike`: saved and new."""
        if is_same or is_alike:
            return
        texts = [
            side.text(ref) for side, ref in ((self._old, place.old), (self._saved, place.saved), (self._new, place.new))
        ]
        if is_unchanged and not place.is_position:
            self._follow(place.path, texts[0], texts[2], place.owner)
            self._grafts.append((place.put, place.new))
        else:
            self._conflict(place.path, texts, is_structural=is_structural)

    def _follow(self, path: str, old: str, new: str, owner: int) -> None:
        self._touched.add(owner)
        self._merged.followed.append(Followed(self._readable(path), old, new))

    def _conflict(self, path: str, texts: Sequence[str], *, is_structural: bool) -> None:
        old, saved, new = texts
        self._merged.conflicts.append(Conflict(self._readable(path), old, saved, new, is_structural))

    def _readable(self, path: str) -> str:
        return leaves.readable(self._tree, path)

    # --- nodes ------------------------------------------------------------------------------------------------------------------

    def _node(self, number: int, path: str) -> None:
        old_number, new_number = self._partners[number]
        old, saved, new = self._old.nodes[old_number], self._saved.nodes[number], self._new.nodes[new_number]
        if any("kept" in node for node in (old, saved, new)):
            return  # not in the tree: the live object stays as the new arguments have made it
        if saved["k"] == "range iterator":
            self._range(number, path)
            return
        plain = []
        for name in dict.fromkeys([*saved, *new, *old]):
            triple = old.get(name, MISSING), saved.get(name, MISSING), new.get(name, MISSING)
            if name in _ASIDE or name == "code":
                continue
            held = holds(name)
            if held in _SEVERAL:
                self._several(name, number, path)
            elif held is Holds.ONE and any(one is not MISSING and is_node(one) for one in triple):
                below = path if name in _OWN_PATH else f"{path}.{name}"
                self._place(_Place(*triple, below, _setter(saved, name), number))
            elif held is not Holds.LISTS and not (saved["k"] in _SETS and name == "table"):
                plain.append(name)
        self._unit(number, plain, path)

    def _several(self, name: str, number: int, path: str) -> None:
        """A field that holds several refs."""
        old_number, new_number = self._partners[number]
        saved = self._saved.nodes[number]
        if saved["k"] in _SETS and name == "seq":
            self._later.append(lambda: self._set(number, path))
            return
        old, new = self._old.nodes[old_number], self._new.nodes[new_number]
        fields = old.get(name, []), saved.get(name, []), new.get(name, [])
        if not any(fields):
            return
        if holds(name) is Holds.LIST:
            saved[name] = self._by_position(*fields, path, number)
        elif name == "items" and any(is_node(key) for pairs in fields for key, _ in pairs):
            self._keyed.append((number, path))
        else:
            saved[name] = self._by_name(*fields, path, name, number)

    def _by_name(self, old: list[Any], saved: list[Any], new: list[Any], path: str, name: str, owner: int) -> list[Any]:
        """Pairs of key and ref, by their keys."""
        sides = [{json.dumps(key): (key, ref) for key, ref in pairs} for pairs in (old, saved, new)]
        return self._by_key(sides, lambda key: key if name == "roots" else key_segment(key, name), path, owner)

    def _by_key(
        self, sides: list[dict[str, Any]], segment_of: Callable[[Ref], str], path: str, owner: int
    ) -> list[Any]:
        old, saved, new = sides
        merged = {text: [key, ref] for text, (key, ref) in saved.items()}
        if list(saved) == list(old):  # the loop has not changed their order either
            merged = {text: merged.get(text, [new[text][0], MISSING]) for text in new} | merged
        for text in dict.fromkeys([*saved, *new, *old]):
            key = next(side[text][0] for side in (saved, new, old) if text in side)
            one, two, three = (side[text][1] if text in side else MISSING for side in sides)
            pair = merged.setdefault(text, [key, MISSING])
            if text not in saved and text in new and is_node(key):
                self._grafts.append((_setter(pair, 0), key))
            self._place(_Place(one, two, three, join_path((path, segment_of(key))), _setter(pair, 1), owner))
        return list(merged.values())

    def _by_object(self, number: int, path: str) -> None:
        """Items whose keys are objects; keys that no other place leads to are paired in their order."""
        numbers = self._partners[number][0], number, self._partners[number][1]
        sides = [
            (side, side.nodes[one].get("items", []))
            for side, one in zip((self._old, self._saved, self._new), numbers, strict=True)
        ]
        free = [
            [key[1] for key, _ in pairs if is_node(key) and self._identity(side, key[1]) is None]
            for side, pairs in sides
        ]
        for one, two, three in zip(*free, strict=False):
            self._pair(one, two, three, f"{path}.<key>")

        def text_of(key: Ref, side: Side) -> str:
            if not is_node(key):
                return json.dumps(key)
            identity = self._identity(side, key[1])
            return f"@{identity}" if identity is not None else f"@{key[1]} of {id(side)}"

        keyed = [{text_of(key, side): (key, ref) for key, ref in pairs} for side, pairs in sides]
        self._saved.nodes[number]["items"] = self._by_key(keyed, key_segment, path, number)

    def _by_position(self, old: list[Ref], saved: list[Ref], new: list[Ref], path: str, owner: int) -> list[Ref]:
        merged = list(saved)
        merged += [MISSING] * (max(len(old), len(new)) - len(saved))
        node = self._saved.nodes[owner]
        has_begun = owner in self._begun
        for position in range(len(merged)):
            is_position = has_begun and not (position == _STOP and node["t"] == _ISLICE)
            one, two, three = (side[position] if position < len(side) else MISSING for side in (old, saved, new))
            self._place(_Place(one, two, three, f"{path}[{position}]", _setter(merged, position), owner, is_position))
        return merged

    def _range(self, number: int, path: str) -> None:
        """What is left of a range: its place is the loop's, its end the arguments'."""
        numbers = self._partners[number]
        saved = self._saved.nodes[number]
        nodes = self._old.nodes[numbers[0]], saved, self._new.nodes[numbers[1]]
        old, now, new = (_left(node) for node in nodes)
        if new[2] == old[2]:
            merged = [*now]
            for place, name in ((0, "start"), (1, "stop")):
                values = old[place], now[place], new[place]
                self._place(
                    _Place(
                        *values, f"{path}.{name}", _setter(merged, place), number, not place and number in self._begun
                    )
                )
            self._later.append(lambda: self._grafts.append((_setter(saved, "range"), Made(merged))))
            return
        texts = [str(range(*node["range"])) for node in nodes]
        if now == old and number not in self._begun:
            self._follow(path, texts[0], texts[2], number)
            saved["range"] = [*new]
        elif now != new:
            self._conflict(path, texts, is_structural=True)

    def _unit(self, number: int, names: list[str], path: str) -> None:
        """Plain fields and bulk data of a node make sense together only."""
        numbers = self._partners[number]
        sides = (self._old, numbers[0]), (self._saved, number), (self._new, numbers[1])
        nodes = [side.nodes[one] for side, one in sides]
        contents = [side.contents.get(one) for side, one in sides]
        units = [
            ([comparable(node.get(name, MISSING)) for name in names], content)
            for node, content in zip(nodes, contents, strict=True)
        ]
        is_unchanged, is_same, is_alike = units[1] == units[0], units[2] == units[0], units[1] == units[2]
        is_kept = not is_unchanged or is_same
        if not (is_same or is_alike):
            shown, texts = self._shown(names, nodes, contents)
            below = path if shown in _OWN_PATH or not shown else f"{path}.{shown}"
            if is_unchanged and number not in self._begun:
                self._follow(below, texts[0], texts[2], number)
                self._take(number, names)
            else:
                kinds = [content.kind if content is not None else "" for content in contents]
                is_structural = kinds[1] != kinds[2] or ("finished" in nodes[1]) != ("finished" in nodes[2])
                self._conflict(below, texts, is_structural=is_structural)
        if is_node(nodes[1].get("storage")):
            decided = "same" if is_same and is_unchanged else "kept" if is_kept else "followed"
            self._views.setdefault(nodes[1]["storage"][1], []).append((number, decided))

    def _shown(self, names: list[str], nodes: list[Node], contents: list[Content | None]) -> tuple[str, list[str]]:
        """Which field a message names, and its values in the three."""
        old, _, new = nodes
        for name in names:
            if comparable(new.get(name, MISSING)) != comparable(old.get(name, MISSING)):
                return name, [shorten(leaves.value_of(node.get(name, MISSING))) for node in nodes]
        return "", ["nothing" if one is None else one.text or one.kind for one in contents]

    def _take(self, number: int, names: list[str]) -> None:
        saved, new = self._saved.nodes[number], self._new.nodes[self._partners[number][1]]
        for name in names:
            saved.pop(name, None)
            if name in new:
                saved[name] = new[name]
        self._take_array(saved, new)

    def _take_array(self, saved: Node, new: Node) -> None:
        saved.pop("array", None)
        if "array" in new:
            saved["array"] = self._grafter.add_array(new["array"])

    def _storage(self, number: int, views: list[tuple[int, str]]) -> None:
        """The bytes behind tensors: those of the new tree under the tensors that follow."""
        decisions = {decided for _, decided in views}
        if "followed" not in decisions:
            return
        if number not in self._partners:
            sizes = ["other tensors' memory"] * 3
            self._conflict(self._tree.path(number), sizes, is_structural=True)
            return
        saved, new = self._saved.nodes[number], self._new.nodes[self._partners[number][1]]
        if "kept" not in decisions:
            for name in ("nbytes", "device", "as"):
                saved.pop(name, None)
                if name in new:
                    saved[name] = new[name]
            self._take_array(saved, new)
            return
        for view, decided in views:
            if decided == "followed":
                self._patch(number, view, saved, new)

    def _patch(self, number: int, view: int, saved: Node, new: Node) -> None:
        """Write what a tensor that follows looks at into a storage that others look into as well."""
        node, new_node = self._saved.nodes[view], self._new.nodes[self._partners[view][1]]
        if saved["nbytes"] != new["nbytes"]:
            size = [f"{one['nbytes']} bytes" for one in (saved, saved, new)]
            self._conflict(self._tree.path(number), size, is_structural=True)
            return
        array = self._tree.arrays[saved["array"]]
        if not array.is_copy:
            array = self._tree.arrays[saved["array"]] = Array(array.path, array.data.copy(), array.label, "", True)
        array.digest = ""
        target = leaves.elements_of(self._tree, node)
        source = leaves.elements_of(self._new_tree, new_node)
        if target is not None and source is not None:
            target[...] = source

    def _set(self, number: int, path: str) -> None:
        """Sets are compared as wholes: where an element lies hangs on the others."""
        numbers = self._partners[number]
        sides = (self._old, numbers[0]), (self._saved, number), (self._new, numbers[1])
        found = [self._elements(side, side.nodes[one]) for side, one in sides]
        if found[2] in (found[0], found[1]):
            return
        texts = [shorten([leaves.value_of(ref) for ref in side.nodes[one]["seq"]]) for side, one in sides]
        if found[1] != found[0]:
            self._conflict(path, texts, is_structural=True)
            return
        self._follow(path, texts[0], texts[2], number)
        saved, new = self._saved.nodes[number], self._new.nodes[numbers[1]]
        seq = saved["seq"] = list(new["seq"])
        for position, ref in enumerate(seq):
            self._grafts.append((_setter(seq, position), ref))
        saved.pop("table", None)
        if "table" in new:
            saved["table"] = new["table"]

    def _elements(self, side: Side, node: Node) -> list[str]:
        texts = [f"@{self._identity(side, ref[1])}" if is_node(ref) else json.dumps(ref) for ref in node["seq"]]
        return [*texts, json.dumps(node["table"])] if "table" in node else sorted(texts)

    def _check_loops(self) -> None:
        """An iterator that came about on the way of one whose parts follow the arguments is made of the old ones: `chain`'s present one."""
        for name in [name for name in self._saved.roots if name.startswith("loops[")]:
            pending, seen = [self._saved.roots[name]], set[int]()
            while pending:
                ref = pending.pop()
                if ref is MISSING or not is_node(ref) or ref[1] in seen:
                    continue
                seen.add(ref[1])
                node = self._saved.nodes[ref[1]]
                if node["k"] in iterator_kinds:
                    pending += [*node.get("parts", ()), *node.get("stack", ()), node.get("over"), node.get("state")]
                elif node["k"] in ("list", "tuple"):
                    pending += node.get("seq", ())
            inside = [
                one for one in seen if self._saved.nodes[one]["k"] in iterator_kinds and one not in self._partners
            ]
            if inside and seen & self._touched:
                kind = self._saved.nodes[inside[0]]["t"].rpartition(":")[2]
                texts = ["its parts", f"a {kind} over one of them", "other parts"]
                self._conflict(self._tree.path(inside[0]), texts, is_structural=False)

    # --- wholes -----------------------------------------------------------------------------------------------------------------

    def _identity(self, side: Side, number: int) -> int | None:
        """By which saved node an object is known; None if it has no partners."""
        if side is self._saved:
            return number if number in self._partners else None
        return (self._of_old if side is self._old else self._of_new).get(number)

    def _equal(self, one: tuple[Side, Ref], other: tuple[Side, Ref]) -> bool:
        """True if two sides have the same somewhere. Objects that have partners are told apart by these, and looked into elsewhere."""
        (a, ref_a), (b, ref_b) = one, other
        pending, seen = [(ref_a, ref_b)], set[tuple[int, int]]()
        while pending:
            ref_a, ref_b = pending.pop()
            nodes = [ref is not MISSING and is_node(ref) for ref in (ref_a, ref_b)]
            if not all(nodes):
                if any(nodes) or not same(ref_a, ref_b):
                    return False
                continue
            pair = ref_a[1], ref_b[1]
            identities = self._identity(a, pair[0]), self._identity(b, pair[1])
            if identities != (None, None):
                if identities[0] != identities[1]:
                    return False
                continue
            if pair in seen:
                continue
            seen.add(pair)
            below = self._below(a, pair[0], b, pair[1])
            if below is None:
                return False
            pending += below
        return True

    @staticmethod
    def _below(a: Side, number_a: int, b: Side, number_b: int) -> list[tuple[Ref, Ref]] | None:
        """Refs of two nodes that have to be equal for the nodes to be; None if they differ already."""
        one, other = a.nodes[number_a], b.nodes[number_b]
        if a.contents.get(number_a) != b.contents.get(number_b) or code_of(one) != code_of(other):
            return None
        pairs: list[tuple[Ref, Ref]] = []
        for name in {"k", "t"} | ((one.keys() | other.keys()) - _ASIDE - {"code"}):
            left, right, held = one.get(name, MISSING), other.get(name, MISSING), holds(name)
            if held in _SEVERAL and left is not MISSING and right is not MISSING:
                if len(left) != len(right):
                    return None
                flat = [(left, right)] if held is Holds.LIST else [*zip(left, right, strict=True)]
                pairs += [two for ones in flat for two in zip(*ones, strict=True)]
            elif held is Holds.PLAIN:
                if not same(left, right):
                    return None
            elif held is not Holds.LISTS:
                pairs.append((left, right))
        return pairs


def _begun(tree: Tree) -> set[int]:
    """Generators, iterators of loops, and those that these hold: what is compared has been taken to its first step for that."""
    pending: list[Any] = [ref for name, ref in tree.roots.items() if name.startswith("loops[")]
    pending += [["@", number] for number, node in enumerate(tree.nodes) if node["k"] == "generator"]
    seen, found = set[int](), set[int]()
    while pending:
        ref = pending.pop()
        if not is_node(ref) or ref[1] in seen:
            continue
        seen.add(ref[1])
        node = tree.nodes[ref[1]]
        if node["k"] in iterator_kinds:
            found.add(ref[1])
            pending += [*node.get("parts", ()), *node.get("stack", ()), node.get("state")]
            pending += [value for _, value in node.get("locals", ())]
        elif node["k"] == "tuple":
            pending += node["seq"]
    return found


def _setter(holder: Any, key: Any) -> _Put:
    def put(ref: Ref) -> None:
        holder[key] = ref

    return put


def _drop_missing(node: Node) -> None:
    for name in [name for name, value in node.items() if value is MISSING]:
        del node[name]
    for name, value in node.items():
        if holds(name) in (Holds.NAMED, Holds.ITEMS):
            node[name] = [pair for pair in value if pair[1] is not MISSING]
        elif holds(name) is Holds.LIST:
            node[name] = [ref for ref in value if ref is not MISSING]


def _left(node: Node) -> tuple[int, int, int]:
    """What is left of a range, ended where its steps end: slices of one range that was not are told with other ends."""
    begin, end, step = node["range"]
    return begin, begin + len(range(begin, end, step)) * step, step

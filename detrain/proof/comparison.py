"""Comparison of two checkpoints, leaf by leaf, bit for bit.

Both trees are walked together from their roots, so that it does not matter in which order the two runs met their
objects. Compared are types, values, elements by their bits, the order of dicts, and which names share an object. Not
compared, because it differs between two runs of one program that came through different checkpoints:

- what detrain notes for itself: what a save cost, the checkpoints on the way, counts of batches, where an object stood
  when the loops were entered, why an object was kept, file and line of a function's code, the function that made a
  tensor (its graph is in no checkpoint);
- the folder, the script's folder and the run directory, where a text or a file name begins with them;
- bytes of a storage that no tensor looks into: nobody wrote them, they may hold addresses of the process;
- the order of a set's objects, where they are hashed by address;
- a logger at its defaults, which is the same as none;
- the number of its own process that an object of a library's keeps, to know when it has been forked, and what libraries make
  with threads of their own while the loop runs (`detrain.state.machinery`).

Environment, sources and arguments are *noted* where they differ and do not count. So are the levels of a library's own loggers where only
one side has loaded it, and how many processes were started: they tell what is installed, or was done before, on a machine (a program
fills a library's cache the first time), and what comes of them in the training is compared there. A process id or a time that
the script keeps in a variable is state like any other, and counts.
"""

from __future__ import annotations

import json
import logging
import os
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from detrain.state.fields import Holds, holds
from detrain.state.machinery import of_libraries
from detrain.state.tree import Node, Ref, Tree, is_node, join_path, key_segment
from detrain.store import checkpoint as checkpoint_file
from detrain.store import leaves

#: Differences that are written out; all are counted.
_SHOWN = 20

_NOT_COMPARED = frozenset({"k", "t", "p", "s", "from", "kept", "loud", "as", "graph", "array", "code"})
_OF_LOGGERS = frozenset({"levels", "libraries", "loggers"})
_OF_LOGGING = frozenset({"logger", "log handler"})
_SETS = frozenset({"set", "frozenset", "weak container"})
#: Fields that have no segment of their own in a path: what they hold is all that the object is, or its elements.
_OWN_PATH = frozenset({"v", "args", "storage", "dict", "to", "seq", "stack", "flying"})


@dataclass
class Side:
    """One of the two: a checkpoint with its tree, and the run that it belongs to, if a run was named."""

    checkpoint: checkpoint_file.Checkpoint
    tree: Tree
    is_finished: bool | None = None
    roots: list[tuple[str, str]] = field(default_factory=list)
    viewed: set[int] = field(default_factory=set)
    machinery: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        meta = self.checkpoint.meta
        named = {
            str(self.checkpoint.path.absolute().parent): "<run directory>",
            **{str(Path(source).parent): "<sources>" for source in meta.sources},
            meta.folder: "<folder>",
        }
        self.roots = sorted(
            ((root, mark) for root, mark in named.items() if len(root) > 1), key=lambda pair: -len(pair[0])
        )
        self.machinery = of_libraries(self.tree)
        self.viewed = {node["storage"][1] for node in self.tree.nodes if "storage" in node}

    def text(self, value: str) -> str:
        """A text without the folder that it begins with."""
        for root, mark in self.roots:
            if value == root or value.startswith(root + os.sep):
                return mark + value[len(root) :]
        return value


def _known_to(other: dict[str, Any], flags: dict[str, Any]) -> dict[str, Any]:
    """The switches of frameworks that the other side has as well: one detrain looks at more of them than another."""
    return {
        framework: {name: value for name, value in values.items() if framework not in other or name in other[framework]}
        for framework, values in flags.items()
    }


def _names_of(flags: dict[str, Any]) -> set[str]:
    return {f"{framework}.{name}" for framework, values in flags.items() for name in values}


class Comparison:
    """A walk through two trees at once; each pair of nodes is compared once and named as in A."""

    def __init__(self, a: Side, b: Side, *, has_more: bool = False) -> None:
        """`has_more`: B is of a source with lines added: what only it has, and how it logs, is noted and does not count."""
        self.a, self.b, self._has_more = a, b, has_more
        self.num_leaves = 0
        self.num_differences = 0
        self.differences: list[dict[str, object]] = []
        #: What differs and does not count: name, in A, in B.
        self.notes: list[tuple[str, object, object]] = []
        self._partner: dict[int, int] = {}
        self._paths: tuple[dict[int, str], dict[int, str]] = ({}, {})
        self._pending: deque[tuple[int, int, str]] = deque()
        self._processes = [side.checkpoint.meta.process for side in (a, b)]
        self._is_of_library = False

    def run(self) -> None:
        """Compare everything."""
        meta_a, meta_b = self.a.checkpoint.meta, self.b.checkpoint.meta
        if self.a.is_finished is not None and self.b.is_finished is not None:
            self._values(self.a.is_finished, self.b.is_finished, "run.is_finished")
        # Not the counts of epochs and batches: they depend on when the attempt that saved had found the loops.
        self._values(meta_a.is_exhausted, meta_b.is_exhausted, "position.is_exhausted")
        self._values(
            [list(loop[2:]) for loop in meta_a.position], [list(loop[2:]) for loop in meta_b.position], "position.loops"
        )
        self._plain(_known_to(meta_b.flags, meta_a.flags), _known_to(meta_a.flags, meta_b.flags), "flags")
        names_a, names_b = _names_of(meta_a.flags), _names_of(meta_b.flags)
        self._note("switches that only one has", sorted(names_a - names_b), sorted(names_b - names_a))
        self._plain(meta_a.entropy[:1], meta_b.entropy[:1], "entropy")
        self._note("processes started", meta_a.entropy[1:], meta_b.entropy[1:])
        self._by_name(sorted(self.a.tree.roots.items()), sorted(self.b.tree.roots.items()), "", "roots", self._refs)
        while self._pending:
            self._nodes(*self._pending.popleft())

    def _differs(self, path: str, what: str, **details: object) -> None:
        self.num_differences += 1
        if len(self.differences) < _SHOWN:
            self.differences.append({"path": path or "the state tree", "what": what, **details})

    def _note(self, name: str, a: object, b: object) -> None:
        if a != b:
            self.notes.append((name, a, b))

    def _refs(self, a: Ref, b: Ref, path: str) -> None:
        if any(is_node(ref) and ref[1] in side.machinery for ref, side in ((a, self.a), (b, self.b))):
            return
        if self._has_more and any(
            is_node(ref) and side.tree.nodes[ref[1]]["k"] in _OF_LOGGING for ref, side in ((a, self.a), (b, self.b))
        ):
            return
        if not (is_node(a) and is_node(b)):
            if is_node(a) or is_node(b):
                self._differs(path, "type", a=self._describe(self.a, a), b=self._describe(self.b, b))
            elif _is_tuple(a) and _is_tuple(b):
                self._sequence(a[1], b[1], path, self._refs)
            else:
                self._values(a, b, path)
            return
        one, other = a[1], b[1]
        paths_a, paths_b = self._paths
        if one not in paths_a and other not in paths_b:
            path = leaves.readable(self.a.tree, self.a.tree.path(one))  # as `inspect` names it
            self._partner[one] = other
            paths_a[one] = paths_b[other] = path
            self._pending.append((one, other, path))
        elif self._partner.get(one) != other:
            self._differs(
                path,
                "identity",
                a=f"the object at {paths_a.get(one, path)}",
                b=f"the object at {paths_b.get(other, path)}",
            )

    def _describe(self, side: Side, ref: Ref) -> str:
        return side.tree.nodes[ref[1]]["t"] if is_node(ref) else repr(leaves.value_of(ref))

    def _values(self, a: Ref, b: Ref, path: str) -> None:
        self.num_leaves += 1
        if self._is_of_library and a is not None and [a, b] == self._processes:
            return
        a = self.a.text(a) if type(a) is str else a
        b = self.b.text(b) if type(b) is str else b
        if json.dumps(a, sort_keys=True) != json.dumps(b, sort_keys=True):
            values = leaves.value_of(a), leaves.value_of(b)
            texts = leaves.bits_of(values[0]), leaves.bits_of(values[1])
            bits = {"a_bits": texts[0], "b_bits": texts[1]} if all(texts) else {}
            self._differs(path, "value", a=leaves.plain_json(values[0]), b=leaves.plain_json(values[1]), **bits)

    def _plain(self, a: Any, b: Any, path: str) -> None:
        """Plain JSON."""
        if isinstance(a, dict) and isinstance(b, dict):
            if a.keys() == b.keys() == {"array", "dtype"}:
                self._elements(np.array(a["array"], a["dtype"]), np.array(b["array"], b["dtype"]), path, a["dtype"])
            else:
                self._by_name(list(a.items()), list(b.items()), path, "attrs", self._plain)
        elif isinstance(a, list) and isinstance(b, list):
            self._sequence(a, b, path, self._plain)
        else:
            self._values(a, b, path)

    def _sequence(self, a: list[Any], b: list[Any], path: str, compare: Callable[[Any, Any, str], None]) -> None:
        if len(a) != len(b):
            self._differs(path, "length", a=len(a), b=len(b))
        for position, (one, other) in enumerate(zip(a, b, strict=False)):
            compare(one, other, f"{path}[{position}]")

    def _nodes(self, number_a: int, number_b: int, path: str) -> None:
        a, b = self.a.tree.nodes[number_a], self.b.tree.nodes[number_b]
        # Of a class of the script's own the node names the class.
        self._is_of_library = a["k"] == "object" and "class" not in a
        if (a["k"], a["t"]) != (b["k"], b["t"]):
            self._differs(path, "type", a=a["t"], b=b["t"])
            return
        if "kept" in a or "kept" in b:
            if ("kept" in a) != ("kept" in b):
                self._differs(path, "captured", a="kept" not in a, b="kept" not in b)
            return
        for name in sorted((a.keys() | b.keys()) - _NOT_COMPARED - _OF_LOGGERS):
            self._field(a, b, name, path)
        if "levels" in a:
            self._loggers(a, b, path)
        if "code" in a:
            self._values(a["code"][2:], b.get("code", [])[2:], f"{path}.<code>")
        is_viewed = number_a in self.a.viewed and number_b in self.b.viewed
        if "storage" in a or ("array" in a and "array" in b and not is_viewed):
            self._bulk(a, b, path)

    def _field(self, a: Node, b: Node, name: str, path: str) -> None:
        below = path if name in _OWN_PATH else f"{path}.<{name}>"
        held = holds(name)
        if name not in a or name not in b:
            self._differs(f"{path}.<{name}>", "only in a" if name in a else "only in b")
        elif held in (Holds.NAMED, Holds.ITEMS):
            self._by_name(a[name], b[name], path, name, self._refs)
        elif held is Holds.LIST:
            self._sequence(_in_order(self.a.tree, a, name), _in_order(self.b.tree, b, name), below, self._refs)
        elif held is Holds.LISTS:
            self._sequence(
                a[name], b[name], below, lambda one, other, inside: self._sequence(one, other, inside, self._refs)
            )
        elif held is Holds.ONE and not isinstance(a[name], dict):
            self._refs(a[name], b[name], below)
        else:
            self._plain(a[name], b[name], below)

    def _loggers(self, a: Node, b: Node, path: str) -> None:
        """What the root logger tells of the others: their levels, and those that are set up otherwise."""
        for name in sorted(a["levels"].keys() | b["levels"].keys()):
            one, other = (node["levels"].get(name, logging.NOTSET) for node in (a, b))
            is_on_one_side = name not in a["levels"] or name not in b["levels"]
            if is_on_one_side and any(name in node.get("libraries", ()) for node in (a, b)):
                self._note(f"level of a library's logger {name}", one, other)
            else:
                self._values(one, other, f"{path}.<levels>.{name}")
        if "loggers" in a and "loggers" in b:  # checkpoints of an earlier detrain have none
            self._by_name(a["loggers"], b["loggers"], f"{path}.<loggers>", "items", self._refs)

    def _by_name(
        self, a: list[Any], b: list[Any], path: str, field_name: str, compare: Callable[[Any, Any, str], None]
    ) -> None:
        """Pairs of key and value. Keys that are objects are paired in their order, all others by their value."""
        known_a = {json.dumps(key): (key, ref) for key, ref in a if not is_node(key)}
        known_b = {json.dumps(key): (key, ref) for key, ref in b if not is_node(key)}
        if field_name == "items" and known_a.keys() == known_b.keys() and list(known_a) != list(known_b):
            self._differs(path, "order of keys", a=list(known_a)[:5], b=list(known_b)[:5])
        for text in dict.fromkeys([*known_a, *known_b]):
            key, ref = known_a.get(text) or known_b[text]
            segment = key if field_name == "roots" else key_segment(key, field_name)
            below = join_path((path, segment))
            if text in known_a and text in known_b:
                compare(ref, known_b[text][1], below)
            else:
                side = self.a if text in known_a else self.b
                if side is self.b and self._has_more:
                    self._note(below, "nothing", self._describe(side, ref))
                    continue
                self._differs(below, "only in a" if side is self.a else "only in b", value=self._describe(side, ref))
        objects_a, objects_b = ([pair for pair in pairs if is_node(pair[0])] for pairs in (a, b))
        if len(objects_a) != len(objects_b):
            self._differs(path, "length", a=len(a), b=len(b))
        for (key_a, one), (key_b, other) in zip(objects_a, objects_b, strict=False):
            self._refs(key_a, key_b, f"{path}.<key>")
            compare(one, other, f"{path}[{self._paths[0].get(key_a[1], '?')}]")

    def _bulk(self, a: Node, b: Node, path: str) -> None:
        """Bulk data of two nodes of one kind; of a storage only the bytes that its tensors look at."""
        if [a.get(name) for name in ("dtype", "shape")] != [b.get(name) for name in ("dtype", "shape")]:
            return  # said already, field by field
        ones, others = leaves.elements_of(self.a.tree, a), leaves.elements_of(self.b.tree, b)
        if ones is None or others is None:
            self.num_leaves += 1
            if (ones is None) != (others is None):
                self._differs(path, "only in a" if others is None else "only in b")
            return
        self._elements(ones, others, path, a.get("dtype") or str(ones.dtype))

    def _elements(self, a: leaves.Elements, b: leaves.Elements, path: str, dtype_name: str) -> None:
        self.num_leaves += 1
        if (a.dtype, a.shape) != (b.dtype, b.shape):
            self._differs(path, "shape", a=f"{a.dtype} {list(a.shape)}", b=f"{b.dtype} {list(b.shape)}")
            return
        found = leaves.first_difference(a, b)
        if found is not None:
            count, index = found
            one, other = a[tuple(index)], b[tuple(index)]
            self._differs(
                path, "elements", dtype=dtype_name, shape=list(a.shape), count=count, index=index,
                a=leaves.element_text(one, dtype_name), b=leaves.element_text(other, dtype_name),
                a_bits=leaves.bits_of(one), b_bits=leaves.bits_of(other),
            )  # fmt: skip


def _is_tuple(ref: Ref) -> bool:
    """True for a tuple of values, which is no object of its own."""
    return type(ref) is list and ref[0] == "t"


def _in_order(tree: Tree, node: Node, name: str) -> list[Ref]:
    refs: list[Ref] = node[name]
    if node["k"] not in _SETS or not any(map(is_node, refs)):
        return refs
    return sorted(refs, key=lambda ref: (is_node(ref), tree.path(ref[1]) if is_node(ref) else json.dumps(ref)))

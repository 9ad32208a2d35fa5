"""The state tree: what a capture yields, what a checkpoint file holds, what a restore reads.

A tree is a list of *nodes*, one for each object that has an identity (so that two names for one list stay two names for
one list), and a list of *arrays*, the bulk data. A node is a JSON-able dict::

    {"k": kind, "t": "module:qualname" of its type, "p": parent node, "s": segment of its path below the parent, ...}

The name of a field says whether it holds refs, and how (`detrain.state.fields`). A *ref* is an atom, which stands for itself, or a
tagged list:

    None, True, 7, 1.5, "text"    atoms (floats only when finite)
    ["@", 12]                     node 12
    ["f", "000000000000f87f"]     a float by its eight bytes (NaN, infinities)
    ["i", "-0x1f…"]               a whole number of more than 4,000 bits
    ["b", "aGVsbG8="]             bytes, base64
    ["c", re, im]                 a complex number; the parts are refs
    ["t", [ref, …]]               a tuple of such values
"""

from __future__ import annotations

import base64
import functools
import math
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import xxhash

from detrain.state.fields import FIELDS, Holds, refs_in

Ref = Any
Node = dict[str, Any]

#: Depth of tuples in tuples that are written into one node.
_DEEPEST_VALUE = 50
#: Whole numbers from here on have more digits than JSON readers accept.
_WIDEST = 1 << 4000
#: Up to here it takes less time to copy bytes than to ask once more. Bytes.
_SMALL_BYTES = 4096
_PLAIN = frozenset({type(None), bool, int, str})
ATOMS = frozenset({*_PLAIN, float, bytes, complex})


def encode_atom(value: Any) -> Ref:
    """The ref of a value whose exact type is in `ATOMS`."""
    kind = type(value)
    if kind is int:
        return value if -_WIDEST < value < _WIDEST else ["i", hex(value)]
    if kind in _PLAIN:
        return value
    if kind is float:
        return value if math.isfinite(value) else ["f", struct.pack("<d", value).hex()]
    if kind is bytes:
        return ["b", base64.b64encode(value).decode("ascii")]
    return ["c", encode_atom(value.real), encode_atom(value.imag)]


def is_value(value: Any, depth: int = 0) -> bool:
    """True for atoms and for tuples of values: what is compared by content and needs no identity."""
    kind = type(value)
    if kind is not tuple:
        return kind in ATOMS
    return depth < _DEEPEST_VALUE and all(is_value(item, depth + 1) for item in value)


def encode_value(value: Any) -> Ref:
    """The ref of anything for which `is_value` holds."""
    return ["t", [encode_value(item) for item in value]] if type(value) is tuple else encode_atom(value)


def is_same_value(one: Any, other: Any) -> bool:
    """True if two values (atoms, or tuples of values) are of the same types and have the same bits; NaN is NaN, and -0.0 is not 0.0."""
    kind = type(one)
    if kind is not type(other):
        return False
    if kind is tuple:
        return len(one) == len(other) and all(map(is_same_value, one, other))
    # Of a whole number of more than 4,300 digits Python refuses the text.
    return bool(one == other) if kind in _PLAIN else repr(one) == repr(other)


def decode_value(ref: Ref) -> Any:
    """The value of a ref that is not a node's."""
    if type(ref) is not list:
        return ref
    tag = ref[0]
    if tag == "f":
        return struct.unpack("<d", bytes.fromhex(ref[1]))[0]
    if tag == "i":
        return int(ref[1], 16)
    if tag == "b":
        return base64.b64decode(ref[1])
    if tag == "c":
        return complex(decode_value(ref[1]), decode_value(ref[2]))
    if tag == "t":
        return tuple(decode_value(item) for item in ref[1])
    raise ValueError(f"unknown tag {tag!r} in a state tree")


def is_node(ref: Ref) -> bool:
    """True if a ref names a node. Ask only about refs (`detrain.state.fields` says what is one): a list of texts may look like a node's."""
    return type(ref) is list and bool(ref) and ref[0] == "@"


def nodes_below(node: Node) -> Iterator[int]:
    """Numbers of the nodes that a node refers to."""
    for name, value in node.items():
        for ref in refs_in(name, value):
            if is_node(ref):
                yield ref[1]


#: Dtype and shape of an array.
Look = tuple[np.dtype[Any], tuple[int, ...]]


class Place(NamedTuple):
    """Where the bytes of an array lie, C-contiguous, before anybody has looked at them. It holds the owner of the memory alive."""

    owner: object
    address: int
    num_bytes: int
    look: Look
    #: Of the owner's memory range.
    rank: int = 0

    def view(self) -> np.ndarray[Any, Any]:
        """An array over the memory. The owner does not know, so nothing keeps it from moving its memory."""
        dtype, shape = self.look
        return np.asarray(self) if self.num_bytes else np.empty(shape, dtype)

    @property
    def __array_interface__(self) -> dict[str, Any]:
        dtype, shape = self.look
        return {"data": (self.address, False), "shape": shape, "typestr": dtype.str, "version": 3}


class Window(NamedTuple):
    """An array, C-contiguous, that is a part of some memory, before anybody has looked at it."""

    octets: memoryview
    num_bytes: int
    look: Look

    def view(self) -> np.ndarray[Any, Any]:
        """The elements."""
        dtype, shape = self.look
        return np.ndarray(shape, dtype, self.octets)


class Array:
    """Bulk data of a node. `label` names a dtype that numpy lacks (bfloat16)."""

    __slots__ = ("_data", "digest", "is_copy", "label", "path", "place")

    def __init__(
        self,
        path: str,
        data: np.ndarray[Any, Any] | Place | Window,
        label: str = "",
        digest: str = "",
        is_copy: bool = False,
    ) -> None:
        """`is_copy`: `data` is nobody else's; else it may be a view of live memory."""
        self.path, self.label, self.digest, self.is_copy = path, label, digest, is_copy
        #: Of data that nobody has made an array of yet.
        self.place: Place | Window | None = None
        self._data: np.ndarray[Any, Any] | None = None
        if isinstance(data, (Place, Window)):
            self.place = data
        else:
            self._data = data

    @property
    def data(self) -> np.ndarray[Any, Any]:
        """The elements."""
        if self._data is None:
            assert self.place is not None
            self._data = self.place.view()
        return self._data

    @property
    def look(self) -> Look:
        """Dtype and shape."""
        place = self.place
        return (self.data.dtype, self.data.shape) if place is None else place.look

    @property
    def num_bytes(self) -> int:
        """Size."""
        return self.data.nbytes if self.place is None else self.place.num_bytes

    def drop(self) -> None:
        """Forget the data, which cannot be read any more."""
        self.place, self._data = None, np.empty(0, np.uint8)

    def compute_digest(self) -> str:
        """xxh3-128 of dtype, shape and bytes, in hex."""
        if not self.digest:
            dtype, shape = self.look
            before = digest_prefix(self.label or dtype.str, shape)
            num_bytes = self.num_bytes
            if num_bytes <= _SMALL_BYTES:
                self.digest = xxhash.xxh3_128_hexdigest(b"".join((before, self.octets())) if num_bytes else before)
            else:
                state = xxhash.xxh3_128(before)
                state.update(self.octets())
                self.digest = state.hexdigest()
        return self.digest

    def octets(self) -> memoryview:
        """Its bytes in C order; a copy only of what does not lie so."""
        place = self.place
        if type(place) is Window:
            return place.octets
        return np.ascontiguousarray(self.data).reshape(-1).view(np.uint8).data


@functools.lru_cache(1024)
def digest_prefix(dtype: str, shape: tuple[int, ...]) -> bytes:
    """What the digest of an array is made of before its bytes."""
    return f"{dtype} {shape}".encode()


@dataclass(slots=True)
class Tree:
    """A state tree. `roots` maps a root's name to its ref."""

    nodes: list[Node] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    roots: dict[str, Ref] = field(default_factory=dict)
    #: Of a captured state: nodes by their number that the next one may have as well, so that they are not to be changed.
    common: list[Node] = field(default_factory=list)

    def own(self, number: int) -> Node:
        """A node, to be changed."""
        node = self.nodes[number]
        if number < len(self.common) and self.common[number] is node:
            node = self.nodes[number] = dict(node)
        return node

    def path(self, number: int) -> str:
        """Path of a node: `train.model.fc1.weight`."""
        segments: list[str] = []
        current: int | None = number
        while current is not None:
            node = self.nodes[current]
            segments.append(node["s"])
            current = node["p"]
        return join_path(reversed(segments))

    def leaves(self) -> Iterator[tuple[str, Ref | Array]]:
        """Every leaf with its path: arrays, and the values that stand inside the nodes."""
        for name, ref in self.roots.items():
            if not is_node(ref):
                yield name, ref
        for number, node in enumerate(self.nodes):
            yield from self._leaves_of(number, node)

    def _leaves_of(self, number: int, node: Node) -> Iterator[tuple[str, Ref | Array]]:
        path = self.path(number)
        if "array" in node:
            yield path, self.arrays[node["array"]]
        for name, value in node.items():
            held = FIELDS.get(name)
            if held is None:
                continue
            if held in (Holds.ITEMS, Holds.NAMED):
                for key, ref in value:
                    if not is_node(ref):
                        yield join_path((path, key_segment(key, name))), ref
            elif held is Holds.LIST:
                for position, ref in enumerate(value):
                    if not is_node(ref):
                        yield f"{path}{list_segment(name)}[{position}]", ref
            elif name in _CONTENTS and not is_node(value):
                yield path, value


#: Fields that hold all that an object is.
_CONTENTS = frozenset({"v", "args", "state"})
#: Attributes of a library's objects that only hold the named children of the object; left out of paths.
transparent_attributes: set[str] = set()
#: Kinds of nodes that stand for an iterator; adapters add theirs.
iterator_kinds: set[str] = {
    "range iterator", "sequence iterator", "draining iterator", "composed iterator", "generator",
}  # fmt: skip


def key_segment(key: Ref, field_name: str = "items") -> str:
    """The path segment of a dict key (`[3]`, `.name`) or of an attribute (`.name`)."""
    if field_name != "items":
        return "" if key in transparent_attributes else f".{key}"
    if type(key) is str and key.isidentifier():
        return f".{key}"
    return f"[{decode_value(key)!r}]" if not is_node(key) else f"[#{key[1]}]"


def list_segment(field_name: str) -> str:
    """The path segment before the position of what stands in a list: none for an object's elements, the field's name for others."""
    return "" if field_name == "seq" else f".<{field_name}>"


def join_path(segments: Any) -> str:
    """Segments to a path; a segment brings its own separator."""
    return "".join(segments).removeprefix(".")

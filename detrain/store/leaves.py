"""The leaves of a state tree as a reader of a checkpoint sees them: elements with dtype and shape, and plain values.

A tensor or an array view is a window on bytes that stand elsewhere in the tree. Here windows become numpy arrays,
without any framework: a dtype that numpy lacks (bfloat16) is shown as whole numbers of its size, and its values are
worked out where that is easy.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from detrain.state.dtypes import text_dtype
from detrain.state.tree import Array, Node, Ref, Tree, decode_value, is_node

Elements = np.ndarray[Any, Any]

#: Sizes of dtypes that numpy lacks, in bytes; every other unknown one is a float8.
_FOREIGN_BYTES = {"bfloat16": 2, "complex32": 4}
_ADDED_BY_A_LIBRARY = 2  # `np.dtype.isbuiltin`
#: Compared at a time: what tells which elements differ takes as much memory, and not as much as the leaf.
_PIECE_BYTES = 1 << 20
_KEY = re.compile(r"\[#(\d+)\]")


@dataclass(slots=True)
class Leaf:
    """One array or plain value of a tree."""

    path: str
    kind: str  # dtype of elements; type of a plain value
    shape: list[int] | None  # None: a plain value
    nbytes: int  # on disk; 0 where another leaf's bytes are looked into
    digest: str  # xxh3-128: of the stored array, or of the value's JSON
    ref: Ref = None  # of a plain value
    node: int = -1
    array: int = -1  # number of the stored array
    shares: str = ""  # path of the leaf whose bytes these are
    is_pickled: bool = False


def readable(tree: Tree, path: str, within: frozenset[int] = frozenset()) -> str:
    """A path whose dict keys that are objects are named by their paths: `state[#46]` becomes `state[model.weight]`.

    One whose own path leads through it, `within` which we are, stays a number.
    """

    def name(found: re.Match[str]) -> str:
        number = int(found[1])
        if number in within:
            return found[0]
        return f"[{readable(tree, tree.path(number), within | {number})}]"

    return _KEY.sub(name, path)


def leaves(tree: Tree) -> Iterator[Leaf]:
    """Every leaf, in the order of the file; a further tensor on the same bytes is listed as sharing them."""
    holders: dict[int, str] = {}
    for number, node in enumerate(tree.nodes):
        if "storage" in node or ("array" in node and number not in holders and not _is_storage(node)):
            found = _elements_leaf(tree, number, node, holders)
            if found is not None:
                yield found
    for number, node in enumerate(tree.nodes):
        if _is_storage(node) and "array" in node and number not in holders:
            array = tree.arrays[node["array"]]
            yield _array_leaf(tree, array, number, node)
    for path, ref in tree.leaves():
        if not isinstance(ref, Array):
            yield _value_leaf(readable(tree, path), ref)


def _is_storage(node: Node) -> bool:
    """True for memory that tensors are views of: it has a size in bytes, and no shape."""
    return "nbytes" in node


def _elements_leaf(tree: Tree, number: int, node: Node, holders: dict[int, str]) -> Leaf | None:
    if "storage" not in node:
        return _array_leaf(tree, tree.arrays[node["array"]], number, node)
    storage = node["storage"][1]
    if "array" not in tree.nodes[storage]:
        return None
    found = _array_leaf(tree, tree.arrays[tree.nodes[storage]["array"]], number, tree.nodes[storage])
    found.path, found.kind, found.shape = readable(tree, tree.path(number)), node["dtype"], node["shape"]
    if storage in holders:
        found.shares, found.nbytes = holders[storage], 0
    holders.setdefault(storage, found.path)
    return found


def _array_leaf(tree: Tree, array: Array, number: int, node: Node) -> Leaf:
    data = array.data
    kind, shape = node.get("dtype") or array.label or str(data.dtype), list(node.get("shape", data.shape))
    return Leaf(
        readable(tree, array.path), kind, shape, int(data.nbytes), array.compute_digest(),
        node=number, array=node["array"], is_pickled=bool(node.get("pickle")),
    )  # fmt: skip


def _value_leaf(path: str, ref: Ref) -> Leaf:
    text = json.dumps(ref, sort_keys=True).encode()
    return Leaf(path, type(value_of(ref)).__name__, None, len(text), xxhash.xxh3_128(text).hexdigest(), ref)


def value_of(ref: Ref) -> Any:
    """The value of a ref that names no node; a list of refs or a generator's state dict stays as it is."""
    try:
        return decode_value(ref) if type(ref) is list and not is_node(ref) else ref
    except (ValueError, TypeError, IndexError, KeyError):
        return ref


def elements_of(tree: Tree, node: Node) -> Elements | None:
    """The elements that a node holds or looks into, in their shape; None if there are none within its bytes."""
    if "storage" in node:
        storage = tree.nodes[node["storage"][1]]
        if "array" not in storage:
            return None
        dtype = plain_dtype(node["dtype"])
        strides = [step * dtype.itemsize for step in node["strides"]]
        return _window(tree.arrays[storage["array"]], dtype, node["shape"], node["offset"] * dtype.itemsize, strides)
    if "array" not in node:
        return None
    array = tree.arrays[node["array"]]
    if "strides" in node:
        return _window(array, plain_dtype(node["dtype"]), node["shape"], 0, node["strides"])
    return array.data


def _window(array: Array, dtype: np.dtype[Any], shape: list[int], offset: int, strides: list[int]) -> Elements | None:
    if 0 in shape:
        return np.empty(shape, dtype)
    raw = np.ascontiguousarray(array.data).reshape(-1).view(np.uint8)
    try:
        return np.ndarray(shape, dtype, raw.data, offset, strides)
    except (ValueError, TypeError):
        return None


def plain_dtype(text: str) -> np.dtype[Any]:
    """The numpy dtype of a name (`float32`, `<U3`, a structured one); whole numbers of its size if numpy lacks it.

    A dtype that a library has added to numpy (ml_dtypes: bfloat16) is lacking too: what is shown must not depend on
    what this process has imported.
    """
    if text.startswith(("[", "{")):
        return text_dtype(text)
    try:
        dtype = np.dtype(text)
    except TypeError:
        return np.dtype(f"u{_FOREIGN_BYTES.get(text, 1)}")
    return dtype if dtype.isbuiltin != _ADDED_BY_A_LIBRARY else np.dtype(f"u{dtype.itemsize}")


def element_text(element: Any, dtype_name: str) -> str:
    """An element as a person writes it; of a dtype that numpy lacks (but bfloat16) only its bits are known."""
    if dtype_name == "bfloat16":
        return repr(struct.unpack("<f", struct.pack("<I", int(element) << 16))[0])
    if dtype_name.startswith(("float8", "complex32")):
        return f"bits {bits_of(element)}"
    item = element.item() if isinstance(element, np.generic) else element
    return repr(item)


def bits_of(element: Any) -> str:
    """The bits of an element or of a plain number in hex, most significant byte first; "" for what has none."""
    if isinstance(element, np.generic):
        return element.tobytes()[::-1].hex() if element.dtype.kind not in "VSU" else element.tobytes().hex()
    if type(element) is float:
        return struct.pack(">d", element).hex()
    if type(element) is int:
        return hex(element)
    return ""


def first_difference(a: Elements, b: Elements) -> tuple[int, list[int]] | None:
    """Count of elements whose bits differ and index of the first; None if none. Shapes and dtypes are equal."""
    size = a.dtype.itemsize
    if not a.size or not size:
        return None
    bytes_a, bytes_b = (np.ascontiguousarray(one).reshape(-1).view(np.uint8) for one in (a, b))
    step = max(1, _PIECE_BYTES // size) * size
    count, first = 0, -1
    for begin in range(0, len(bytes_a), step):
        one, other = bytes_a[begin : begin + step], bytes_b[begin : begin + step]
        if np.array_equal(one, other):
            continue
        differing = (one.reshape(-1, size) != other.reshape(-1, size)).any(axis=1)
        first = first if count else begin // size + int(differing.argmax())
        count += int(differing.sum())
    return (count, [int(position) for position in np.unravel_index(first, a.shape)]) if count else None


def plain_json(value: Any) -> Any:
    """A value as JSON can say it: numbers that are not finite, bytes and complex numbers as text."""
    if isinstance(value, dict):
        return {str(key): plain_json(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_json(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else repr(value)
    return value if value is None or isinstance(value, (bool, int, str)) else repr(value)

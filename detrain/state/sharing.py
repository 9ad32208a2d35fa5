"""Memory that objects of different kinds are views of: an array over a tensor's storage, a tensor over an array's memory.

Each library tells which of its own objects share memory; that one of another library's is a view of the same memory shows only in the
address. The one that does not own the memory is the *inner* one: its node names the owner, and the offset.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from detrain.state import registry
from detrain.state.handler import MemoryRanges, Restoring
from detrain.state.tree import Node, Place
from detrain.state.walk import Walk, after_walk

_BYTE = np.dtype(np.uint8)


class _Memory:
    """Some bytes of an object, as numpy's array interface has them; unlike a `Place` with strides."""

    def __init__(self, owner: object, address: int, shape: Sequence[int], typestr: str, strides: Sequence[int]) -> None:
        self.owner = owner  # lives as long as an array is a view of it
        self.__array_interface__ = {
            "data": (address, False), "shape": tuple(shape), "typestr": typestr, "strides": tuple(strides), "version": 3,
        }  # fmt: skip


def bytes_at(owner: object, address: int, num_bytes: int) -> np.ndarray[Any, Any]:
    """A view, uint8 of shape (num_bytes,), of the memory of `owner`, which lives as long as the view.

    The owner does not know, so nothing keeps it from moving its memory: whoever lets it do so reads no more here.
    """
    return Place(owner, address, num_bytes, (_BYTE, (num_bytes,))).view()


def record_shared_memory(walk: Walk) -> None:
    """Write into each inner object's node whose memory it is a view of (`within`), and from which byte on (`at`)."""
    nodes, places = walk.tree.nodes, walk.places
    asked = [
        number for number in walk.of_kinds(frozenset(registry.handlers_with_memory()))
        if number not in places and "kept" not in nodes[number]
    ]  # fmt: skip
    held, memories = walk.places_by_column()
    held += asked
    for column, others in zip(
        memories, registry.memory_ranges([walk.objects[number] for number in asked]), strict=True
    ):
        column += others
    if _are_apart(memories):
        return
    ranges = [
        (address, -size, rank, number)
        for number, address, size, rank in zip(held, *memories, strict=True) if address >= 0 and size
    ]  # fmt: skip
    outer = None
    for candidate in sorted(ranges):
        address, minus_bytes, _, number = candidate
        if outer is None or address - minus_bytes > outer[0] - outer[1]:
            outer = candidate
        elif walk.tree.nodes[number]["k"] != walk.tree.nodes[outer[3]]["k"]:
            walk.tree.own(number).update(within=["@", outer[3]], at=address - outer[0])


def _are_apart(memories: MemoryRanges) -> bool:
    """True if no two overlap: the usual case, seen without a look at each."""
    addresses, sizes = np.array(memories.addresses, np.int64), np.array(memories.sizes, np.int64)
    there = (addresses >= 0) & (sizes > 0)
    order = np.argsort(addresses[there])
    begins = addresses[there][order]
    return bool((begins[:-1] + sizes[there][order][:-1] <= begins[1:]).all())


def memory_within(node: Node, num_bytes: int, restore: Restoring) -> np.ndarray[Any, Any]:
    """The bytes that an inner object of this size is a view of, uint8 of shape (num_bytes,).

    Raises ValueError if the owner has none there.
    """
    owner, begin = _owner_of(node, num_bytes, restore)
    return bytes_at(owner, begin, num_bytes)


def array_within(node: Node, num_bytes: int, dtype: np.dtype[Any], restore: Restoring) -> np.ndarray[Any, Any]:
    """The same for an array, of the node's shape and strides: no other array stands between it and its memory's owner."""
    owner, begin = _owner_of(node, num_bytes, restore)
    return np.asarray(_Memory(owner, begin, node["shape"], dtype.str, node["strides"]))


def _owner_of(node: Node, num_bytes: int, restore: Restoring) -> tuple[object, int]:
    owner = restore.value(node["within"])
    begin, end = _place(owner, node)
    if begin + num_bytes > end:
        raise ValueError("the memory of which it is a view is too small")
    return owner, begin


def is_where_saved(live: object, node: Node, restore: Restoring) -> bool:
    """True if a live object is a view of the memory that the saved one was a view of."""
    memory = registry.handler_for(type(live)).memory_range(live)
    return memory is not None and memory.address == _place(restore.value(node["within"]), node)[0]


def _place(owner: object, node: Node) -> tuple[int, int]:
    """Addresses where an inner object begins, and where its owner's memory ends."""
    memory = registry.handler_for(type(owner)).memory_range(owner)
    if memory is None:
        raise ValueError(f"it was a view of the memory of {type(owner).__qualname__}, which no longer exists")
    return memory.address + node["at"], memory.address + memory.num_bytes


after_walk.append(record_shared_memory)

"""Memory that objects of different kinds look into: an array over a tensor's storage, a tensor over an array's memory.

Each library tells which of its own objects share memory; that one of another library's looks into the same is seen only by the
address. The one that does not own the memory is the *inner* one: its node names the other, and the offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from detrain.state import registry
from detrain.state.tree import Node

if TYPE_CHECKING:
    from detrain.state.restore import Restore
    from detrain.state.walk import Walk


class _Memory:
    """Some bytes of an object, for numpy to look into."""

    def __init__(self, owner: Any, address: int, num_bytes: int) -> None:
        self.owner = owner  # lives as long as an array looks into it
        self.__array_interface__ = {"data": (address, False), "shape": (num_bytes,), "typestr": "|u1", "version": 3}


def bytes_at(owner: Any, address: int, num_bytes: int) -> np.ndarray[Any, Any]:
    """Bytes of an object's memory, to be looked at; it lives as long as they are looked at.

    The object is not told, so nothing keeps it from moving its memory: whoever lets it do so reads no more here.
    """
    return np.asarray(_Memory(owner, address, num_bytes)) if num_bytes else np.empty(0, np.uint8)


def note_shared(walk: Walk) -> None:
    """Let each inner object's node of a walk that has been made name the one whose memory it looks into."""
    handlers = registry.handlers_with_stretches()
    found = []
    for number, node in enumerate(walk.tree.nodes):
        if node["k"] in handlers and "kept" not in node:
            stretch = handlers[node["k"]].stretch(walk.objects[number])
            if stretch is not None and stretch.num_bytes:
                found.append((stretch.address, -stretch.num_bytes, stretch.claim, number))
    outer = None
    for one in sorted(found):
        address, minus_bytes, _, number = one
        if outer is None or address - minus_bytes > outer[0] - outer[1]:
            outer = one
        elif walk.tree.nodes[number]["k"] != walk.tree.nodes[outer[3]]["k"]:
            walk.tree.nodes[number].update(within=["@", outer[3]], at=address - outer[0])


def memory_within(node: Node, num_bytes: int, restore: Restore) -> np.ndarray[Any, Any]:
    """The bytes that an inner object of this size looks into, as an array."""
    owner = restore.value(node["within"])
    begin, end = _place(owner, node)
    if begin + num_bytes > end:
        raise ValueError("the memory of which it is a view is too small")
    return bytes_at(owner, begin, num_bytes)


def is_where_saved(live: Any, node: Node, restore: Restore) -> bool:
    """True if a live object looks into the memory that the saved one looked into."""
    handler = registry.handler_for(type(live))
    stretch = handler.stretch(live)
    return stretch is not None and stretch.address == _place(restore.value(node["within"]), node)[0]


def _place(owner: Any, node: Node) -> tuple[int, int]:
    """Where an inner object begins, and where its owner's memory ends."""
    stretch = registry.handler_for(type(owner)).stretch(owner)
    if stretch is None:
        raise ValueError(f"it was a view of the memory of {type(owner).__qualname__}, which no longer exists")
    return stretch.address + node["at"], stretch.address + stretch.num_bytes

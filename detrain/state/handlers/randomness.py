"""Handler for Python's generators of random numbers."""

from __future__ import annotations

import ctypes
import functools
import random
import struct
from _random import Random as _Random
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import xxhash

from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import Capturing, Handler, Restoring, mark_not_saved
from detrain.state.registry import register
from detrain.state.tree import Node


class RandomHandler(Handler):
    """`random.Random`: Mersenne Twister words, position, and the second normal that `gauss` holds back."""

    kind = "random.Random"
    is_dropped_silently = True
    fields: ClassVar = {**plain_fields("version"), "gauss": Holds.ONE}
    is_last = True

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if isinstance(obj, random.SystemRandom):
            mark_not_saved(node, "draws from the operating system", warns=False)
            return
        version, words, gauss = random.Random.getstate(obj)
        node["version"] = version
        node["gauss"] = walk.child(gauss, ".gauss_next")
        walk.array(node, np.array(words, dtype=np.uint32))

    def fingerprint(self, obj: Any) -> bytes:
        _, words, gauss = random.Random.getstate(obj)
        return f"{hash(words)} {gauss}".encode()  # the hash of a tuple of numbers is the same in every process

    def watch(self, obj: Any) -> Callable[[], object] | None:
        if type(obj) is not random.Random or not _lies_in_object():
            return None
        content = _content(obj)
        return lambda: (xxhash.xxh3_64_intdigest(content), obj.gauss_next)  # type: ignore[attr-defined]

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        words = tuple(restore.data(node).tolist())
        random.Random.setstate(obj, (node["version"], words, restore.value(node["gauss"])))


def _content(obj: random.Random) -> Any:
    """What the interpreter's own type keeps in the object's memory, for as long as it lives."""
    begin = object.__basicsize__
    return (ctypes.c_ubyte * (_Random.__basicsize__ - begin)).from_address(id(obj) + begin)


@functools.cache
def _lies_in_object() -> bool:
    """Whether words and position lie there, as they do in CPython: seen in a generator of our own."""
    own = random.Random(1)
    words = random.Random.getstate(own)[1]
    content = bytes(_content(own))
    return struct.pack("=624I", *words[:-1]) in content and struct.pack("=i", words[-1]) in content


register(RandomHandler(), random.Random)

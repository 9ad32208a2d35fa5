"""Handler for Python's generators of random numbers."""

from __future__ import annotations

import random
from typing import Any, ClassVar

import numpy as np

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

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        words = tuple(restore.data(node).tolist())
        random.Random.setstate(obj, (node["version"], words, restore.value(node["gauss"])))


register(RandomHandler(), random.Random)

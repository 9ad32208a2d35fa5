"""What a three-way merge compares (`detrain.store.merge`): a state tree with digests in place of its bulk data.

So small that what another process has seen can be handed over as JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import xxhash

from detrain.state.tree import Node, Ref, Tree, is_node
from detrain.store import leaves

#: Characters of a value in a message.
_LONGEST = 60


class _Missing:
    def __repr__(self) -> str:
        return "nothing"


#: In place of a ref where there is none.
MISSING: Any = _Missing()


class Content(NamedTuple):
    """Bulk data of a node, as far as a comparison needs it."""

    dtype: str
    shape: list[int]
    digest: str
    text: str  # of a single element; "" for more

    @property
    def kind(self) -> str:
        """`float32 [5, 4]`."""
        return f"{self.dtype} {self.shape}"


@dataclass
class Side:
    """One of the trees, with digests for bulk data."""

    nodes: list[Node]
    roots: dict[str, Ref]
    contents: dict[int, Content]

    @classmethod
    def of(cls, tree: Tree) -> Side:
        """Takes the digests; of bytes of a storage that no tensor looks into none, because nobody wrote them."""
        viewed = {node["storage"][1] for node in tree.nodes if is_node(node.get("storage"))}
        contents = {}
        for number, node in enumerate(tree.nodes):
            if number not in viewed and (found := leaves.elements_of(tree, node)) is not None:
                contents[number] = _content(found, node.get("dtype") or str(found.dtype))
        return cls(tree.nodes, tree.roots, contents)

    def encode(self) -> dict[str, Any]:
        """As JSON."""
        return {"nodes": self.nodes, "roots": self.roots, "contents": list(self.contents.items())}

    @classmethod
    def decode(cls, document: dict[str, Any]) -> Side:
        """The inverse of `encode`."""
        contents = {number: Content(*fields) for number, fields in document["contents"]}
        return cls(document["nodes"], document["roots"], contents)

    def text(self, ref: Ref) -> str:
        """What a ref stands for, as a message shows it."""
        if ref is MISSING or not is_node(ref):
            return shorten(ref if ref is MISSING else leaves.value_of(ref))
        content = self.contents.get(ref[1])
        return f"a {self.nodes[ref[1]]['t'].rpartition(':')[2]}" if content is None else content.text or content.kind


def _content(elements: leaves.Elements, dtype: str) -> Content:
    state = xxhash.xxh3_128(np.ascontiguousarray(elements).reshape(-1).view(np.uint8).data if elements.size else b"")
    text = leaves.element_text(elements.reshape(-1)[0], dtype) if elements.size == 1 else ""
    return Content(dtype, list(elements.shape), state.hexdigest(), text)


def code_of(node: Node) -> list[Any]:
    """Which function it is, wherever its file lies."""
    found: list[Any] = node.get("code", [])[1:]
    return found


def same(one: Ref, other: Ref) -> bool:
    """Plain values, by type and bits."""
    if one is MISSING or other is MISSING:
        return one is other
    return type(one) is type(other) and (one is other or comparable(one) == comparable(other))


def comparable(value: Any) -> Any:
    """A plain value, for a comparison by type and bits."""
    return value if value is MISSING else json.dumps(value, sort_keys=True)


def shorten(value: Any) -> str:
    """A value as a message shows it."""
    if isinstance(value, dict):
        return "a dict"
    text = repr(value)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"

"""Numbers that are the addresses of objects: `{id(layer): …}` is about the layer, which lies elsewhere in the next attempt."""

from __future__ import annotations

from typing import Any

from detrain.state.registry import Handler, register
from detrain.state.restore import Restore
from detrain.state.tree import Node, Ref
from detrain.state.walk import LOWEST_ADDRESS, Walk

#: Where a node holds refs one by one, and where in pairs.
_ONE_BY_ONE, _IN_PAIRS = ("seq",), ("items", "attrs", "slots")


class AddressHandler(Handler):
    """The address of an object of the tree."""

    kind = "address"
    has_attributes = False

    def is_twin(self, live: Any, node: Node, restore: Restore) -> bool:
        return bool(live == self.build(node, restore))

    def build(self, node: Node, restore: Restore) -> Any:
        return id(restore.value(node["of"]))


def name_addresses(walk: Walk) -> None:
    """Let every number in a walk that has been made, and that is the address of what it has met, stand for that."""
    for number, node in list(enumerate(walk.tree.nodes)):
        for field in _ONE_BY_ONE:
            if field in node:
                node[field] = [_named(ref, number, walk) for ref in node[field]]
                if any(is_address(ref, walk.tree.nodes) for ref in node[field]):
                    node.pop("table", None)  # of a set: what is elsewhere has another hash
        for field in _IN_PAIRS:
            if field in node:
                node[field] = [[_named(ref, number, walk) for ref in pair] for pair in node[field]]


def _named(ref: Ref, parent: int, walk: Walk) -> Ref:
    if type(ref) is not int or ref < LOWEST_ADDRESS or ref not in walk.numbers:
        return ref
    walk.tree.nodes.append(
        {"k": "address", "t": "builtins:int", "p": parent, "s": ".<address>", "of": ["@", walk.numbers[ref]]}
    )
    walk.objects.append(ref)
    walk.paths.append(f"{walk.paths[parent]}.<address>")
    return ["@", len(walk.tree.nodes) - 1]


def is_address(ref: Ref, nodes: list[Node]) -> bool:
    """True if a ref stands for an address."""
    return type(ref) is list and ref[0] == "@" and nodes[ref[1]]["k"] == "address"


register(AddressHandler())

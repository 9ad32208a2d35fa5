"""Numbers that are the addresses of objects: `{id(layer): …}` is about the layer, which lies elsewhere in the next attempt."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from detrain.state.fields import Holds
from detrain.state.handler import Handler, Restoring
from detrain.state.registry import register
from detrain.state.tree import Node, Ref, is_node
from detrain.state.walk import LOWEST_ADDRESS, Walk, after_walk

#: Fields in which a number may be an address: those of containers and of instances. An object's variables elsewhere are its handler's.
_SEQUENCE, _PAIRS = "seq", ("items", "attrs", "slots")


class AddressHandler(Handler):
    """The address of an object of the tree."""

    kind = "address"
    fields: ClassVar = {"of": Holds.ONE}
    has_attributes = False

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return bool(live == self.build(node, restore))

    def build(self, node: Node, restore: Restoring) -> Any:
        return id(restore.value(node["of"]))


def name_addresses(walk: Walk) -> None:
    """Replace every number that is the address of an object that the walk has met by a node that says whose address it is."""
    if not walk.has_large_numbers:
        return
    for number, node in list(enumerate(walk.tree.nodes)):
        if not any(map(_may_be_address, _refs_in(node))):
            continue
        node = walk.tree.own(number)
        if _SEQUENCE in node:
            node[_SEQUENCE] = [_named(ref, number, walk) for ref in node[_SEQUENCE]]
            if any(is_address(ref, walk.tree.nodes) for ref in node[_SEQUENCE]):
                node.pop("table", None)  # of a set: what is elsewhere has another hash
        for field in _PAIRS:
            if field in node:
                node[field] = [[_named(ref, number, walk) for ref in pair] for pair in node[field]]


def _refs_in(node: Node) -> Iterator[Ref]:
    yield from node.get(_SEQUENCE, ())
    for field in _PAIRS:
        for pair in node.get(field, ()):
            yield from pair


def _may_be_address(ref: Ref) -> bool:
    return type(ref) is int and ref >= LOWEST_ADDRESS


def _named(ref: Ref, parent: int, walk: Walk) -> Ref:
    if not _may_be_address(ref) or ref not in walk.numbers:
        return ref
    walk.tree.nodes.append(
        {"k": "address", "t": "builtins:int", "p": parent, "s": ".<address>", "of": ["@", walk.numbers[ref]]}
    )
    walk.objects.append(ref)
    walk.paths.append(f"{walk.paths[parent]}.<address>")
    return ["@", len(walk.tree.nodes) - 1]


def is_address(ref: Ref, nodes: list[Node]) -> bool:
    """True if a ref stands for an address."""
    return is_node(ref) and nodes[ref[1]]["k"] == "address"


register(AddressHandler())
after_walk.append(name_addresses)

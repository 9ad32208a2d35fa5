"""What of a rank's state other ranks have as well, with digests."""

from __future__ import annotations

from detrain.job.replicas import Replica
from detrain.state.registry import handler_of_kind
from detrain.state.tree import Node, Tree, is_node
from detrain.store import leaves


def replicas_of(tree: Tree) -> list[Replica]:
    """The replicas in a tree whose arrays have their digests."""
    found = []
    for node in tree.nodes:
        handler = handler_of_kind(node["k"])
        for ref, group in handler.replicas(node, tree) if handler is not None else ():
            number = _array_of(tree, tree.nodes[ref[1]]) if is_node(ref) else None
            if number is not None:
                path = leaves.readable(tree, tree.path(ref[1]))
                found.append(Replica(path, group, tree.arrays[number].digest))
    return found


def _array_of(tree: Tree, node: Node) -> int | None:
    """The number of the array that a tensor looks into."""
    holder = tree.nodes[node["storage"][1]] if "storage" in node else node
    number: int | None = holder.get("array")
    return number

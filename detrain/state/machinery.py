"""What a library makes for itself while the loop runs, with threads of its own: an exporter of its statistics, say.

No attempt can make it of a checkpoint, and none needs to: it holds no number of the training, and where the library's own object says
that it is not there yet, the library makes it when it is wanted. It is told by what it consists of.
"""

from __future__ import annotations

from detrain.state.tree import Node, Tree, nodes_below

#: Why an object is left as it is that works together with a thread of its own.
OWNS_THREAD = "owns a thread"
#: Kinds of nodes that machinery may consist of: nothing that gives elements, draws numbers or holds an array.
_PARTS = frozenset({
    "object", "dict", "list", "tuple", "set", "frozenset", "lock", "condition", "class", "function", "method", "partial", "cell", "atom",
    "module", "weak container", "enum", "value", "logger", "log handler",
})  # fmt: skip


def of_libraries(tree: Tree) -> set[int]:
    """The outermost nodes of all that is machinery, each an attribute of another object of a library."""
    children: dict[int, list[int]] = {}
    for number, node in enumerate(tree.nodes):
        if node["p"] is not None:
            children.setdefault(node["p"], []).append(number)
    found: set[int] = set()
    for number, node in enumerate(tree.nodes):
        if node.get("kept") == OWNS_THREAD:
            found |= _above(tree, number, children)
    return found


def _above(tree: Tree, number: int, children: dict[int, list[int]]) -> set[int]:
    """The nodes from a thread's owner up that are machinery, and stand in an object of a library."""
    found: set[int] = set()
    inside: int | None = number
    while inside is not None and _is_machinery(tree, inside, children):
        above = tree.nodes[inside]["p"]
        if above is not None and _is_of_library(tree.nodes[above]) and _is_of_library(tree.nodes[inside]):
            found.add(inside)
        inside = above
    return found


def _is_of_library(node: Node) -> bool:
    # Of a class of the script's own the node names the class.
    return node["k"] == "object" and "class" not in node


def _is_machinery(tree: Tree, number: int, children: dict[int, list[int]]) -> bool:
    pending = [number]
    while pending:
        inside = pending.pop()
        node = tree.nodes[inside]
        if not _is_part(node) or not all(_is_part(tree.nodes[other]) for other in nodes_below(node)):
            return False
        pending += children.get(inside, ())
    return True


def _is_part(node: Node) -> bool:
    return node["k"] in _PARTS and "class" not in node and "array" not in node and "loud" not in node

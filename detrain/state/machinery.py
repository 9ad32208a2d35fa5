"""Background services that a library starts while the loop runs, with threads of their own: an exporter of its statistics, say.

None can be rebuilt from a checkpoint, and none needs to be: it holds no number of the training, and the library starts it again when it
finds that it is not there. Such a service, called *machinery* here, is recognised by the kinds of nodes that it consists of.
"""

from __future__ import annotations

from detrain.state.tree import Node, Tree, nodes_below

#: Why a node is kept whose object works together with a thread of its own.
OWNS_THREAD = "owns a thread"
#: Kinds of nodes that machinery may consist of: nothing that gives elements, draws numbers or holds an array.
_PARTS = frozenset({
    "object", "dict", "list", "tuple", "set", "frozenset", "lock", "condition", "class", "function", "method", "partial", "cell", "atom",
    "module", "weak container", "enum", "value", "logger", "log handler",
})  # fmt: skip


def of_libraries(tree: Tree) -> set[int]:
    """The outermost nodes of all machinery in a tree, each an attribute of an object of a library."""
    owners = [number for number, node in enumerate(tree.nodes) if node.get("kept") == OWNS_THREAD]
    if not owners:
        return set()
    children: dict[int, list[int]] = {}
    for number, node in enumerate(tree.nodes):
        if node["p"] is not None:
            children.setdefault(node["p"], []).append(number)
    outermost: set[int] = set()
    for number in owners:
        outermost |= _above(tree, number, children)
    return outermost


def _above(tree: Tree, number: int, children: dict[int, list[int]]) -> set[int]:
    """The nodes from a thread's owner up that are machinery, and stand in an object of a library."""
    machinery: set[int] = set()
    inside: int | None = number
    while inside is not None and _is_machinery(tree, inside, children):
        above = tree.nodes[inside]["p"]
        if above is not None and _is_of_library(tree.nodes[above]) and _is_of_library(tree.nodes[inside]):
            machinery.add(inside)
        inside = above
    return machinery


def _is_of_library(node: Node) -> bool:
    # A node whose class is the script's own has a ref to the class.
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

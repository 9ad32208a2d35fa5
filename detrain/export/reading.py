"""Reading a state tree: an object's attributes, containers as Python has them, tensors whole."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from detrain.errors import CheckpointError
from detrain.export.values import Tensor, Value
from detrain.state.tree import Node, Ref, Tree, decode_value, is_node
from detrain.store import leaves

DTENSOR = "torch.DTensor"


class NotPlain(Exception):  # noqa: N818 - says what it is
    """An object that is neither tensor, container nor plain value."""


class Reader:
    """The state of one process, or of all ranks of a job at one cut, seen from the first."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        """`trees`: one of each rank."""
        self.tree, self._trees = trees[0], trees
        self._numbers: list[dict[str, int]] | None = None

    def node(self, ref: Ref) -> Node | None:
        """The node that a ref names; None if it is a plain value."""
        return self.tree.nodes[ref[1]] if is_node(ref) else None

    def attributes(self, node: Node) -> dict[str, Ref]:
        """An object's attributes, by name; {} of what has none."""
        return {name: ref for name, ref in node.get("attrs", ()) if isinstance(name, str)}

    def items(self, ref: Ref) -> list[tuple[Ref, Ref]]:
        """Keys and values of a dict; [] of what is none."""
        node = self.node(ref)
        return [(key, value) for key, value in node["items"]] if node is not None and "items" in node else []

    def named(self, ref: Ref) -> Iterator[tuple[str, Ref]]:
        """Those of a dict whose keys are texts."""
        for key, value in self.items(ref):
            if isinstance(key, str):
                yield key, value

    def elements(self, ref: Ref) -> list[Ref]:
        """Of a list, a set or a tuple."""
        node = self.node(ref)
        if node is not None:
            return list(node.get("seq", ()))
        return list(ref[1]) if isinstance(ref, list) and ref[:1] == ["t"] else []

    def value(self, ref: Ref) -> Value:
        """A ref as Python would have it: tensors, containers and plain values. Raises `NotPlain` for another object."""
        node = self.node(ref)
        if node is None:
            if isinstance(ref, list) and ref[:1] == ["t"]:
                return tuple(self.value(one) for one in ref[1])
            decoded: Value = decode_value(ref)
            return decoded
        if self.is_tensor(node):
            return self.tensor(ref)
        if "items" in node:
            return {self.value(key): self.value(value) for key, value in node["items"]}
        if "seq" in node:
            return [self.value(one) for one in node["seq"]]
        raise NotPlain(node["t"])

    @staticmethod
    def is_tensor(node: Node) -> bool:
        """True for what has elements."""
        return "storage" in node or node["k"] == DTENSOR or ("array" in node and "nbytes" not in node)

    def tensor(self, ref: Ref) -> Tensor:
        """The elements of a tensor; of a distributed one, put together from the ranks. Raises `CheckpointError`."""
        number = ref[1]
        node = self.tree.nodes[number]
        if node["k"] == DTENSOR:
            return self._whole(number, node)
        return _elements(self.tree, number)

    # --- distributed tensors ------------------------------------------------------------------------------------------------------

    def _whole(self, number: int, node: Node) -> Tensor:
        path = leaves.readable(self.tree, self.tree.path(number))
        sizes, ranks = node["mesh"]
        if max(ranks) >= len(self._trees):
            raise CheckpointError(
                f"{path} is spread over {len(ranks)} ranks, and this is a checkpoint of one: export the cut, JOB/cuts/NAME.json"
            )
        mesh = np.array(ranks).reshape(sizes)
        local = {int(rank): self._local(int(rank), self.tree.path(number)) for rank in mesh.flat}

        def gather(coordinates: tuple[int, ...]) -> np.ndarray[tuple[int, ...], np.dtype[np.generic]]:
            dimension = len(coordinates)
            if dimension == mesh.ndim:
                return local[int(mesh[coordinates])].data
            placement = node["placements"][dimension]
            if placement == "R":
                return gather((*coordinates, 0))
            if not (placement.startswith("S(") and placement[2:-1].isdigit()):
                raise CheckpointError(f"{path} is laid out as {placement}, which cannot be put together")
            parts = [gather((*coordinates, at)) for at in range(mesh.shape[dimension])]
            return np.concatenate(parts, axis=int(placement[2:-1]))

        whole = gather(())
        if list(whole.shape) != node["shape"]:
            raise CheckpointError(f"the parts of {path} make {list(whole.shape)}, and not {node['shape']}")
        return Tensor(whole, next(iter(local.values())).dtype)

    def _local(self, rank: int, path: str) -> Tensor:
        """A rank's own part of the distributed tensor of this path."""
        if self._numbers is None:
            self._numbers = [
                {tree.path(number): number for number, node in enumerate(tree.nodes) if node["k"] == DTENSOR}
                for tree in self._trees
            ]
        number = self._numbers[rank].get(path)
        if number is None:
            raise CheckpointError(f"rank {rank} has no {path}")
        tree = self._trees[rank]
        return _elements(tree, tree.nodes[number]["value"][1])


def _elements(tree: Tree, number: int) -> Tensor:
    node = tree.nodes[number]
    data = leaves.elements_of(tree, node)
    if data is None:
        raise CheckpointError(f"{leaves.readable(tree, tree.path(number))} has no elements in this checkpoint")
    return Tensor(data, node.get("dtype") or str(data.dtype))

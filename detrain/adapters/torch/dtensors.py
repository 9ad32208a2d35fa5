"""Distributed tensors (`fully_shard`, tensor parallelism): each rank's checkpoint holds its own shard, and how the whole is laid out."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any, ClassVar

import torch

from detrain.errors import CaptureError
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import MISSING, Capturing, Handler, Restoring
from detrain.state.tree import Node, Ref, Tree

#: As `register_name` wants it: the module is loaded by scripts that use it.
NAME = "torch.distributed.tensor:DTensor"
#: Its mesh holds process groups, which the set-up code makes anew.
MESH = "torch.distributed.device_mesh:DeviceMesh"


class DTensorHandler(Handler):
    """The local shard of a distributed tensor."""

    kind = "torch.DTensor"
    is_dropped_silently = True
    fields: ClassVar = {
        **plain_fields("shape", "strides", "placements", "requires_grad", "mesh", "ranks"),
        "value": Holds.ONE,
        "over": Holds.ONE,
        "grad": Holds.ONE,
    }

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        if obj.grad_fn is not None:
            raise CaptureError("a distributed tensor that carries a graph")
        node["shape"], node["strides"] = list(obj._spec.shape), list(obj._spec.stride)
        node["placements"] = [str(one) for one in obj._spec.placements]
        node["requires_grad"] = obj.requires_grad
        node["mesh"] = _mesh_of(obj)
        if "R" in node["placements"] and torch.distributed.is_initialized():
            # Asked here: behind the script's end a checkpoint may still be written, and its process group is gone.
            node["ranks"] = _alike(obj._spec.mesh.mesh, node["placements"], torch.distributed.get_rank())
        node["over"] = walk.child(obj._spec.mesh, ".<mesh>")
        node["value"] = walk.child(obj._local_tensor, ".<local>")
        if obj.is_leaf and obj.grad is not None:
            node["grad"] = walk.child(obj.grad, ".grad")

    def replicas(self, node: Node, tree: Tree) -> Iterable[tuple[Ref, str]]:
        """The local shard, where the placements say that other ranks of the mesh have the same."""
        if "ranks" in node:
            yield node["value"], str(node["ranks"])

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return (
            super().matches(live, node, restore)
            and live.grad_fn is None
            and list(live._spec.shape) == node["shape"]
            and [str(one) for one in live._spec.placements] == node["placements"]
            and _mesh_of(live) == node["mesh"]
            and restore.value(node["over"], live._spec.mesh) is live._spec.mesh
        )

    def build(self, node: Node, restore: Restoring) -> Any:
        module = sys.modules["torch.distributed.tensor"]
        spec_module = sys.modules["torch.distributed.tensor._dtensor_spec"]
        local = restore.value(node["value"])
        restore.fill_pending()
        placements = tuple(_placement_of(text, module) for text in node["placements"])
        meta = spec_module.TensorMeta(torch.Size(node["shape"]), tuple(node["strides"]), local.dtype)
        spec = spec_module.DTensorSpec(restore.value(node["over"]), placements, tensor_meta=meta)
        with torch.no_grad():
            return module.DTensor(local, spec, requires_grad=node["requires_grad"])

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        local = restore.value(node["value"], obj._local_tensor)
        if local is not obj._local_tensor:
            obj._local_tensor = local
        if obj.requires_grad != node["requires_grad"]:
            obj.requires_grad_(node["requires_grad"])
        if not obj.is_leaf:
            return
        live_grad = obj.grad
        if "grad" in node:
            grad = restore.value(node["grad"], live_grad if live_grad is not None else MISSING)
            restore.afterwards(lambda: setattr(obj, "grad", grad))
        elif live_grad is not None:
            obj.grad = None


def _mesh_of(tensor: Any) -> list[list[int]]:
    """Sizes of the mesh's dimensions, and the ranks in it, the last dimension counting fastest."""
    ranks = tensor._spec.mesh.mesh
    return [list(ranks.shape), ranks.flatten().tolist()]


def _alike(mesh: torch.Tensor, placements: list[str], rank: int) -> list[int]:
    """The ranks that have the same shard as this one: all along the dimensions of the mesh that replicate."""
    places = (mesh == rank).nonzero()
    if not len(places):
        return []
    at = places[0].tolist()
    where = tuple(slice(None) if placement == "R" else place for placement, place in zip(placements, at, strict=True))
    found: list[int] = mesh[where].flatten().tolist()
    return found


def _placement_of(text: str, module: Any) -> Any:
    """The inverse of `str` of a placement: `R`, `S(0)`, `P(sum)`. Raises `ValueError` for another."""
    if text == "R":
        return module.Replicate()
    kind, _, rest = text.partition("(")
    argument = rest.removesuffix(")")
    if kind == "S" and argument.lstrip("-").isdigit():
        return module.Shard(int(argument))
    if kind == "P":
        return module.Partial(argument)
    raise ValueError(f"a distributed tensor laid out as {text}")

"""Buckets of `DistributedDataParallel`: in which order gradients lie in the messages that are averaged.

The first backward pass tells the reducer in which order gradients become ready, and the second forward pass lays the buckets out anew in
that order, once for all. From three ranks on, what an all-reduce gives depends on where in its message an element lies. So a model that is
wrapped anew, as a resume's is, averages to other bits, unless its buckets are laid out as they were.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.nn.parallel import distributed as ddp

from detrain.errors import CaptureError, RestoreError
from detrain.state.fields import plain_fields
from detrain.state.handler import Capturing, Handler, Restoring, mark_not_saved
from detrain.state.tree import Node, Ref, Tree, is_node

_WRAPPER = "torch.nn.parallel.distributed:DistributedDataParallel"
#: In the order in which they were wrapped, which is the same on all ranks.
_wrapped: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
#: Of models whose buckets have been laid out in the order of their gradients: they stay so.
_final: weakref.WeakKeyDictionary[Any, list[list[int]]] = weakref.WeakKeyDictionary()


def patch() -> None:
    """Know which model each reducer is of."""
    plain = ddp.DistributedDataParallel._ddp_init_helper

    @functools.wraps(plain)
    def init_helper(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = plain(self, *args, **kwargs)
        _wrapped[self] = None
        return result

    ddp.DistributedDataParallel._ddp_init_helper = init_helper


class ReducerHandler(Handler):
    """What averages the gradients of one wrapped model."""

    kind = "torch.distributed.Reducer"
    fields = plain_fields("buckets", "ranks", "has_counted")
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        mark_not_saved(node, "the set-up code makes it anew, for the processes of this attempt", warns=False)
        model = _model_of(obj)
        if model is None or model.process_group.size() < 2:
            return
        if any(model._build_params_for_reducer()[1]):
            raise CaptureError("its model has sparse gradients, whose buckets cannot be laid out as they were")
        node["ranks"] = torch.distributed.get_process_group_ranks(model.process_group)
        if _is_laid_out(model):
            node["buckets"] = _buckets_of(model)
        elif _has_counted(model):
            node["has_counted"] = True

    def replicas(self, node: Node, tree: Tree) -> Iterable[tuple[Ref, str]]:
        """The parameters of the model."""
        if "ranks" not in node:
            return
        for other in tree.nodes:
            attributes = dict(other.get("attrs", ())) if other["t"] == _WRAPPER else {}
            reducer: Ref = attributes.get("reducer")
            parameters: Ref = attributes.get("_module_parameters")
            if is_node(reducer) and tree.nodes[reducer[1]] is node and is_node(parameters):
                for ref in tree.nodes[parameters[1]]["seq"]:
                    yield ref, str(node["ranks"])

    def prepare(self, number: int, node: Node, restore: Restoring) -> None:
        """Lay the buckets out before anything is restored: what that does to gradients and to objects of hooks is put back then."""
        live = restore.matched(number)
        model = None if live is None else _model_of(live)
        if node.get("has_counted") and model is not None and not _has_counted(model):
            pass_zeros(model, list(range(len(model._module_parameters))))
        if "buckets" not in node or live is None:
            return
        if model is not None and model not in _final:
            lay_out(model, node["buckets"])
        if model is None or not _is_laid_out(model) or _buckets_of(model) != node["buckets"]:
            raise RestoreError(
                f"{restore.path_of(node)}: its buckets cannot be laid out as they were. {restore.set_aside()}"
            )


def _model_of(reducer: Any) -> Any:
    return next((model for model in _wrapped if getattr(model, "reducer", None) is reducer), None)


def settle() -> None:
    """Lay buckets out that the next forward pass would lay out first of all. A collective operation."""
    for model in list(_wrapped):
        if model.process_group.size() > 1:
            _rebuild_if_due(model)


def _rebuild_if_due(model: Any) -> None:
    if not model._has_rebuilt_buckets and model.reducer._rebuild_buckets():
        model._has_rebuilt_buckets = True


def _is_laid_out(model: Any) -> bool:
    """True if the buckets are in their last order."""
    return bool(model._has_rebuilt_buckets)


def _has_counted(model: Any) -> bool:
    """True if the first backward pass of a static graph has been; it only counts which gradients come."""
    return bool(model.static_graph and model._static_graph_delay_allreduce_enqueued)


def _buckets_of(model: Any) -> list[list[int]]:
    """Numbers of parameters, by bucket."""
    if model not in _final:
        numbers = {id(parameter): number for number, parameter in enumerate(model._module_parameters)}
        _final[model] = [
            [numbers[id(one)] for one in bucket.parameters()] for bucket in model.reducer._get_zeros_like_grad_buckets()
        ]
    return _final[model]


def lay_out(model: Any, buckets: list[list[int]]) -> None:
    """Let the reducer see gradients become ready in this order, by a backward pass in which all of them are zero.

    A collective operation: all ranks do it, at the same place.
    """
    order = [number for bucket in buckets for number in bucket]
    if model.static_graph and not _has_counted(model):
        pass_zeros(model, order)
    pass_zeros(model, order)
    _rebuild_if_due(model)


def pass_zeros(model: Any, order: list[int]) -> None:
    """One backward pass over the parameters, in this order, all of whose gradients are zero. A collective operation."""
    if not model._lazy_init_ran:
        model._lazy_init()
    reducer = model.reducer
    with torch.enable_grad():
        reducer.prepare_for_forward()
        reducer._rebuild_buckets()
        total = _zero_of(model._module_parameters, order)
        if model.static_graph:
            (total,) = ddp._DDPSink.apply(weakref.ref(model), total)
        reducer.prepare_for_backward([])
        total.backward()


def _zero_of(parameters: list[Any], order: list[int]) -> Any:
    """A number whose backward pass comes to the parameters in this order: the autograd engine takes what was made last first."""
    total = None
    for number in reversed(order):
        term = parameters[number].reshape(-1)[:1].sum() * 0
        total = term if total is None else total + term
    return total

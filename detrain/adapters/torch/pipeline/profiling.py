"""Times and sizes of a live model's layers, as pipeline planners take them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from detrain.adapters.protocol import Profiled
from detrain.adapters.torch.pipeline import calls
from detrain.adapters.torch.pipeline.keyed import Key
from detrain.adapters.torch.pipeline.splitting import Split, split
from detrain.adapters.torch.pipeline.tracing import Traced, samples_in, trace
from detrain.errors import GraphError
from detrain.pipeline.layers import Layer, Profile

_MS = 1e3


class CalledModels:
    """Sees which models the script calls in training, and with what."""

    def __init__(self) -> None:
        self._calls: dict[int, tuple[nn.Module, tuple[Any, ...], dict[str, Any]]] = {}
        self._end = calls.take_over(self._on_call)

    def profile(self, num_rounds: int, name: str) -> Profiled:
        """See `detrain.adapters.protocol.ModelLog`."""
        self._end()
        found = list(self._calls.values())
        names = [type(model).__name__ for model, _, _ in found]
        if not found:
            raise GraphError("the script's first batch calls no module in training that has parameters to train")
        if name and name not in names:
            raise GraphError(f"the script's first batch calls no model {name}: it calls {', '.join(names)}")
        if name:
            chosen = found[names.index(name)]
        else:
            chosen = max(found, key=lambda one: sum(parameter.numel() for parameter in one[0].parameters()))
        model, args, kwargs = chosen
        leaves = tree_leaves((args, kwargs))
        num_samples, _ = samples_in(leaves)
        made, cut = _measured(model, args, kwargs, num_rounds, type(model).__name__)
        return Profiled(made, num_samples, all(one.shape.sample_dim is not None for one in cut.outputs))

    def _on_call(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        if id(model) not in self._calls:
            kept = tree_map_only(Tensor, lambda one: one.detach().clone(), (args, kwargs))
            self._calls[id(model)] = (model, *kept)
        return run()


def profile(
    model: nn.Module,
    sample: Sequence[Any],
    named: Mapping[str, Any] | None = None,
    *,
    num_rounds: int = 7,
    name: str = "",
) -> Profile:
    """Layers with the time of their forward and backward pass, the bytes of what they make, and those of their parameters.

    Args:
        model: in training mode. Its buffers are as they were afterwards; its parameters' gradients are not touched.
        sample: what it is given in a step, with as many samples as the profile is to be of.
        named: what it is given by name.
        num_rounds: each layer is run so often; the median counts, and the first round does not.
        name: of the profile; the model's class if empty.

    Returns:
        Layers in the order in which they run, milliseconds and bytes for one batch of the sample's size. Each input of the model is a layer
        "Input". Raises `GraphError` where `torch.export` cannot take the model.
    """
    return _measured(model, sample, named or {}, num_rounds, name or type(model).__name__)[0]


def _measured(
    model: nn.Module, sample: Sequence[Any], named: Mapping[str, Any], num_rounds: int, name: str
) -> tuple[Profile, Split]:
    traced = trace(model, sample, named)
    leaves = tree_leaves((tuple(sample), dict(named)))
    cut = split(traced, {layer.name: number for number, layer in enumerate(traced.layers)})
    buffers = [(buffer, buffer.detach().clone()) for buffer in model.buffers()]
    try:
        rounds = [_timed(cut, leaves) for _ in range(num_rounds + 1)][1:]
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
    return _profile(traced, cut, rounds, name), cut


def _timed(cut: Split, sample: Sequence[Any]) -> list[tuple[float, float]]:
    """Milliseconds of each layer's forward and backward pass."""
    made: dict[int, Tensor] = {}
    took: list[tuple[float, float]] = []
    key = Key(0, 0, 0)
    for stage in cut.stages:
        taken = [made[crossing.number].detach() for crossing in stage.takes]
        leaves = [
            tensor.requires_grad_() if crossing.has_gradient else tensor
            for crossing, tensor in zip(stage.takes, taken, strict=True)
        ]
        given = [
            leaf.clone() if crossing.number in stage.changed else leaf
            for crossing, leaf in zip(stage.takes, leaves, strict=True)
        ]
        inputs = [sample[place] for place in stage.inputs]
        wanted = [one for one in (*leaves, *stage.parameters()) if one.requires_grad]
        began_s = _now_s()
        results = stage.module(cut.traced.num_samples, key, *inputs, *given)
        middle_s = _now_s()
        roots = [one for one in results if one.requires_grad]
        ones = [torch.ones_like(one) for one in roots]
        ready_s = _now_s()
        if roots and wanted:
            torch.autograd.grad(roots, wanted, ones, allow_unused=True)
        took.append(((middle_s - began_s) * _MS, (_now_s() - ready_s) * _MS))
        made |= {crossing.number: one for crossing, one in zip(stage.makes, results, strict=False)}
    return took


def _now_s() -> float:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter()


def _profile(traced: Traced, cut: Split, rounds: Sequence[Sequence[tuple[float, float]]], name: str) -> Profile:
    count = traced.num_samples
    #: By place, those inputs that are tensors.
    tensors = {place: node for place, node in enumerate(traced.inputs) if isinstance(node.meta.get("val"), Tensor)}
    number_of = {place: number for number, place in enumerate(tensors)}
    layers = [
        Layer(f"input{place}", f"Input{place}", 0.0, 0.0, (float(traced.shape(node).num_bytes(count)),), 0.0)
        for place, node in tensors.items()
    ]
    first = len(layers)
    edges: list[tuple[int, int]] = []
    owned: set[int] = set()
    for number, (layer, stage) in enumerate(zip(traced.layers, cut.stages, strict=True)):
        made = {one.name: one for one in stage.makes if one.origin == number and not _is_parameter(one.name, cut)}
        sizes = [float(crossing.shape.num_bytes(count)) for crossing in made.values()]
        if number == len(traced.layers) - 1:
            sizes += [float(traced.shape(node).num_bytes(count)) for node in traced.outputs]
        own = [one for one in stage.parameters() if id(one) not in owned]
        owned |= {id(one) for one in own}
        layers.append(
            Layer(
                layer.name, layer.description, statistics.median(one[number][0] for one in rounds),
                statistics.median(one[number][1] for one in rounds), tuple(sizes) or (0.0,), float(sum(one.nbytes for one in own)),
            )
        )  # fmt: skip
        edges += [(number_of[place], first + number) for place in stage.inputs if place in number_of]
        makers = sorted({crossing.origin for crossing in stage.takes})
        edges += [(first + maker, first + number) for maker in makers]
    return Profile(tuple(layers), tuple(edges), name)


def _is_parameter(name: str, cut: Split) -> bool:
    return any(node.op == "get_attr" and node.name == name for node in cut.traced.root.graph.nodes)

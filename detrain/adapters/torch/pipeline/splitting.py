"""A traced model cut into stages: modules that share the model's parameters, and the tensors that go from one to others."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from detrain.adapters.torch.pipeline import keyed
from detrain.adapters.torch.pipeline.tracing import Shape, Size, Traced, is_number, source_of
from detrain.errors import GraphError

_DROPOUTS = (torch.ops.aten.dropout.default, torch.ops.aten.dropout_.default)
_ATTENTION = torch.ops.aten.scaled_dot_product_attention.default
#: Operators that draw numbers at these places of their arguments only: a probability, and a flag that says that they do.
_DRAWS_AT = {"lstm": ((5,), 6), "gru": ((5,), 6), "rnn_tanh": ((5,), 6), "rnn_relu": ((5,), 6)}


@dataclass(frozen=True, slots=True)
class Crossing:
    """A tensor that goes from one stage to a later one.

    What several stages take goes from each to the next: so the gradients of its uses are added from the last use to the first, one by one,
    as in one process.
    """

    number: int
    name: str
    shape: Shape
    #: The stage that it goes from: that which makes it, or the one before that takes it too.
    maker: int
    taker: int
    #: The stage that makes it.
    origin: int
    #: A gradient comes back for it.
    has_gradient: bool
    #: It hangs on what the model is given, and not on parameters alone.
    is_of_inputs: bool


@dataclass(frozen=True)
class StageModule:
    """One stage: called with the number of samples, the key of its random numbers, the model's inputs, and what it takes."""

    module: fx.GraphModule
    #: Which of the model's inputs it is given.
    inputs: tuple[int, ...]
    takes: tuple[Crossing, ...]
    #: What it returns first; the last stage returns the model's outputs behind them.
    makes: tuple[Crossing, ...]
    #: Of what it takes, what it changes in place.
    changed: frozenset[int]
    #: Names of the buffers that it changes.
    written: tuple[str, ...] = ()

    def parameters(self) -> list[nn.Parameter]:
        """Its own, each once; a parameter of several stages belongs to the first."""
        return list(self.module.parameters())


@dataclass(frozen=True)
class Split:
    """All stages of a model."""

    stages: tuple[StageModule, ...]
    crossings: tuple[Crossing, ...]
    #: What the model returns, as if it went on from the last stage.
    outputs: tuple[Crossing, ...]
    traced: Traced
    #: Some of its operators draw numbers.
    is_random: bool = False


def split(traced: Traced, stage_of_layer: Mapping[str, int]) -> Split:
    """Cut a model. `stage_of_layer`: by the names of all its layers.

    A parameter that several stages read belongs to the first of them, and goes to the others as what it makes does. Raises `GraphError`
    for layers of another model, and for what cannot be cut, with the line of the model's source.
    """
    return _Splitter(traced, stage_of_layer).split()


class _Splitter:
    def __init__(self, traced: Traced, stage_of_layer: Mapping[str, int]) -> None:
        self.traced = traced
        self.stage_of: dict[fx.Node, int] = {}
        self.layer_of: dict[fx.Node, int] = {}
        unknown = set(stage_of_layer) - {layer.name for layer in traced.layers}
        if unknown:
            raise GraphError(
                f"the plan has a layer {min(unknown)}, and the model has none of that name: it is a plan for another model"
            )
        for number, layer in enumerate(traced.layers):
            if layer.name not in stage_of_layer:
                raise GraphError(
                    f"the model has a layer {layer.name}, and the plan has none of that name: it is a plan for another model"
                )
            for node in layer.nodes:
                self.stage_of[node], self.layer_of[node] = stage_of_layer[layer.name], number
        self.num_stages = max(self.stage_of.values()) + 1
        self.nodes = [node for node in traced.root.graph.nodes if node in self.stage_of]
        self.changes = {node: _changed(node) for node in self.nodes}
        #: By it two dropouts of one layer have other numbers.
        self.draw_of = {node: number for number, node in enumerate(self.nodes)}
        self.is_random = False
        self._look_through()
        self._place_attributes()

    def _look_through(self) -> None:
        """Which nodes hang on inputs, and of which a gradient is wanted."""
        self.of_inputs, self.with_gradient = set(self.traced.inputs), set[fx.Node]()
        self.parameters = {name for name, _ in self.traced.root.named_parameters(remove_duplicate=False)}
        trained = {name for name, one in self.traced.root.named_parameters(remove_duplicate=False) if one.requires_grad}
        for node in self.traced.root.graph.nodes:
            if node.op == "get_attr" and node.target in trained:
                self.with_gradient.add(node)
            if node not in self.stage_of:
                continue
            if isinstance(node.target, torch._ops.HigherOrderOperator):
                self._check_inner(node)
            sources = node.all_input_nodes
            if any(source in self.of_inputs for source in sources):
                self.of_inputs.add(node)
            value = node.meta.get("val")
            is_real = not isinstance(value, torch.Tensor) or value.dtype.is_floating_point or value.dtype.is_complex
            is_cut_off = node.target in (torch.ops.aten.detach.default, torch.ops.aten.detach_.default)
            if is_real and not is_cut_off and any(source in self.with_gradient for source in sources):
                self.with_gradient.add(node)

    def _check_inner(self, node: fx.Node) -> None:
        """What runs within `no_grad` or `autocast` in a forward pass is a graph of its own."""
        for source in node.all_input_nodes:
            inner = getattr(self.traced.root, str(source.target), None) if source.op == "get_attr" else None
            if not isinstance(inner, fx.GraphModule):
                continue
            for one in inner.graph.nodes:
                tags = one.target.tags if isinstance(one.target, torch._ops.OpOverload) else ()
                if torch.Tag.nondeterministic_seeded in tags or _changed(one):
                    raise GraphError(
                        f"{one.target} within {node.target} draws random numbers or changes a tensor, which cannot be followed there: "
                        f"{source_of(node)}"
                    )

    def _place_attributes(self) -> None:
        """Parameters and buffers are in the first stage that reads them; buffers that are changed in no other."""
        for node in self.traced.root.graph.nodes:
            if node.op != "get_attr":
                continue
            users = [user for user in node.users if user in self.stage_of]
            if not users:
                continue
            self.stage_of[node] = min(self.stage_of[user] for user in users)
            writers = [user for user in self.nodes if any(_base(source) is node for source in self.changes[user])]
            if writers and node.target in self.parameters:
                raise GraphError(f"{node.target}, a parameter, is changed in place: {source_of(writers[0])}")
            if writers and len({self.stage_of[user] for user in users}) > 1:
                raise GraphError(
                    f"{node.target} is changed in stage {self.stage_of[writers[0]]} and read in others: {source_of(writers[0])}"
                )

    def split(self) -> Split:
        takers: dict[fx.Node, set[int]] = {}
        last = self.num_stages - 1
        for node in self.nodes:
            for source in node.all_input_nodes:
                if source in self.stage_of and not is_number(source) and self.stage_of[source] != self.stage_of[node]:
                    if self.stage_of[source] > self.stage_of[node]:
                        raise GraphError(
                            f"stage {self.stage_of[node]} takes what stage {self.stage_of[source]} makes: {source_of(node)}"
                        )
                    takers.setdefault(source, set()).add(self.stage_of[node])
        for node in self.traced.outputs:
            if node in self.stage_of and self.stage_of[node] != last:
                takers.setdefault(node, set()).add(last)
        self._check_changes(takers)
        crossings: list[tuple[fx.Node, Crossing]] = []
        for node, numbers in takers.items():
            origin = maker = self.stage_of[node]
            for taker in sorted(numbers):
                if node.meta["val"].dtype.is_complex:
                    raise GraphError(
                        f"{node.name}, a complex tensor, goes from stage {maker} to stage {taker}: cut elsewhere: {source_of(node)}"
                    )
                shape, is_of_inputs = self.traced.shape(node), node in self.of_inputs
                crossing = Crossing(
                    len(crossings), node.name, shape, maker, taker, origin, node in self.with_gradient, is_of_inputs
                )
                crossings.append((node, crossing))
                maker = taker
        stages = tuple(self._stage(number, crossings) for number in range(self.num_stages))
        outputs = tuple(
            Crossing(
                number, node.name, self.traced.shape(node), last, last + 1, last, node in self.with_gradient, node in self.of_inputs,
            )
            for number, node in enumerate(self.traced.outputs)
        )  # fmt: skip
        return Split(stages, tuple(crossing for _, crossing in crossings), outputs, self.traced, self.is_random)

    def _check_changes(self, takers: Mapping[fx.Node, set[int]]) -> None:
        for node in self.nodes:
            for source in self.changes[node]:
                if _base(source) in self.traced.inputs and self.stage_of[node] > 0:
                    raise GraphError(
                        f"{node.name} in stage {self.stage_of[node]} changes in place what the model is given: {source_of(node)}"
                    )
                if (
                    source in self.stage_of
                    and self.stage_of[_base(source)] != self.stage_of[node]
                    and _base(source) is not source
                ):
                    raise GraphError(
                        f"{node.name} in stage {self.stage_of[node]} changes in place a view of what stage "
                        f"{self.stage_of[_base(source)]} makes: {source_of(node)}"
                    )
                if source in takers and self.stage_of[node] != self.stage_of[source] and len(takers[source]) > 1:
                    raise GraphError(
                        f"{node.name} in stage {self.stage_of[node]} changes in place what stage {self.stage_of[source]} makes, and other "
                        f"stages read it: {source_of(node)}"
                    )

    def _stage(self, number: int, crossings: Sequence[tuple[fx.Node, Crossing]]) -> StageModule:
        graph, env = fx.Graph(), dict[fx.Node, fx.Node]()
        is_last = number == self.num_stages - 1
        own = [node for node in self.nodes if self.stage_of[node] == number]
        outputs = self.traced.outputs if is_last else ()
        read = {source for node in own for source in node.all_input_nodes} | set(outputs)
        inputs = [place for place, node in enumerate(self.traced.inputs) if node in read and not is_number(node)]
        takes = {node: crossing for node, crossing in crossings if crossing.taker == number}
        samples, key = graph.placeholder("samples"), graph.placeholder("key")
        for node in (*(self.traced.inputs[place] for place in inputs), *takes):
            env[node] = graph.placeholder(node.name)

        def resolved(node: fx.Node) -> fx.Node:
            if node not in env:
                if is_number(node):
                    env[node] = _number(graph, samples, self.traced.size(node))
                else:
                    env[node] = graph.node_copy(node)  # a parameter, a buffer
            return env[node]

        for node in own:
            keyed_args = self._keyed(node, key)
            if keyed_args is not None:
                self.is_random = True
                function, args = keyed_args
                args = fx.node.map_arg(args, lambda one: one if one is key else resolved(one))
                env[node] = graph.call_function(function, args)
            else:
                env[node] = graph.node_copy(node, resolved)
        makes = [(node, crossing) for node, crossing in crossings if crossing.maker == number]
        graph.output(tuple(resolved(node) for node in (*(node for node, _ in makes), *outputs)))
        changed = frozenset(takes[source].number for node in own for source in self.changes[node] if source in takes)
        bases = {_base(source) for node in own for source in self.changes[node]}
        written = {str(base.target) for base in bases if base.op == "get_attr"}
        return StageModule(
            fx.GraphModule(self.traced.root, graph, f"Stage{number}"), tuple(inputs), tuple(takes.values()),
            tuple(crossing for _, crossing in makes), changed, tuple(sorted(written)),
        )  # fmt: skip

    def _keyed(self, node: fx.Node, key: fx.Node) -> tuple[Any, tuple[Any, ...]] | None:
        """For an operator that draws numbers, what takes its place, and its arguments. Raises `GraphError` if nothing does."""
        target = node.target
        if target in _DROPOUTS and node.args[2]:
            return keyed.dropout, (*node.args[:2], key, self.draw_of[node], *self._samples(node))
        if target is _ATTENTION and (p := _argument(node, 4, "dropout_p", 0.0)):
            q, k, v = node.args[:3]
            mask, is_causal = _argument(node, 3, "attn_mask", None), _argument(node, 5, "is_causal", default=False)
            return keyed.attention, (
                q, k, v, mask, p, is_causal, _argument(node, 6, "scale", None), key, self.draw_of[node], *self._samples(node)
            )  # fmt: skip
        if not isinstance(target, torch._ops.OpOverload):
            return None
        name = target.overloadpacket.__name__
        is_drawing = torch.Tag.nondeterministic_seeded in target.tags and target not in (*_DROPOUTS, _ATTENTION)
        if name in _DRAWS_AT:
            places, flag = _DRAWS_AT[name]
            is_drawing = bool(node.args[flag]) and any(node.args[place] for place in places)
        if is_drawing:
            raise GraphError(
                f"{target} in layer {self.traced.layers[self.layer_of[node]].name} draws random numbers that would be others in another "
                f"plan; dropout can be done: {source_of(node)}"
            )
        return None

    def _samples(self, node: fx.Node) -> tuple[int | None, int]:
        shape = self.traced.shape(node)
        dim = shape.sample_dim
        if dim is None and not shape.is_whole:
            raise GraphError(f"{node.name} has samples in more than one dimension: {source_of(node)}")
        return dim, 1 if dim is None else shape.sizes[dim].per_sample


def _base(node: fx.Node) -> fx.Node:
    """What a view looks into, through views of views."""
    while True:
        schema = node.target._schema if isinstance(node.target, torch._ops.OpOverload) else None
        is_view = node.target is operator.getitem or (
            schema is not None
            and any(one.alias_info is not None and not one.alias_info.is_write for one in schema.returns)
        )
        if not is_view or not isinstance(node.args[0], fx.Node):
            return node
        node = node.args[0]


def _argument(node: fx.Node, place: int, name: str, default: Any) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _number(graph: fx.Graph, samples: fx.Node, size: Size) -> fx.Node:
    scaled = graph.call_function(operator.mul, (samples, size.per_sample))
    return graph.call_function(operator.add, (scaled, size.fixed))


def _changed(node: fx.Node) -> Sequence[fx.Node]:
    """What an operator changes in place."""
    if not isinstance(node.target, torch._ops.OpOverload):
        return ()
    changed = [
        given
        for place, argument in enumerate(node.target._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
        if isinstance(given := _argument(node, place, argument.name, None), fx.Node)
    ]
    if node.target is torch.ops.aten.batch_norm.default and _argument(node, 5, "training", default=False):
        changed += [one for one in node.args[3:5] if isinstance(one, fx.Node)]
    return changed

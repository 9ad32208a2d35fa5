"""Profiles as training steps of `detrain remat`, and steps as profiles.

A profile has a layer's forward pass and its backward pass as two times; a step has them as operators, each with the tensors that it
takes and makes. So a stage that a planner has found can be planned within a budget of memory, and a step that was logged can be
divided into stages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from detrain.errors import GraphError
from detrain.pipeline.layers import Layer, Profile
from detrain.remat.graph import Graph, GraphBuilder
from detrain.remat.planners.forward_end import first_backward_index

_NS = 10**6  # of a millisecond


def to_graph(profile: Profile) -> Graph:
    """A step: every layer forward, then every layer back in reverse, each freed as soon as its own backward pass is done.

    Parameters and data are constants, and the gradients of the parameters are there at the end. A layer's backward pass takes what
    the layer took and made, and the gradients of what it made; it makes those of its parameters, and of each layer it took from.
    Times are rounded to ns, sizes to bytes. A source that is only data is a constant of all its bytes; its time is not counted.
    """
    return _Step(profile).build()


class _Step:
    """Builds the step of a profile."""

    def __init__(self, profile: Profile) -> None:
        self._profile = profile
        self._made = GraphBuilder(profile.name)
        self._names = {layer.name for layer in profile.layers}
        self._layers = [number for number in profile.order if not self._is_data(number)]
        self._parameters: dict[int, list[int]] = {}
        self._outputs: dict[int, tuple[int, ...]] = {}
        #: By layer: what those that took from it have made for it.
        self._gradients: dict[int, list[int]] = {number: [] for number in self._layers}

    def _is_data(self, number: int) -> bool:
        return self._profile.layers[number].is_input and not self._profile.predecessors[number]

    def build(self) -> Graph:
        """The step. Parameters stand before the data."""
        layers = self._profile.layers
        for number in self._layers:
            size = round(layers[number].parameter_bytes)
            name = self._name(f"{layers[number].name} parameters")
            self._parameters[number] = [self._made.constant(name, size)] if size else []
        for number in filter(self._is_data, self._profile.order):
            size = round(layers[number].activation_bytes)
            self._outputs[number] = (self._made.constant(layers[number].name, size),)
        for number in self._layers:
            self._forward(number)
        kept = [gradient for number in reversed(self._layers) for gradient in self._backward(number)]
        return self._made.build(kept)

    def _forward(self, number: int) -> None:
        layer = self._profile.layers[number]
        sizes = layer.output_bytes or (0.0,)
        names = [layer.name, *(self._name(f"{layer.name} output {place}") for place in range(1, len(sizes)))]
        self._outputs[number] = self._made.compute(
            layer.description or layer.name, round(layer.forward_ms * _NS), self._inputs(number),
            [(name, round(size), -1) for name, size in zip(names, sizes, strict=True)],
        )  # fmt: skip

    def _inputs(self, number: int) -> list[int]:
        taken = [output for before in self._before(number) for output in self._outputs[before]]
        return taken + self._parameters[number]

    def _before(self, number: int) -> Iterable[int]:
        return dict.fromkeys(self._profile.predecessors[number])

    def _backward(self, number: int) -> tuple[int, ...]:
        """Returns the gradients of the parameters."""
        layer = self._profile.layers[number]
        own = [(self._name(f"{layer.name} parameters' gradient"), round(layer.parameter_bytes), -1)]
        outputs = own if self._parameters[number] else []
        num_kept = len(outputs)
        before = [source for source in self._before(number) if not self._is_data(source)]
        for source in before:
            taken = self._profile.layers[source]
            outputs = [
                *outputs,
                (self._name(f"{taken.name} gradient of {layer.name}"), round(taken.activation_bytes), -1),
            ]
        made = self._made.compute(
            f"{layer.description or layer.name} backward", round(layer.backward_ms * _NS),
            [*self._gradients[number], *self._inputs(number), *self._outputs[number]],
            outputs or [(self._name(f"{layer.name} done"), 0, -1)], is_backward=True,
        )  # fmt: skip
        for source, gradient in zip(before, made[num_kept:], strict=False):
            self._gradients[source].append(gradient)
        for gone in (*self._gradients[number], *self._outputs[number], *(() if outputs else made)):
            self._made.release(gone)
        return made[:num_kept]

    def _name(self, wanted: str) -> str:
        """A name like `wanted` that no layer or tensor has yet."""
        while wanted in self._names:
            wanted += "'"
        self._names.add(wanted)
        return wanted


def from_graph(graph: Graph) -> Profile:
    """The layers of a step's forward pass, each with the time of what belongs to it in the backward pass.

    An operator that makes views only belongs to the layer that has made what it looks into. An operator of the backward pass belongs
    to the layer with which it shares most tensors; of equal ones to one that has no others, then to the one that takes most
    tensors of the sizes that the operator makes, then to the one that has fewest others, then to the latest that does not come
    behind the layers whose gradients the operator takes. One that shares none goes with those. The backward pass is what is flagged so;
    where nothing is, the operator at which most memory is in use, and all behind it.

    No time is lost, and no constant: one is a parameter of the layer that uses it first if a gradient of its size stays at the
    end, of this layer's before others'; else it is data. Where no gradient stays, the constant that is used first is the data, and
    the others are parameters. Raises `GraphError` for a graph without a forward pass.
    """
    return _LayerFinder(graph).profile()


@dataclass
class _PartialLayer:
    """A layer while its operators are still collected."""

    #: The operator that stands for it.
    operator: int
    forward_ns: int = 0
    backward_ns: int = 0
    has_back: bool = False
    #: Bases of all that its operators take and make.
    bases: set[int] = field(default_factory=set)
    #: Sizes of what they take.
    taken_bytes: set[int] = field(default_factory=set)
    parameters: list[int] = field(default_factory=list)


class _LayerFinder:
    """Finds the layers of a graph. Layers are numbered in the order of the program."""

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._base = [tensor.base for tensor in graph.tensors]
        order = [number for number, operator in enumerate(graph.operators) if not operator.is_constant]
        flagged = [number for number in order if graph.operators[number].is_backward]
        self._back = flagged or order[first_backward_index(graph, order) :]
        self._forward = sorted(set(order) - set(self._back))
        self._forward_set = set(self._forward)
        self._views = {
            number
            for number in self._forward
            if all(self._base[output] != output for output in graph.operators[number].outputs)
        }
        if not self._forward:
            raise GraphError(f"{graph.name or 'the graph'} has no forward operators, so there are no layers")
        self._partial: list[_PartialLayer] = []
        #: By operator, of either way: its layer.
        self._layer: dict[int, int] = {}

    def profile(self) -> Profile:
        """The profile."""
        self._find_layers()
        self._add_forward_pass()
        self._add_backward_pass()
        self._fold_idle()
        users = self._first_users()
        for constant, layer in self._parameters(users).items():
            self._partial[layer].parameters.append(constant)
        return self._build()

    # --- which operator belongs to which layer ----------------------------------------------------------------------------------

    def _find_layers(self) -> None:
        #: Views of constants, by their bases: they belong to who uses the constant first.
        waiting: dict[int, list[int]] = {}
        for number in self._forward:
            operator = self._graph.operators[number]
            base = self._base[operator.outputs[0]]
            maker = self._graph.tensors[base].operator
            if number not in self._views:
                self._layer[number] = self._new(number)
                for tensor in operator.inputs:
                    for view in waiting.pop(self._base[tensor], ()):
                        self._layer[view] = self._layer[number]
            elif maker in self._layer:
                self._layer[number] = self._layer[maker]
            else:
                waiting.setdefault(base, []).append(number)
        for view in sorted(number for views in waiting.values() for number in views):
            self._layer[view] = self._new(view)

    def _new(self, operator: int) -> int:
        self._partial.append(_PartialLayer(operator))
        return len(self._partial) - 1

    def _add_forward_pass(self) -> None:
        for number in self._forward:
            layer = self._partial[self._layer[number]]
            layer.forward_ns += self._graph.operators[number].cost_ns
            layer.bases |= self._bases(number)
            layer.taken_bytes |= {self._graph.size_bytes(tensor) for tensor in self._graph.operators[number].inputs}

    def _bases(self, number: int) -> set[int]:
        operator = self._graph.operators[number]
        return {self._base[tensor] for tensor in (*operator.inputs, *operator.outputs)}

    def _add_backward_pass(self) -> None:
        users: dict[int, list[int]] = {}
        used = {self._base[tensor] for operator in self._graph.operators for tensor in operator.inputs}
        used |= {self._base[output] for output in self._graph.outputs}
        for layer, partial in enumerate(self._partial):
            # What nothing uses has no gradient.
            for base in partial.bases if used.intersection(self._graph.operators[partial.operator].outputs) else ():
                users.setdefault(base, []).append(layer)
        for number in self._back:
            at = self._layer_of_backward(number, users)
            self._layer[number] = at
            self._partial[at].backward_ns += self._graph.operators[number].cost_ns
            self._partial[at].has_back = True

    def _layer_of_backward(self, number: int, users: dict[int, list[int]]) -> int:
        makers = {self._graph.tensors[tensor].operator for tensor in self._graph.operators[number].inputs}
        #: Layers of the operators of the backward pass whose outputs it takes. Gradients come from behind.
        behind = [self._layer[maker] for maker in makers if maker in self._layer and maker not in self._forward_set]
        shared = Counter(layer for base in self._bases(number) for layer in users.get(base, ()))
        if not shared:
            return max(behind, default=len(self._partial) - 1)
        last = min(behind, default=len(self._partial))
        made = [self._graph.size_bytes(output) for output in self._graph.operators[number].outputs]

        def rank(layer: int) -> tuple[int, bool, int, float, bool, int]:
            partial = self._partial[layer]
            share = shared[layer] / len(partial.bases)
            fits = sum(size in partial.taken_bytes for size in made)
            return shared[layer], share == 1.0, fits, share, layer <= last, layer

        return max(shared, key=rank)

    def _fold_idle(self) -> None:
        """Merges a layer without a backward pass that no other uses, such as a counter, into the next layer, or else into the last."""
        taken = {self._base[tensor] for number in self._back for tensor in self._graph.operators[number].inputs}
        busy = {layer for edge in self._edges() if edge[0] >= 0 for layer in edge}
        for layer, partial in enumerate(self._partial):
            if partial.has_back or taken.intersection(self._graph.operators[partial.operator].outputs):
                busy.add(layer)
        left = sorted(busy) or list(range(len(self._partial)))
        goes = [min(bisect_left(left, old), len(left) - 1) for old in range(len(self._partial))]
        for old, partial in enumerate(self._partial):
            if left[goes[old]] != old:
                self._partial[left[goes[old]]].forward_ns += partial.forward_ns
        self._layer = {operator: goes[layer] for operator, layer in self._layer.items()}
        self._partial = [self._partial[old] for old in left]

    # --- constants --------------------------------------------------------------------------------------------------------------

    def _first_users(self) -> dict[int, int]:
        """By constant, of those that the forward pass uses: the layer that uses it first."""
        users: dict[int, int] = {}
        for number in self._forward:
            for tensor in self._graph.operators[number].inputs:
                base = self._base[tensor]
                if self._graph.operators[self._graph.tensors[base].operator].is_constant:
                    users.setdefault(base, self._layer[number])
        return users

    def _parameters(self, users: dict[int, int]) -> dict[int, int]:
        """By constant, of those that are parameters: the layer that uses it first."""
        back = set(self._back)
        staying = sorted({self._base[output] for output in self._graph.outputs})
        gradients = [tensor for tensor in staying if self._graph.tensors[tensor].operator in back]
        if not gradients:
            return {constant: layer for at, (constant, layer) in enumerate(users.items()) if at}
        of_size: dict[int, list[int]] = {}
        for base in sorted(users):
            of_size.setdefault(self._graph.size_bytes(base), []).append(base)
        parameters: dict[int, int] = {}
        for is_of_layer in (True, False):
            left = []
            for gradient in gradients:
                layer, size = self._layer[self._graph.tensors[gradient].operator], self._graph.size_bytes(gradient)
                constant = next(
                    (candidate for candidate in of_size.get(size, ()) if users[candidate] == layer or not is_of_layer),
                    None,
                )
                if constant is None:
                    left.append(gradient)
                else:
                    parameters[constant] = users[constant]
                    of_size[size].remove(constant)
            gradients = left
        return parameters

    # --- the profile ------------------------------------------------------------------------------------------------------------

    def _edges(self) -> Iterable[tuple[int, int]]:
        """From layer to layer; for a constant, -1 less its number to layer."""
        for number in self._forward:
            operator, layer = self._graph.operators[number], self._layer[number]
            # What else a view takes, it takes for the shape.
            taken = operator.outputs if number in self._views else operator.inputs
            for tensor in taken:
                for maker in (self._graph.tensors[tensor].operator, self._graph.tensors[self._base[tensor]].operator):
                    if self._graph.operators[maker].is_constant:
                        yield -1 - self._base[tensor], layer
                    elif maker in self._forward_set and maker not in self._views and self._layer[maker] != layer:
                        yield self._layer[maker], layer

    def _build(self) -> Profile:
        parameters = {constant for partial in self._partial for constant in partial.parameters}
        constants = [
            output for operator in self._graph.operators if operator.is_constant for output in operator.outputs
        ]
        data = {
            tensor: place
            for place, tensor in enumerate(constant for constant in constants if constant not in parameters)
        }
        layers = [
            Layer(self._graph.tensors[constant].name, "Input", 0.0, 0.0, (self._size(constant),), 0.0)
            for constant in data
        ]
        layers += map(self._as_layer, self._partial)
        edges: dict[tuple[int, int], None] = {}
        for begin, end in self._edges():
            if begin >= 0:
                edges[begin + len(data), end + len(data)] = None
            elif -1 - begin in data:
                edges[data[-1 - begin], end + len(data)] = None
        return Profile(tuple(layers), tuple(edges), self._graph.name)

    def _as_layer(self, partial: _PartialLayer) -> Layer:
        operator = self._graph.operators[partial.operator]
        own = [output for output in operator.outputs if self._base[output] == output]
        return Layer(
            self._graph.tensors[(own or operator.outputs)[0]].name, operator.name, partial.forward_ns / _NS, partial.backward_ns / _NS,
            tuple(map(self._size, own)) or (0.0,), float(sum(map(self._graph.size_bytes, partial.parameters))),
        )  # fmt: skip

    def _size(self, tensor: int) -> float:
        return float(self._graph.size_bytes(tensor))

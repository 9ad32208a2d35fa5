"""Steps of well-known shapes, for tests and for trying a planner out: sizes in bytes and times in ns are given, or all 1."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from detrain.remat.graph import Graph, GraphBuilder


def linear(length: int) -> Graph:
    """The net of DTR's theory: `length` layers of time 1 and size 1, their gradients the same, no constants.

    Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), section 3 and appendix A.
    """
    made = GraphBuilder(f"linear-{length}")
    forward: list[int] = []
    for layer in range(length):
        forward += made.compute("forward", 1, forward[-1:], [(f"f{layer}", 1, -1)])
    made.release(forward[-1])
    (gradient,) = made.compute("backward", 1, [], [(f"b{length - 1}", 1, -1)], is_backward=True)
    for layer in reversed(range(length - 1)):
        made.release(forward[layer])
        inputs = [*([forward[layer - 1]] if layer else []), gradient]
        (new,) = made.compute("backward", 1, inputs, [(f"b{layer}", 1, -1)], is_backward=True)
        made.release(gradient)
        gradient = new
    return made.build([gradient])


@dataclass(frozen=True)
class Layer:
    """One layer of a network: what it takes (numbers of earlier layers, -1 for the data), bytes and ns."""

    inputs: tuple[int, ...]
    size_bytes: int = 1
    cost_ns: int = 1
    parameter_bytes: int = 0
    is_random: bool = False
    #: Its gradient needs the layer's own output rather than its inputs (sigmoid, tanh, softmax).
    keeps_output: bool = False


def network(
    layers: Sequence[Layer], *, data_bytes: int = 1, backward_share: float = 2.0, name: str = "network"
) -> Graph:
    """A step of a network: forward, then the gradients in reverse. What is not needed any more is given back at once.

    The gradient of a layer takes `backward_share` times as long. Outputs are the gradients of the parameters and the last layer.
    """
    return _Network(layers, data_bytes, backward_share, name).build()


class _Network:
    """Collects the calls of a step, so that it is known which of them uses a tensor last."""

    def __init__(self, layers: Sequence[Layer], data_bytes: int, backward_share: float, name: str) -> None:
        self._layers, self._share = layers, backward_share
        self._made = GraphBuilder(name)
        self._data = self._made.constant("data", data_bytes)
        self._parameters = {
            number: self._made.constant(f"w{number}", layer.parameter_bytes)
            for number, layer in enumerate(layers)
            if layer.parameter_bytes
        }
        self._calls: list[tuple[Callable[[], None], list[str]]] = []
        self._number: dict[str, int] = {"-1": self._data}
        self._kept: list[str] = []

    def build(self) -> Graph:
        """The step."""
        for number, layer in enumerate(self._layers):
            self._forward(number, layer)
        gradients: dict[int, list[str]] = {len(self._layers) - 1: []}
        for number in reversed(range(len(self._layers))):
            self._backward(number, gradients)
        self._kept.append(str(len(self._layers) - 1))
        last = {name: place for place, (_, used) in enumerate(self._calls) for name in used}
        going: dict[int, list[str]] = {}
        for name, place in last.items():
            if name not in self._kept and name != "-1":
                going.setdefault(place, []).append(name)
        for place, (call, _) in enumerate(self._calls):
            call()
            for name in going.get(place, []):
                self._made.release(self._number[name])
        return self._made.build(sorted(self._number[name] for name in self._kept))

    def _call(
        self,
        operator: str,
        name: str,
        size_bytes: int,
        cost_ns: int,
        inputs: list[str],
        constants: list[int],
        *,
        is_backward: bool = False,
        is_random: bool = False,
    ) -> None:
        def call() -> None:
            numbers = [*(self._number[tensor] for tensor in inputs), *constants]
            (self._number[name],) = self._made.compute(
                operator, cost_ns, numbers, [(name, size_bytes, -1)], is_backward=is_backward, is_random=is_random
            )

        # What is made and never used goes at once, too.
        self._calls.append((call, [*inputs, name]))

    def _forward(self, number: int, layer: Layer) -> None:
        constants = [self._parameters[number]] if number in self._parameters else []
        inputs = [str(source) for source in layer.inputs]
        self._call(
            "forward", str(number), layer.size_bytes, layer.cost_ns, inputs, constants, is_random=layer.is_random
        )

    def _backward(self, number: int, gradients: dict[int, list[str]]) -> None:
        if number not in gradients:
            return  # nothing that counts is made of it
        layer, cost_ns = self._layers[number], int(self._layers[number].cost_ns * self._share)
        parts = gradients[number]
        if len(parts) > 1:
            self._call("sum", f"g{number}", layer.size_bytes, len(parts), parts, [], is_backward=True)
            parts = [f"g{number}"]
        saved = [str(number)] if layer.keeps_output else [str(source) for source in layer.inputs]
        constants = [self._parameters[number]] if number in self._parameters else []
        if number in self._parameters:
            self._call(
                "backward", f"dw{number}", layer.parameter_bytes, cost_ns, [*parts, *saved], constants, is_backward=True
            )
            self._kept.append(f"dw{number}")
        for source in sorted({source for source in layer.inputs if source >= 0}):
            name = f"d{number}.{source}"
            self._call(
                "backward",
                name,
                self._layers[source].size_bytes,
                cost_ns,
                [*parts, *saved],
                constants,
                is_backward=True,
            )
            gradients.setdefault(source, []).append(name)


def chain(length: int, *, size_bytes: int = 8, parameter_bytes: int = 2) -> Graph:
    """Layer upon layer."""
    layers = [Layer((number - 1,), size_bytes, 4, parameter_bytes) for number in range(length)]
    return network(layers, name=f"chain-{length}")


def residual(num_blocks: int) -> Graph:
    """Blocks of two layers, each with a way around it."""
    layers = [Layer((-1,), 8, 4, 2)]
    for _ in range(num_blocks):
        begin = len(layers) - 1
        layers += [Layer((begin,), 8, 6, 3), Layer((begin + 1,), 8, 6, 3), Layer((begin, begin + 2), 8, 1)]
    return network(layers, name=f"residual-{num_blocks}")


def u_net(depth: int) -> Graph:
    """Down to smaller and smaller layers and up again, each of which takes its like from the way down."""
    layers, down, size = [Layer((-1,), 1 << depth + 2, 1 << depth, 2)], [0], 1 << depth + 2
    for _ in range(depth):
        size //= 2
        layers.append(Layer((len(layers) - 1,), size, size, 4))
        down.append(len(layers) - 1)
    for skip in reversed(down[:-1]):
        size *= 2
        layers += [Layer((len(layers) - 1,), size, size, 4), Layer((len(layers), skip), 2 * size, 1)]
        layers.append(Layer((len(layers) - 1,), size, 2 * size, 4))
    return network(layers, data_bytes=1 << depth + 2, name=f"u-net-{depth}")


def recurrent(length: int) -> Graph:
    """An LSTM over so many places: a state and a memory, each made of both before."""
    layers = [Layer((-1,), 4, 2, 8), Layer((-1,), 4, 2)]
    for _ in range(length):
        state, memory = len(layers) - 2, len(layers) - 1
        gates = len(layers)
        layers += [
            Layer((state,), 16, 12, 8), Layer((gates,), 16, 4, keeps_output=True), Layer((gates + 1, memory), 4, 2),
            Layer((gates + 2,), 4, 1, keeps_output=True), Layer((gates + 1, gates + 3), 4, 1),
        ]  # fmt: skip
        layers.append(Layer((gates + 2,), 4, 1))
    return network(layers, name=f"recurrent-{length}")


def tree(depth: int) -> Graph:
    """A TreeLSTM: every inner node is made of two."""
    layers = [Layer((-1,), 4, 3, 4) for _ in range(1 << depth)]
    row = list(range(len(layers)))
    while len(row) > 1:
        above = []
        for left, right in zip(row[::2], row[1::2], strict=True):
            layers += [Layer((left, right), 8, 6), Layer((len(layers),), 4, 2, keeps_output=True)]
            above.append(len(layers) - 1)
        row = above
    return network(layers, name=f"tree-{depth}")


def transformer(num_blocks: int) -> Graph:
    """Blocks of attention, dropout and two linear layers, with ways around both halves."""
    layers = [Layer((-1,), 8, 2, 16)]
    for _ in range(num_blocks):
        begin = len(layers) - 1
        at = len(layers)
        layers += [
            Layer((begin,), 24, 12, 12), Layer((at,), 32, 8), Layer((at + 1,), 32, 3, keeps_output=True),
            Layer((at + 2,), 32, 1, is_random=True), Layer((at, at + 3), 8, 8), Layer((at + 4,), 8, 4, 4), Layer((begin, at + 5), 8, 1),
            Layer((at + 6,), 32, 16, 16), Layer((at + 7,), 32, 2), Layer((at + 8,), 8, 16, 16), Layer((at + 9,), 8, 1, is_random=True),
            Layer((at + 6, at + 10), 8, 1),
        ]  # fmt: skip
    return network(layers, name=f"transformer-{num_blocks}")


def dense(num_blocks: int, num_layers: int) -> Graph:
    """A DenseNet: in a block, each layer takes the outputs of all before it, put together; halved between blocks."""
    layers, last, width = [Layer((-1,), 16, 4, 2)], 0, 16
    for block in range(num_blocks):
        growth, parts = max(8 >> block, 1), [last]
        for _ in range(num_layers):
            layers += [
                Layer(tuple(parts), width, 1), Layer((len(layers),), width, 1, 1),
                Layer((len(layers) + 1,), growth, max(width // 4, 1), 4),
            ]  # fmt: skip
            parts.append(len(layers) - 1)
            width += growth
        layers.append(Layer(tuple(parts), width, 1))
        width = max(width // 4, 1)
        layers.append(Layer((len(layers) - 1,), width, width, 4))
        last = len(layers) - 1
    return network(layers, data_bytes=16, name=f"dense-{num_blocks}-{num_layers}")


def inception(num_blocks: int) -> Graph:
    """Blocks of four branches beside each other, of one to three layers, whose outputs are put together."""
    layers = [Layer((-1,), 16, 6, 2)]
    for _ in range(num_blocks):
        begin, ends = len(layers) - 1, []
        for depth, cost_ns in enumerate((2, 4, 6, 2)):
            source = begin
            for _ in range(max(depth, 1)):
                layers.append(Layer((source,), 4, cost_ns, 1))
                source = len(layers) - 1
            ends.append(source)
        layers.append(Layer(tuple(ends), 16, 1))
    return network(layers, data_bytes=16, name=f"inception-{num_blocks}")


def unrolled_gan(num_steps: int) -> Graph:
    """A GAN whose generator is trained through so many updates of the discriminator: its weights are activations.

    Metz et al., "Unrolled Generative Adversarial Networks" (ICLR 2017).
    """
    layers = [Layer((-1,), 4, 4, 4), Layer((0,), 8, 8, 8), Layer((1,), 16, 8, 8)]
    image, weights = 2, 3
    layers.append(Layer((-1,), 12, 1, 12))
    for _ in range(num_steps):
        at = len(layers)
        layers += [
            Layer((image, weights), 12, 10), Layer((at, weights), 4, 6), Layer((at, at + 1, weights), 12, 16),
            Layer((weights, at + 2), 12, 1),
        ]  # fmt: skip
        weights = at + 3
    layers += [Layer((image, weights), 12, 10), Layer((len(layers), weights), 1, 6)]
    return network(layers, data_bytes=4, name=f"unrolled-gan-{num_steps}")


@dataclass(frozen=True)
class Model:
    """A shape by its name: what builds it, of whole numbers above zero, and the numbers for which it is built otherwise."""

    build: Callable[..., Graph]
    defaults: dict[str, int]


#: What an experiment may name.
MODELS = {
    "chain": Model(chain, {"length": 32, "size_bytes": 8, "parameter_bytes": 2}),
    "dense": Model(dense, {"num_blocks": 3, "num_layers": 6}),
    "inception": Model(inception, {"num_blocks": 8}),
    "linear": Model(linear, {"length": 64}),
    "recurrent": Model(recurrent, {"length": 32}),
    "residual": Model(residual, {"num_blocks": 16}),
    "transformer": Model(transformer, {"num_blocks": 6}),
    "tree": Model(tree, {"depth": 5}),
    "u-net": Model(u_net, {"depth": 4}),
    "unrolled-gan": Model(unrolled_gan, {"num_steps": 5}),
}

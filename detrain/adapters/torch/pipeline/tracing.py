"""A module as a graph of operators in layers, taken by `torch.export`, with what of its sizes depends on the number of samples.

A layer is a run of operators that follow each other in one leaf module, or in the forward of one module that has others. A module that is
called twice is two layers, so that layers never form a circle.
"""

from __future__ import annotations

import operator
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import fx, nn
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten
from torch.utils.hooks import RemovableHandle

from detrain.adapters.torch.symbolic import draws_unmoved
from detrain.errors import GraphError

#: Nothing is computed by them: `torch.export` puts them in to check what it has assumed.
_CHECKS = ("_assert", "_guards_fn", "sym_constrain")


@dataclass(frozen=True, slots=True)
class Size:
    """A length that is `per_sample` for each sample and `fixed` beside."""

    per_sample: int
    fixed: int

    def of(self, num_samples: int) -> int:
        """For so many samples."""
        return self.per_sample * num_samples + self.fixed


@dataclass(frozen=True, slots=True)
class Shape:
    """Of a tensor that the model makes."""

    sizes: tuple[Size, ...]
    dtype: torch.dtype
    #: Its dimensions as they lie in memory, the outermost first: (0, 2, 3, 1) for images with their channels last.
    order: tuple[int, ...]

    def of(self, num_samples: int) -> tuple[int, ...]:
        """For so many samples."""
        return tuple(size.of(num_samples) for size in self.sizes)

    def num_bytes(self, num_samples: int) -> int:
        """For so many samples."""
        count = 1
        for length in self.of(num_samples):
            count *= length
        return count * int(self.dtype.itemsize)

    @property
    def sample_dim(self) -> int | None:
        """The dimension along which samples lie; None if there is none, or not one alone."""
        dims = [place for place, size in enumerate(self.sizes) if size.per_sample]
        return dims[0] if len(dims) == 1 and not self.sizes[dims[0]].fixed else None

    @property
    def is_whole(self) -> bool:
        """It is the same for any number of samples."""
        return not any(size.per_sample for size in self.sizes)


@dataclass(frozen=True)
class TracedLayer:
    """A run of operators of one module."""

    #: The module's path in the model; `#2` and so on for its later runs.
    name: str
    #: As the module says of itself.
    description: str
    nodes: tuple[fx.Node, ...]


@dataclass(frozen=True)
class Traced:
    """A model's operators. Parameters and buffers are the model's own."""

    #: What the graph's attributes are found in.
    root: fx.GraphModule
    layers: tuple[TracedLayer, ...]
    #: What is given to the model, in order.
    inputs: tuple[fx.Node, ...]
    #: Tensors that it returns, and how they are put together.
    outputs: tuple[fx.Node, ...]
    out_spec: TreeSpec
    #: Samples that it was traced with.
    num_samples: int
    #: The numbers of samples that it takes.
    least_samples: int
    most_samples: int

    @property
    def least_in_parts(self) -> int:
        """Of a part of more samples, whose operators are those of the whole: a single one, if none of them treats that in another way."""
        is_single_apart = any(_is_single_apart(node) for layer in self.layers for node in layer.nodes)
        return 1 if self.least_samples <= 2 and not is_single_apart else self.least_samples

    def shape(self, node: fx.Node) -> Shape:
        """Of the tensor that a node makes."""
        value = node.meta["val"]
        strides = [_size(stride).of(self.num_samples) for stride in value.stride()]
        order = sorted(range(len(strides)), key=lambda dim: -strides[dim])
        return Shape(tuple(map(_size, value.shape)), value.dtype, tuple(order))

    def size(self, node: fx.Node) -> Size:
        """Of a node that makes a whole number."""
        return _size(node.meta["val"])


def trace(model: nn.Module, sample: Sequence[Any], named: Mapping[str, Any] | None = None) -> Traced:
    """`sample`, `named`: what the model is given in a step, by place and by name; tensors have the samples in their first dimension.

    Raises `GraphError` where the model cannot be exported, with the line that stands in the way.
    """
    leaves, spec = tree_flatten((tuple(sample), dict(named or {})))
    count, has_samples = samples_in(leaves)
    dims = torch.export.ShapesCollection()
    for one, has in zip(leaves, has_samples, strict=True):
        if has:
            dims[one] = {0: torch.export.Dim.AUTO}
    next_hook = RemovableHandle.next_id  # counts the script's hooks
    try:
        with draws_unmoved(), warnings.catch_warnings(), mock.patch.object(torch.autograd.Function, "apply", _APPLY):
            # LSTM makes its list of weights anew; they are parameters all the same. What a script's model keeps is refused elsewhere.
            warnings.filterwarnings("ignore", message="The tensor attribute")
            exported = torch.export.export(_Flat(model, spec), tuple(leaves), dynamic_shapes=dims, strict=False)
    except (
        RuntimeError,
        ValueError,
        TypeError,
        AssertionError,
        NotImplementedError,
        torch._dynamo.exc.UserError,
    ) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        where = next((line for line in reversed(lines) if line.startswith("File ")), "")
        raise GraphError(
            f"torch.export cannot take {type(model).__name__} apart: {lines[0][:300] if lines else type(error).__name__}"
            f"{f' ({where})' if where else ''}"
        ) from error
    module = exported.module()
    RemovableHandle.next_id = next_hook
    assert isinstance(module, fx.GraphModule)
    nodes = list(module.graph.nodes)
    returned = tree_flatten(nodes[-1].args[0])[0]
    if not all(isinstance(node, fx.Node) and not is_number(node) for node in returned):
        raise GraphError(f"{type(model).__name__} returns something that is no tensor")
    out_spec = exported.call_spec.out_spec
    assert out_spec is not None
    outputs = tuple(returned)
    inputs = tuple(node for node in nodes if node.op == "placeholder")
    least, most = _range(exported, inputs, has_samples, count)
    return Traced(module, tuple(_layers(model, nodes)), inputs, outputs, out_spec, count, least, most)


def samples_in(leaves: Sequence[Any]) -> tuple[int, tuple[bool, ...]]:
    """How many samples a model is given, and which of its inputs have them in their first dimension. Raises `GraphError` for none."""
    first = next((one for one in leaves if isinstance(one, torch.Tensor) and one.dim()), None)
    if first is None:
        raise GraphError("the model is given no tensor with samples in it")
    count = first.shape[0]
    return count, tuple(isinstance(one, torch.Tensor) and one.dim() > 0 and one.shape[0] == count for one in leaves)


class _Flat(nn.Module):  # type: ignore[misc]
    """Is given a model's inputs one by one: torch.export takes no names that a signature leaves open."""

    def __init__(self, model: nn.Module, spec: TreeSpec) -> None:
        super().__init__()
        self.model, self._spec = model, spec
        self.training = model.training

    def forward(self, *leaves: Any) -> Any:
        """What the model returns."""
        args, kwargs = tree_unflatten(list(leaves), self._spec)
        return self.model(*args, **kwargs)


_plainly_applied = torch.autograd.Function.apply.__func__


def _applied(function: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
    """Raises `ValueError` for a function of the script's. Those that PyTorch makes for operators of `torch.library` stay operators."""
    if function.__module__ == torch._library.autograd.__name__:
        return _plainly_applied(function, *args, **kwargs)
    raise ValueError(
        "it calls a torch.autograd.Function of its own, whose backward pass would be lost; write it with operators, as an operator of "
        "`torch.library` with `register_autograd`, or `detach()`"
    )


_APPLY = classmethod(_applied)


def _range(exported: Any, inputs: Sequence[fx.Node], has_samples: Sequence[bool], count: int) -> tuple[int, int]:
    """The numbers of samples that the graph is right for: those that take the same way through the model."""
    least, most = 1, sys.maxsize
    for node, has in zip(inputs, has_samples, strict=True):
        if not has:
            continue
        length = node.meta["val"].shape[0]
        if not _size(length).per_sample:  # the model takes samples one by one, say
            return count, count
        found = exported.range_constraints.get(length.node.expr)
        if found is not None:
            # 2 in most cases: a model may ask for a single sample, and torch.export takes it that there is none.
            least = max(least, int(found.lower))
            most = min(most, int(found.upper) if found.upper < sys.maxsize else sys.maxsize)
    return least, most


def is_number(node: fx.Node) -> bool:
    """It makes a whole number, of sizes."""
    return isinstance(node.meta.get("val"), (int, torch.SymInt))


def _is_single_apart(node: fx.Node) -> bool:
    """An operator drops the dimension of a single sample, or has no statistics of one."""
    if node.target is torch.ops.aten.batch_norm.default and node.args[5] and isinstance(node.args[0], fx.Node):
        return all(length == 1 for length in node.args[0].meta["val"].shape[2:])
    return bool(node.target is torch.ops.aten.squeeze.default)


def source_of(node: fx.Node) -> str:
    """The line of the model's that a node comes from, for a message."""
    lines = [line.strip() for line in (node.stack_trace or "").splitlines()]
    return next((line for line in reversed(lines) if line.startswith("File ")), "")


def _size(length: int | torch.SymInt) -> Size:
    if isinstance(length, int):
        return Size(0, length)
    expression: Any = length.node.expr  # of SymPy
    first, second, third = (
        int(expression.subs(dict.fromkeys(expression.free_symbols, number))) for number in (64, 128, 192)
    )
    if second - first != third - second or (second - first) % 64:
        raise GraphError(f"a size is {expression}, which does not grow evenly with the number of samples")
    per_sample = (second - first) // 64
    return Size(per_sample, first - 64 * per_sample)


def _layers(model: nn.Module, nodes: Sequence[fx.Node]) -> Iterator[TracedLayer]:
    runs: list[tuple[str, list[fx.Node]]] = []
    place_of: dict[fx.Node, list[fx.Node]] = {}
    for node in nodes:
        if node.op not in ("call_function", "call_module") or is_number(node) or _is_check(node):
            continue
        if node.target is operator.getitem and isinstance(source := node.args[0], fx.Node) and source in place_of:
            place_of[source].append(node)  # a part of what an operator returns stays with it
            place_of[node] = place_of[source]
            continue
        path = _path(node)
        if not runs or runs[-1][0] != path:
            runs.append((path, []))
        runs[-1][1].append(node)
        place_of[node] = runs[-1][1]
    seen: dict[str, int] = {}
    for path, members in runs:
        seen[path] = seen.get(path, 0) + 1
        base = path or type(model).__name__
        yield TracedLayer(
            base if seen[path] == 1 else f"{base}#{seen[path]}", _description(model, path, members), tuple(members)
        )


def _is_check(node: fx.Node) -> bool:
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return name.startswith(_CHECKS)


def _path(node: fx.Node) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    entries = [path for path, _ in stack.values() if not path.startswith("_empty_nn_module_stack")]
    path = entries[-1].partition("@")[0] if entries else ""
    return path.partition(".")[2]  # without that of `_Flat`


def _description(model: nn.Module, path: str, nodes: Sequence[fx.Node]) -> str:
    module = model.get_submodule(path) if path else model
    if next(module.children(), None) is None:
        return repr(module).splitlines()[0].replace(" -- ", " - ")
    names = list(dict.fromkeys(str(getattr(node.target, "__name__", node.target)).partition(".")[0] for node in nodes))
    return f"{type(module).__name__}({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"

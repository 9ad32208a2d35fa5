"""Stages and tensors on their way to other processes: a stage as the source of its graph, many tensors as one."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from detrain.adapters.torch.pipeline.mail import Mail
from detrain.adapters.torch.pipeline.splitting import Crossing, StageModule
from detrain.errors import GraphError


@dataclass(frozen=True)
class Named:
    """A function, class or module, where it is found."""

    module: str
    qualname: str

    def find(self) -> Any:
        """It, in this process."""
        found: Any = importlib.import_module(self.module)
        for part in self.qualname.split(".") if self.qualname else ():
            found = getattr(found, part)
        return found


@dataclass(frozen=True)
class ShippedGraph:
    """A graph of operators as Python source, which reads its tensors from a module."""

    source: str
    #: What the source names.
    names: tuple[tuple[str, Any], ...]
    #: Graphs within it, of what runs under `no_grad` or `autocast`, by the names of the attributes that they are.
    inner: tuple[tuple[str, ShippedGraph], ...]


@dataclass(frozen=True)
class ShippedStage:
    """A `StageModule` without the values of its parameters and buffers."""

    graph: ShippedGraph
    #: Type, sizes, and whether it is trained.
    parameters: tuple[tuple[str, torch.dtype, tuple[int, ...], bool], ...]
    buffers: tuple[tuple[str, torch.dtype, tuple[int, ...]], ...]
    inputs: tuple[int, ...]
    takes: tuple[Crossing, ...]
    makes: tuple[Crossing, ...]
    changed: frozenset[int]
    written: tuple[str, ...]


def ship(stage: StageModule) -> ShippedStage:
    """Raises `GraphError` where the graph calls what another process does not find."""
    module = stage.module
    parameters = tuple(
        (name, one.dtype, tuple(one.shape), one.requires_grad) for name, one in module.named_parameters()
    )
    buffers = tuple((name, one.dtype, tuple(one.shape)) for name, one in module.named_buffers())
    return ShippedStage(
        _graph(module), parameters, buffers, stage.inputs, stage.takes, stage.makes, stage.changed, stage.written
    )


def unship(shipped: ShippedStage) -> StageModule:
    """The stage, with parameters and buffers that hold nothing."""
    module = _module(shipped.graph)
    for name, dtype, shape, is_trained in shipped.parameters:
        owner, _, attribute = name.rpartition(".")
        nothing = torch.empty(shape, dtype=dtype, device="meta")
        _made(module, owner).register_parameter(attribute, nn.Parameter(nothing, is_trained))
    for name, dtype, shape in shipped.buffers:
        owner, _, attribute = name.rpartition(".")
        _made(module, owner).register_buffer(attribute, torch.empty(shape, dtype=dtype, device="meta"))
    return StageModule(module, shipped.inputs, shipped.takes, shipped.makes, shipped.changed, shipped.written)


class _Graph(nn.Module):  # type: ignore[misc]
    """Runs a graph's source."""

    def __init__(self, shipped: ShippedGraph) -> None:
        super().__init__()
        names = {name: one.find() if isinstance(one, Named) else one for name, one in shipped.names}
        exec(compile(shipped.source, "<stage>", "exec"), names)
        self._run = names["forward"]

    def forward(self, *given: Any) -> Any:
        """What the graph returns."""
        return self._run(self, *given)


def _module(shipped: ShippedGraph) -> nn.Module:
    module = _Graph(shipped)
    for path, graph in shipped.inner:
        owner, _, attribute = path.rpartition(".")
        setattr(_made(module, owner), attribute, _module(graph))
    return module


def _made(module: nn.Module, path: str) -> nn.Module:
    """The submodule there, which is made where it is missing."""
    for part in path.split(".") if path else ():
        if part not in module._modules:
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    return module


def _graph(module: fx.GraphModule) -> ShippedGraph:
    code = module.graph.python_code("self")
    names = tuple((name, _named(one)) for name, one in code.globals.items())
    inner = {
        str(node.target): _graph(found)
        for node in module.graph.nodes
        if node.op == "get_attr" and isinstance(found := _attribute(module, str(node.target)), fx.GraphModule)
    }
    return ShippedGraph(code.src, names, tuple(inner.items()))


def _attribute(module: nn.Module, path: str) -> Any:
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part)
    return found


def _named(one: Any) -> Any:
    if one is type(None):
        return Named("types", "NoneType")
    if isinstance(one, type(importlib)):
        return Named(one.__name__, "")
    if isinstance(one, (bool, int, float, str, torch.dtype, torch.device, torch.layout, torch.memory_format)):
        return one
    named = Named(getattr(one, "__module__", ""), getattr(one, "__qualname__", ""))
    try:
        is_there = named.find() is one
    except (ImportError, AttributeError, ValueError):
        is_there = False
    if not is_there:
        raise GraphError(f"the model's graph calls {one}, which another process cannot find")
    return named


# --- tensors ------------------------------------------------------------------------------------------------------------------


def post_all(
    mail: Mail, tag: int, sender: int, receiver: int, tensors: Sequence[Tensor], likes: Sequence[Like]
) -> None:
    """Those of one type go as one. `likes`: as what they are taken."""
    for dtype in dict.fromkeys(like.dtype for like in likes):
        parts = [
            one.detach().permute(like.order).reshape(-1)
            for one, like in zip(tensors, likes, strict=True)
            if like.dtype == dtype
        ]
        mail.post(tag, sender, receiver, torch.cat(parts))


def post_some(
    mail: Mail, tag: int, sender: int, receiver: int, tensors: Sequence[Tensor | None], likes: Sequence[Like]
) -> None:
    """The same, where some are missing."""
    mail.post(tag, sender, receiver, torch.tensor([one is not None for one in tensors], dtype=torch.uint8))
    there = [(one, like) for one, like in zip(tensors, likes, strict=True) if one is not None]
    post_all(mail, tag, sender, receiver, [one for one, _ in there], [like for _, like in there])


def take_all(mail: Mail, tag: int, sender: int, receiver: int, likes: Sequence[Like]) -> list[Tensor]:
    """What `post_all` has posted, each in memory of its own, as kernels may add in another order where it lies otherwise."""
    found: dict[int, Tensor] = {}
    for dtype in dict.fromkeys(like.dtype for like in likes):
        own = [(place, like) for place, like in enumerate(likes) if like.dtype == dtype]
        total = sum(like.num_elements for _, like in own)
        parts = mail.take(tag, sender, receiver, (total,), dtype).split([like.num_elements for _, like in own])
        for (place, like), part in zip(own, parts, strict=True):
            lying = part.clone().view([like.shape[dim] for dim in like.order])
            found[place] = lying.permute([like.order.index(dim) for dim in range(len(like.order))])
    return [found[place] for place in range(len(likes))]


def take_some(mail: Mail, tag: int, sender: int, receiver: int, likes: Sequence[Like]) -> list[Tensor | None]:
    """What `post_some` has posted."""
    flags = mail.take(tag, sender, receiver, (len(likes),), torch.uint8).tolist()
    there = iter(take_all(mail, tag, sender, receiver, [like for like, has in zip(likes, flags, strict=True) if has]))
    return [next(there) if has else None for has in flags]


@dataclass(frozen=True)
class Like:
    """What is to be known of a tensor to take it."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    #: Its dimensions as they lie in memory, the outermost first.
    order: tuple[int, ...]

    @classmethod
    def of(cls, tensor: Tensor) -> Like:
        """As this one is."""
        return cls(tensor.dtype, tuple(tensor.shape), order_of(tensor))

    @property
    def num_elements(self) -> int:
        """Of all dimensions."""
        return int(torch.Size(self.shape).numel())


def order_of(tensor: Tensor) -> tuple[int, ...]:
    """Its dimensions as they lie in memory, the outermost first."""
    strides = tensor.stride()
    return tuple(sorted(range(tensor.dim()), key=lambda dim: -strides[dim]))

"""Tensors by storage: views, tied weights and strides come back as they were, in every dtype, in place."""

from __future__ import annotations

import ctypes
import functools
import itertools
import math
import operator
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, NoReturn

import numpy as np
import torch

from detrain.adapters.torch import devices
from detrain.errors import CaptureError, RestoreError
from detrain.state.fields import Holds, plain_fields
from detrain.state.handler import MISSING, Capturing, Glance, Handler, MemoryRange, MemoryRanges, Restoring
from detrain.state.sharing import memory_within
from detrain.state.tree import Node, Place

#: dtypes that numpy lacks are stored under whole numbers of their size.
_PLAIN = {
    torch.bool: np.bool_, torch.uint8: np.uint8, torch.int8: np.int8, torch.int16: np.int16, torch.int32: np.int32,
    torch.int64: np.int64, torch.float16: np.float16, torch.float32: np.float32, torch.float64: np.float64,
    torch.complex64: np.complex64, torch.complex128: np.complex128,
}  # fmt: skip
#: Where torch can give a storage another size.
_RESIZED_ON = ("cpu", "cuda")
_BY_SIZE = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_BYTE = np.dtype(np.uint8)

# What `glance` reads, as torch's own functions in C.
_TENSOR, _STORAGE = torch._C.TensorBase, torch.UntypedStorage
_GRAD, _STORAGE_DEVICE = _TENSOR.grad.__get__, _STORAGE.device.__get__
_HOOK_DICTS = _TENSOR._backward_hooks.__get__, _TENSOR._post_accumulate_grad_hooks.__get__
_LAYOUT = _TENSOR.layout.__get__
#: Whether it is quantized shows in the dtype.
_LOOKS = (
    _TENSOR.grad_fn.__get__, _TENSOR.dtype.__get__, _TENSOR.device.__get__, _TENSOR.shape.__get__, _TENSOR.stride,
    _TENSOR.storage_offset, _TENSOR.requires_grad.__get__, _TENSOR.is_inference, _TENSOR.is_neg,
)  # fmt: skip


def _are_none(values: Iterable[object]) -> bool:
    return all(map(operator.is_, values, itertools.repeat(None)))


@functools.cache
def dtype_name(dtype: torch.dtype) -> str:
    """`float32` for `torch.float32`."""
    return str(dtype).removeprefix("torch.")


@functools.cache
def device_name(device: torch.device) -> str:
    """`cuda:0`."""
    return str(device)


#: Dicts of what is called with a leaf's gradient.
_HOOKS = ("_backward_hooks", "_post_accumulate_grad_hooks")


def _unseen(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Run a method without `__torch_function__`: what detrain does with a tensor is no operation of the script."""

    @functools.wraps(plain)
    def method(*args: Any) -> Any:
        with torch._C.DisableTorchFunction():
            return plain(*args)

    return method


class TensorHandler(Handler):
    """A tensor: its storage, shape, strides and offset in it, its gradient, and `requires_grad`.

    A tensor that carries a graph is captured without it. The restored one has a `grad_fn` that raises when a gradient flows into it.
    """

    kind = "torch.Tensor"
    is_dropped_silently = True
    fields: ClassVar = {
        **plain_fields("dtype", "device", "shape", "requires_grad", "is_inference", "strides", "offset", "graph"),
        "coo": Holds.LIST,
        "base": Holds.ONE,
        "grad": Holds.ONE,
        "storage": Holds.ONE,
        "_backward_hooks": Holds.ONE,
        "_post_accumulate_grad_hooks": Holds.ONE,
    }

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        _refuse_exotic(obj)
        node["dtype"], node["device"] = dtype_name(obj.dtype), str(obj.device)
        node["shape"] = list(obj.shape)
        node["requires_grad"] = obj.requires_grad
        if obj.is_inference():
            node["is_inference"] = True
        gone = _graph_gone_of(obj)
        for name in _HOOKS:
            if getattr(obj, name, None) is not None and obj.is_leaf and gone is None:
                node[name] = walk.child(getattr(obj, name), f".{name}")
        if obj.layout is torch.sparse_coo:
            node["coo"] = [
                walk.child(obj._indices(), ".<indices>"),
                walk.child(obj._values(), ".<values>"),
                obj.is_coalesced(),
            ]
            return
        node["strides"], node["offset"] = list(obj.stride()), obj.storage_offset()
        if obj.grad_fn is not None:
            node["graph"] = str(obj.grad_fn.name()) if gone is None else gone.function
            if obj._is_view() and obj._base.is_leaf:
                node["base"] = walk.child(obj._base, ".<base>")
        elif obj.is_leaf and obj.grad is not None:
            node["grad"] = walk.child(obj.grad, ".grad")
        node["storage"] = walk.child(obj.untyped_storage(), "")

    def glance(self, objs: Sequence[Any], cls: type) -> Glance | None:
        """Of tensors that are not views, and carry no graph."""
        if cls not in (torch.Tensor, torch.nn.Parameter):
            return None
        if not all(map(operator.is_, map(_LAYOUT, objs), itertools.repeat(torch.strided))):
            return None
        columns = [list(map(read, objs)) for read in _LOOKS]  # a nested tensor raises where it is asked for its shape
        if not _are_none(columns[0]):
            return None  # and where a graph is carried, torch warns if it is asked for the gradient
        grads, storages = list(map(_GRAD, objs)), list(map(_TENSOR.untyped_storage, objs))
        if any(dtype.is_complex for dtype in set(columns[1])):
            columns.append(list(map(_TENSOR.is_conj, objs)))
        others = [*(list(map(read, objs)) for read in _HOOK_DICTS), grads]
        if _are_none(itertools.chain.from_iterable(others)):
            return Glance(columns, [1] * len(storages), storages)
        held = [[one for one in parts if one is not None] for parts in zip(*others, storages, strict=True)]
        return Glance(columns, list(map(len, held)), list(itertools.chain.from_iterable(held)))

    def memory(self, obj: Any) -> tuple[int, int] | None:
        with torch._C.DisableTorchFunction():
            return None if devices.is_on_device(obj) else _memory(obj)

    def device_memory(self, obj: Any) -> tuple[int, int] | None:
        with torch._C.DisableTorchFunction():
            return _memory(obj) if devices.is_on_device(obj) else None

    def fetch(self, obj: Any, start: int, end: int) -> Any:
        return devices.fetch(obj, start, end)

    @_unseen
    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore):
            return False
        if "coo" in node or live.layout is not torch.strided:
            return False
        if "graph" in node or live.grad_fn is not None:
            return _is_same_view(live, node, restore)
        if live.is_inference() != node.get("is_inference", False):
            return False
        return bool(dtype_name(live.dtype) == node["dtype"] and device_name(live.device) == node["device"])

    def build(self, node: Node, restore: Restoring) -> Any:
        if "coo" in node:
            indices, values = restore.values(node["coo"][:2])
            made = torch.sparse_coo_tensor(
                indices, values, node["shape"], is_coalesced=node["coo"][2], check_invariants=False
            )
            return made.requires_grad_(node["requires_grad"])
        cls = restore.find_type(node)
        data = _view_of(node, restore.value(node["storage"]))
        if cls is torch.nn.Parameter:
            return torch.nn.Parameter(data, requires_grad=node["requires_grad"])
        if cls is not torch.Tensor:
            data = torch.Tensor._make_subclass(cls, data)
        return data

    @_unseen
    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if "coo" in node:
            return
        if not is_new:
            live = obj.untyped_storage()
            storage = restore.value(node["storage"], live)
            is_there = storage is live or storage._cdata == live._cdata  # two that are empty have one address
            look = (list(obj.shape), list(obj.stride()), obj.storage_offset())
            if not is_there or look != (node["shape"], node["strides"], node["offset"]):
                obj.data = _view_of(node, storage)
        if "graph" not in node and obj.requires_grad != node["requires_grad"]:
            obj.requires_grad_(node["requires_grad"])
        for name in _HOOKS:
            live_hooks = getattr(obj, name, None)
            if name in node or (live_hooks is not None and obj.is_leaf):
                hooks = (
                    restore.value(node[name], MISSING if live_hooks is None else live_hooks) if name in node else None
                )
                if hooks is not live_hooks:
                    setattr(obj, name, hooks)
        if "graph" in node and obj.grad_fn is not None:
            return  # it looks into what has been restored, and hands gradients on to it
        if "graph" in node:
            _cut(obj, GoneGraph(restore.path_of(node), node["graph"], restore.set_aside))
        elif obj.is_leaf:
            live_grad = obj.grad
            if "grad" in node:
                grad = restore.value(node["grad"], live_grad if live_grad is not None else MISSING)
                restore.afterwards(lambda: setattr(obj, "grad", grad))
            elif live_grad is not None:
                obj.grad = None


def _memory(tensor: torch.Tensor) -> tuple[int, int] | None:
    if tensor.device.type == "meta" or tensor.layout is not torch.strided or not tensor.is_contiguous():
        return None
    num_bytes = tensor.numel() * tensor.element_size()
    if tensor.storage_offset() * tensor.element_size() + num_bytes > tensor.untyped_storage().nbytes():
        return None  # the storage has been made smaller than what the tensor looks at
    return tensor.data_ptr(), num_bytes


def _is_same_view(live: Any, node: Node, restore: Restoring) -> bool:
    """True for a view of a leaf that the set-up code has made: brought to the saved state with the leaf, it keeps its graph."""
    if "base" not in node or not live._is_view() or live.grad_fn is None:
        return False
    look = [list(live.shape), list(live.stride()), live.storage_offset()]
    is_same_look = look == [node["shape"], node["strides"], node["offset"]]
    return is_same_look and restore.value(node["base"], live._base) is live._base


def _graph_gone_of(obj: Any) -> GoneGraph | None:
    """What stands in the place of the graph of a tensor that has been restored without."""
    return getattr(obj.grad_fn, "gone", None)


class GoneGraph:
    """The graph of a restored tensor, which is not in the checkpoint."""

    #: Those that some graph may still hold.
    alive: weakref.WeakSet[GoneGraph] = weakref.WeakSet()

    def __init__(self, path: str, function: str, set_aside: Callable[[], str]) -> None:
        self.path, self.function, self._set_aside = path, function, set_aside
        GoneGraph.alive.add(self)

    def fail(self) -> NoReturn:
        """A gradient has come here."""
        raise RestoreError(
            f"a gradient flows into {self.path}, which was made by {self.function} before the checkpoint; its graph is not in the "
            f"checkpoint, so this resume cannot be exact. {self._set_aside()}. To avoid this, detach what is carried from one "
            "batch to the next, or checkpoint with --every epoch"
        )


class _Cut(torch.autograd.Function):  # type: ignore[misc]
    """Puts a tensor where its graph would go on."""

    @staticmethod
    def forward(ctx: Any, anchor: Any, tensor: Any, gone: GoneGraph) -> Any:  # noqa: ARG004 - the anchor is what wants a gradient
        ctx.gone = gone
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:  # noqa: ARG004
        ctx.gone.fail()


def _cut(tensor: torch.Tensor, gone: GoneGraph) -> None:
    """Give a leaf that wants no gradient a place in a graph that begins with it."""
    with torch.enable_grad():
        _Cut.apply(torch.zeros((), requires_grad=True), tensor, gone)


def _refuse_exotic(obj: Any) -> None:
    if obj.layout not in (torch.strided, torch.sparse_coo):
        raise CaptureError(f"a tensor of layout {obj.layout}")
    if obj.is_quantized or obj.is_conj() or obj.is_neg() or obj.is_nested:
        raise CaptureError("a quantized, lazily conjugated, lazily negated or nested tensor")
    if type(obj) in (torch.Tensor, torch.nn.Parameter):
        return
    plain = (torch.Tensor.__torch_dispatch__, torch._C._disabled_torch_dispatch_impl)
    if all(type(obj).__torch_dispatch__ != one for one in plain):
        raise CaptureError(f"a tensor of class {type(obj).__qualname__}, which keeps its data elsewhere")


def _view_of(node: Node, storage: Any) -> Any:
    dtype, num_bytes = getattr(torch, node["dtype"]), storage.nbytes()
    with torch.inference_mode(node.get("is_inference", False)):
        tensor = torch.empty(0, dtype=dtype, device=node["device"]).set_(
            storage, node["offset"], node["shape"], node["strides"]
        )
    if storage.nbytes() != num_bytes:
        storage.resize_(num_bytes)  # it was smaller than what the tensor looks at
    return tensor


class StorageHandler(Handler):
    """The memory behind tensors: its bytes. One storage behind several tensors is written once."""

    kind = "torch.UntypedStorage"
    is_dropped_silently = True
    looks_above = True
    fields: ClassVar = plain_fields("nbytes", "device", "as")
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["nbytes"], node["device"] = obj.nbytes(), str(obj.device)
        if obj.device.type == "meta":
            return
        look = _look_at(walk.node(node["p"]), node["nbytes"]) if node["p"] is not None else None
        label, dtype, shape = "", _BYTE, (node["nbytes"],)
        if look is not None:
            node["as"] = [look["dtype"], look["shape"]]
            label, dtype = _stored_as(look["dtype"])
            shape = tuple(look["shape"])
        if obj.device.type == "cpu":
            # Not by `numpy()`: a storage that has been handed out so can never be resized again.
            walk.array(node, Place(obj, obj.data_ptr(), node["nbytes"], (dtype, shape), 1), label)
        else:
            walk.array(node, devices.copied(bytes_of(obj)).numpy().view(dtype).reshape(shape), label, is_copy=True)

    def glance(self, objs: Sequence[Any], cls: type) -> Glance | None:
        """Of those on the CPU; on other devices they are copied each time."""
        if any(device.type != "cpu" for device in set(map(_STORAGE_DEVICE, objs))):
            return None
        sizes = list(map(_STORAGE.nbytes, objs))
        memories = MemoryRanges(list(map(_STORAGE.data_ptr, objs)), sizes, [1] * len(objs))
        return Glance([sizes], [0] * len(objs), [], memories)

    def memory_ranges(self, objs: Sequence[Any]) -> MemoryRanges:
        if any(device.type != "cpu" for device in set(map(_STORAGE_DEVICE, objs))):
            return super().memory_ranges(objs)
        return MemoryRanges(list(map(_STORAGE.data_ptr, objs)), list(map(_STORAGE.nbytes, objs)), [1] * len(objs))

    def are_still(self, objs: Sequence[Any], memories: MemoryRanges) -> bool:
        # Without the devices, which are those for good.
        addresses, sizes = map(_STORAGE.data_ptr, objs), map(_STORAGE.nbytes, objs)
        return list(addresses) == memories.addresses and list(sizes) == memories.sizes

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        if not super().matches(live, node, restore) or device_name(live.device) != node["device"]:
            return False
        if live.nbytes() == node["nbytes"]:
            return True
        return bool(live.device.type in _RESIZED_ON and live.resizable() and not restore.has_views(node))

    def memory_range(self, obj: Any) -> MemoryRange | None:
        return MemoryRange(obj.data_ptr(), obj.nbytes(), 1) if obj.device.type == "cpu" else None

    def build(self, node: Node, restore: Restoring) -> Any:
        if "within" in node:
            return torch.from_numpy(memory_within(node, node["nbytes"], restore)).untyped_storage()
        return torch.UntypedStorage(node["nbytes"], device=node["device"])

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        if obj.nbytes() != node["nbytes"]:
            obj.resize_(node["nbytes"])  # in place: whoever looks into it, seen or not, goes on doing so
        if "array" not in node or not node["nbytes"]:
            return
        if obj.device.type == "cpu":
            restore.put_data(node, obj)  # by its address: no version counter of the script's tensors moves
            return
        data = restore.data(node)
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        # A tensor of its own over the bytes: no version counter of the script's tensors moves.
        bytes_of(obj).copy_(torch.from_numpy(flat.copy() if not flat.flags.writeable else flat))


def _look_at(holder: Node, num_bytes: int) -> Node | None:
    """The node above a storage if it is a tensor's that shows all of it, in order: its dtype and shape are the elements'.

    Only for the reader of the file.
    """
    if "offset" not in holder or holder["offset"] or "storage" not in holder:
        return None
    step = getattr(torch, holder["dtype"]).itemsize
    if math.prod(holder["shape"]) * step != num_bytes:
        return None
    size = 1
    for count, stride in zip(reversed(holder["shape"]), reversed(holder["strides"]), strict=True):
        if count != 1 and stride != size and num_bytes:
            return None
        size *= count
    return holder


@functools.cache
def _stored_as(name: str) -> tuple[str, np.dtype[Any]]:
    """Label and dtype of an array for a dtype of torch."""
    dtype = getattr(torch, name)
    plain = _PLAIN.get(dtype)
    return ("", np.dtype(plain)) if plain is not None else (name, np.dtype(_BY_SIZE[dtype.itemsize]))


def bytes_of(storage: Any) -> Any:
    """A storage as a tensor, (nbytes,) uint8, over the same memory."""
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


class GeneratorHandler(Handler):
    """`torch.Generator`: the bytes of its state; on CPU they hold the second normal of a pair as well."""

    kind = "torch.Generator"
    is_dropped_silently = True
    fields: ClassVar = plain_fields("device")
    has_attributes = False
    is_last = True

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        node["device"] = str(obj.device)
        walk.array(node, obj.get_state().numpy())

    def fingerprint(self, obj: Any) -> bytes:
        state = obj.get_state()  # of bytes, contiguous, in the host's memory; `numpy()` takes three times as long
        return bytes((ctypes.c_ubyte * state.numel()).from_address(state.data_ptr()))

    def matches(self, live: Any, node: Node, restore: Restoring) -> bool:
        return super().matches(live, node, restore) and str(live.device) == node["device"]

    def build(self, node: Node, restore: Restoring) -> Any:
        return torch.Generator(device=node["device"])

    def fill(self, obj: Any, node: Node, restore: Restoring, is_new: bool) -> None:
        obj.set_state(torch.from_numpy(np.array(restore.data(node), dtype=np.uint8)))

"""Logs every operator that runs, with digests of its inputs and outputs: to find the first one that differs between two runs."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import xxhash
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from detrain.adapters.protocol import OperatorCall
from detrain.adapters.script_lines import line_of

#: The memory that these return has not been written yet.
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}


class _Log(TorchDispatchMode):  # type: ignore[misc]
    """Reports operators below autograd, those of the backward pass too."""

    def __init__(self, is_user_file: Callable[[str], bool], on_call: Callable[[OperatorCall], None]) -> None:
        super().__init__()
        self._is_user_file, self._on_call = is_user_file, on_call

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and report it."""
        inputs = [_digest(tensor) for tensor in _tensors((args, kwargs))]
        if torch.Tag.nondeterministic_seeded in func.tags:
            inputs.append(_digest(torch.get_rng_state()))  # what is drawn depends on it as well
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        outputs = list(_tensors(result)) or list(_written(func, args, kwargs or {}))
        line = line_of(sys._getframe(1), self._is_user_file)
        if line is None:
            return result
        node = torch._C._current_autograd_node()
        self._on_call(
            {
                "name": f"{func.namespace}::{name}",
                "line": line,
                "backward": node.name() if node is not None else "",
                "inputs": inputs,
                "outputs": [] if name in _UNWRITTEN else [_digest(tensor) for tensor in outputs],
                "shapes": [(str(tensor.dtype).removeprefix("torch."), list(tensor.shape)) for tensor in outputs],
            }
        )
        return result


def log_operators(is_user_file: Callable[[str], bool], on_call: Callable[[OperatorCall], None]) -> Callable[[], None]:
    """Report every operator of this thread, and of the backward passes that it starts, from now on. Returns what ends it."""
    log = _Log(is_user_file, on_call)
    log.__enter__()
    return lambda: log.__exit__(None, None, None)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (part for part in tree_iter(tree) if isinstance(part, torch.Tensor))


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """The tensors that an operator that returns nothing has written to."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[number] if number < len(args) else kwargs.get(argument.name))


def _digest(tensor: torch.Tensor) -> str:
    """xxh3-64 of the elements' bits, in the order of the indices; "" for a sparse or quantized tensor."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return ""
    with torch.utils._python_dispatch._disable_current_modes():
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
        return xxhash.xxh3_64_hexdigest(ctypes.string_at(plain.data_ptr(), plain.nbytes))


def find_operator(name: str) -> Any:
    """`torch.ops.aten.add` of `aten::add`."""
    library, _, operator = name.partition("::")
    return getattr(getattr(torch.ops, library), operator)

"""Every operator that runs, what went in and what came out, in digests: to find the first one that differs between two runs."""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import xxhash
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

#: Under a frame of these, detrain works for itself.
_OWN = tuple(
    f"{Path(__file__).parents[2]}/{part}"
    for part in ("session/", "state/", "store/", "loops/", "outputs/", "adapters/loaded.py")
)
#: What these return has not been written yet.
_UNWRITTEN = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"}


class OperatorLog(TorchDispatchMode):  # type: ignore[misc]
    """Notes operators below autograd, those of the backward pass too, until it is stopped."""

    def __init__(self, is_user_file: Callable[[str], bool]) -> None:
        super().__init__()
        self._is_user_file = is_user_file
        self._noted: list[dict[str, Any]] = []
        self.__enter__()

    def stop(self) -> list[dict[str, Any]]:
        """Note no more. Returns one entry per call.

        `name`, `line` of the script (or ""), `backward` (the node of the graph that it belongs to, or ""), `inputs` and `outputs`
        (digests of the tensors), `shapes` (dtype and sizes of the outputs).
        """
        self.__exit__(None, None, None)
        return self._noted

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and note it."""
        inputs = [_digest(one) for one in _tensors((args, kwargs))]
        if torch.Tag.nondeterministic_seeded in func.tags:
            inputs.append(_digest(torch.get_rng_state()))  # what is drawn depends on it as well
        result = func(*args, **(kwargs or {}))
        name = func.overloadpacket.__name__
        outputs = list(_tensors(result)) or list(_written(func, args, kwargs or {}))
        line = self._line(sys._getframe(1))
        if line is None:
            return result
        node = torch._C._current_autograd_node()
        self._noted.append(
            {
                "name": f"{func.namespace}::{name}",
                "line": line,
                "backward": node.name() if node is not None else "",
                "inputs": inputs,
                "outputs": [] if name in _UNWRITTEN else [_digest(one) for one in outputs],
                "shapes": [[str(one.dtype).removeprefix("torch."), list(one.shape)] for one in outputs],
            }
        )
        return result

    def _line(self, frame: types.FrameType | None) -> str | None:
        """The innermost line of the user's that led here, "" if there is none; None for what detrain does for itself."""
        while frame is not None:
            filename = frame.f_code.co_filename
            if filename.startswith(_OWN):
                return None
            if self._is_user_file(filename):
                return f"{Path(filename).name}:{frame.f_lineno}"
            frame = frame.f_back
        return ""


def log_operators(is_user_file: Callable[[str], bool]) -> OperatorLog:
    """Begin to note every operator of this thread, and of the backward passes that it starts."""
    return OperatorLog(is_user_file)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    return (one for one in tree_iter(tree) if isinstance(one, torch.Tensor))


def _written(func: Any, args: Any, kwargs: Any) -> Iterator[torch.Tensor]:
    """What an operator that returns nothing has changed."""
    for number, argument in enumerate(func._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from _tensors(args[number] if number < len(args) else kwargs.get(argument.name))


def _digest(tensor: torch.Tensor) -> str:
    """Of the elements' bits, in the order of the indices."""
    if tensor.layout is not torch.strided or tensor.is_quantized:
        return ""
    with torch.utils._python_dispatch._disable_current_modes():
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous().cpu()
        return xxhash.xxh3_64_hexdigest(ctypes.string_at(plain.data_ptr(), plain.nbytes))

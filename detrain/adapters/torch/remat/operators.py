"""What is known of one operator's call without running it: the tensors that it reads and changes, and whether its results are views."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

#: Operators that change what their schema does not say they change, where an argument is true: positions of the changed, and of that one.
_UNDECLARED = {
    "native_batch_norm": ((3, 4), 5),
    "cudnn_batch_norm": ((3, 4), 5),
    "miopen_batch_norm": ((3, 4), 5),
}


def tensors_in(tree: Any) -> Iterator[torch.Tensor]:
    """Those of nested lists, tuples and dicts; by hand, as the library's own walk takes longer than most operators."""
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, (tuple, list)):
        for part in tree:
            yield from tensors_in(part)
    elif isinstance(tree, dict):
        for part in tree.values():
            yield from tensors_in(part)


def has_storage(tensor: torch.Tensor) -> bool:
    """False for a sparse tensor."""
    return tensor.layout is torch.strided


def changed_by(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[torch.Tensor]:
    """The tensors that an operator writes to, by its schema or by what is known of it."""
    undeclared = undeclared_of(func, args)
    for number, argument in enumerate(func._schema.arguments):
        if number in undeclared or (argument.alias_info is not None and argument.alias_info.is_write):
            given = args[number] if number < len(args) else kwargs.get(argument.name)
            yield from (tensor for tensor in tensors_in(given) if has_storage(tensor))


def undeclared_of(func: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """Positions of arguments that it changes and whose schema does not say so; what it returns does not depend on them."""
    places, flag = _UNDECLARED.get(func.overloadpacket.__name__, ((), 0))
    return places if places and len(args) > flag and args[flag] else ()

"""What is known of an operator without running it: what it writes to, whether its results are views, whether it may run twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

#: Operators that change what their schema does not say they change, where an argument is true: positions of the changed, and of that one.
_UNDECLARED = {
    "native_batch_norm": ((3, 4), 5),
    "cudnn_batch_norm": ((3, 4), 5),
    "miopen_batch_norm": ((3, 4), 5),
}
#: Operators that make memory for something else to fill.
_BLANK = frozenset({
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided", "zeros", "zeros_like", "new_zeros",
    "ones", "ones_like", "new_ones", "full", "full_like", "new_full",
})  # fmt: skip
#: Operators that write to their first argument and do not look at what it held.
_OVERWRITING = frozenset({
    "bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_", "normal_", "random_", "uniform_", "zero_",
})  # fmt: skip
#: Namespaces of what ranks do together: one rank cannot do it again alone.
_COLLECTIVE = ("c10d", "_c10d_functional", "_c10d_functional_autograd", "symm_mem")


@dataclass(frozen=True, slots=True)
class Facts:
    """Of one operator."""

    #: Places and names of the arguments that it writes to, by its schema.
    writes: tuple[tuple[int, str], ...]
    #: It writes to its first argument alone.
    writes_first_only: bool
    #: All that it returns looks into its arguments.
    returns_views: bool
    #: All that it returns is an argument that it has written to.
    returns_written: bool
    #: Positions of arguments that it changes without saying so, where the argument at the last position is true.
    undeclared: tuple[tuple[int, ...], int] | None
    is_random: bool
    #: What it writes to held nothing that it needs.
    is_overwriting: bool
    #: What it makes is for something else to fill, which may be seen, or not.
    is_blank: bool
    is_collective: bool
    #: A mark that the profiler sets.
    is_mark: bool
    #: It needs the memory of what it is given; `detach` does not.
    reads_memory: bool


#: By the identity of an overload, which stays: asking for its hash takes longer than all else here.
_KNOWN: dict[int, tuple[Any, Facts]] = {}


def facts_of(func: Any) -> Facts:
    """Of an overload."""
    known = _KNOWN.get(id(func))
    if known is None:
        known = _KNOWN[id(func)] = func, _facts_of(func)
    return known[1]


def _facts_of(func: Any) -> Facts:
    schema = func._schema
    writes = tuple(
        (number, argument.name)
        for number, argument in enumerate(schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )
    returned = [one.alias_info for one in schema.returns]
    return Facts(
        writes,
        writes_first_only=[number for number, _ in writes] == [0],
        returns_views=bool(returned) and not writes and all(one is not None and not one.is_write for one in returned),
        returns_written=bool(writes) and all(one is not None and one.is_write for one in returned),
        undeclared=_UNDECLARED.get(func.overloadpacket.__name__),
        is_random=torch.Tag.nondeterministic_seeded in func.tags,
        is_overwriting=func.overloadpacket.__name__ in _OVERWRITING or any(one.is_out for one in schema.arguments),
        is_blank=func.overloadpacket.__name__ in _BLANK,
        is_mark=func.namespace == "profiler",
        is_collective=func.namespace in _COLLECTIVE,
        reads_memory=func is not torch.ops.aten.detach.default,
    )


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
    for number, name in facts_of(func).writes:
        given = args[number] if number < len(args) else kwargs.get(name)
        yield from (tensor for tensor in tensors_in(given) if has_storage(tensor))
    for number in undeclared_of(func, args):
        if args[number] is not None:
            yield args[number]


def undeclared_of(func: Any, args: Sequence[Any]) -> tuple[int, ...]:
    """Positions of arguments that it changes and whose schema does not say so; what it returns does not depend on them."""
    undeclared = facts_of(func).undeclared
    if undeclared is None:
        return ()
    places, flag = undeclared
    return places if len(args) > flag and args[flag] else ()

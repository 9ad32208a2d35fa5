"""Takes down what one operator is about to do, so that it can be run again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from detrain.adapters.torch.remat.cells import Call, Cell, Read, view_of
from detrain.adapters.torch.remat.operators import Facts, undeclared_of
from detrain.adapters.torch.remat.replaying import generator_of


def given_tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors among arguments, in order; what ranks do together takes lists of lists."""
    found: list[torch.Tensor] = []
    for part in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(part, torch.Tensor):
            found.append(part)
        elif isinstance(part, (list, tuple)):
            found += given_tensors(part, {})
    return found


class _Description:
    """Takes down one operator's arguments: what stands in the place of tensors, and what kind of call it is.

    No function within a function, which would hold what it has seen until the garbage collector comes by.
    """

    __slots__ = ("_cells", "_is_of_numbers", "_scratch", "kind", "reads")

    def __init__(
        self, func: Any, args: Sequence[Any], tensors: list[torch.Tensor], cells: list[Cell], *, is_grad_enabled: bool, has_undeclared: bool
    ) -> None:  # fmt: skip
        self.reads: list[Read] = []
        self.kind: list[Any] = [id(func), is_grad_enabled]
        self._cells = iter(cells)
        self._scratch = [args[place] for place in undeclared_of(func, args)] if has_undeclared else ()
        self._is_of_numbers = not tensors

    def of(self, part: Any) -> Any:
        """What is written down in place of an argument."""
        if isinstance(part, torch.Tensor):
            if part.layout is not torch.strided:
                self.kind.append((part.layout, part.shape))
                return part
            cell, view = next(self._cells), view_of(part)
            is_scratch = bool(self._scratch) and any(part is one for one in self._scratch)
            read = Read(cell, cell.version, view, part.requires_grad, is_scratch)
            self.reads.append(read)
            self.kind += view[1:4]
            return read
        if isinstance(part, (list, tuple)):
            self.kind.append(len(part))
            return [self.of(one) for one in part]
        # No size depends on a factor, which may be another in each step.
        self.kind.append(part if self._is_of_numbers or not isinstance(part, float) else float)
        return part


def call_of(
    func: Any,
    facts: Facts,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    tensors: list[torch.Tensor],
    cells: list[Cell],
) -> tuple[Call, Any]:
    """What is needed to run it again, and what kind of call it is: of one kind, all make as much memory."""
    is_grad_enabled = torch.is_grad_enabled()
    description = _Description(
        func, args, tensors, cells, is_grad_enabled=is_grad_enabled, has_undeclared=facts.undeclared is not None
    )
    own_args = [description.of(part) for part in args]
    own_kwargs = {name: description.of(part) for name, part in kwargs.items()} if kwargs else kwargs
    generator = drawn_from = None
    if facts.is_random:
        generator = generator_of(kwargs, tensors)
        drawn_from = generator.get_state()
    held = [read.cell.storage for read in description.reads if not read.cell.calls]
    call = Call(func, own_args, own_kwargs, description.reads, generator, drawn_from, is_grad_enabled, held)
    return call, tuple(description.kind)

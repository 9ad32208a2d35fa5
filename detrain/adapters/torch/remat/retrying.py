"""Runs an operator again that found no memory left on its device, though the budget has room.

The budget counts tensors. What kernels take for themselves, what the allocator holds in pieces too small, and what other programs have on
the device come on top of that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter_ns
from typing import Any

import torch

from detrain.adapters.torch.remat.cells import Call
from detrain.adapters.torch.remat.prediction import Expected

#: Calls of each kind that are timed on a device.
_NUM_TIMED = 3
#: At least so much is put away at once: the allocator empties its cache before each failure, which takes longer than most operators.
_LEAST_BYTES = 1 << 20


def timed(expected: Expected, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], *, is_device: bool) -> Any:
    """Run an operator, and note what it costs; on a device, which works beside the program, by waiting for the first few of each kind."""
    if is_device and expected.num_timed >= _NUM_TIMED:
        return func(*args, **kwargs)
    if is_device:
        torch.cuda.synchronize()
    began_ns = perf_counter_ns()
    result = func(*args, **kwargs)
    if is_device:
        torch.cuda.synchronize()
    expected.add_time(perf_counter_ns() - began_ns)
    return result


def once_more(call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The same operator on the same arguments: it draws what it was to draw when it failed."""
    if call.generator is not None:
        call.generator.set_state(call.drawn_from)
    return call.func(*args, **kwargs)


def with_room(
    error: torch.OutOfMemoryError, run: Callable[[], Any], nbytes: int, put_away: Callable[[int], bool]
) -> Any:
    """Run what ended with `error`, and must have written to nothing that it was given, until there is room for it.

    `nbytes`: what it makes, as far as that is known; more goes each time. `put_away`: evicts so many bytes; False if nothing can go.
    Raises the last error once nothing can.
    """
    nbytes = max(nbytes, _LEAST_BYTES)
    while put_away(nbytes):
        try:
            return run()
        except torch.OutOfMemoryError as another:
            error = another
        nbytes *= 2
    raise error

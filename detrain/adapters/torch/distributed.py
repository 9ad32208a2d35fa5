"""`torch.distributed` with one process, as scripts written for several run on one device: its objects do not bear on the bits."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import torch

from detrain.state.handler import Capturing, Handler, mark_not_saved
from detrain.state.tree import Node


class DistributedHandler(Handler):
    """Process groups, stores and what averages gradients: the set-up code has made them, and alone each changes nothing."""

    kind = "torch.distributed"
    has_attributes = False

    def capture(self, obj: Any, node: Node, walk: Capturing) -> None:
        mark_not_saved(node, "the set-up code makes it anew, for the processes of this attempt", warns=False)


def report_groups(on_group: Callable[[int], None]) -> None:
    """Call `on_group` with the size of each process group that the script joins; also before it joins where it names `world_size`."""
    if not torch.distributed.is_available():
        return
    plain = torch.distributed.init_process_group

    @functools.wraps(plain)
    def init_process_group(*args: Any, **kwargs: Any) -> Any:
        if isinstance(kwargs.get("world_size"), int):
            on_group(kwargs["world_size"])
        result = plain(*args, **kwargs)
        on_group(torch.distributed.get_world_size())
        return result

    torch.distributed.init_process_group = init_process_group
    torch.distributed.distributed_c10d.init_process_group = init_process_group


def report_uneven(on_uneven: Callable[[], None]) -> None:
    """Call `on_uneven` where the script joins processes that have unequal numbers of batches (`DistributedDataParallel.join`)."""
    if not torch.distributed.is_available():
        return
    from torch.distributed.algorithms.join import Join

    plain = Join.__enter__

    @functools.wraps(plain)
    def enter(self: Any) -> Any:
        if getattr(self, "_enable", True):
            on_uneven()
        return plain(self)

    Join.__enter__ = enter


def facts() -> dict[str, Any]:
    """What the bits of NCCL's sums depend on, if a process group uses it: its version, and how the ranks lie on hosts."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return {}
    if "nccl" not in torch.distributed.get_backend_config():
        return {}
    version = ".".join(map(str, torch.cuda.nccl.version()))
    return {"nccl": version, "ranks_per_host": os.environ.get("LOCAL_WORLD_SIZE", "1")}


def _types() -> tuple[type, ...]:
    """Those of the types that this build of torch has."""
    if not torch.distributed.is_available():
        return ()
    names = ("ProcessGroup", "Backend", "Store", "Logger")
    kinds = (getattr(torch._C._distributed_c10d, name, None) for name in names)
    return tuple(kind for kind in kinds if kind is not None)


TYPES = _types()
#: Averages gradients.
REDUCERS = (torch._C._distributed_c10d.Reducer,) if torch.distributed.is_available() else ()

"""Calls of models by a script: those that no other module makes."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import nn


class OnCall(Protocol):
    """Takes a call's place."""

    def __call__(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], run: Callable[[], Any]) -> Any:
        """Returns what the model returns, by `run` or in another way."""


class _Depth(threading.local):
    within = False


def take_over(on_call: OnCall) -> Callable[[], None]:
    """From now on `on_call` has each such call of this thread in which a module in training has gradients. Returns what ends that."""
    plain, depth, thread, process = nn.Module.__call__, _Depth(), threading.get_ident(), os.getpid()

    def called(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        is_other = threading.get_ident() != thread or os.getpid() != process
        if depth.within or not torch.is_grad_enabled() or is_other:
            return plain(module, *args, **kwargs)
        depth.within = True
        try:
            if not module.training or not _is_trained(module):
                return plain(module, *args, **kwargs)
            return on_call(module, args, kwargs, lambda: plain(module, *args, **kwargs))
        finally:
            depth.within = False

    nn.Module.__call__ = called

    def end() -> None:
        if nn.Module.__call__ is called:
            nn.Module.__call__ = plain

    return end


def _is_trained(module: nn.Module) -> bool:
    return any(one.requires_grad for one in module.parameters())

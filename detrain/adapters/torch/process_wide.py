"""State that the script has given torch for the whole process, and that no variable need name: global hooks, modes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn.modules import module
from torch.optim import optimizer
from torch.utils import _python_dispatch

_OF_MODULES = [name for name in vars(module) if name.startswith("_global_") and name.endswith("_hooks")]
_OF_OPTIMIZERS = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")


def roots() -> dict[str, Any]:
    """Hooks that act on every module and optimizer, by their ids, and the modes that are on, outermost first."""
    roots: dict[str, Any] = {}
    for owner, names in ((module, _OF_MODULES), (optimizer, _OF_OPTIMIZERS)):
        for name in names:
            hooks = getattr(owner, name)
            roots.update({f"torch.{name}[{key}]": hook for key, hook in hooks.items() if not _is_ours(hook)})
    for number, mode in enumerate(_modes()):
        roots[f"torch.mode[{number}]"] = mode
    return roots


def _is_ours(hook: Any) -> bool:
    return str(getattr(hook, "__module__", "")).startswith("detrain.")


def _modes() -> Iterator[Any]:
    for mode in [
        *torch.overrides._get_current_function_mode_stack(),
        *_python_dispatch._get_current_dispatch_mode_stack(),
    ]:
        if not _is_ours(type(mode)):
            yield mode

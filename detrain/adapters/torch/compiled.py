"""Code that `torch.compile` makes, where it cannot be followed."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from detrain.errors import UsageError


def refuse(where: str) -> None:
    """Let `torch.compile` say that it cannot be used `where`."""

    def compile(*_args: Any, **_kwargs: Any) -> NoReturn:  # noqa: A001 - as it is called
        raise UsageError(
            f"torch.compile cannot be used {where}: compiled code makes and reads memory that nobody sees, and run without being "
            "compiled it gives other bits. Leave one of them out"
        )

    torch.compile = compile
    torch.nn.Module.compile = compile

"""Code that `torch.compile` makes, and CUDA graphs, where they cannot be followed."""

from __future__ import annotations

from typing import Any, NoReturn

import torch

from detrain.errors import UsageError


def refuse(where: str) -> None:
    """Let `torch.compile` and the capturing of CUDA graphs say that they cannot be used `where`."""

    def compile(*_args: Any, **_kwargs: Any) -> NoReturn:  # noqa: A001 - as it is called
        raise UsageError(
            f"torch.compile cannot be used {where}: compiled code makes and reads memory that nobody sees, and run without being "
            "compiled it gives other bits. Leave one of them out"
        )

    def capture(*_args: Any, **_kwargs: Any) -> NoReturn:
        raise UsageError(
            f"CUDA graphs cannot be captured {where}: what a graph works on has to stay where it is. Leave one of them out"
        )

    torch.cuda.CUDAGraph.capture_begin = capture
    torch.compile = compile
    torch.nn.Module.compile = compile

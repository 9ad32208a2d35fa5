"""`--remote`, and `--ckpt-dir` with a URL."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detrain.errors import MissingExtra, UsageError

if TYPE_CHECKING:
    from detrain.launch.request import Request

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_TO_FILL_IN = re.compile(r"\{[^{}]*\}")


def is_url(text: str) -> bool:
    """True for what names a remote store, and no folder."""
    return _URL.match(text) is not None


def take_url(options: dict[str, Any]) -> None:
    """A URL that was given as `--ckpt-dir` is `--remote`, and the run directory is the default one."""
    given = options.get("ckpt_dir")
    if not given or not is_url(str(given)):
        return
    if options.get("remote"):
        raise UsageError(
            f"--ckpt-dir {given} and --remote {options['remote']}: which one? --ckpt-dir names a folder here"
        )
    options["ckpt_dir"], options["remote"] = None, given


def prepare(request: Request) -> None:
    """Fill in the run's name. Raises `UsageError` for what is no place for a run, and `MissingExtra` where fsspec is not installed."""
    url = request.remote
    found = _URL.match(url)
    if found is None:
        raise UsageError(f"--remote {url}: expected a URL, as in s3://bucket/runs/{{name}}")
    if found[1] == "memory":
        raise UsageError(f"--remote {url}: what is in memory:// is gone with the process that publishes")
    import importlib.util

    if importlib.util.find_spec("fsspec") is None:
        raise MissingExtra("fsspec is not installed", "remote")
    name = Path(os.path.abspath(request.ckpt_dir)).name
    request.remote = url.replace("{name}", name).rstrip("/")
    if (unknown := _TO_FILL_IN.search(url.replace("{name}", ""))) is not None:
        raise UsageError(
            f"--remote {url}: {unknown[0]} stands for nothing; {{name}} stands for the run directory's name"
        )

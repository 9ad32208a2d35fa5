"""Ranks that detrain cannot follow are refused: each would checkpoint at batches of its own, and no resume would be exact."""

from __future__ import annotations

import json
from collections.abc import Mapping

from detrain.errors import UsageError


def refuse_several(environment: Mapping[str, str]) -> None:
    """Raises `UsageError` in one sentence if the environment says that this process is one of several ranks."""
    count = _tasks(environment.get("TF_CONFIG", ""))
    if count > 1:
        raise UsageError(refusal("TF_CONFIG", count))


def refusal(why: str, count: int) -> str:
    """The sentence; `why`: what told that there are `count` ranks."""
    return (
        f"{why}: this process is one of {count} ranks, and detrain cannot checkpoint these as one; start the ranks with `detrain run "
        "--ranks N SCRIPT`, train with one, or without detrain"
    )


def _tasks(config: str) -> int:
    """Processes that train by TensorFlow's description of a cluster (evaluators and parameter servers follow them)."""
    try:
        cluster = json.loads(config)["cluster"]
        return sum(len(cluster.get(job, ())) for job in ("chief", "worker"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0

"""One rank of several is refused before anything begins: ranks checkpoint at batches of their own, and no resume would be exact."""

from __future__ import annotations

import json
from collections.abc import Mapping

from detrain.errors import UsageError

#: Number of processes that train together, as launchers tell each of them: torchrun and its relatives, Open MPI, MVAPICH. Not srun's,
#: whose tasks may have nothing to do with each other; where they have, they join a group, and are refused then.
_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "MV2_COMM_WORLD_SIZE")


def refuse_several(environment: Mapping[str, str]) -> None:
    """Raises `UsageError` in one sentence if the environment says that this process is one of several ranks."""
    for name in _SIZES:
        if environment.get(name, "").isdigit() and int(environment[name]) > 1:
            raise UsageError(refusal(f"{name}={environment[name]}", int(environment[name])))
    count = _tasks(environment.get("TF_CONFIG", ""))
    if count > 1:
        raise UsageError(refusal("TF_CONFIG", count))


def refusal(why: str, count: int) -> str:
    """The sentence; `why`: what told that there are `count` ranks."""
    return (
        f"{why}: this process is one of {count} ranks, and detrain cannot yet checkpoint several as one; train with one rank, or "
        "without detrain"
    )


def _tasks(config: str) -> int:
    """Processes that train by TensorFlow's description of a cluster (evaluators and parameter servers follow them)."""
    try:
        cluster = json.loads(config)["cluster"]
        return sum(len(cluster.get(job, ())) for job in ("chief", "worker"))
    except (ValueError, KeyError, TypeError, AttributeError):
        return 0

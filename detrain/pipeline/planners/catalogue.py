"""The planners by name, and which options of `detrain pipeline plan` are whose. Loads none of them, so that a command can list them."""

from __future__ import annotations

PIPEDREAM, INFERENCE, DAPPLE, DETRAIN = NAMES = ("pipedream", "pipedream-inference", "dapple", "detrain")
#: By option, as the command's parameter is called: the planners that have it. Options that are not here are everybody's.
OWNERS = {
    "straight": (PIPEDREAM, INFERENCE), "use_memory_constraint": (PIPEDREAM, INFERENCE), "use_fewer_machines": (PIPEDREAM, INFERENCE),
    "activation_compression_ratio": (PIPEDREAM,), "time_between_inputs": (INFERENCE,), "compat": (PIPEDREAM, INFERENCE, DAPPLE),
    "no_recompute": (DETRAIN,), "time_limit": (DETRAIN,), "schedule": (DETRAIN,), "warmup": (DETRAIN,), "vertical_sync": (DETRAIN,),
}  # fmt: skip


def owners(option: str) -> tuple[str, ...]:
    """The planners that have an option, by the name of the command's parameter."""
    return OWNERS.get(option, NAMES)

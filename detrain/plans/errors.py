"""The error that all planners share."""

from __future__ import annotations

from detrain.errors import GraphError


class NoPlanError(GraphError):
    """A planner has found no plan; the message says what stands in the way."""

    exit_status = 1

"""Errors that carry the exit status of the command they end."""

from __future__ import annotations


class DetrainError(Exception):
    """What went wrong, which thing, why, what to do. `exit_status` is that of the command."""

    exit_status = 1


class UsageError(DetrainError):
    """The command line, or a file given on it, cannot be used."""

    exit_status = 2


class CaptureError(DetrainError):
    """A piece of state that cannot be written down."""


class RestoreError(DetrainError):
    """A piece of state that cannot be brought back exactly; the message names the leaf."""


class CheckpointError(DetrainError):
    """A checkpoint file that cannot be trusted: truncated, altered, or of a later format."""

    exit_status = 2


class ResumeRefused(DetrainError):  # noqa: N818 - a refusal, not a mistake
    """The run directory and this command do not belong together; the message names the flag that decides."""

    exit_status = 2


class AlreadyFinished(DetrainError):  # noqa: N818 - no mistake
    """The run has come to its end; the same command, given again, has nothing to do."""

    exit_status = 0


class GraphError(DetrainError):
    """An operator graph, a log, a schedule or a budget that cannot be; the message names the place."""

    exit_status = 2

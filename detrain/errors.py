"""Errors that carry the exit status of the command they end."""

from __future__ import annotations

import shlex
from pathlib import Path


class DetrainError(Exception):
    """What went wrong, which thing, why, what to do. `exit_status` is that of the command."""

    exit_status = 1


class UsageError(DetrainError):
    """The command line, or a file given on it, cannot be used."""

    exit_status = 2


class MissingExtra(UsageError):  # noqa: N818 - nothing is wrong with what the user has written
    """A library is not installed that one of the distribution's extras brings."""

    def __init__(self, what: str, extra: str) -> None:
        """`what` is missing, as in "numba is not installed"."""
        super().__init__(f"{what}: {installing(extra)}")


def installing(extra: str) -> str:
    """The command that installs an extra: from the checkout that this package lies in, else of the distribution as it is installed."""
    checkout = Path(__file__).resolve().parents[1]
    if (checkout / "pyproject.toml").is_file():
        return f"pip install -e {shlex.quote(f'{checkout}[{extra}]')}"
    return f"pip install 'detrain-run[{extra}]'"


class NotSupported(UsageError):  # noqa: N818 - a limit, not a mistake
    """A framework cannot do what a command asks of it."""

    def __init__(self, framework: str, what: str) -> None:
        """`what` it cannot do, as in "log the operators that it runs"."""
        super().__init__(f"{framework} cannot {what}; detrain has no support for it")
        self.framework, self.what = framework, what


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


class InexactResume(ResumeRefused):
    """A resume would not give the bits of an uninterrupted run. `--on-inexact` decides what to do then."""

    def __init__(self, why: str, ways: str, *, is_found_late: bool = False) -> None:
        """`why` it is not exact, and the `ways` on that a person has; `is_found_late`: when the attempt had gone on."""
        super().__init__(f"{why}. {ways}")
        self.why = why
        if is_found_late:
            self.exit_status = 1


class AlreadyFinished(DetrainError):  # noqa: N818 - no mistake
    """The run has come to its end; the same command, given again, has nothing to do."""

    exit_status = 0


class OverBudget(DetrainError):  # noqa: N818 - a limit, not a mistake
    """What has to be in memory at one time is more than the memory budget; the message names the operator and the bytes."""


class PipelineError(DetrainError):
    """A pipeline cannot go on: a worker has failed or is gone."""


class RematError(DetrainError):
    """What was evicted came back with other bits; found with `--remat-verify`."""


class GraphError(DetrainError):
    """An operator graph, a log, a schedule or a budget that cannot be; the message names the place."""

    exit_status = 2

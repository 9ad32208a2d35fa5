"""What everybody in a session needs to know of the attempt: set before the script begins, and never replaced."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NoReturn

from detrain.adapters.loaded import Frameworks
from detrain.adapters.protocol import Limit, PipelineOrder
from detrain.errors import InexactResume
from detrain.job.protocol import Agreement, Alone, Member
from detrain.loops.instfile import InstInfo
from detrain.loops.position import Position
from detrain.outputs.following import OutputFiles
from detrain.session.libraries import Libraries
from detrain.session.policy import Policy
from detrain.session.replay import Replay
from detrain.store.directory import RunDirectory
from detrain.store.record import Invocation
from detrain.store.sources import SourceTexts


@dataclass(frozen=True)
class Settings:
    """What the command line of an attempt says."""

    script: Path
    script_name: str
    #: Checkpoints to keep.
    keep: int
    invocation: Invocation
    #: Number of the attempt within the run, from 1.
    attempt: int = 1
    #: The arguments or the seed are others than the last attempt's.
    is_other_invocation: bool = False
    #: What a resume does that cannot be exact: "refuse", "restart" or "trust".
    on_inexact: str = "refuse"
    #: How much memory the training may have; None for as much as it takes.
    memory_limit: Limit | None = None
    #: Over what its model is trained; None where the script does so by itself.
    pipeline: PipelineOrder | None = None
    #: No attempt has gone on with another source or other arguments.
    is_of_one_source: bool = True
    #: When the time limit is reached, by the monotonic clock. Seconds.
    ends_s: float = math.inf


@dataclass(frozen=True)
class Context:
    """The attempt as savers, resumes and proofs see it. The objects in it change; which objects they are does not."""

    settings: Settings
    directory: RunDirectory
    policy: Policy
    info: InstInfo
    frameworks: Frameworks
    files: OutputFiles
    replay: Replay
    position: Position
    #: True for the script's file and the user's modules.
    is_user_file: Callable[[str], bool]
    #: Restarts the attempt in this process; None where that is not wanted.
    start_again: Callable[[], NoReturn] | None = None
    #: Starts the run over where a resume cannot be exact, and says why; None where that is refused.
    start_over: Callable[[InexactResume], NoReturn] | None = None
    libraries: Libraries = field(default_factory=Libraries)
    #: What this process is a rank of, and the directory of that job; None if it trains alone.
    member: Member | None = None
    job: Path | None = None
    #: None where no attempt could go on with others.
    texts: SourceTexts | None = None

    @property
    def named_directory(self) -> Path:
        """The directory that a person is told: the job's, or the run's."""
        return self.job or self.directory.path

    @functools.cached_property
    def agreement(self) -> Agreement:
        """What the policy goes by."""
        return self.member.agreement if self.member is not None else Alone(self.policy.request, self.settings.ends_s)

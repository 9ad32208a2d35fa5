"""How a rank comes to its job: its own directory within the job's, and what rank 0 has decided for all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from detrain.errors import AlreadyFinished, CheckpointError, DetrainError, ResumeRefused, UsageError
from detrain.job import opening
from detrain.job.cuts import Cuts
from detrain.job.line import Hub, Spoke
from detrain.job.member import First, Other
from detrain.job.messages import Hello, Start
from detrain.job.place import Place, host, place_of
from detrain.job.protocol import Member
from detrain.job.watch import Watch
from detrain.launch.entropy import key_of_program
from detrain.launch.request import Request
from detrain.package import __version__
from detrain.store.directory import RunDirectory
from detrain.store.job import JobDirectory

#: How long the ranks of a job that has just died may take to let go of their directories. Seconds.
_LONGEST_ORPHANS_S = 15.0


def of_rank(request: Request, place: Place) -> Request:
    """The request of one rank. Raises `UsageError` for what several ranks cannot be asked for."""
    if request.trust_changes:
        raise UsageError("--trust-changes is for one process; several ranks cannot go on with other arguments yet")
    if request.on_inexact == "restart":
        raise UsageError("--on-inexact restart is for one process; start several ranks over with --fresh")
    job = os.path.abspath(request.ckpt_dir)
    if os.path.exists(os.path.join(job, "run.json")):
        raise ResumeRefused(
            f"{job} holds a run of one process, and this is rank {place.rank} of {place.size}. Choose another directory with --ckpt-dir"
        )
    directory = os.path.join(job, f"rank_{place.rank}")
    return replace(
        request, job=job, rank=place.rank, size=place.size, launcher=os.getppid(), ckpt_dir=directory, traced_in=""
    )


class Joining:
    """One rank that joins. Raises `DetrainError` where the job does not begin; on ranks other than 0 without words, as rank 0 has them."""

    def __init__(self, request: Request) -> None:
        place = place_of(os.environ)
        assert place is not None, "the launcher's variables are those of the command"
        self._request, self._place = request, place
        self._directory = RunDirectory(Path(request.ckpt_dir))
        self._job = JobDirectory(Path(request.job))
        self._decision: opening.Decision | None = None
        self._line: Hub | Spoke
        start = self._lead() if place.is_first else self._follow()
        #: The name of the checkpoint to begin at; "" for the beginning.
        self.cut = start.name

    # --- before -----------------------------------------------------------------------------------------------------------------

    def _lead(self) -> Start:
        hub = Hub(self._place)
        self._line = hub
        self._decision = opening.lead(
            self._place, hub, self._hello(), self._job.manifests, self._wish(), self._can_begin, self._prepare
        )
        self._directory.unlock()
        return self._decision.start

    def _prepare(self, start: Start) -> None:
        """Before the other ranks are told: on a disk that hosts share, this is done for all."""
        if start.aside:
            self._job.path.rename(self._job.path.with_name(start.aside))
        self._job.begin(self._place.size)

    def _follow(self) -> Start:
        spoke = Spoke(self._place, self._hello(), time.monotonic() + opening.LONGEST_WAIT_S)
        self._line = spoke
        start = opening.follow(spoke, self._place.rank, self._can_begin)
        self._directory.unlock()
        if start.refusal:
            raise Refused(start.status)
        if start.aside and self._directory.path.exists():  # on a disk of its own
            aside = self._job.path.with_name(start.aside)
            aside.mkdir(parents=True, exist_ok=True)
            self._directory.path.rename(aside / self._directory.path.name)
        if not self._job.is_there:
            self._job.begin(self._place.size)
        return start

    def _hello(self) -> Hello:
        request, trouble = self._request, ""
        try:
            self._lock()
        except (DetrainError, OSError) as error:
            trouble = str(error)
        names = tuple(path.name for path in self._directory.checkpoint_paths())
        return Hello(
            self._place.token, self._place.rank, host(), os.getpid(), __version__, request.script or request.module,
            tuple(request.arguments), request.seed, request.every, key_of_program(replace(request, rank=0)),
            str(self._directory.path), names, trouble,
        )  # fmt: skip

    def _lock(self) -> None:
        """Hold this rank's directory; ranks of a job whose launcher was killed end by themselves, which takes a moment."""
        until_s = time.monotonic() + _LONGEST_ORPHANS_S
        while True:
            try:
                return self._directory.lock()
            except ResumeRefused:
                if time.monotonic() > until_s or self._directory.holder() is None:
                    raise
            time.sleep(0.25)

    def _wish(self) -> opening.Wish:
        return opening.Wish(self._request.fresh, self._request.start or "", self._job.finished_at(), self._job.size())

    def _can_begin(self, name: str, digest: str) -> str:
        from detrain.session.resume import chain_to
        from detrain.store.checkpoint import fingerprint

        try:
            if digest and fingerprint(self._directory.path / name) != digest:
                return f"{self._directory.path / name} is not the file that was part of the cut"
            chain_to(self._directory, name)
        except (CheckpointError, OSError) as error:
            return str(error)
        return ""

    # --- from then on -----------------------------------------------------------------------------------------------------------

    def member(self, on_asked: Callable[[float], None], on_lost: Callable[[str], None]) -> Member:
        """The rank, for its session. `on_asked`: a checkpoint is asked for. `on_lost`: a peer or the launcher is gone."""
        place, watch = self._place, Watch(self._place.rank, self._request.launcher, on_lost)
        if isinstance(self._line, Hub):
            assert self._decision is not None, "rank 0 has decided"
            cuts = Cuts(self._job.manifests, self._decision.places, self._request.keep, self._decision.there)
            return First(self._line, place.size, cuts, watch, on_asked)
        return Other(self._line, place.rank, watch, [self.cut] if self.cut else [], on_asked)


class Refused(AlreadyFinished):
    """Rank 0 has said why the job does not begin."""

    def __init__(self, status: int) -> None:
        super().__init__("")
        self.exit_status = status

"""How a rank comes to its job: its own directory within the job's, and what rank 0 has decided for all."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from detrain.adapters import launchers
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
from detrain.loops import instfile
from detrain.messages import say
from detrain.package import __version__
from detrain.store.directory import RunDirectory, free_name_beside
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
    is_restarted = launchers.is_restarted(os.environ)
    is_fresh = request.fresh and not is_restarted
    if os.path.exists(os.path.join(job, "run.json")):
        said = f"{job} holds a run of one process, and this is rank {place.rank} of {place.size}."
        holder = RunDirectory(Path(job)).holder()
        if holder is not None:
            raise ResumeRefused(f"{said} It is going on, in {holder}. Choose another directory with --ckpt-dir")
        if not is_fresh:
            raise ResumeRefused(
                f"{said} Start over with --fresh (the old run is kept), or choose another directory with --ckpt-dir"
            )
    return replace(
        request, job=job, rank=place.rank, size=place.size, launcher=os.getppid(), fresh=is_fresh,
        start=None if is_restarted else request.start, ckpt_dir=os.path.join(job, f"rank_{place.rank}"), traced_in="",
    )  # fmt: skip


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
        self._start = self._lead() if place.is_first else self._follow()
        #: The name of the checkpoint to begin at; "" for the beginning.
        self.cut = self._start.name
        if self._start.forgets_loops:
            (self._directory.path / "inst.info").unlink(missing_ok=True)

    # --- before -----------------------------------------------------------------------------------------------------------------

    def _lead(self) -> Start:
        own = self._hello()  # may take a moment, in which nobody should be kept waiting at an open door
        hub = Hub(self._place)
        self._line = hub
        self._decision = opening.lead(
            self._place, hub, own, self._job.manifests, self._wish, self._can_begin, self._prepare
        )
        self._directory.unlock()
        if self._request.remote:
            from detrain.remote import together

            together.forget(self._job.path)
        return self._decision.start

    def _prepare(self, start: Start) -> None:
        """Before the other ranks are told: on a disk that hosts share, this is done for all."""
        if start.aside:
            aside = self._job.path.with_name(start.aside)
            self._job.path.rename(aside)
            say(f"starting over; the earlier job is kept in {aside} (--fresh)")
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
            kept = aside / self._directory.path.name
            self._directory.path.rename(free_name_beside(kept) if kept.exists() else kept)
        if not self._job.is_there:
            self._job.begin(self._place.size, is_of_first=False)
        return start

    def _hello(self) -> Hello:
        request, trouble, loops = self._request, "", ""
        try:
            self._lock()
            loops = self._known_loops()
        except (DetrainError, OSError) as error:
            trouble = str(error)
        names = tuple(path.name for path in self._directory.checkpoint_paths())
        return Hello(
            self._place.token, self._place.rank, host(), os.getpid(), __version__, request.script or request.module,
            tuple(request.arguments), request.seed, request.every, key_of_program(replace(request, rank=0)),
            self._options(), loops, str(self._directory.path), names, trouble,
        )  # fmt: skip

    def _options(self) -> str:
        """Those that all ranks have to be given alike, as a person gives them."""
        request = self._request
        given = {
            "--nondeterministic": request.nondeterministic,
            "--leave-files": request.leave_files,
            "--no-pickle": request.no_pickle,
            f"--on-inexact {request.on_inexact}": True,
            f"--keep {request.keep}": True,
        }
        return " ".join(name for name, is_given in given.items() if is_given)

    def _known_loops(self) -> str:
        """A digest of the loops that are known from earlier; "" if none are. Raises `DetrainError` for an inst.info that is damaged."""
        path = self._directory.path / "inst.info"
        if not path.exists():
            return ""
        script = self._request.script or "."
        nests = instfile.read(path, Path(os.path.abspath(script)).parent).nests
        return instfile.digest(repr(nests).encode()) if nests else ""

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
        if self._request.fresh:
            has_something = self._job.is_there or (self._job.path / "run.json").exists()
            return opening.Wish(is_fresh=True, has_something=has_something)
        return opening.Wish(start=self._request.start or "", finished=self._job.finished_at(), size=self._job.size())

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

    def member(self, on_asked: Callable[[float], None], on_lost: Callable[[str, bool], None]) -> Member:
        """The rank, for its session. `on_asked`: a checkpoint is asked for. `on_lost`: a peer or the launcher is gone."""
        place, watch = self._place, Watch(self._place.rank, self._request.launcher, on_lost)
        if isinstance(self._line, Hub):
            assert self._decision is not None, "rank 0 has decided"
            cuts = Cuts(self._job.manifests, self._decision.places, self._request.keep, self._decision.there)
            return First(self._line, place.size, cuts, watch, self._start.whole, on_asked, self._request.ends_s)
        return Other(self._line, watch, self._start.whole, on_asked)


class Refused(AlreadyFinished):
    """Rank 0 has said why the job does not begin."""

    def __init__(self, status: int) -> None:
        super().__init__("")
        self.exit_status = status

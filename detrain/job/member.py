"""One rank of a job while its script runs: what it tells the others, and what it hears of them.

The script's thread asks and tells; a thread of its own reads. Rank 0 collects the parts of the cuts and writes their manifests.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from detrain.job.agreement import Follower, Leader
from detrain.job.cuts import Cuts, Kept, Verdict
from detrain.job.line import Hub, Spoke
from detrain.job.messages import (
    AllEnded,
    Ask,
    Committed,
    Dropped,
    Ended,
    Explain,
    Explained,
    Leave,
    Lost,
    Message,
    OutOfStep,
    Part,
    Ready,
    Saved,
    Tick,
)
from detrain.job.replicas import Replica, Replicas, explained
from detrain.job.watch import Watch
from detrain.messages import Trouble, say, warn

#: How long a rank waits for the parts of the cut that it ends with, before it goes without. Seconds.
_LONGEST_CUT_S = 60.0
#: How long a rank whose script has ended waits for the others: one may evaluate alone meanwhile. Seconds.
LONGEST_END_S = 600.0
#: Cuts whose replicas a rank can be asked for.
_MOST_REMEMBERED = 4


class _Rank:
    """What all ranks have."""

    def __init__(self, watch: Watch, whole: Iterable[str]) -> None:
        self._watch = watch
        self._changed = threading.Condition()
        self._whole = set(whole)
        self._kept = Kept(frozenset(self._whole), 0)
        #: Of the last parts that were written.
        self._replicas: dict[str, Sequence[Replica]] = {}

    def _remember(self, name: str, replicas: Sequence[Replica]) -> None:
        self._replicas[name] = replicas
        while len(self._replicas) > _MOST_REMEMBERED:
            del self._replicas[next(iter(self._replicas))]

    def _explained(self, name: str) -> Explained:
        return explained(name, self._replicas.get(name, ()))

    @property
    def is_broken(self) -> bool:
        """See `Member`."""
        return bool(self._watch.why)

    def begins_behind(self, sequence: int) -> None:
        """See `Member`."""
        self._kept = Kept(frozenset(self._whole), sequence)

    def kept(self) -> Kept:
        """See `Member`."""
        return self._kept

    def whole(self) -> frozenset[str]:
        """See `Member`."""
        return frozenset(self._whole)

    def on_turn(self) -> None:
        """See `Listener`."""
        self._watch.turn()


class First(_Rank):
    """Rank 0."""

    def __init__(
        self,
        hub: Hub,
        size: int,
        cuts: Cuts,
        watch: Watch,
        whole: Iterable[str],
        on_asked: Callable[[float], None],
        limit_s: float = math.inf,
    ) -> None:
        """`whole`: names of all cuts that are whole. `on_asked`: a checkpoint is asked for. `limit_s`: when the time limit is reached."""
        super().__init__(watch, whole)
        self._hub, self._size, self._cuts = hub, size, cuts
        self.agreement: Leader = Leader(hub.tell_all, on_asked, self._is_busy, limit_s=limit_s)
        self._ready: set[int] = set()
        self._begun: list[str] = []
        self._when_whole: dict[str, Callable[[], None]] = {}
        self._ended: dict[int, Ended] = {}
        self._compared = Replicas(size, self._ask_all, self._on_parted)
        self._old = Trouble(
            "checkpoint-kept", "old manifest could not be deleted", "old manifests could not be deleted", "they can be"
        )
        self._trouble = Trouble("cut-not-whole", "cut was not whole", "cuts were not whole", "cuts are whole again")

    def _ask_all(self, question: Explain) -> None:
        self._hub.tell_all(question)
        self._compared.on_explained(0, self._explained(question.name))

    def _on_parted(self, what: str) -> None:
        warn(
            "replicas-differ",
            f"{what}: what the ranks should have alike has parted. Training goes on, and a resume goes on from there with the same bits",
        )

    def _is_busy(self) -> bool:
        return bool(self._begun)

    def begin(self) -> None:
        """See `Member`."""
        self._hub.begin(self)

    def begins_behind(self, sequence: int) -> None:
        """See `Member`. Manifests of another future are moved aside."""
        super().begins_behind(sequence)
        try:
            self._cuts.set_future_aside(sequence)
        except OSError as error:
            self._old.failed(error, f"manifests of another future cannot be moved aside: {error}")

    def ready(self) -> None:
        """See `Member`."""
        with self._changed:
            self._ready.add(0)
            while len(self._ready) < self._size:
                self._changed.wait(0.5)
                self._watch.leave_if_lost()
        self._hub.tell_all(Ready())

    # --- the thread that reads ---------------------------------------------------------------------------------------------------

    def on_message(self, rank: int, message: Message) -> None:
        """See `Listener`."""
        if isinstance(message, Part):
            self._add(rank, message)
        elif isinstance(message, Ask):
            self.agreement.ask(is_last=message.is_last)
        elif isinstance(message, OutOfStep):
            self.agreement.leave()
        elif isinstance(message, Explained):
            with self._changed:
                self._compared.on_explained(rank, message)
        elif isinstance(message, Ready):
            with self._changed:
                self._ready.add(rank)
                self._changed.notify_all()
        elif isinstance(message, Ended):
            with self._changed:
                self._ended[rank] = message
                self._changed.notify_all()
            if message.status:
                self._lost(rank, f"rank {rank} has ended with status {message.status}")

    def on_gone(self, rank: int) -> None:
        """See `Listener`."""
        with self._changed:
            if rank in self._ended:
                return
            self._changed.notify_all()
        self._lost(rank, f"rank {rank} is gone")

    def _lost(self, rank: int, why: str) -> None:
        self._watch.lost(why)
        self._hub.tell_all(Lost(rank, why))

    # --- cuts --------------------------------------------------------------------------------------------------------------------

    def when_whole(self, name: str, action: Callable[[], None]) -> None:
        """See `Member`."""
        self._when_whole[name] = action

    def begins(self, name: str) -> None:
        """See `Member`."""
        self._begun.append(name)

    def wrote(self, part: Part, replicas: Sequence[Replica] = ()) -> None:
        """See `Member`."""
        self._remember(part.name, replicas)
        self._add(0, part)

    def wait_for(self, name: str) -> bool:
        """See `Member`."""
        until_s = time.monotonic() + _LONGEST_CUT_S
        with self._changed:
            while name in self._begun and not self._watch.why and time.monotonic() < until_s:
                self._changed.wait(0.5)
        return name in self._whole

    def _add(self, rank: int, part: Part) -> None:
        with self._changed:
            try:
                verdict = self._cuts.add(rank, part)
            except OSError as error:
                verdict = Verdict(None, f"its manifest cannot be written: {error}")
            if verdict is not None and part.name in self._begun:
                del self._begun[: self._begun.index(part.name) + 1]  # also what some rank has passed over
            if verdict is not None and verdict.manifest is not None:
                manifest = verdict.manifest
                self._trouble.worked()
                self._remove_old_manifests()
                self._kept = Kept(frozenset(self._cuts.kept()), manifest.sequence)
                self._whole.add(part.name)
                self._when_whole.pop(part.name, lambda: None)()
                self._hub.tell_all(Committed(part.name, manifest.sequence, self._cuts.kept()))
            elif verdict is not None and verdict.trouble:
                self._kept = replace(self._kept, dropped=self._kept.dropped | {part.name})
                self._hub.tell_all(Dropped(part.name))
                self._trouble.failed(
                    OSError(verdict.trouble),
                    f"the cut {part.name} does not exist: {verdict.trouble}. Training goes on",
                )
            self._compared.add(rank, part)
            self._changed.notify_all()

    def _remove_old_manifests(self) -> None:
        try:
            self._cuts.retain()
            self._old.worked()
        except OSError as error:
            self._old.failed(error, f"an old manifest cannot be deleted: {error}. It does no harm")

    # --- the end -----------------------------------------------------------------------------------------------------------------

    def end(self, status: int, *, is_finished: bool) -> bool:
        """See `Member`."""
        until_s = time.monotonic() + LONGEST_END_S
        self._hub.tell_all(Ended(status, is_finished))
        with self._changed:
            self._ended[0] = Ended(status, is_finished)
            while len(self._ended) < self._size and not self._watch.why and status == 0 and time.monotonic() < until_s:
                self._changed.wait(0.5)
            missing = [rank for rank in range(self._size) if rank not in self._ended]
            is_whole = not missing and all(one.status == 0 and one.is_finished for one in self._ended.values())
        if status == 0 and missing and not self._watch.why:
            warn(
                "rank-not-ended",
                f"ranks {missing} had not ended {LONGEST_END_S:.0f} s after rank 0, so the job is not finished",
            )
        self._trouble.end()
        self._old.end()
        self._hub.tell_all(AllEnded(is_whole))
        return is_whole

    def close(self) -> None:
        """See `Member`."""
        self._hub.close()


class Other(_Rank):
    """Any other rank."""

    def __init__(self, spoke: Spoke, watch: Watch, whole: Iterable[str], on_asked: Callable[[float], None]) -> None:
        super().__init__(watch, whole)
        self._spoke = spoke
        self.agreement: Follower = Follower(
            lambda message: spoke.send(0, message), on_asked, self._on_out, self._on_wait
        )
        self._all_ended: AllEnded | None = None
        self._are_ready = False

    def _on_out(self, why: str) -> None:
        self._spoke.send(0, OutOfStep())
        say(
            f"warning: {why}. The ranks have unequal numbers of batches, or other loops; no more cuts are taken in this attempt, and a "
            "resume goes on from the last cut [ranks-out-of-step]"
        )

    def ready(self) -> None:
        """See `Member`."""
        self._spoke.send(0, Ready())
        with self._changed:
            while not self._are_ready:
                self._changed.wait(0.5)
                self._watch.leave_if_lost()

    def _on_wait(self) -> None:
        """Called by the script's thread while rank 0 is waited for."""
        self._watch.leave_if_lost()

    def begin(self) -> None:
        """See `Member`."""
        self._spoke.begin(self)

    def on_message(self, rank: int, message: Message) -> None:  # noqa: ARG002 - only rank 0 is heard
        """See `Listener`."""
        if isinstance(message, Tick | Saved):
            self.agreement.on_message(message)
        elif isinstance(message, Committed):
            with self._changed:
                self._kept = Kept(frozenset(message.kept), message.sequence)
                self._whole.add(message.name)
                self._changed.notify_all()
        elif isinstance(message, Dropped):
            self._kept = replace(self._kept, dropped=self._kept.dropped | {message.name})
        elif isinstance(message, Ready):
            with self._changed:
                self._are_ready = True
                self._changed.notify_all()
        elif isinstance(message, Explain):
            self._spoke.send(0, self._explained(message.name))
        elif isinstance(message, Lost):
            self._watch.lost(message.why)
        elif isinstance(message, Ended):
            if message.status:
                self._watch.lost(f"rank 0 has ended with status {message.status}")
            self.agreement.on_first_ended()
        elif isinstance(message, Leave):
            self.agreement.leave()
            self.agreement.on_first_ended()
        elif isinstance(message, AllEnded):
            with self._changed:
                self._all_ended = message
                self._changed.notify_all()

    def on_gone(self, rank: int) -> None:  # noqa: ARG002
        """See `Listener`."""
        if self._all_ended is None:
            self._watch.lost("rank 0 is gone", teller=1)
        with self._changed:
            self._changed.notify_all()

    def on_turn(self) -> None:
        """See `Listener`."""
        super().on_turn()
        self.agreement.tell_wish()

    def when_whole(self, name: str, action: Callable[[], None]) -> None:
        """See `Member`."""

    def begins(self, name: str) -> None:
        """See `Member`."""

    def wrote(self, part: Part, replicas: Sequence[Replica] = ()) -> None:
        """See `Member`."""
        self._remember(part.name, replicas)
        self._spoke.send(0, part)

    def wait_for(self, name: str) -> bool:
        """See `Member`."""
        until_s = time.monotonic() + _LONGEST_CUT_S
        with self._changed:
            while name not in self._whole and not self._watch.why and time.monotonic() < until_s:
                self._changed.wait(0.5)
        return name in self._whole

    def end(self, status: int, *, is_finished: bool) -> bool:
        """See `Member`."""
        self._spoke.send(0, Ended(status, is_finished))
        until_s = time.monotonic() + LONGEST_END_S
        with self._changed:
            while self._all_ended is None and status == 0 and not self._watch.why and time.monotonic() < until_s:
                self._changed.wait(0.5)
            return self._all_ended is not None and self._all_ended.is_finished

    def close(self) -> None:
        """See `Member`."""
        self._spoke.close()

"""The process that publishes a run, beside its training and for a while after it: `python -m detrain.remote.publish` by `starting`.

It begins before the training does: has the lease, fetches the run where the store has more of it, and says that all is ready. Then it
watches the run directory. It ends when the training has and everything is published.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from detrain.errors import CheckpointError, DetrainError, RestoreError, ResumeRefused, UsageError
from detrain.messages import Trouble, counted, say, speak_as, warn
from detrain.plans.units import size_text
from detrain.remote import beginning, lease, outputs
from detrain.remote import manifest as manifests
from detrain.remote.beginning import Base
from detrain.remote.fetch import fetch, swap
from detrain.remote.jobs import JobSnapshots
from detrain.remote.lease import Held, Lease, Lost
from detrain.remote.manifest import Identity, Manifest
from detrain.remote.objects import MissingError, Store, StoreError, open_store
from detrain.remote.runs import OfJob, Published, published
from detrain.remote.side import Side, State, is_alive, started_at
from detrain.remote.snapshot import NotNow, Snapshot, Snapshots
from detrain.remote.upload import Publisher, SomebodyElse, publish, sweep

_Result = TypeVar("_Result")
#: Of a lease, for tests and for stores that are far away. Seconds.
TERM_VARIABLE = "DETRAIN_REMOTE_LEASE_S"
#: How long the beginning of a training waits for a store that does not answer, and for an earlier publisher. Seconds.
_LONGEST_BEGIN_S = 60.0
_POLL_S = 0.25
#: How long ranks of a job that has just died may hold their directories. Seconds.
_LONGEST_ORPHANS_S = 15.0
_LONGEST_PAUSE_S = 60.0
#: After the training's end: so long without a success, and the publisher gives up. Seconds.
_GIVES_UP_S = 6 * 3600.0


class Publication:
    """One run, of a process or a job, and one store."""

    def __init__(
        self, directory: Path, store: Store, process: int = 0, command: tuple[str, tuple[str, ...]] | None = None
    ) -> None:
        """`process`: of the training; 0 where there is none. `command`: script and arguments; None where the run's may be others."""
        self._command = command
        self._directory, self._store = directory, store
        self._process, self._started = process, started_at(process) if process else ""
        self.side = Side(directory)
        self._owner = self.side.owner()
        self._term_s = term_s = float(os.environ.get(TERM_VARIABLE, lease.TERM_S))
        self._has_ended = threading.Event()
        self._lease = Lease(store, self._owner, os.uname().nodename, os.getpid(), term_s=term_s)
        self._who = Publisher(self._owner, f"{os.uname().nodename}:{directory}")
        self._current: Manifest | None = None
        #: The run that is here until the training has moved it aside to start over.
        self._before_fresh: Identity | None = None
        self._first_number, self._protected = 1, set[str]()
        self._snapshots: Snapshots | JobSnapshots | None = None
        self._published: dict[str, list[int]] = {}
        self._is_swept = self._has_lost = self._has_none_there = False
        self._trouble = Trouble(
            "remote-behind", "publication has failed", "publications have failed", f"{store.url} is published to again"
        )

    # --- before the training -----------------------------------------------------------------------------------------------------

    def begin(self, *, is_fresh: bool, may_fetch: bool = True) -> None:
        """Have the lease, and the newer of the two states in the run directory. Raises `DetrainError` where the training may not begin."""
        self._patiently(self._acquire)
        try:
            self._compare(is_fresh=is_fresh, may_fetch=may_fetch)
        except DetrainError:
            self.side_clear()  # nobody is kept from it by one that did not begin
            raise

    def _compare(self, *, is_fresh: bool, may_fetch: bool) -> None:
        self._current = self._patiently(lambda: manifests.read(self._store))
        kept = self._patiently(lambda: manifests.read_kept(self._store))
        self._protected = set[str]().union(*(manifest.objects for manifest in kept))
        if is_fresh:
            with contextlib.suppress(ResumeRefused):  # starting over is the way out of a record that cannot be read
                self._before_fresh = beginning.read_local(self._directory).run
            self._patiently(self._retire)
            return
        local = beginning.read_local(self._directory)
        base, remote = Base.decode(self.side.read_base()), self._current
        if beginning.is_to_fetch(local, base, remote, self._owner, self._directory, self._store.url):
            assert remote is not None
            if self._command is not None:
                beginning.check_command(remote, *self._command, self._store.url)
            if not may_fetch:
                raise ResumeRefused(
                    f"{self._store.url} has more of the run than {self._directory}: nothing was published"
                )
            self._patiently(lambda: self._fetch(remote))
        else:
            self._has_none_there = remote is None
            say(f"publishing the run to {self._store.url}{'' if remote else ', new there'}")

    def _acquire(self) -> None:
        """Raises `ResumeRefused` where somebody renews theirs."""
        before: lease.Terms | None = None
        while True:
            try:
                self._lease.acquire()
            except Held as held:
                if before is not None and (held.terms.expires > before.expires or held.terms.owner != before.owner):
                    raise ResumeRefused(
                        f"the run in {self._store.url} is going on: it is held by {held}. Wait for it, stop it, or give another URL"
                    ) from None
                if before is None:
                    say(f"the run in {self._store.url} is held by {held}; waiting whether that is renewed")
                before = held.terms
                time.sleep(min(5.0, max(0.2, held.terms.expires - time.time())))
                continue
            return

    def _retire(self) -> None:
        remote = self._current
        if remote is not None:
            name = manifests.retire(self._store, remote)
            self._protected |= remote.objects
            self._first_number, self._current = remote.number + 1, None
            say(f"starting over; the earlier run in {self._store.url} is kept as {name}")

    def _fetch(self, remote: Manifest) -> None:
        directory = self._directory
        count = len(remote.checkpoints)
        say(
            f"fetching the run from {self._store.url}: attempt {remote.attempts}, {counted(count, 'checkpoint')}, "
            f"{size_text(sum(stored.size for stored in remote.files.values()))}"
        )
        began_s = time.monotonic()
        done = fetch(self._store, remote, self.side.incoming, directory)
        for name, why in done.missing.items():
            warn("checkpoint-passed-over", f"{name} could not be fetched: {why}")
        swap(self.side.incoming, directory)
        self.side.write_base(Base.of(remote).encode())
        say(f"fetched {size_text(done.num_bytes)} in {time.monotonic() - began_s:.1f} s")
        if remote.is_finished:
            for part in self._run.parts():
                outputs.give_back(part)

    def _patiently(self, operation: Callable[[], _Result]) -> _Result:
        """What the store does, tried again for a while. Raises `UsageError` where it cannot be reached."""
        end_s, pause_s, has_said = time.monotonic() + _LONGEST_BEGIN_S, 0.5, False
        while True:
            try:
                return operation()
            except CheckpointError as error:
                raise ResumeRefused(str(error)) from None
            except StoreError as error:
                is_hopeless = isinstance(error, MissingError) or isinstance(
                    error.__cause__, (PermissionError, ImportError)
                )
                if is_hopeless or time.monotonic() > end_s:
                    raise UsageError(
                        f"{self._store.url} cannot be used: {error}. Nothing was started: the run may have gone on elsewhere"
                    ) from None
                if not has_said:
                    say(f"{self._store.url}: {error}; trying again for {_LONGEST_BEGIN_S:.0f} s")
                    has_said = True
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, 8.0)

    # --- beside the training -----------------------------------------------------------------------------------------------------

    @property
    def is_training(self) -> bool:
        """True while the process runs that this one was started with."""
        return bool(self._process) and is_alive(self._process, self._started)

    def watch(self, on_end: Callable[[], None] = lambda: None) -> None:
        """Publish until the training has ended and everything is published; `on_end` is called when it has."""
        renewing = threading.Thread(target=self._renew, daemon=True)
        renewing.start()
        try:
            self._watch(on_end)
        finally:
            self._has_ended.set()
            renewing.join()

    def _watch(self, on_end: Callable[[], None]) -> None:
        seen: object = None
        has_ended, last_success_s = False, time.monotonic()
        pause_s = 1.0
        while True:
            is_training = self.is_training
            if not is_training and not self._directory.exists():  # somebody has deleted the run here
                break
            if not is_training and not has_ended:
                has_ended, last_success_s = True, time.monotonic()
                on_end()
            look = self._look()
            if look != seen or not is_training:
                try:
                    self.publish_once()
                except (StoreError, OSError) as error:
                    self._failed(error)
                    if not is_training and time.monotonic() - last_success_s > _GIVES_UP_S:
                        break
                    self._wait(pause_s, is_training=is_training)
                    pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
                    continue
                except (Lost, SomebodyElse):
                    self._lose()
                    return
                except NotNow:
                    pass
                else:
                    self._trouble.worked()
                    self._write_state("")
                    self._say_first()
                pause_s, last_success_s, seen = 1.0, time.monotonic(), look
                if not is_training and self._look() == look:
                    break
            time.sleep(_POLL_S)
        self._trouble.end()
        if self._directory.exists() or self.side.path.exists():  # else it would come back without the run
            self._write_state("", is_over=True)
        self.side_clear()

    def side_clear(self) -> None:
        """Let go of lease and snapshot."""
        self._clear_snapshot()
        try:
            self._lease.release()
        except StoreError as error:
            say(f"the lease of {self._store.url} could not be given back ({error}); it expires by itself")

    @property
    def _run(self) -> Published:
        """What is there now: before the first attempt begins, nobody knows of which kind it will be."""
        return published(self._directory)

    def _take_snapshot(self) -> Snapshot:
        run = self._run
        kind = JobSnapshots if isinstance(run, OfJob) else Snapshots
        if not isinstance(self._snapshots, kind):
            self._snapshots = kind(self._directory, self.side.snapshot)
        return self._snapshots.take(is_going_on=self.is_training or run.holder() is not None)

    def _clear_snapshot(self) -> None:
        if self._snapshots is not None:
            self._snapshots.clear()

    def publish_once(self) -> Manifest:
        """Take a snapshot and publish it. Raises `NotNow`, `OSError`, `Lost` and `SomebodyElse`."""
        try:
            snapshot = self._take_snapshot()
        except (CheckpointError, RestoreError) as error:
            raise OSError(str(error)) from None
        if snapshot.run == self._before_fresh:
            raise NotNow("the training has not started over yet")
        if self._current is not None and self._current.run != snapshot.run:
            self._check()
            self._retire()  # the training has begun anew by itself
        manifest = publish(
            self._store, snapshot, self._current, self._who,
            first_number=self._first_number, protected=self._protected, check=self._check,
        )  # fmt: skip
        if manifest is not self._current:
            self._current = manifest
            self.side.write_base(Base.of(manifest).encode())
        if not self._is_swept:
            sweep(self._store, manifest, self._protected)
            self._is_swept = True
        self._published = _stats_of(snapshot)
        return manifest

    def _check(self) -> None:
        if self._has_lost:
            raise Lost
        self._lease.check()

    def _renew(self) -> None:
        """In a thread of its own, since an upload may take longer than the lease is good for."""
        while not self._has_lost and not self._has_ended.wait(min(1.0, self._term_s / 10)):
            if not self._lease.is_due:
                continue
            try:
                self._lease.renew()
            except StoreError:
                self._has_ended.wait(2.0)  # `check` says it where it matters
            except Lost:
                self._has_lost = True

    def _look(self) -> object:
        """What tells that there is something new to publish."""
        found = []
        for path in self._run.telling():
            try:
                look = path.stat()
            except OSError:
                continue
            found.append((str(path), look.st_ino, look.st_size, look.st_mtime_ns))
        return found

    def _failed(self, error: OSError) -> None:
        text = f"publishing to {self._store.url} has failed: {error}. The training goes on; it is tried again"
        self._trouble.failed(error, text)
        self._write_state(str(error))

    def _say_first(self) -> None:
        """Once, where the store had nothing of the run: until then nothing could go on from there."""
        if self._has_none_there and self._published:
            self._has_none_there = False
            say(f"the first checkpoint is in {self._store.url}: from now on the run can go on elsewhere")

    def _wait(self, pause_s: float, *, is_training: bool) -> None:
        end_s = time.monotonic() + pause_s
        while time.monotonic() < end_s and (not is_training or self.is_training):
            time.sleep(_POLL_S)

    def _lose(self) -> None:
        text = (
            f"{self._store.url} has been taken over by another machine, as this one was not heard of for too long: nothing more is "
            "published from here. The run in this directory and the one in the store part from now on"
        )
        warn("remote-lost", text)
        self._write_state(text, is_over=True)
        self._clear_snapshot()

    def _write_state(self, trouble: str, *, is_over: bool = False) -> None:
        self.side.write_state(State(os.getpid(), self._published, trouble, is_over))


def _stats_of(snapshot: Snapshot) -> dict[str, list[int]]:
    found = {}
    for item in snapshot.items:
        if item.name in snapshot.checkpoints:
            look = item.path.stat()
            found[item.name] = [look.st_ino, look.st_size, look.st_mtime_ns]
    return found


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("directory", type=Path)
    parser.add_argument("url")
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--answer", type=int, required=True)
    parser.add_argument("--command", default="")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--quiet", action="store_true")
    given = parser.parse_args()
    speak_as(0, is_quiet=given.quiet)
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        # A terminal's and a scheduler's are for the training, and what it then leaves is to be published.
        signal.signal(number, signal.SIG_IGN)

    def answer(**document: object) -> None:
        try:
            os.write(given.answer, json.dumps(document).encode() + b"\n")
        except BrokenPipeError:
            sys.exit(1)  # whoever has started this is gone

    answer(process=os.getpid())
    try:
        publication, has_begun = _begin(given.directory, given.url, given.process, given.command, is_fresh=given.fresh)
    except DetrainError as error:
        answer(error=str(error), status=error.exit_status)
        sys.exit(error.exit_status)
    answer(ready=True)
    os.close(given.answer)
    if publication is None:
        return
    if not has_begun:
        publication.side.lock(float("inf"))
        try:
            publication.begin(is_fresh=False)
        except DetrainError as error:
            warn("remote-lost", f"nothing of this attempt is published: {error}")
            publication.side.write_state(State(os.getpid(), {}, str(error), is_over=True))
            return
    publication.watch(lambda: _write_to(publication.side.log))


def _begin(directory: Path, url: str, process: int, command: str, *, is_fresh: bool) -> tuple[Publication | None, bool]:
    """None where the attempt will be refused; and False where an earlier attempt is still being published, which has to end first."""
    store = open_store(url)
    run = published(directory)
    if _stays_held(run):
        return None, False
    words = json.loads(command) if command else None
    publication = Publication(directory, store, process, (words[0], tuple(words[1])) if words else None)
    if not publication.side.lock(2.0):
        has_run = directory.is_dir() and bool(run.resumable() or run.finished_at())
        if has_run and not is_fresh:
            return publication, False  # it is the newest there is, and this machine's
        say(f"an earlier attempt is still being published to {url}; waiting up to {_LONGEST_BEGIN_S:.0f} s")
        if not publication.side.lock(_LONGEST_BEGIN_S):
            raise ResumeRefused(
                f"an earlier attempt is still being published to {url}: try again later, or give another URL"
            )
    publication.side.write_state(State(os.getpid()))
    shutil.rmtree(publication.side.incoming, ignore_errors=True)
    publication.begin(is_fresh=is_fresh)
    return publication, True


def _stays_held(run: Published) -> bool:
    """True where another attempt goes on. Ranks whose launcher was killed end by themselves, which takes a moment."""
    end_s = time.monotonic() + (_LONGEST_ORPHANS_S if isinstance(run, OfJob) else 0.0)
    while run.holder() is not None:
        if time.monotonic() >= end_s:
            return True
        time.sleep(_POLL_S)
    return False


def _write_to(log: Path) -> None:
    """Nobody reads the training's standard error any more; and who waits for its end is to be let go."""
    try:
        target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    except FileNotFoundError:  # deleted, with the run
        target = os.open(os.devnull, os.O_WRONLY)
    os.dup2(target, 2)
    os.dup2(target, 1)
    os.close(target)

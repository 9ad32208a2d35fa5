"""The processes of a job's ranks: their lines are logged and shown, signals are passed on, and when one fails the others end."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Sequence
from pathlib import Path

from detrain.errors import UsageError
from detrain.launch.driving import PROCESS_LINE, SSH_FAILED, RankCommand
from detrain.launch.supervising import end_with_parent
from detrain.messages import say

#: After the first rank that has failed the others may end by themselves, which shows who was first. Seconds.
_OWN_END_S = 1.0
#: And so long they have after a SIGTERM; then they are killed. Seconds.
GRACE_S = 10.0
#: How long a signal may take to another host. Seconds.
_SENDING_S = 3.0
_TURN_S = 0.1
_PIECE_BYTES = 1 << 16
#: Lines of a failed rank's log that are shown.
_NUM_TAIL = 12
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class RankProcess:
    """One rank: its process here, which is ssh's where it runs on another host, and its log."""

    def __init__(self, command: RankCommand, log: Path, show: Callable[[str], None]) -> None:
        """`show` is given each whole line, without its end. Raises `OSError` where the process or the log cannot be."""
        self.command, self.log, self._show = command, log, show
        self._file = open(log, "wb", buffering=0)  # noqa: SIM115 - as long as the rank
        self._is_log_broken = False
        self._process = subprocess.Popen(
            command.words, env=command.environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            start_new_session=True, preexec_fn=end_with_parent,
        )  # fmt: skip
        assert self._process.stdout is not None
        self.output = self._process.stdout
        os.set_blocking(self.output.fileno(), False)
        #: True until no more lines will come.
        self.is_open = True
        self._unfinished = b""
        self._number_there: int | None = None
        self._told: int | None = None
        #: Started to send a signal to a process on another host.
        self._senders: list[subprocess.Popen[bytes]] = []
        self.status: int | None = None

    def read(self) -> None:
        """Log and show what has come."""
        while self.is_open:
            try:
                piece = os.read(self.output.fileno(), _PIECE_BYTES)
            except BlockingIOError:
                return
            self.is_open = bool(piece)
            *lines, self._unfinished = (self._unfinished + piece).split(b"\n")
            for line in lines:
                self._take(line + b"\n")
            if self._unfinished and (len(self._unfinished) > _PIECE_BYTES or not self.is_open):
                self._take(self._unfinished)
                self._unfinished = b""

    def _take(self, line: bytes) -> None:
        text = line.decode(errors="replace").rstrip("\r\n")
        if (
            self.command.reach
            and self._number_there is None
            and text.startswith(f"{PROCESS_LINE} {self.command.run_id} ")
        ):
            number = text.rpartition(" ")[2]
            self._number_there = int(number) if number.isdigit() else None
            if self._told is not None:  # before the process was known
                self.send(self._told)
            return
        try:
            self._file.write(line)
        except OSError as error:
            if not self._is_log_broken:
                self._is_log_broken = True
                say(f"{self.log} cannot be written: {error}; the ranks go on")
        self._show(text.rpartition("\r")[2])

    def has_ended(self) -> bool:
        """True if the process has ended, with `status`: minus the signal that has killed it."""
        if self.status is None:
            self.status = self._process.poll()
        return self.status is not None

    def finish(self) -> None:
        """Behind its end: what it has written last. A process that it has left behind may still write, to nobody."""
        self.read()
        if self._unfinished:
            self._take(self._unfinished)
        self.output.close()
        self._file.close()
        self.is_open = False
        self.wait_for_senders(time.monotonic() + 0.5)

    def wait_for_senders(self, until_s: float) -> None:
        """Until signals have been sent to another host."""
        for sender in self._senders:
            with contextlib.suppress(subprocess.TimeoutExpired):
                sender.wait(timeout=max(until_s - time.monotonic(), 0.0))

    def send(self, number: int) -> None:
        """Send a signal to the rank's process, wherever it runs; on another host its connection goes on."""
        if self.has_ended():
            return
        if not self.command.reach:
            self._process.send_signal(number)
            return
        self._told = number
        if self._number_there is not None:
            words = self.command.kill_words(self._number_there, number)
            null = subprocess.DEVNULL
            self._senders.append(
                subprocess.Popen(words, stdin=null, stdout=null, stderr=null, preexec_fn=end_with_parent)
            )

    def kill(self) -> None:
        """End the process and all that it has started here. A rank on another host ends with its connection."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def tail(self) -> list[str]:
        """The last lines of the log."""
        return self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-_NUM_TAIL:]


class RankProcesses:
    """All ranks of a job, until all have ended."""

    def __init__(self, commands: Sequence[RankCommand], folder: Path, *, is_quiet: bool = False) -> None:
        """`folder` gets the logs. `is_quiet`: the ranks' lines are in the logs only."""
        self._commands, self._folder, self._is_quiet = commands, folder, is_quiet
        self._ranks: list[RankProcess] = []
        #: Signals that this process has got and not passed on, and the first of all.
        self._signals: list[int] = []
        self._told = 0
        #: Those that failed before they were told to end, in order; and since when the others should end, too.
        self._failed: list[RankProcess] = []
        self._ending_s: float | None = None
        self._is_terminated = False

    def run(self) -> int:
        """Start the ranks and wait for them. Returns the exit status: 0, that of the rank that failed first, or 128 + a signal."""
        listened = [number for number in _SIGNALS if signal.getsignal(number) is not signal.SIG_IGN]
        before = {number: signal.signal(number, self._on_signal) for number in listened}
        try:
            for command in self._commands:
                self._start(command)
            self._wait()
        finally:
            for rank in self._ranks:
                if not rank.has_ended():
                    rank.kill()
            for number, handler in before.items():
                signal.signal(number, handler)
        return self._verdict()

    def _start(self, command: RankCommand) -> None:
        log = self._folder / f"rank_{command.rank}.log"
        try:
            self._ranks.append(RankProcess(command, log, self._shower(command.rank)))
        except OSError as error:
            raise UsageError(f"rank {command.rank} on {command.place} cannot be started: {error}") from None

    def _on_signal(self, number: int, _frame: types.FrameType | None) -> None:
        self._signals.append(number)

    def _shower(self, rank: int) -> Callable[[str], None]:
        def show(line: str) -> None:
            if self._is_quiet:
                return
            try:
                sys.stdout.write(f"rank {rank}: {line}\n")
                sys.stdout.flush()
            except OSError:  # nobody reads any more
                self._is_quiet = True

        return show

    def _wait(self) -> None:
        going = list(self._ranks)
        while going:
            outputs = [rank.output for rank in going if rank.is_open]
            select.select(outputs, [], [], _TURN_S)
            for rank in going:
                rank.read()
            self._pass_on(going)
            for rank in [rank for rank in going if rank.has_ended()]:
                going.remove(rank)
                self._on_end(rank)
            self._end(going)

    def _pass_on(self, going: Sequence[RankProcess]) -> None:
        """A rank writes a checkpoint at a SIGTERM, and ends; at a second one it does not wait for it.

        At this process's SIGINT and SIGHUP, too: by those the ranks would end without one.
        """
        while self._signals:
            number = self._signals.pop(0)
            if self._told and self._ending_s is None:
                self._ending_s = time.monotonic()
            self._told = self._told or number
            say(f"{signal.Signals(number).name}: {len(going)} ranks are told to write a checkpoint and to end")
            self._tell(going)

    def _tell(self, going: Sequence[RankProcess]) -> None:
        """Send SIGTERM. To other hosts the way is longer: ranks here are told when it has come there, lest they end long before."""
        for rank in going:
            if rank.command.reach:
                rank.send(signal.SIGTERM)
        until_s = time.monotonic() + _SENDING_S
        for rank in going:
            rank.wait_for_senders(until_s)
        for rank in going:
            if not rank.command.reach:
                rank.send(signal.SIGTERM)

    def _on_end(self, rank: RankProcess) -> None:
        rank.finish()
        if rank.status:
            rank.kill()  # what it has started and left behind
        if rank.status and not self._is_terminated:
            self._failed.append(rank)
        if self._ending_s is None and (rank.status or self._told):
            self._ending_s = time.monotonic()

    def _end(self, going: Sequence[RankProcess]) -> None:
        """No rank goes on without the others: first they may end by themselves, then they are told to, then killed."""
        if self._ending_s is None:
            return
        past_s = time.monotonic() - self._ending_s - (GRACE_S if self._told else _OWN_END_S)
        if past_s > GRACE_S:
            for rank in going:
                rank.kill()
        elif past_s > 0 and not self._is_terminated:
            self._is_terminated = True
            self._tell(going)

    def _verdict(self) -> int:
        if not self._failed:
            say(f"all {len(self._ranks)} ranks have ended; their logs are in {self._folder}")
            return 0
        if self._told:
            say(f"all ranks have ended, and the same command resumes; their logs are in {self._folder}")
            statuses = [
                rank.status for rank in self._failed if rank.status and rank.status > 0 and not rank.command.reach
            ]
            return statuses[0] if statuses else 128 + self._told
        # A rank whose peer is gone ends, too, and may be noticed first; one that has said nothing follows another.
        first = min(self._failed, key=lambda rank: ((rank.status or 0) > 0, not rank.tail()))
        tail = "".join(f"\n    {line}" for line in first.tail())
        say(
            f"error: rank {first.command.rank} on {first.command.place} {_how(first)}, and the other ranks were ended{_resuming(first)}. "
            f"The end of {first.log}:{tail}"
        )
        return _exit_status(first)


def _exit_status(rank: RankProcess) -> int:
    status = rank.status or 0
    return 128 - status if status < 0 else status


def _how(rank: RankProcess) -> str:
    status = rank.status or 0
    if status < 0:
        return f"was killed by {signal.Signals(-status).name}"
    if status == SSH_FAILED and rank.command.reach:
        return f"ended with status {status} (ssh's own: the host cannot be reached, refuses the login, or was lost)"
    return f"ended with status {status}"


def _resuming(rank: RankProcess) -> str:
    """Nothing where the script or detrain itself has failed: the same command would fail again."""
    is_from_outside = (rank.status or 0) < 0 or (rank.status == SSH_FAILED and rank.command.reach)
    return "; the same command resumes" if is_from_outside else ""

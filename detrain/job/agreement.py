"""One policy for all ranks: each runs the same code on the same counts, and on rank 0's clock.

Rank 0 samples its clock at some headers and publishes what it read, to be used from a later header on, before it enters the iteration in
between. Until that header every rank compares integers and asks nobody. So all policies say yes at the same headers, whatever they count
or measure, and no collective is added to the script's own.

A header's number is how many headers of the training's loops the run has passed; it is the same on all ranks, as their loops are. A resume
jumps ahead to its checkpoint's: what was published for the headers between does not hold there, and rank 0's clock is read anew.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TypeVar

from detrain.job.messages import Ask, Leave, Message, Saved, Tick

#: Rank 0 publishes about so often, or once a batch where that takes longer: what it costs the script's thread of each rank (some 0.2 ms)
#: stays under half a percent. Seconds.
PERIOD_S = 0.1
#: Of a loop that is passed quickly, it publishes after so many headers: so soon decisions are made again where its batches become slow.
MOST_HEADERS = 512
#: A rank that hears nothing from a living rank 0 for so long is at another place of the script. As long as gloo waits in a collective:
#: rank 0 may evaluate alone meanwhile. Seconds.
LONGEST_WAIT_S = 1800.0
_TURN_S = 0.5
_M = TypeVar("_M", Tick, Saved)


class Leader:
    """Rank 0."""

    is_alone, ends_s = False, math.inf

    def __init__(
        self,
        tell_all: Callable[[Message], None],
        on_asked: Callable[[float], None],
        is_busy: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
        limit_s: float = math.inf,
    ) -> None:
        """`on_asked`: a checkpoint is asked for, at this time of rank 0's. `is_busy`: a rank is writing one.

        `limit_s`: when the time limit is reached, by this clock.
        """
        self._limit_s, self._wants_last, self.is_last = limit_s, False, False
        self._tell_all, self._on_asked, self._is_busy, self._clock = tell_all, on_asked, is_busy, clock
        self._wants = False
        self._now: Tick | None = None
        self._next: Tick | None = None
        self._last_s = 0.0
        self._num_jumps = 0
        self.is_out = False

    @property
    def until(self) -> float:
        """See `Agreement`."""
        if self.is_out:
            return math.inf
        return self._now.until if self._now is not None else -math.inf

    def leave(self) -> None:
        """See `Agreement`."""
        self.is_out = True
        self._tell_all(Leave())

    def is_writing(self, own: bool) -> bool:  # noqa: ARG002 - what this rank does the others do not know
        """See `Agreement`."""
        return self._now is not None and self._now.is_writing

    def now_s(self, header: int) -> float:
        """See `Agreement`."""
        if self.is_out:
            return self._clock()
        if self._now is None:
            self._now = Tick(header, header + 1, self._clock(), num_jumps=self._num_jumps)
            self._tell_all(self._now)
            self._publish(1)
        while header >= self._now.until:
            num_headers = header - self._now.header
            assert self._next is not None
            self._now = self._next
            self._publish(num_headers)
            if self._now.is_asked:
                self.is_last = self.is_last or self._now.is_last
                self._on_asked(self._now.now_s)
        return self._now.now_s

    def _publish(self, num_headers: int) -> None:
        """The tick that follows the present one. `num_headers` have been passed since the last was published."""
        assert self._now is not None
        now_s = self._clock()
        each_s = max((now_s - self._last_s) / max(num_headers, 1), 1e-7)
        self._last_s = now_s
        num_next = max(1, min(int(PERIOD_S / each_s), 2 * num_headers, MOST_HEADERS))
        if now_s >= self._limit_s and not self._wants_last:
            self._wants = self._wants_last = True
        wants, self._wants = self._wants, False
        self._next = Tick(
            self._now.until,
            self._now.until + num_next,
            now_s,
            wants,
            self._is_busy(),
            self._wants_last,
            self._num_jumps,
        )
        self._tell_all(self._next)

    def jump(self) -> None:
        """See `Agreement`."""
        # What was asked for in a tick that comes into force nowhere is asked for again.
        self._wants = self._wants or (self._next is not None and self._next.is_asked)
        self._now = self._next = None
        self._num_jumps += 1

    def ask(self, *, is_last: bool = False) -> None:
        """See `Agreement`; also called where another rank asks."""
        self._wants_last = self._wants_last or is_last
        self._wants = True

    def saved(self, name: str, cost_s: float) -> tuple[float, float]:
        """See `Agreement`."""
        message = Saved(name, self._clock(), cost_s)
        self._tell_all(message)
        return message.now_s, message.cost_s


class Follower:
    """Any other rank."""

    is_alone, ends_s = False, math.inf

    def __init__(
        self,
        tell: Callable[[Message], None],
        on_asked: Callable[[float], None],
        on_out: Callable[[str], None],
        on_wait: Callable[[], None],
    ) -> None:
        """`on_out` is told why this rank is out of step. `on_wait` is called while rank 0 is waited for: ends the process if it is gone."""
        self._tell, self._on_asked, self._on_out, self._on_wait = tell, on_asked, on_out, on_wait
        self._wants = self._wants_last = self.is_last = False
        self._now: Tick | None = None
        self._ticks: deque[Tick] = deque()
        self._saved: deque[Saved] = deque()
        self._heard = threading.Condition()
        self._has_ended = False
        self._num_jumps = 0
        self.is_out = False

    @property
    def until(self) -> float:
        """See `Agreement`."""
        if self.is_out:
            return math.inf
        return self._now.until if self._now is not None else -math.inf

    def is_writing(self, own: bool) -> bool:  # noqa: ARG002
        """See `Agreement`."""
        return self._now is not None and self._now.is_writing

    def on_message(self, message: Tick | Saved) -> None:
        """Rank 0 has published; called by the thread that reads."""
        with self._heard:
            (self._ticks if isinstance(message, Tick) else self._saved).append(message)  # type: ignore[arg-type]
            self._heard.notify()

    def leave(self) -> None:
        """See `Agreement`."""
        self.is_out = True

    def on_first_ended(self) -> None:
        """Nothing more is published: rank 0's script has ended, or it has left."""
        with self._heard:
            self._has_ended = True
            self._heard.notify()

    def now_s(self, header: int) -> float:
        """See `Agreement`."""
        self.tell_wish()
        while not self.is_out and header >= self.until:
            tick = self._take(self._ticks)
            if tick is None:
                self._leave(f"rank 0 has told nothing for header {header}")
            elif tick.num_jumps < self._num_jumps:
                continue  # of before
            elif tick.num_jumps > self._num_jumps:
                self._leave(f"rank 0 has come to a checkpoint, this rank not, at header {header}")
            elif tick.header > header or (self._now is None and tick.header != header):
                self._leave(f"rank 0 is at header {tick.header}, this rank at {header}")
            else:
                self._now = tick
                if tick.is_asked:
                    self.is_last = self.is_last or tick.is_last
                    self._on_asked(tick.now_s)
        return self._now.now_s if self._now is not None else 0.0

    def ask(self, *, is_last: bool = False) -> None:
        """See `Agreement`; told later, since a handler may have interrupted the telling of something else."""
        self._wants_last = self._wants_last or is_last
        self._wants = True

    def jump(self) -> None:
        """See `Agreement`."""
        self._now = None
        self._num_jumps += 1

    def tell_wish(self) -> None:
        """Tell rank 0 if a checkpoint has been asked for here."""
        if self._wants:
            self._wants = False
            self._tell(Ask(self._wants_last))

    def saved(self, name: str, cost_s: float) -> tuple[float, float]:
        """See `Agreement`."""
        message = None if self.is_out else self._take(self._saved)
        if message is not None and message.name == name:
            return message.now_s, message.cost_s
        if not self.is_out:
            self._leave(f"rank 0 has saved {message.name if message else 'nothing'}, this rank {name}")
        return (self._now.now_s if self._now is not None else 0.0), cost_s

    def _take(self, queue: deque[_M]) -> _M | None:
        until_s = time.monotonic() + LONGEST_WAIT_S
        while time.monotonic() < until_s:
            with self._heard:
                if queue:
                    return queue.popleft()
                if self._has_ended:
                    return None
                self._heard.wait(_TURN_S)
            self._on_wait()
        return None

    def _leave(self, why: str) -> None:
        if not self.is_out:
            self.is_out = True
            self._on_out(why)
